"""The grammar of file names: what the file store says of a message in the name of its file.

    name   = base [~a<attempt> [~r] [~d<due>] [lease | retried | settled]] extension
    base   = <100-priority>-<due ms>-<id> [~g<group>.<stamp>] [~t<target>] [~x<expiry>] (~c<crc32> | ~f<crc32>)   native
           | <stem of the application's own choice, without ~>                                                    plain
    lease  = ~l<token>.<boot id>.<deadline ms on the boot clock>
    retried = ~k<token of the last lease>        settled = ~s<settled ms>.<token of the last lease>

Instants after the stem are hexadecimal, groups and targets are hashes, so that the longest name, with an id of 128
characters and `.why` after it, fits in the 255 bytes of a directory entry. `~c` is the checksum of a document that the
store wrote itself, `~f` that of one it found. What its document says of expiry no longer counts once a message was
revived: a native name has lost its `~x` then, and a plain one has `~r`. A name that is none of these is foreign.
"""

import hashlib
import math
import os
import re
from base64 import b32encode
from functools import lru_cache
from typing import NamedTuple

from pabal.message import Message

LAST_DUE = 10**13 - 1
ID_PLACE = 18  # where the id begins in a native name
_TOKEN, _BOOT, _HASH, _HEX = r"[0-9A-Za-z_-]{1,16}", r"[0-9A-Za-z_-]{1,8}", r"[0-9a-z]{8}", r"[0-9a-f]{1,13}"
_MOVING = (
    rf"(?:~a(\d{{1,7}})(~r)?(?:~d({_HEX}))?"
    rf"(?:~l({_TOKEN})\.({_BOOT})\.({_HEX})|~k({_TOKEN})|~s({_HEX})\.({_TOKEN}))?)?"
)
_NATIVE = (
    r"((\d{3})-(\d{13})-([A-Za-z0-9_][A-Za-z0-9_:.-]{0,127})"
    rf"(?:~g({_HASH})\.({_HEX}))?(?:~t({_HASH}))?(?:~x({_HEX}))?~([cf])([0-9a-f]{{8}}))"
)
# By far the most common, and so worth a shorter way.
_SIMPLE = r"((\d{3})-(\d{13})-([A-Za-z0-9_][A-Za-z0-9_:.-]{0,127})~c([0-9a-f]{8}))"
_UNMARKED = r"\d{3}-\d{13}-[A-Za-z0-9_][A-Za-z0-9_:.-]{0,127}~[cf][0-9a-f]{8}(?:~a\d{1,7}~k[^~]+)?"
_NO_TEXT = re.compile("[\ud800-\udfff]").search  # how bytes that are not UTF-8 show in a name
_LONGEST_STEM = 150  # of a plain name, in bytes: leaves room for what the store adds


class Slot(NamedTuple):
    """A file's name, taken apart. Of a plain name only the stem and the moving part are known."""

    base: str
    id: str  # the stem, if plain
    extension: str
    priority: int = 0
    due: int = 0
    group: str = ""
    stamp: int = 0
    target: str = ""
    expires: int = 0
    own: bool = False  # the store wrote the document itself
    crc: int = -1
    attempt: int = 0
    token: str = ""  # of the lease that holds it, or of the last one that did
    boot: str = ""
    deadline: int = 0
    settled: int = 0
    revived: bool = False  # of a plain name: a native one has no expiry then

    @property
    def leased(self) -> bool:
        return self.boot != ""


class Names:
    """The grammar of one layout: native or plain names with the extension of its codec."""

    def __init__(self, *, native: bool, extension: str) -> None:
        self.native = native
        self.extension = extension
        base = _NATIVE if native else r"(([^~]+))"
        self._match = re.compile(base + _MOVING, re.ASCII | re.DOTALL).fullmatch
        self._simple = re.compile(_SIMPLE + re.escape(extension), re.ASCII).fullmatch
        self._unmarked = re.compile(_UNMARKED + re.escape(extension), re.ASCII).fullmatch

    def is_simple(self, name: str) -> bool:
        """Say whether a native name has neither group nor target nor expiry: then the name itself is all there is."""
        return self.native and self._unmarked(name) is not None

    def parse(self, name: str) -> Slot | None:
        """Take a name apart; None if it is foreign."""
        if self.native and (simple := self._simple(name)):
            base, rank, due, id, crc = simple.groups()
            return Slot(base, id, self.extension, 100 - int(rank), int(due), "", 0, "", 0, True, int(crc, 16))
        ends = name.endswith(self.extension)
        found = self._match(name[: -len(self.extension)] if ends else name)
        if found is None or (self.native and not ends):
            return None
        extension = self.extension if ends else ""
        *of_base, attempt, revived, due, token, boot, deadline, last, settled, by = found.groups()
        moving = (
            int(attempt or 0),
            token or last or by or "",
            boot or "",
            int(deadline or "0", 16),
            int(settled or "0", 16),
            revived is not None,
        )
        if not self.native:
            if not _is_plain(of_base[0]):
                return None
            return Slot(of_base[0], of_base[1], extension, 0, int(due or "0", 16), "", 0, "", 0, False, -1, *moving)
        base, rank, when, id, group, stamp, target, expires, kind, crc = of_base
        return Slot(
            base,
            id,
            extension,
            100 - int(rank),
            int(when),
            group or "",
            int(stamp or "0", 16),
            target or "",
            int(expires or "0", 16),
            kind == "c",
            int(crc, 16),
            *moving,
        )

    def leased(self, slot: Slot, attempt: int, term: str) -> str:
        """Name a message that is held under `term`: token, boot id and deadline."""
        revived = "~r" if slot.revived else ""
        due = f"~d{slot.due:x}" if slot.due and not self.native else ""
        return f"{slot.base}~a{attempt}{revived}{due}~l{term}{slot.extension}"

    def waiting(self, leased: str, due: int) -> str:
        """Name a message that comes back at `due`, after the lease that its name shows."""
        kept, token, extension = self._cut(leased)
        if self.native:
            return f"{kept[:4]}{min(due, LAST_DUE):013}{kept[17:]}~k{token}{extension}"
        return f"{kept.partition('~d')[0]}~d{due:x}~k{token}{extension}"

    def settled(self, leased: str, at: int) -> str:
        """Name a message that is done or dead, after the lease that its name shows."""
        kept, token, extension = self._cut(leased)
        return f"{kept}~s{at:x}.{token}{extension}"

    def _cut(self, leased: str) -> tuple[str, str, str]:
        """Return what stands before the lease, its token, and the extension."""
        start = leased.rindex("~l")
        token = leased[start + 2 : leased.index(".", start)]
        return leased[:start], token, self.extension if leased.endswith(self.extension) else ""

    def revived(self, slot: Slot, due: int, stamp: int) -> str:
        """Name a dead message that is ready again, at the end of its group and with no end to its life."""
        if not self.native:
            return f"{slot.base}~a0~r~d{due:x}{slot.extension}"
        return f"{self._restamped(slot._replace(expires=0), due, stamp)}{slot.extension}"

    def stamped(self, slot: Slot, stamp: int) -> str:
        """Name a message of a group that takes its place in the order of publishing."""
        return f"{self._restamped(slot, slot.due, stamp)}{slot.extension}"

    def _restamped(self, slot: Slot, due: int, stamp: int) -> str:
        flags = f"~g{slot.group}.{stamp:x}" if slot.group else ""
        flags += f"~t{slot.target}" if slot.target else ""
        flags += f"~x{slot.expires:x}" if slot.expires else ""
        kind = "c" if slot.own else "f"
        return f"{slot.base[:4]}{min(due, LAST_DUE):013}-{slot.id}{flags}~{kind}{slot.crc:08x}"


def native_base(message: Message, id: str, due: int, *, stamp: int, crc: int, own: bool) -> str:
    """Build the part of a native name that stays with the message until it is retried."""
    flags = f"~g{digest(message.group)}.{stamp:x}" if message.group else ""
    if message.target:
        flags += f"~t{digest(message.target)}"
    if message.expires_at is not None:
        flags += f"~x{ceiled(message.expires_at):x}"
    return f"{100 - message.priority:03}-{min(due, LAST_DUE):013}-{id}{flags}~{'c' if own else 'f'}{crc:08x}"


def floored(seconds: float) -> int:
    """Return an instant that has come, in milliseconds. The odd microsecond is the error of a float."""
    return max(0, int(seconds * 1000 + 0.001))


def ceiled(seconds: float) -> int:
    """Return an instant to come, in milliseconds: never early."""
    return max(0, math.ceil(seconds * 1000 - 0.001))


@lru_cache(maxsize=4096)
def digest(text: str, size: int = 8) -> str:
    """Return a hash of any text that is short enough for a file name."""
    return b32encode(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest())[:size].decode("ascii").lower()


def tokened(token: str) -> str:
    """Return a token as it stands in names: itself if it fits there, else its hash."""
    return token if len(token) <= 16 and token.isalnum() and token.isascii() else digest(token, 16)


@lru_cache(maxsize=16)
def booted(boot_id: str) -> str:
    """Return a boot id as it stands in names."""
    return boot_id if re.fullmatch(_BOOT, boot_id) else digest(boot_id)


def plain_stem(text: str) -> str:
    """Return a stem that plain names can hold: real text, no `~`, and room for what the store adds."""
    return fitting(text.replace("~", "-"))


def fitting(name: str) -> str:
    """Return a name as it is if it is real text and leaves room for what is added, else its beginning and its hash."""
    if _is_plain(name):
        return name
    text = os.fsencode(name)[:40].decode("utf-8", "ignore").lstrip(".")  # a name with a dot before it would be hidden
    return f"{text}-{digest(name, 16)}"


def _is_plain(stem: str) -> bool:
    # Bytes that are no text could not be written into the plan of a settlement.
    return len(os.fsencode(stem)) <= _LONGEST_STEM and not _NO_TEXT(stem)
