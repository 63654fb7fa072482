"""What waits in a queue, in lease order: the directories listed once, then fed by inotify.

All of it is called with the queue's lock held. Entries are strings that sort in lease order; one that is no longer true
is met with ENOENT when its file is moved, and skipped. Of a group only the earliest waiting member is on offer, and
only while none before it is in flight: a queue with groups, or with a limit, is watched for what leaves it too.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from pabal.store import State
from pabal.stores.layout import Slot
from pabal.watch import ARRIVALS, DELETE, IGNORED, MOVED_FROM, MOVED_TO, OVERFLOW, Inotify

if TYPE_CHECKING:
    from pabal.stores.files_spool import Root, Spool

_PROMOTE_SLICE = 1000
_SETTLED_NS = 2_000_000_000  # a directory's time of change is trusted once it is this old


class Order(NamedTuple):
    """What decides when a waiting message comes, and to whom. Native names say it themselves: a Slot serves as well."""

    id: str
    priority: int = 0
    due: int = 0
    group: str = ""
    stamp: int = 0
    target: str = ""
    expires: int = 0


# Reads the document of a plain name (directory, name, slot) and remembers its order.
Learn: TypeAlias = Callable[[str, str, Slot], Order | None]


@dataclass(slots=True)
class Group:
    """The members that wait (stamp, entry, whether it lies with the delayed), and those held (name to stamp)."""

    members: list[tuple[int, str, bool]] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)
    offered: str = ""


class Feed:
    """One inotify instance for all queues of a store; what it says is handed to each queue's listing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # nobody may see the instance read and its events not yet handed out
        self._listings: dict[int, tuple[Listing, str]] = {}
        self._inotify: Inotify | None
        try:
            self._inotify = Inotify()
        except OSError:
            self._inotify = None

    @property
    def working(self) -> bool:
        return self._inotify is not None

    def watch(self, path: str, mask: int, listing: Listing) -> None:
        """Have what happens in a directory told to a listing."""
        if self._inotify is None:
            return
        with self._lock:
            try:
                self._listings[self._inotify.add(path, mask)] = listing, path
            except OSError:  # no watches left: from here on all is listed again when it changed
                self._inotify.close()
                self._inotify = None

    def drain(self) -> None:
        """Hand out what has happened so far."""
        if self._inotify is None:
            return
        with self._lock:
            for event in self._inotify.events():
                if event.mask & OVERFLOW:
                    for listing, _ in self._listings.values():
                        listing.stale = True
                    continue
                found = self._listings.get(event.watch)
                if found is None:
                    continue
                if event.mask & IGNORED:
                    found[0].stale = True
                else:
                    found[0].pending.append((found[1], event.mask, event.name))

    def close(self) -> None:
        if self._inotify is not None:
            with suppress(OSError):
                self._inotify.close()


class Listing:
    """The waiting messages of one queue as this process knows them."""

    def __init__(self, root: Root, spool: Spool, feed: Feed, learn: Learn) -> None:
        self._root, self._spool, self._feed, self._learn = root, spool, feed, learn
        self._native, self._parse = root.names.native, root.names.parse
        self.stale = True
        self.pending: deque[tuple[str, int, str]] = deque()  # directory, what happened, name
        self.strangers: dict[str, float] = {}  # names to be taken in, and when each was first seen (boot clock)
        self.known: dict[str, Order] = {}  # plain names only: what their documents say, by stem
        self.census: set[str] | None = None  # every waiting name, kept only where the queue has a limit
        self._anyones: list[str] = []  # ready for whoever comes
        self._ready: dict[str, list[str]] = {"": self._anyones}  # by target
        self._delayed: list[str] = []
        self._expiring: list[str] = []
        self._groups: dict[str, Group] = {}
        self._settling: dict[str, tuple[str, str]] = {}  # folder -> group, name
        self._grouped = False
        self._moves = 0
        # Where ready and delayed share a directory, only the due time tells them apart.
        self._only_ready = spool.dirs[State.READY] if len(spool.waiting) > 1 else ""
        self._seen: tuple[int, ...] = ()

    def refresh(self) -> None:
        """Catch up with the directories and with the clock."""
        self._moves = _PROMOTE_SLICE
        self._feed.drain()
        if not self._feed.working and self._changed():
            self.stale = True
        while self.stale or self.pending:
            if self.stale:
                self._reload()
            else:
                self._happened(*self.pending.popleft())
        if self._settling:
            self._recheck_settling()
        if self._delayed:
            self._promote(self._root.now())

    def count_all(self) -> int:
        """Count the waiting files exactly; from the first time on at no cost of its own."""
        if self.census is None:
            self.census, self.stale = set(), True
            self.refresh()
        assert self.census is not None
        return len(self.census)

    def order(self, name: str) -> Slot | Order | None:
        """Return what orders a waiting file; None if it must be read first."""
        slot = self._parse(name)
        if slot is None or self._native:
            return slot
        known = self.known.get(slot.base)
        return known._replace(due=slot.due) if known and slot.due else known

    def pop(self, target: str) -> tuple[str, Slot] | None:
        """Take the name that comes next for this consumer; the caller moves the file."""
        while (entry := self._pop_entry(target)) is not None:
            name = self._name(entry)
            order = self.order(name)
            if order is None or (order.group and not self._leads(order, entry)):
                continue
            slot = order if isinstance(order, Slot) else self._parse(name)
            if slot is not None:
                return name, slot
        return None

    def gone(self, name: str) -> None:
        """Note that a waiting file is no more: its group goes on without it."""
        order = self.order(name)
        group = self._groups.get(order.group) if order is not None else None
        if order is None or group is None:
            return
        entry = self._entry(name, order)
        if group.members and group.members[0][1] == entry:
            heappop(group.members)
        else:
            group.members = [member for member in group.members if member[1] != entry]
            heapify(group.members)
        self._offer_head(order.group)

    def pop_expired(self, now: int) -> str | None:
        """Take the name of a waiting message whose time to live is over."""
        if self._expiring and int(self._expiring[0][:13]) <= now:
            return self._name(heappop(self._expiring)[13:])
        return None

    def next_change(self) -> int | None:
        """Return when the earliest delay or time to live ends, in milliseconds."""
        found = [int(heap[0][:13]) for heap in (self._delayed, self._expiring) if self._true_top(heap)]
        return min(found) if found else None

    def arrive(self, name: str, directory: str) -> None:
        """Take note of a waiting file."""
        if directory == self._only_ready and self._root.names.is_simple(name):
            heappush(self._anyones, name.replace("~", "\1"))
            return
        order, delayed = self.order(name), directory != self._only_ready
        if order is None:
            if self._root.layout.admits(name):
                self.strangers[name] = self._root.clock.boot()
            return
        entry = self._entry(name, order)
        if order.expires:
            heappush(self._expiring, f"{order.expires:013}{entry}")
        if order.group:
            if not self._grouped:
                self._grouped = self.stale = True  # to be listed again, watched in both directions
                return
            member = order.stamp, entry, delayed
            heappush(self._groups.setdefault(order.group, Group()).members, member)
        if delayed and order.due > self._root.now():
            heappush(self._delayed, f"{order.due:013}{entry}")
            return
        if delayed:
            self._move_due(name)
        self._offer(entry, order)

    def leased(self, name: str, leased: str) -> None:
        """Note that a file which `pop` gave is in flight under its new name."""
        order = self.order(name)
        if order is not None and order.group:
            self._leased(leased)
            self.gone(name)

    # Entries: the name itself where it sorts in lease order, else the order before the name

    def _entry(self, name: str, order: Slot | Order) -> str:
        if self._native:
            return name.replace("~", "\1")  # below every character of an id, so that "a" comes before "a-b"
        return f"{100 - order.priority:03}-{order.due:013}-{order.id}\1\2{name}"

    def _name(self, entry: str) -> str:
        return entry.replace("\1", "~") if self._native else entry.partition("\1\2")[2]

    def _pop_entry(self, target: str) -> str | None:
        anyones = self._anyones
        own = self._ready.get(target) if target else None
        if own and (not anyones or own[0] < anyones[0]):
            return heappop(own)
        return heappop(anyones) if anyones else None

    def _offer(self, entry: str, order: Slot | Order) -> None:
        if order.group:
            self._offer_head(order.group)
        else:
            self._push(entry, order)

    def _push(self, entry: str, order: Slot | Order) -> None:
        heap = self._ready.get(order.target)
        if heap is None:
            heap = self._ready[order.target] = []
        heappush(heap, entry)

    def _promote(self, now: int) -> None:
        while self._delayed and int(self._delayed[0][:13]) <= now:
            entry = heappop(self._delayed)[13:]
            name = self._name(entry)
            order = self.order(name)
            if order is not None:
                self._move_due(name)
                self._offer(entry, order)

    def _move_due(self, name: str) -> None:
        """Move a file that has come due, so many at a time: what was once ready stays so if the clock steps back."""
        if self._moves > 0 and self._only_ready:
            self._moves -= 1
            now = self._root.clock.now()
            delayed = self._spool.dirs[State.DELAYED]
            with suppress(FileNotFoundError):
                os.utime(f"{delayed}/{name}", (now, now))
                self._root.move(f"{delayed}/{name}", f"{self._only_ready}/{name}")

    def _true_top(self, heap: list[str]) -> bool:
        while heap:
            name = self._name(heap[0][13:])
            if any(os.path.lexists(f"{path}/{name}") for path in self._spool.waiting):
                return True
            heappop(heap)
        return False

    # Groups

    def _leads(self, order: Slot | Order, entry: str) -> bool:
        group = self._groups.get(order.group)
        if group is None:
            return False
        if group.offered == entry:
            group.offered = ""
        return bool(group.members) and group.members[0][1] == entry and not self._blocked(group, order.stamp)

    @staticmethod
    def _blocked(group: Group, stamp: int) -> bool:
        return any(held < stamp for held in group.held.values())

    def _offer_head(self, key: str) -> None:
        group = self._groups.get(key)
        if group is None:
            return
        if not group.members:
            if not group.held:
                del self._groups[key]
            return
        stamp, entry, delayed = group.members[0]
        if self._blocked(group, stamp) or group.offered == entry:
            return
        order = self.order(self._name(entry))
        if order is None or (delayed and order.due > self._root.now()):
            return  # offered when it is due
        group.offered = entry
        self._push(entry, order)

    def _leased(self, name: str) -> None:
        order = self._order_in_flight(name)
        if order is not None and order.group:
            self._groups.setdefault(order.group, Group()).held[name] = order.stamp

    def _released(self, name: str) -> None:
        slot, order = self._parse(name), self._order_in_flight(name)
        if slot is None or order is None or not order.group:
            return
        prefix = f"{order.id}~{slot.token}~"
        folder = next((each for each in os.listdir(self._root.settling) if each.startswith(prefix)), None)
        if folder is not None:
            # Settled with follow-ups, and perhaps to come back: it counts as held until that is finished.
            self._settling[f"{self._root.settling}/{folder}"] = order.group, name
        else:
            self._free(order.group, name)

    def _order_in_flight(self, name: str) -> Slot | Order | None:
        order = self.order(name)
        if order is None and not self._native and (slot := self._parse(name)) is not None:
            order = self._learn(self._spool.inflight, name, slot)
        return order

    def _free(self, key: str, name: str) -> None:
        group = self._groups.get(key)
        if group is not None:
            group.held.pop(name, None)
            self._offer_head(key)

    def _recheck_settling(self) -> None:
        for folder, (key, name) in list(self._settling.items()):
            if not os.path.lexists(folder):
                del self._settling[folder]
                self._free(key, name)

    # Keeping up

    def _happened(self, directory: str, mask: int, name: str) -> None:
        if directory == self._spool.inflight:
            (self._leased if mask & MOVED_TO else self._released)(name)
        elif mask & ARRIVALS:
            if self.census is not None and self._root.layout.admits(name):
                self.census.add(name)
            self.arrive(name, directory)
        else:
            if self.census is not None:
                self.census.discard(name)
            if self._grouped:
                self.gone(name)

    def _reload(self) -> None:
        self.stale = False
        both_ways = self._grouped or self.census is not None
        for path in self._spool.waiting:
            self._feed.watch(path, ARRIVALS | MOVED_FROM | DELETE if both_ways else ARRIVALS, self)
        if self._grouped:
            self._feed.watch(self._spool.inflight, MOVED_TO | MOVED_FROM | DELETE, self)
        self.pending.clear()
        self._seen = self._times()
        self._anyones = []
        self._ready = {"": self._anyones}
        for known in (self._delayed, self._expiring, self._groups, self._settling, self.strangers):
            known.clear()
        if self._grouped:
            for name in os.listdir(self._spool.inflight):
                self._leased(name)
        names = sorted((name, path) for path in self._spool.waiting for name in self._list(path))
        if self.census is not None:
            self.census = {name for name, _ in names if self._root.layout.admits(name)}
        for name, path in names:
            self.arrive(name, path)

    def _list(self, path: str) -> list[str]:
        if self._native:
            return os.listdir(path)
        # A layout of an application may keep other directories in here.
        return [entry.name for entry in os.scandir(path) if not entry.is_dir(follow_symlinks=False)]

    def _times(self) -> tuple[int, ...]:
        return tuple(os.stat(path).st_mtime_ns for path in (*self._spool.waiting, self._spool.inflight))

    def _changed(self) -> bool:
        times = self._times()
        # The system's own clock, for these are the system's times: too young a change may hide another.
        return times != self._seen or time.time_ns() - max(times) < _SETTLED_NS
