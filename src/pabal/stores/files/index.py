"""The waiting messages of a queue in lease order: the directories are listed once, and then followed by inotify.

Everything here is called with the queue's lock held. Entries are strings that sort in lease order. An entry that is no
longer true is noticed when its file cannot be moved, and skipped. Only the leader of a group is offered, so a queue
with groups, like one with a limit, is also watched for files that leave it. Files that leave unseen are forgotten when
the directories are listed again, which happens after a number of arrivals.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

from pabal.store import State
from pabal.stores.files.groups import Groups, UnfinishedSettlements
from pabal.stores.files.names import ID_PLACE, Slot
from pabal.stores.files.order import DocumentOrder, KnownOrders, Order, UnreadFiles, set_time
from pabal.stores.files.read import learn, read_order
from pabal.stores.files.settlement_folder import INPUT
from pabal.watch import ARRIVALS, DELETE, IGNORED, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify

if TYPE_CHECKING:
    from pabal.stores.files.queue_directory import QueueDirectory
    from pabal.stores.files.root import Root

_PROMOTED = 1000  # files that one refresh moves from the delayed to the ready ones
_ARRIVALS = 10_000  # after these, and as many as were listed, the directories are listed again
_MOST_FEEDS = 16  # that have an inotify instance in this process: a user has 128 of them as a rule
_SETTLED_NS = 2_000_000_000  # the time of a directory's last change is trusted once it is this old


def index_of(root: Root, queue: QueueDirectory) -> Index:
    """Return the index of a queue, created when it is first needed. With the lock held."""
    if queue.index is None:
        queue.index = Index(root, queue, feed_of(root))
    return queue.index


def feed_of(root: Root) -> Feed:
    """Return the store's watch on its directories, created when it is first needed."""
    with root.opening:
        if root.feed is None:
            root.feed = Feed()
        return root.feed


class Feed:
    """The inotify instance of a store. It gives each event to the index that watches the directory.

    In a process with many open stores the last ones have none.
    """

    _with_instance: ClassVar[WeakSet[Feed]] = WeakSet()

    def __init__(self) -> None:
        self._lock = threading.Lock()  # no thread may see events read but not yet handed out
        self._watches: dict[int, tuple[Index, str]] = {}
        self._inotify: Inotify | None = None
        if len(self._with_instance) < _MOST_FEEDS:
            with suppress(OSError):
                self._inotify = Inotify()
                self._with_instance.add(self)
        self.working = self._inotify is not None  # if not, directories are listed again when they have changed

    def watch(self, path: str, mask: int, index: Index) -> None:
        """Give the events of a directory to an index, in place of an earlier watch on that directory."""
        with self._lock:
            if self._inotify is not None:
                try:
                    self._watches[self._inotify.add(path, mask)] = index, path
                except OSError:  # the system has no watches left
                    self._close()

    def drain(self) -> None:
        """Hand out the events that have happened so far."""
        with self._lock:
            if self._inotify is None:
                return
            for watch, mask, name in self._inotify.events():
                if mask & OVERFLOW:
                    for index, _ in self._watches.values():
                        index.stale = True
                elif watch in self._watches:
                    index, path = self._watches[watch]
                    if mask & IGNORED:
                        index.stale = True
                    else:
                        index.pending.append((path, mask, name))

    def close(self) -> None:
        with self._lock:
            self._close()

    def leave_to_parent(self) -> None:
        """Close in a forked child, where the lock may be held by a thread that only the parent has."""
        self._close()

    def _close(self) -> None:
        inotify, self._inotify, self.working = self._inotify, None, False
        self._with_instance.discard(self)
        if inotify is not None:
            with suppress(OSError):
                inotify.close()


class Index:
    """The waiting messages of one queue as this process knows them."""

    def __init__(self, root: Root, queue: QueueDirectory, feed: Feed) -> None:
        self._root, self._queue, self._feed = root, queue, feed
        self._native, self._parse = root.names.native, root.names.parse
        self.stale = True  # the directories must be listed again
        self.pending: deque[tuple[str, int, str]] = deque()  # events: directory, mask, name
        self.foreign: dict[str, float] = {}  # names of files to be taken in, and when each was first seen (boot clock)
        self.orders = KnownOrders()  # of plain names only
        self.unread = UnreadFiles(root, queue)
        self.waiting_names: set[str] | None = None  # of every waiting file; kept only where the queue has a limit
        self._clear_heaps()
        self._groups = Groups()
        self._grouped = False
        self._unfinished = UnfinishedSettlements(root, queue.name)
        self._promotions = 0
        self._until_reload = _ARRIVALS
        # Where ready and delayed messages share a directory, only the due time distinguishes them.
        self._only_ready = queue.dirs[State.READY] if len(queue.waiting) > 1 else ""
        self._seen: tuple[int, ...] = ()  # the times of the directories when they were listed

    def _clear_heaps(self) -> None:
        self._anyones: list[str] = []  # ready for every consumer
        self._targeted: dict[str, list[str]] = {"": self._anyones}  # ready, by target
        self._listed: list[str] = []  # names, not entries, of files ready for every consumer; see `_offer_listed`
        # These two begin with a time of 13 digits before the entry.
        self._delayed: list[str] = []
        self._expiring: list[str] = []

    def refresh(self) -> None:
        """Catch up with the directories and with the clock."""
        self._promotions = _PROMOTED
        self._feed.drain()
        if not self._feed.working and self._directories_changed():
            self.stale = True
        while self.stale or self.pending:
            if self.stale or self._until_reload <= 0:
                self._reload()
            else:
                self._handle_event(*self.pending.popleft())
        if self._unfinished.names:
            for name in self._unfinished.finished():
                self._offer_head(self._groups.release(name))
        if self._delayed:
            self._promote(self._root.now())

    def count_waiting(self) -> int:
        """Count the waiting files exactly. The first call lists the directories, later ones cost nothing more."""
        if self.waiting_names is None:
            self.waiting_names, self.stale = set(), True
            self.refresh()
        assert self.waiting_names is not None
        return len(self.waiting_names)

    def order(self, name: str) -> Order | None:
        """Return the order of a file; None if the file must be read first."""
        slot = self._parse(name)
        return slot if slot is None or self._native else self.orders.of(name, slot)

    def pop(self, target: str) -> tuple[str, Slot] | None:
        """Take the first name for this consumer; the caller moves the file."""
        expired: list[tuple[list[str], str]] = []
        try:
            while True:
                if self._listed:
                    self._offer_listed()
                own, anyones = self._targeted.get(target) if target else None, self._anyones
                if own and (not anyones or own[0] < anyones[0]):
                    heap = own
                elif anyones:
                    heap = anyones
                else:
                    return None
                entry = heappop(heap)
                name, order = self._current(entry)
                if order is None or order.group and not self._groups.leads(order.group, entry):
                    continue
                if order.expires and order.expires <= self._root.now():
                    expired.append((heap, entry))
                    continue
                if (slot := self._claimed(name, order)) is not None:
                    return name, slot
        finally:
            for heap, entry in expired:  # they stay: the clock may be set back before anyone judges them
                heappush(heap, entry)

    def pop_successor(self, group: str, target: str) -> tuple[str, Slot] | None:
        """Take the first waiting name of a group whose members before it the caller has leased, if it may have it."""
        while (member := self._groups.successor(group)) is not None:
            name, order = self._current(member.entry)
            if order is not None:
                now = self._root.now()
                late = order.expires and order.expires <= now
                if late or order.target not in ("", target) or (member.delayed and order.due > now):
                    return None
                if (slot := self._claimed(name, order)) is not None:
                    return name, slot
            self._groups.leave(group, member.entry)
        return None

    def _claimed(self, name: str, order: Order) -> Slot | None:
        """Return the parts of a name that is about to be leased; None if its file must be read first."""
        if isinstance(order, Slot):
            return order
        slot = self._parse(name)
        if slot is not None and self.unread.is_first(name, slot.base, order.id):
            return slot
        self.add_foreign(name)  # to be read, and set aside with its reason
        return None

    def _offer_listed(self) -> None:
        """Make entries of the first names that were listed: of all that share their priority and due time.

        Only among these the order of names is not that of entries.
        """
        listed, anyones = self._listed, self._anyones
        while listed and (not anyones or listed[0][:ID_PLACE] <= anyones[0][:ID_PLACE]):
            heappush(anyones, heappop(listed).replace("~", "\1"))

    def pop_expired(self, now: int) -> str | None:
        """Take the name of a waiting message whose time to live is over."""
        while (entry := _pop_due(self._expiring, now)) is not None:
            name, order = self._current(entry)
            if order is not None:
                return name
        return None

    def next_change(self) -> int | None:
        """Return when the earliest delay or time to live ends, in milliseconds. Entries without a file are dropped."""
        found = []
        for heap in (self._delayed, self._expiring):
            while heap and not self._exists(heap[0][13:]):
                heappop(heap)
            if heap:
                found.append(int(heap[0][:13]))
        return min(found, default=None)

    def place(self, name: str, directory: str, order: DocumentOrder, about: os.stat_result) -> None:
        """Add a waiting file whose order was read, in place of what its name stood for before."""
        self.leave(name)
        self.orders.learn(name, order, about)
        self.arrive(name, directory)

    def arrive(self, name: str, directory: str) -> None:
        """Add a waiting file."""
        if self._native and directory == self._only_ready and self._root.names.match_unmarked(name):
            heappush(self._anyones, name.replace("~", "\1"))
            return
        order, delayed = self.order(name), directory != self._only_ready
        slot = order if isinstance(order, Slot) else self._parse(name)
        if order is None and self._grouped and slot is not None and slot.attempt and not slot.settled:
            order = learn(self._root, self._queue, directory, name, slot)  # at once: it may lead its group
        if order is None:
            if self._root.layout.admits(name):
                self.add_foreign(name)
            return
        entry = self._entry(name, order)
        if order.expires:
            heappush(self._expiring, f"{order.expires:013}{entry}")
        # A plain name without a due time is never delayed: the clock may have been ahead when its document was written.
        timed = delayed and slot is not None and slot.due > 0
        if order.group:
            if not self._grouped:
                self._grouped = self.stale = True  # to be listed again, and watched for files that leave
                return
            self._groups.join(order, entry, delayed=timed)
        if timed and order.due > self._root.now():
            heappush(self._delayed, f"{order.due:013}{entry}")
            return
        if delayed:
            self._move_due(name)
        self._offer(entry, order)

    def leave(self, name: str) -> None:
        """Note that a waiting file is gone: the next of its group may lead."""
        order = self.order(name)
        if order is not None and order.group:
            self._groups.leave(order.group, self._entry(name, order))
            self._offer_head(order.group)

    def lease(self, name: str, leased: str) -> str:
        """Note that a file which `pop` returned is in flight under its new name; return its group."""
        order = self.order(name)
        if order is not None and order.group:
            self._groups.hold(order, leased)
            self.leave(name)
        self.orders.rename(name, leased)
        return order.group if order is not None else ""

    def add_foreign(self, name: str) -> None:
        """Have a file read, and given its place."""
        self.foreign.setdefault(name, self._root.clock.boot())

    # Entries: the name itself where it sorts in lease order, else the order before the name

    def _entry(self, name: str, order: Order) -> str:
        if self._native:
            return name.replace("~", "\1")  # below every character of an id, so that "a" comes before "a-b"
        return f"{100 - order.priority:03}-{order.due:013}-{order.id}\1\2{name}"

    def _name(self, entry: str) -> str:
        return entry.replace("\1", "~") if self._native else entry.partition("\1\2")[2]

    def _current(self, entry: str) -> tuple[str, Order | None]:
        """Return the name of an entry and its order; None instead of the order if the two no longer belong together."""
        name = entry.replace("\1", "~") if self._native else self._name(entry)
        order = self._parse(name) if self._native else self.order(name)
        if order is not None and (self._native or entry == self._entry(name, order)):
            return name, order
        self.add_foreign(name)  # the name is that of another file by now, which must be read
        return name, None

    def _offer(self, entry: str, order: Order) -> None:
        if order.group:
            self._offer_head(order.group)
        else:
            heappush(self._targeted.setdefault(order.target, []), entry)

    def _exists(self, entry: str) -> bool:
        return any(os.path.lexists(f"{path}/{self._name(entry)}") for path in self._queue.waiting)

    # Delayed messages

    def _promote(self, now: int) -> None:
        while (entry := _pop_due(self._delayed, now)) is not None:
            name, order = self._current(entry)
            if order is not None:
                self._move_due(name)
                self._offer(entry, order)

    def _move_due(self, name: str) -> None:
        """Move a file that has come due: a message that was once ready stays ready if the clock steps back."""
        if self._promotions > 0 and self._only_ready:
            self._promotions -= 1
            delayed = f"{self._queue.dirs[State.DELAYED]}/{name}"
            with suppress(FileNotFoundError):
                set_time(self._root, delayed)
                self._root.move(delayed, f"{self._only_ready}/{name}")

    # Groups

    def _offer_head(self, key: str) -> None:
        head = self._groups.to_offer(key)
        order = self.order(self._name(head.entry)) if head is not None else None
        if head is None or order is None or (head.delayed and order.due > self._root.now()):
            return  # it is offered when it leads and is due
        self._groups.offered(key, head.entry)
        heappush(self._targeted.setdefault(order.target, []), head.entry)

    def _hold_group(self, name: str) -> None:
        order = self.order(name)
        if order is None and not self._native and (slot := self._parse(name)) is not None:
            order = learn(self._root, self._queue, self._queue.inflight, name, slot)
        if order is not None and order.group:
            self._groups.hold(order, name)

    def _release_group(self, name: str) -> None:
        holder, slot = self._groups.holder(name), self._parse(name)
        self.orders.forget(name)
        if slot is None:
            return
        if holder is None:
            if not self._native:  # it may have been settled before its file was read
                self._hold_unfinished(slot.token)
        elif not self._unfinished.add(holder[1], slot.token, name):
            self._offer_head(self._groups.release(name))

    def _hold_unfinished(self, token: str = "") -> None:
        """Hold the messages of groups that lie in folders of settlements, of all or under one token."""
        for folder, name, slot in self._unfinished.lying(token):
            order = slot if self._native else self._order_of_input(folder, slot)
            if order is not None and order.group:
                self._groups.hold(order, name)
                self._unfinished.names[folder] = name
            elif order is not None:
                self._unfinished.pass_over(folder)

    def _order_of_input(self, folder: str, slot: Slot) -> Order | None:
        found = read_order(self._root, self._queue.name, folder, INPUT, slot)
        return None if found is None else found[0].at(slot)

    # Keeping up with the directories

    def _handle_event(self, directory: str, mask: int, name: str) -> None:
        if not mask & ARRIVALS and os.path.lexists(f"{directory}/{name}"):
            return  # the file was exchanged with an edited copy of itself
        if directory == self._queue.inflight:
            (self._hold_group if mask & MOVED_TO else self._release_group)(name)
        elif mask & ARRIVALS:
            if self.waiting_names is not None and self._root.layout.admits(name):
                self.waiting_names.add(name)
            self._until_reload -= 1
            if not self._native:
                self._forget_if_replaced(directory, name)
            self.arrive(name, directory)
        else:
            if self.waiting_names is not None:
                self.waiting_names.discard(name)
            if self._grouped:
                self.leave(name)

    def _forget_if_replaced(self, directory: str, name: str) -> None:
        """Forget the order of a name that another file has by now: another process may have settled the earlier one."""
        if self.orders.of_another(directory, name):
            self.leave(name)
            self.orders.forget(name)

    def _reload(self) -> None:
        self.stale = False
        self._watch()
        self.pending.clear()
        self._seen = self._directory_times()
        self._clear_heaps()
        self._groups.clear()
        names: list[tuple[str, str]] = []
        for path in self._queue.waiting:
            found = self._list(path)
            if self._native and path == self._only_ready:
                # Native names without group, target, expiry and earlier attempts; any other becomes an entry at once.
                self._listed = [name for name in found if name.count("~") == 1 and name[3:18:14] == "--"]
                if len(self._listed) == len(found):
                    found = []
                found = [name for name in found if name.count("~") != 1 or name[3:18:14] != "--"]
                heapify(self._listed)
            names += [(name, path) for name in found]
        names.sort()
        leased = os.listdir(self._queue.inflight) if self._grouped or not self._native else []
        self._until_reload = len(self._listed) + len(names) + _ARRIVALS
        if not self._native:
            for name, path in [*names, *((name, self._queue.inflight) for name in leased)]:
                self._forget_if_replaced(path, name)
        if not self._native or self.foreign or self.waiting_names is not None:
            self._forget_all_but({*self._listed, *(name for name, _ in names)}, leased)
        if self._grouped:
            for name in leased:
                self._hold_group(name)
            self._unfinished.clear()
            self._hold_unfinished()
        for name, path in names:
            self.arrive(name, path)

    def _watch(self) -> None:
        leaving = self._grouped or self.waiting_names is not None
        for path in self._queue.waiting:
            self._feed.watch(path, ARRIVALS | MOVED_FROM | DELETE if leaving else ARRIVALS, self)
        if self._grouped:
            self._feed.watch(self._queue.inflight, MOVED_TO | MOVED_FROM | DELETE, self)

    def _list(self, path: str) -> list[str]:
        if self._native:
            return os.listdir(path)
        # The layout of an application may have other directories in here.
        return [entry.name for entry in os.scandir(path) if not entry.is_dir(follow_symlinks=False)]

    def _forget_all_but(self, waiting: set[str], leased: list[str]) -> None:
        self.foreign = {name: seen for name, seen in self.foreign.items() if name in waiting}
        if self.waiting_names is not None:
            self.waiting_names = {name for name in waiting if self._root.layout.admits(name)}
        if not self._native:
            self.unread.keep(waiting)
            self.orders.keep((*waiting, *leased))

    def _directories_changed(self) -> bool:
        times = self._directory_times()
        # Compared with the system's own clock, which these times are from: too young a change may hide another.
        return times != self._seen or time.time_ns() - max(times) < _SETTLED_NS

    def _directory_times(self) -> tuple[int, ...]:
        return tuple(os.stat(path).st_mtime_ns for path in (*self._queue.waiting, self._queue.inflight))


def _pop_due(heap: list[str], now: int) -> str | None:
    """Take the first entry of a heap of times, if its time has come."""
    return heappop(heap)[13:] if heap and int(heap[0][:13]) <= now else None
