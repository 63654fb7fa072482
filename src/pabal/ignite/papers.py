"""What agents have in hand, as files, where the mail itself lies in a database: a paper in `processed/` for each lease.

The store is the truth. A paper is written after the lease and goes after the verdict. A reader that removes one has
acknowledged: a mark in `given/` says of each paper that it was there since the machine started, so that one removed is
told from one never written, whoever was killed in between. After a power cut no mark counts: then it is given again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from pabal.clock import Clock
from pabal.codec import Restatable
from pabal.codecs.mime.fields import ERROR_REASON, RETRY_COUNT
from pabal.codecs.mime.head import edited
from pabal.durable import make_dirs, translated, write_new
from pabal.ignite.layout import IgniteLayout
from pabal.message import Message
from pabal.store import Failure, Receipt, State
from pabal.stores.files.calls import rename_new
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.names import Names, booted, plain_stem, tokened
from pabal.stores.files.reading import UNREADABLE, read_whole

_LONGEST_REASON = 200
_NEVER = 16**10 - 1  # a paper ends with its lease, of which the store alone knows


class Papers:
    """The papers of one workspace."""

    def __init__(self, root: Path, layout: IgniteLayout, names: Names, clock: Clock) -> None:
        self._root, self._layout, self._names, self._clock = root, layout, names, clock

    def make(self, queue: str) -> None:
        """Make the folders of a queue."""
        for folder in (self._hand(queue), *(self.private(queue, part) for part in ("tmp", "given", "taken"))):
            make_dirs(Path(folder))
        make_dirs(self._root / self._layout.directory(queue, State.CORRUPT))

    def private(self, queue: str, part: str) -> str:
        return f"{self._root}/{self._layout.private(queue)}/{part}"

    def write(self, receipt: Receipt, message: Message, attempt: int, failure: Failure | None) -> str:
        """Put the paper of a lease into the hands of its reader; return its path. Raise InvalidInput if none can be."""
        data = self._text(receipt.queue, message, attempt, failure)
        path = f"{self._hand(receipt.queue)}/{self._name(receipt, message, attempt)}"
        draft = f"{self.private(receipt.queue, 'tmp')}/{new_tag()}~paper"
        with translated(f"writing {path}"):
            os.close(write_new(draft, data))
            os.rename(draft, path)
            self.mark(receipt)
        return path

    def path(self, receipt: Receipt) -> str | None:
        """Return where the paper of a lease is, if it is there."""
        return next((path for path, token in self._all(receipt.queue) if token == tokened(receipt.token)), None)

    def is_readable(self, path: str) -> bool:
        try:
            self._layout.codec.decode(read_whole(path)[0])
        except (OSError, *UNREADABLE):
            return False
        return True

    def was_removed(self, receipt: Receipt) -> bool:
        """Say whether the paper of a lease was there, and its reader removed it."""
        return os.path.lexists(self._mark(receipt)) and self.path(receipt) is None

    def remove(self, receipt: Receipt) -> None:
        """Take the paper of a lease that is over out of the hands of its reader."""
        path = self.path(receipt)
        if path is not None:
            _unlink(path)
        _unlink(self._mark(receipt))

    def mark(self, receipt: Receipt) -> None:
        """Take note that the paper of a lease is there."""
        os.close(os.open(self._mark(receipt), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def sweep(self, queue: str, tokens: set[str]) -> None:
        """Remove papers and marks of leases that are no more: all but these tokens."""
        current, folder = {tokened(token) for token in tokens}, self.private(queue, "given")
        marks = os.listdir(folder)
        ours = {name.partition(".")[0] for name in marks}
        for path, token in list(self._all(queue)):
            if token not in current:
                _unlink(path) if token in ours else self._let_go(path)
        for name in marks:
            if name.partition(".")[0] not in current or not name.endswith(self._boot):
                _unlink(f"{folder}/{name}")

    def _let_go(self, path: str) -> None:
        """Let a file that is no paper of ours, left from when the mail lay in the folders, be one that came anew."""
        slot = self._names.parse(os.path.basename(path))
        assert slot is not None
        with suppress(FileNotFoundError):
            rename_new(path, f"{os.path.dirname(path)}/{slot.base}-{new_tag()}{slot.extension}")

    @property
    def _boot(self) -> str:
        return f".{booted(self._clock.boot_id)}"

    def _hand(self, queue: str) -> str:
        return f"{self._root}/{self._layout.directory(queue, State.INFLIGHT)}"

    def _mark(self, receipt: Receipt) -> str:
        return f"{self.private(receipt.queue, 'given')}/{tokened(receipt.token)}{self._boot}"

    def _all(self, queue: str) -> Iterator[tuple[str, str]]:
        """Go through the papers of a queue as (path, token)."""
        folder = self._hand(queue)
        try:
            names = os.listdir(folder)
        except FileNotFoundError:
            return
        for name in names:
            slot = self._names.parse(name)
            if slot is not None and slot.leased:
                yield f"{folder}/{name}", slot.token

    def _name(self, receipt: Receipt, message: Message, attempt: int) -> str:
        slot = self._names.parse(f"{plain_stem(self._layout.stem(message))}{self._names.extension}")
        assert slot is not None
        return self._names.leased(slot, attempt, f"{tokened(receipt.token)}{self._boot}.{_NEVER:x}")

    def _text(self, queue: str, message: Message, attempt: int, failure: Failure | None) -> bytes:
        codec = self._layout.codec
        data = codec.encode(message, queue=queue)
        assert isinstance(codec, Restatable)
        data = codec.restate(data, State.INFLIGHT, at=self._clock.now())
        words: dict[str, str | None] = {RETRY_COUNT: str(attempt - 1)} if attempt > 1 else {}
        if failure is not None:
            said = "".join(char if char.isprintable() else " " for char in failure.reason or failure.code)
            words[ERROR_REASON] = said[:_LONGEST_REASON].strip()
        return edited(data, words) if words else data


def _unlink(path: str) -> None:
    # What an agent made of its paper, a folder too, is its own affair: only a plain file goes.
    with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        os.unlink(path)
