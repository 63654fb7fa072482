"""The file store: a directory per state and a rename per change of state; many processes, no daemon.

Any program may publish by moving a file in, and read with `ls` and `cat`. `docs/guarantees.md` has the guarantees. The
parts: `names` is the grammar of file names, `root` and `queue_directory` are the open store, `publish`,
`lease` and `settle` are the three ways of a message, `index` and `groups` say which message is next, `order` and `read`
how files become messages, `foreign` takes in the files of other programs, `dedup` finds duplicates, `browse`,
`maintain`, `check`, `backup` and `transfer` are for operators.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pabal import durable, jsontext
from pabal.clock import Clock, SystemClock
from pabal.errors import PabalError, QueueUnknown, StoreFailed
from pabal.filesystem import lock_holders, remove, require_own
from pabal.ids import new_tag
from pabal.names import check_name, no_queue
from pabal.store import (
    Consumer,
    Counters,
    Draft,
    Entry,
    Finding,
    Held,
    KnownSettings,
    Lease,
    Outcome,
    Published,
    Receipt,
    Settlement,
    State,
    Watch,
)
from pabal.stores.archive import ArchiveWriter, Kept, Progress
from pabal.stores.consumers import FileRegister
from pabal.stores.counters import FileCounters
from pabal.stores.files import backup, browse, check, dedup, lease, maintain, publish, settle, transfer
from pabal.stores.files.index import feed_of
from pabal.stores.files.names import short_token
from pabal.stores.files.queue_directory import QueueDirectory
from pabal.stores.files.root import DAMAGED_QUEUE, DELETED, FORMAT, Root, is_of_queue
from pabal.stores.layout import Layout, NativeLayout
from pabal.watch import ARRIVALS, ATTRIB, MOVED_TO, PathWatch

P = ParamSpec("P")
T = TypeVar("T")


def guarded(
    doing: str,
) -> Callable[[Callable[Concatenate[FileStore, P], T]], Callable[Concatenate[FileStore, P], T]]:
    """Let a method run only while the handle is usable, and turn errors of the system into those of the package."""

    def decorate(method: Callable[Concatenate[FileStore, P], T]) -> Callable[Concatenate[FileStore, P], T]:
        @wraps(method)
        def call(self: FileStore, /, *args: P.args, **options: P.kwargs) -> T:
            if self._root.usable_in != os.getpid():
                self._root.check_usable()
            try:
                return method(self, *args, **options)
            except PabalError:
                raise
            except BaseException as error:
                # Also one that a signal handler raised between any two steps. An error of the system has a number.
                self._root.let_go()
                if isinstance(error, OSError) and error.errno is not None:
                    raise self._root.fault(error, doing) from error
                raise

        return call

    return decorate


class FileStore:
    """Messages as files below `root`."""

    def __init__(
        self, root: Path, *, clock: Clock | None = None, layout: Layout | None = None, owner: int | None = None
    ) -> None:
        """Open the store. `owner` is one more user, beside us and root, to whom its folders may belong."""
        place = Path(root)
        try:
            self._root = Root(place, clock or SystemClock(), layout or NativeLayout(), owner)
        except OSError as exc:
            raise StoreFailed(f"cannot open {place}: {exc}") from exc
        counters, consumers = f"{self._root.path}/.counters", f"{self._root.path}/.consumers"
        self._counters = FileCounters(counters, self._root.clock)
        self._consumers = FileRegister(consumers, self._root.clock)
        try:
            for folder in (counters, consumers):
                require_own(folder, owner)
            self._finish_settlements()
        except BaseException:
            self._root.close()
            raise

    @guarded("opening")
    def _finish_settlements(self) -> None:
        with self._root.as_far_as_possible():
            settle.finish_all(self._root)

    def _seen(self, name: str) -> QueueDirectory | None:
        """Return a queue to read from, with everything in its place, as far as that can be done without waiting."""
        with self._root.as_far_as_possible():
            settle.finish_all(self._root)
        found = self._root.find(name)
        if found is not None:
            with self._root.as_far_as_possible():
                lease.refreshed(self._root, found)
        return found

    @staticmethod
    def exists(root: Path) -> bool:
        """Say whether there is a file store at this place, and change nothing."""
        return (Path(root) / "pabal.json").is_file()

    @guarded("publishing")
    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        for queue in {draft.queue for draft in drafts if draft.existing}:
            if self._root.find(queue) is None or maintain.is_deleted(self._root, queue):
                raise QueueUnknown(no_queue(queue, self.queues()))
        answers = publish.publish(self._root, publish.encode(self._root, drafts))
        if answers:
            self._counters.published(drafts, answers)
        return answers

    @guarded("leasing")
    def lease(
        self,
        queue: str,
        limit: int,
        seconds: float,
        *,
        consumer: str = "",
        token: str = "",
        successive: bool = False,
    ) -> list[Lease]:
        root, leases = self._root, list[Lease]()
        for _ in range(2):  # again if a settlement had to be finished: its follow-ups may be for this queue
            found = root.queues.get(queue) or root.find(queue)
            if found is not None:
                tag = self._consumers.tag(consumer, token and short_token(token))
                leases = lease.lease(
                    root, found, limit, seconds, tag, consumer=consumer, token=token, successive=successive
                )
            if leases or not settle.finish_all(root):
                break
        if leases:
            self._counters.leased(leases, asked=bool(token))
        return leases

    @guarded("settling")
    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        outcomes = settle.settle(self._root, settlements, synced=durable)
        self._counters.settled(settlements, outcomes)
        return outcomes

    @guarded("extending leases")
    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        self._consumers.extended(receipts)
        return lease.extend(self._root, receipts, seconds)

    @guarded("sweeping")
    def expired(self, queue: str, limit: int) -> list[Lease]:
        settle.finish_all(self._root)
        found = self._root.find(queue)
        if found is None:
            return []
        self._root.restore_ballast()
        maintain.sweep_records(self._root, found)
        self._consumers.sweep(lambda: {tag for tag, _ in self._holds()})
        taken = lease.expired(self._root, found, limit)
        leases = [each for tag, some in taken.items() for each in self._consumers.named(tag, some)]
        self._counters.expired(leases)
        return leases

    def now(self) -> float:
        return self._root.clock.now()

    @guarded("looking")
    def next_due(self, queue: str) -> float | None:
        found = self._root.find(queue)
        return None if found is None else lease.next_due(self._root, found)

    @guarded("counting")
    def counts(self, queue: str) -> dict[State, int]:
        found = self._seen(queue)
        return dict.fromkeys(State, 0) if found is None else browse.counts(self._root, found)

    @guarded("counting")
    def counters(self, queue: str) -> Counters:
        return self._counters.total(check_name(queue))

    @guarded("looking")
    def oldest(self, queue: str, state: State) -> float | None:
        found = self._seen(queue)
        return None if found is None else browse.oldest(self._root, found, State(state))

    @guarded("looking")
    def consumers(self) -> list[Consumer]:
        return self._consumers.all(self._holds())

    def _holds(self) -> dict[tuple[str, str], Held]:
        found: dict[tuple[str, str], Held] = {}
        for name in self._root.layout.queues(Path(self._root.path)):
            try:
                queue = self._root.find(name)
                held = {} if queue is None else browse.holds(self._root, queue)
            except DAMAGED_QUEUE as exc:
                if not is_of_queue(exc):
                    raise
                continue
            found |= {(tag, name): each for tag, each in held.items()}
        return found

    @guarded("browsing")
    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        found = self._seen(queue)
        return [] if found is None else browse.browse(self._root, found, state, after, limit)

    @guarded("looking")
    def find(self, queue: str, id: str) -> Entry | None:
        found = self._seen(queue)
        return None if found is None else browse.find(self._root, found, id)

    @guarded("reviving")
    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        found = self._root.find(queue)
        return [] if found is None else maintain.revive(self._root, found, ids)

    @guarded("cancelling")
    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        settle.finish_all(self._root)
        found = self._root.find(queue)
        return [] if found is None else maintain.cancel(self._root, found, ids, inflight)

    @guarded("purging")
    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        found = self._root.find(queue)
        return 0 if found is None else maintain.purge(self._root, found, state, age, limit, ids)

    @guarded("trimming")
    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        found = self._root.find(queue)
        return 0 if found is None or state is State.INFLIGHT else maintain.trim(self._root, found, state, age, limit)

    @guarded("forgetting")
    def forget(self, queue: str, id: str) -> None:
        """Note that a message is done whose file its reader removed: its id is known for a while from now on."""
        found = self._root.find(queue)
        if found is not None:
            with found:
                dedup.forget_id(found, id)

    @guarded("carrying")
    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        return transfer.carry(self._root, queue, entries, window)

    @guarded("looking")
    def queues(self) -> list[str]:
        names = self._root.layout.queues(Path(self._root.path))
        return sorted(name for name in names if not maintain.is_deleted(self._root, name))

    @guarded("deleting")
    def delete(self, queue: str, *, force: bool = False) -> int:
        found = self._root.find(queue)
        return 0 if found is None else maintain.delete(self._root, found, force)

    @guarded("reading settings")
    def settings(self, queue: str) -> Mapping[str, Any] | None:
        return browse.read_settings(f"{self._root.path}/{self._root.layout.private(check_name(queue))}")

    @guarded("writing settings")
    def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
        if isinstance(known, Mapping) and known != self.settings(queue):
            return False  # before its folders are made again: it may have been deleted
        directory = self._root.make(queue)
        with directory:
            if known is not ... and known != browse.read_settings(directory.private):
                return False
            draft = f"{directory.tmp}/{new_tag()}~settings"
            durable.write_whole(draft, jsontext.pretty(dict(settings)))
            os.rename(draft, f"{directory.private}/settings.json")
            remove(f"{directory.private}/{DELETED}")
        directory.sync([directory.private])
        return True

    @guarded("watching")
    def watch(self, queues: Sequence[str]) -> Watch:
        paths: dict[str, int] = {}
        for directory in map(self._root.make, queues):
            for path in directory.waiting:
                paths[path] = paths.get(path, 0) | ARRIVALS
            paths[directory.private] = paths.get(directory.private, 0) | MOVED_TO | ATTRIB
        return PathWatch(paths)

    @guarded("checking")
    def check(self, *, repair: bool) -> list[Finding]:
        return check.check(self._root, repair)

    @guarded("making a backup")
    def backup(self, archive: ArchiveWriter) -> None:
        backup.backup(self._root, archive)

    @staticmethod
    def restore(root: Path, source: Path, progress: Progress) -> Kept:
        """Make a file store from a backup."""
        return backup.restore(Path(root), source, progress)

    @guarded("looking")
    def facts(self) -> Mapping[str, str]:
        facts = {
            "store": "files",
            "place": self._root.path,
            "format": str(FORMAT),
            "documents": self._root.codec.content_type,
            "woken by": "inotify" if feed_of(self._root).working else "poll",
            "ballast": "present" if self._root.ballast.present else "missing",
        }
        locks = [f"{self._root.path}/{self._root.layout.private(name)}/.lock" for name in self.queues()]
        if holders := lock_holders([f"{self._root.path}/.lock", *locks]):
            facts["locks"] = "; ".join(holders)
        return facts

    def close(self) -> None:
        self._counters.close()
        self._root.close()
