"""The file store: a directory per state, a rename per change of state; many processes, no daemon.

Any program may publish by moving a file in, and read with `ls` and `cat`. The parts: `layout` (names and places),
`spool` (directories and locks), `listing` (what waits, in order), `publishing`, `intake`
(foreign files), `leasing`, `settling`, `follow_ups`, `dedup`, `browsing`,
`tending` (revive, purge), `checking`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pabal import durable, jsontext
from pabal.clock import Clock, SystemClock
from pabal.errors import InvalidInput, PabalError, StoreFailed
from pabal.names import check_name
from pabal.store import (
    Draft,
    Entry,
    Finding,
    Lease,
    Outcome,
    Published,
    Receipt,
    Settlement,
    State,
    Watch,
)
from pabal.stores.files import (
    browsing,
    carrying,
    checking,
    dedup,
    follow_ups,
    joint,
    leasing,
    publishing,
    settling,
    tending,
)
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.parcels import pack
from pabal.stores.files.root import FORMAT, Root
from pabal.stores.layout import Layout, NativeLayout
from pabal.watch import ARRIVALS, ATTRIB, MOVED_TO, PathWatch


class FileStore:
    """Messages as files below `root`."""

    def __init__(self, root: Path, *, clock: Clock | None = None, layout: Layout | None = None) -> None:
        place = Path(root)
        try:
            self._root = Root(place, clock or SystemClock(), layout or NativeLayout())
        except OSError as exc:
            raise StoreFailed(f"cannot open {place}: {exc}") from exc
        try:
            with _Guard(self._root, "opening"):
                follow_ups.finish_all(self._root)
        except BaseException:
            self._root.close()
            raise

    @staticmethod
    def exists(root: Path) -> bool:
        """Say whether a file store is there, touching nothing."""
        return (Path(root) / "pabal.json").is_file()

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        with _Guard(self._root, "publishing"):
            return publishing.publish(self._root, drafts)

    def lease(self, queue: str, limit: int, seconds: float, *, consumer: str = "", token: str = "") -> list[Lease]:
        with _Guard(self._root, "leasing"):
            leases = leasing.lease(self._root, queue, limit, seconds, consumer, token)
            if not leases and follow_ups.finish_all(self._root):
                leases = leasing.lease(self._root, queue, limit, seconds, consumer, token)
            return leases

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        with _Guard(self._root, "settling"):
            return self._settle(settlements, durable)

    def _settle(self, settlements: Sequence[Settlement], durable: bool) -> list[Outcome]:
        root = self._root
        if len(settlements) == 1 and not settlements[0].verdict.then:  # by far the most common
            spool = root.spool(settlements[0].receipt.queue)
            return settling.settle(root, spool, settlements, durable=durable) if spool else [Outcome.LOST]
        parcels = root.spare(
            lambda: {n: pack(root, each.verdict.then) for n, each in enumerate(settlements) if each.verdict.then}
        )
        outcomes = [Outcome.LOST] * len(settlements)
        bare: dict[str, list[int]] = {}
        for number, settlement in enumerate(settlements):
            if number not in parcels:
                bare.setdefault(settlement.receipt.queue, []).append(number)
        for queue, numbers in bare.items():
            spool = root.spool(queue)
            if spool is not None:
                found = settling.settle(root, spool, [settlements[n] for n in numbers], durable=durable)
                for number, outcome in zip(numbers, found, strict=True):
                    outcomes[number] = outcome
        followed: dict[str, list[int]] = {}
        for number in parcels:
            followed.setdefault(settlements[number].receipt.queue, []).append(number)
        for queue, numbers in followed.items():
            spool = root.spool(queue)
            if spool is not None:
                settled = joint.settle_all(root, spool, [(settlements[n], parcels[n]) for n in numbers])
                for number, outcome in zip(numbers, settled, strict=True):
                    outcomes[number] = outcome
        return outcomes

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        with _Guard(self._root, "extending leases"):
            return leasing.extend(self._root, receipts, seconds)

    def expired(self, queue: str, limit: int) -> list[Lease]:
        with _Guard(self._root, "sweeping"):
            follow_ups.finish_all(self._root)
            spool = self._root.spool(queue)
            if spool is None:
                return []
            self._root.restore_ballast()
            tending.sweep_records(self._root, spool)
            return leasing.expired(self._root, queue, limit)

    def next_due(self, queue: str) -> float | None:
        with _Guard(self._root, "looking"):
            return leasing.next_due(self._root, queue)

    def counts(self, queue: str) -> dict[State, int]:
        with _Guard(self._root, "counting"):
            follow_ups.finish_all(self._root)
            return browsing.counts(self._root, queue)

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        with _Guard(self._root, "browsing"):
            follow_ups.finish_all(self._root)
            return browsing.browse(self._root, queue, state, after, limit)

    def find(self, queue: str, id: str) -> Entry | None:
        with _Guard(self._root, "looking"):
            follow_ups.finish_all(self._root)
            return browsing.find(self._root, queue, id)

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        with _Guard(self._root, "reviving"):
            return tending.revive(self._root, queue, ids)

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        with _Guard(self._root, "purging"):
            return tending.purge(self._root, queue, state, age, limit, ids)

    def forget(self, queue: str, id: str) -> None:
        """Take note that a message is done whose file its reader removed: from here on its id is known for a while."""
        with _Guard(self._root, "forgetting"):
            spool = self._root.spool(queue)
            if spool is not None:
                with spool:
                    dedup.forget_id(spool, id)

    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        with _Guard(self._root, "carrying"):
            return carrying.carry(self._root, queue, entries, window)

    def queues(self) -> list[str]:
        with _Guard(self._root, "looking"):
            return sorted(self._root.layout.queues(Path(self._root.path)))

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        with _Guard(self._root, "reading settings"):
            path = f"{self._root.path}/{self._root.layout.private(check_name(queue))}/settings.json"
            try:
                with open(path, "rb") as file:
                    found: Mapping[str, Any] = jsontext.read(file.read())
            except FileNotFoundError:
                return None
            except InvalidInput as exc:
                raise StoreFailed(f"{path} cannot be read: {exc}; mend or remove it") from exc
            return found

    def configure(self, queue: str, settings: Mapping[str, Any]) -> None:
        with _Guard(self._root, "writing settings"):
            spool = self._root.make(queue)
            draft = f"{spool.tmp}/{new_tag()}~settings"
            durable.write_whole(draft, jsontext.pretty(dict(settings)))
            os.rename(draft, f"{spool.private}/settings.json")
            spool.sync([spool.private])

    def watch(self, queues: Sequence[str]) -> Watch:
        with _Guard(self._root, "watching"):
            paths: dict[str, int] = {}
            for queue in queues:
                spool = self._root.make(queue)
                for path in spool.waiting:
                    paths[path] = paths.get(path, 0) | ARRIVALS
                paths[spool.private] = paths.get(spool.private, 0) | MOVED_TO | ATTRIB
            return PathWatch(paths)

    def check(self, *, repair: bool) -> list[Finding]:
        with _Guard(self._root, "checking"):
            return checking.check(self._root, repair)

    def facts(self) -> Mapping[str, str]:
        with _Guard(self._root, "looking"):
            feed = leasing.feed_of(self._root)
            return {
                "store": "files",
                "place": self._root.path,
                "format": str(FORMAT),
                "documents": self._root.codec.content_type,
                "woken by": "inotify" if feed.working else "poll",
                "ballast": "present" if self._root.ballast.present else "spent",
            }

    def close(self) -> None:
        self._root.close()


class _Guard:
    """Lets a call through if the handle is usable, and turns errors of the system into ours."""

    __slots__ = ("_doing", "_root")

    def __init__(self, root: Root, doing: str) -> None:
        self._root, self._doing = root, doing

    def __enter__(self) -> None:
        self._root.check_usable()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if error is None or isinstance(error, PabalError):
            return
        # It may come from between any two steps, from a signal handler too. An error of the system has its number.
        self._root.let_go()
        if isinstance(error, OSError) and error.errno is not None:
            raise self._root.fault(error, self._doing) from error
