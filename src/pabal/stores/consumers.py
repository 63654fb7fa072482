"""The register of consumers: which consumer holds a message is known from the first characters of its token.

A handle gives each consumer for which it leases a random tag, registers the tag at the first lease, and begins the
consumer's tokens with it. So a lease costs no more than before. About once a minute it notes that the consumer was
seen. Consumers that were not seen for an hour and hold nothing are removed from the register. See ADR 34.
"""

from __future__ import annotations

import os
import re
import socket
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from weakref import WeakSet

from pabal import jsontext
from pabal.clock import Clock, iso_stamp, utc_seconds
from pabal.errors import InvalidInput, UnsafeFile
from pabal.filesystem import private, read_whole, remove
from pabal.ids import consumer_tag, new_consumer_tag
from pabal.message import replace
from pabal.names import local_name
from pabal.store import Consumer, Held, Lease, Receipt

LATELY = 3600.0  # seconds
_NOTED_EVERY = 60.0
_SWEPT_EVERY = 600.0
_MAX_TAGS = 10_000  # that a handle remembers: a manager has one for each of its clients
_NEVER = float("-inf")
_is_tag = re.compile(r"[0-9A-Za-z_-]{1,5}", re.ASCII).fullmatch  # else it cannot be the name of a file

Holds = Mapping[tuple[str, str], Held]  # by tag and queue
_all: WeakSet[Register] = WeakSet()


class Register:
    """The consumers of one handle. A subclass keeps the register of all handles."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tags: dict[str, str] = {}  # of the consumers of this handle, by name
        self._noted_at: dict[str, float] = {}  # by tag, on the boot clock
        self._swept_at = clock.boot()
        self._kept: dict[str, Consumer] = {}
        _all.add(self)

    def tag(self, consumer: str, token: str = "") -> str:
        """Return the tag of a consumer that leases, and note that it was seen.

        If the caller gave the token, it begins with the tag, and the consumer is not known to be this process.
        """
        if token:
            tag = consumer_tag(token)
        else:
            tag = self._tags.get(consumer) or self._tags.setdefault(consumer, new_consumer_tag())
        if self._is_time(tag):
            now = self._clock.now()
            name, pid = consumer or local_name(os.getpid()), 0 if token else os.getpid()
            self._keep(tag, Consumer(name, socket.gethostname(), pid, since=now, seen=now))
        return tag

    def extended(self, receipts: Iterable[Receipt]) -> None:
        """Note that the consumers of these leases were seen."""
        for tag in {consumer_tag(receipt.token) for receipt in receipts}:
            if self._is_time(tag):
                self._touch(tag, self._clock.now())

    def _is_time(self, tag: str) -> bool:
        """Return whether a consumer is to be noted again; if so, it counts as noted."""
        now = self._clock.boot()
        if now - self._noted_at.get(tag, _NEVER) < _NOTED_EVERY or not _is_tag(tag):
            return False
        if len(self._noted_at) >= _MAX_TAGS:
            self._noted_at.clear()
        self._noted_at[tag] = now
        return True

    def all(self, holds: Holds) -> list[Consumer]:
        """Return the consumers that were seen lately or hold messages, those that are not known as one."""
        found = self._read()
        held: dict[str, dict[str, Held]] = {}
        for (tag, queue), (messages, since) in holds.items():
            own = held.setdefault(tag if tag in found else "", {})
            before = own.get(queue, Held(0, since))
            own[queue] = Held(before.messages + messages, min(before.since, since))
        found[""] = Consumer(""), False
        consumers = [
            replace(consumer, holds=held.get(tag, {}))
            for tag, (consumer, lately) in found.items()
            if lately or tag in held
        ]
        return sorted(consumers, key=lambda consumer: (consumer.name, consumer.since))

    def sweep(self, held: Callable[[], set[str]]) -> None:
        """Every ten minutes, remove consumers that were not seen lately. `held` returns the tags that hold messages."""
        if self._clock.boot() - self._swept_at >= _SWEPT_EVERY:
            self._swept_at = self._clock.boot()
            self._sweep(held)

    def start_afresh(self) -> None:
        """Let a forked child have tags of its own."""
        self._tags, self._noted_at = {}, {}

    def named(self, tag: str, leases: Iterable[Lease]) -> list[Lease]:
        """Return leases that ran out with the name of the consumer that had them; `tag` is empty if none had."""
        found = self._find(tag) if tag else None
        return [replace(lease, consumer=found.name) for lease in leases] if found is not None else list(leases)

    # Where the register is kept

    def _find(self, tag: str) -> Consumer | None:
        """Return a consumer that is kept; None if there is none, or it cannot be read."""
        return self._kept.get(tag)

    def _keep(self, tag: str, consumer: Consumer) -> None:
        """Keep a consumer; of one that is kept, only note when it was seen. It never fails."""
        self._kept.setdefault(tag, consumer)
        self._touch(tag, consumer.seen)

    def _touch(self, tag: str, seen: float) -> None:
        """Note when a consumer was seen, if it is kept."""
        if tag in self._kept:
            self._kept[tag] = replace(self._kept[tag], seen=seen)

    def _read(self) -> dict[str, tuple[Consumer, bool]]:
        """Return the consumers that are kept by their tags, and whether they were seen lately."""
        since = self._clock.now() - LATELY
        return {tag: (consumer, consumer.seen > since) for tag, consumer in self._kept.items()}

    def _sweep(self, held: Callable[[], set[str]]) -> None:
        for tag in {tag for tag, (_, lately) in self._read().items() if not lately} - held():
            del self._kept[tag]


class FileRegister(Register):
    """A folder with a small JSON file for each consumer, for `cat`. Its time of change is when it was seen.

    Other files in the folder are left as they are.
    """

    def __init__(self, folder: str, clock: Clock) -> None:
        super().__init__(clock)
        self._folder = folder

    def _keep(self, tag: str, consumer: Consumer) -> None:
        if self._find(tag) is not None:
            self._touch(tag, consumer.seen)
            return
        document = {
            "consumer": consumer.name,
            "host": consumer.host,
            "pid": consumer.pid,
            "since": iso_stamp(consumer.since),
        }
        with suppress(OSError):
            with suppress(FileExistsError):
                os.mkdir(self._folder, 0o700)
            # A FIFO is never waited for.
            fd = private(self._path(tag), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NONBLOCK)
            with os.fdopen(fd, "wb") as file:
                file.write(jsontext.pretty(document))
            self._touch(tag, consumer.seen)

    def _touch(self, tag: str, seen: float) -> None:
        with suppress(OSError):
            os.utime(self._path(tag), (seen, seen), follow_symlinks=False)

    def _read(self) -> dict[str, tuple[Consumer, bool]]:
        since = self._clock.now() - LATELY
        found = ((self._find(tag), tag) for tag in self._seen())
        return {tag: (consumer, consumer.seen > since) for consumer, tag in found if consumer is not None}

    def _find(self, tag: str) -> Consumer | None:
        if not _is_tag(tag):
            return None
        try:
            data, seen = read_whole(self._path(tag))
            found: Any = jsontext.read(data)
            since = utc_seconds(datetime.fromisoformat(found["since"]))
            return Consumer(str(found["consumer"]), str(found["host"]), int(found["pid"]), since, seen)
        except (OSError, UnsafeFile, InvalidInput, KeyError, TypeError, ValueError, OverflowError):
            return None

    def _seen(self) -> dict[str, float]:
        found = {}
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                tag = entry.name.removesuffix(".json")
                if tag != entry.name and _is_tag(tag):
                    with suppress(OSError):
                        found[tag] = entry.stat(follow_symlinks=False).st_mtime
        return found

    def _sweep(self, held: Callable[[], set[str]]) -> None:
        since = self._clock.now() - LATELY
        gone = {tag for tag, seen in self._seen().items() if seen <= since}
        for tag in gone - held() if gone else ():
            with suppress(OSError):
                if self._is_ours(tag):
                    remove(self._path(tag))

    def _is_ours(self, tag: str) -> bool:
        """Return whether this is the file of a consumer, or one that a full disk left empty."""
        about = os.lstat(self._path(tag))
        return stat.S_ISREG(about.st_mode) and not about.st_size or self._find(tag) is not None

    def _path(self, tag: str) -> str:
        return f"{self._folder}/{tag}.json"


def _in_child() -> None:
    for register in list(_all):
        register.start_afresh()


os.register_at_fork(after_in_child=_in_child)
