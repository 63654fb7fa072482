"""The grammar of file names: the store keeps the state of a message in the name of its file.

    name   = base [~a<attempt> [~r] [~d<due>] [lease | retried | settled]] extension
    base   = <100-priority>-<due ms>-<id> [~g<group>.<stamp>] [~t<target>] [~x<expiry>] (~c<crc32> | ~f<crc32>)   native
           | <stem of the application's own choice, without ~>                                                    plain
    lease  = ~l<token>.<boot id>.<deadline ms on the boot clock>
    retried = ~k<token of the last lease>        settled = ~s<settled ms>.<token of the last lease>

Instants after the stem are hexadecimal, groups and targets are hashes: so the longest name, with an id of 128
characters and `.why` after it, fits in the 255 bytes of a directory entry. `~c` is the checksum of a document that the
store wrote itself, `~f` that of one that it found. A revived message no longer expires, whatever its document says: its
native name has no `~x`, its plain name has `~r`. A name that does not follow this grammar is foreign.
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
LAST_STAMP = 16**13 - 16**10  # of a group, in microseconds: above it a name is damaged
LAST_CLOCK_STAMP = LAST_STAMP - 16**10  # in the year 2112: a clock beyond it only counts on from the last stamp
ID_PLACE = 18  # the position of the id in a native name
_TOKEN, _BOOT, _HASH, _HEX = r"[0-9A-Za-z_-]{1,16}", r"[0-9A-Za-z_-]{1,8}", r"[0-9a-z]{8}", r"[0-9a-f]{1,13}"
_MOVING = (
    rf"(?:~a(\d{{1,7}})(~r)?(?:~d({_HEX}))?"
    rf"(?:~l({_TOKEN})\.({_BOOT})\.({_HEX})|~k({_TOKEN})|~s({_HEX})\.({_TOKEN}))?)?"
)
_NATIVE = (
    r"((\d{3})-(\d{13})-([A-Za-z0-9_][A-Za-z0-9_:.-]{0,127})"
    rf"(?:~g({_HASH})\.({_HEX}))?(?:~t({_HASH}))?(?:~x({_HEX}))?~([cf])([0-9a-f]{{8}}))"
)
# By far the most common names: they are matched by simpler expressions.
_SIMPLE = r"((\d{3})-(\d{13})-([A-Za-z0-9_][A-Za-z0-9_:.-]{0,127})~c([0-9a-f]{8}))"
_UNMARKED = r"\d{3}-\d{13}-[A-Za-z0-9_][A-Za-z0-9_:.-]{0,127}~[cf][0-9a-f]{8}(?:~a\d{1,7}~k[^~]+)?"
_INSTANTS = re.compile(rf"(?:~d|~s|~l{_TOKEN}\.{_BOOT}\.)({_HEX})", re.ASCII).finditer
_STAMPED = re.compile(rf"~g{_HASH}\.({_HEX})~", re.ASCII).search
_HELD = re.compile(rf"~(?:[lk]|s{_HEX}\.)({_TOKEN})", re.ASCII).search
_PORTABLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*").fullmatch
_LONGEST_STEM = 150  # of a plain name, in bytes: leaves room for the marks of the store


class Slot(NamedTuple):
    """The parts of a file name. A plain name has only its stem and the part that the store adds."""

    base: str
    id: str  # the stem, if plain
    extension: str
    priority: int = 0
    due: int = 0
    group: str = ""
    stamp: int = 0
    target: str = ""
    expires: int = 0
    own: bool = False  # the store wrote this document
    crc: int = -1
    attempt: int = 0
    token: str = ""  # of the current lease, or of the last one
    boot: str = ""
    deadline: int = 0
    settled: int = 0
    revived: bool = False  # in plain names; a revived native name has no expiry

    @property
    def leased(self) -> bool:
        return self.boot != ""

    @property
    def is_new(self) -> bool:
        """Nobody has had this message yet: its id and its keys may be those of another."""
        return self.attempt == 0 and not self.token and not self.revived


class Names:
    """The grammar of one layout: native or plain names with the extension of its codec."""

    def __init__(self, *, native: bool, extension: str, portable: bool = False) -> None:
        self.native = native
        self.portable = portable
        self.extension = extension
        base = _NATIVE if native else r"(([^~]+))"
        self._match = re.compile(base + _MOVING, re.ASCII | re.DOTALL).fullmatch
        self._simple = re.compile(_SIMPLE + re.escape(extension), re.ASCII).fullmatch
        # Matches native names without group, target or expiry: as strings they sort in lease order.
        self.match_unmarked = re.compile(_UNMARKED + re.escape(extension), re.ASCII).fullmatch

    def parse(self, name: str) -> Slot | None:
        """Return the parts of a name; None if it is foreign."""
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
            if not _is_plain(of_base[0]) or (self.portable and not _PORTABLE(of_base[0])):
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

    def stem(self, text: str) -> str:
        """Return a stem for plain names from any text: no `~`, and short enough for the marks of the store."""
        stem = safe_name(text.replace("~", "-"))
        return stem if not self.portable or _PORTABLE(stem) else f"message-{digest(text, 16)}"

    def leased(self, slot: Slot, attempt: int, term: str) -> str:
        """Return the name of a message in flight under a lease term: token, boot id and deadline."""
        revived = "~r" if slot.revived else ""
        due = f"~d{slot.due:x}" if slot.due and not self.native else ""
        return f"{slot.base}~a{attempt}{revived}{due}~l{term}{slot.extension}"

    def waiting(self, leased: str, due: int) -> str:
        """Return the name of a message that comes back at `due`, from its name in flight."""
        kept, _, lease = leased.partition("~l")
        last = f"~k{lease.partition('.')[0]}{self.extension if leased.endswith(self.extension) else ''}"
        if self.native:
            return f"{kept[:4]}{min(due, LAST_DUE):013}{kept[17:]}{last}"
        return f"{kept.partition('~d')[0]}~d{due:x}{last}"

    def settled(self, leased: str, at: int) -> str:
        """Return the name of a message that is done or dead, from its name in flight."""
        kept, _, lease = leased.partition("~l")
        extension = self.extension if leased.endswith(self.extension) else ""
        return f"{kept}~s{at:x}.{lease.partition('.')[0]}{extension}"

    def later(self, name: str) -> str:
        """Return a name with marks of the store as it would be a millisecond later."""
        *_, last = _INSTANTS(name)
        return f"{name[: last.start(1)]}{int(last[1], 16) + 1:x}{name[last.end(1) :]}"

    def revived(self, slot: Slot, due: int, stamp: int) -> str:
        """Return the name of a dead message that is ready again: last in its group, and without expiry."""
        if not self.native:
            return f"{slot.base}~a0~r~d{due:x}{slot.extension}"
        flags = f"~g{slot.group}.{stamp:x}" if slot.group else ""
        flags += f"~t{slot.target}" if slot.target else ""
        kind = "c" if slot.own else "f"
        return f"{slot.base[:4]}{min(due, LAST_DUE):013}-{slot.id}{flags}~{kind}{slot.crc:08x}{slot.extension}"


def token_of(name: str) -> str:
    """Return the token of the current or the last lease in a name; nothing if it has none."""
    found = _HELD(name)
    return found[1] if found else ""


def has_group(name: str) -> bool:
    """Say whether a native name is that of a message of a group."""
    return "~g" in name


def stamp_of(name: str) -> int:
    """Return the place in the publish order of its group that a native name has; 0 if it has none."""
    found = _STAMPED(name)
    return int(found[1], 16) if found else 0


def with_stamp(name: str, stamp: int) -> str:
    """Return a native name of a message of a group with another place in the publish order."""
    before, _, after = name.partition("~g")
    return f"{before}~g{after[:8]}.{stamp:x}~{after.partition('~')[2]}"


def native_base(message: Message, id: str, due: int, *, stamp: int, crc: int, own: bool) -> str:
    """Return the part of a native name that stays the same until the message is retried."""
    flags = f"~g{digest(message.group)}.{stamp:x}" if message.group else ""
    if message.target:
        flags += f"~t{digest(message.target)}"
    if message.expires_at is not None:
        flags += f"~x{ceil_ms(message.expires_at):x}"
    return f"{100 - message.priority:03}-{min(due, LAST_DUE):013}-{id}{flags}~{'c' if own else 'f'}{crc:08x}"


def floor_ms(seconds: float) -> int:
    """Return a past instant in milliseconds, rounded down. The microsecond makes up for the error of a float."""
    return max(0, int(seconds * 1000 + 0.001))


def ceil_ms(seconds: float) -> int:
    """Return a future instant in milliseconds, rounded up: never early."""
    return max(0, math.ceil(seconds * 1000 - 0.001))


@lru_cache(maxsize=4096)
def digest(text: str, size: int = 8) -> str:
    """Return a hash of any text, short enough for a file name."""
    return b32encode(hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest())[:size].decode("ascii").lower()


def short_token(token: str) -> str:
    """Return a lease token as it stands in file names: itself if it is short and alphanumeric, else its hash."""
    return token if len(token) <= 16 and token.isalnum() and token.isascii() else digest(token, 16)


@lru_cache(maxsize=16)
def short_boot(boot_id: str) -> str:
    """Return a boot id as it stands in file names."""
    return boot_id if re.fullmatch(_BOOT, boot_id) else digest(boot_id)


def safe_name(name: str) -> str:
    """Return a file name unchanged if it is printable and not too long, else its beginning with a hash."""
    if _is_plain(name):
        return name
    text = "".join(filter(str.isprintable, os.fsencode(name)[:40].decode("utf-8", "ignore")))
    return f"{text.lstrip('.')}-{digest(name, 16)}"  # a leading dot would hide the file


def _is_plain(stem: str) -> bool:
    # A line break or an escape sequence would act where names are shown or typed. Bytes that are not UTF-8, which count
    # as unprintable too, could not be written into the JSON plan of a settlement.
    return stem.isprintable() and len(os.fsencode(stem)) <= _LONGEST_STEM
