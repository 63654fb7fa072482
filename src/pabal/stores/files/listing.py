"""What waits in a queue, in lease order: the directories listed once, then fed by inotify.

All of it is called with the queue's lock held. Entries are strings that sort in lease order; one that is no longer true
is met with ENOENT when its file is moved, and skipped. Of a group only the earliest waiting member is on offer, and
only while none before it is in flight: a queue with groups, or with a limit, is watched for what leaves it too.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import TYPE_CHECKING, TypeAlias

from pabal import jsontext
from pabal.store import State
from pabal.stores.files.feed import Feed
from pabal.stores.files.groups import DocumentOrder, Groups, Order
from pabal.stores.files.names import Slot
from pabal.watch import ARRIVALS, DELETE, MOVED_FROM, MOVED_TO

if TYPE_CHECKING:
    from pabal.stores.files.spool import Root, Spool

_PROMOTE_SLICE = 1000
_SETTLED_NS = 2_000_000_000  # a directory's time of change is trusted once it is this old

# Reads the document of a plain name (directory, name, slot) and remembers its order.
Learn: TypeAlias = Callable[[str, str, Slot], DocumentOrder | None]


class Listing:
    """The waiting messages of one queue as this process knows them."""

    def __init__(self, root: Root, spool: Spool, feed: Feed, learn: Learn) -> None:
        self._root, self._spool, self._feed, self._learn = root, spool, feed, learn
        self._native, self._parse = root.names.native, root.names.parse
        self.stale = True
        self.pending: deque[tuple[str, int, str]] = deque()  # directory, what happened, name
        self.strangers: dict[str, float] = {}  # names to be taken in, and when each was first seen (boot clock)
        self.known: dict[str, DocumentOrder] = {}  # plain names only: what their documents say, by stem
        self.census: set[str] | None = None  # every waiting name, kept only where the queue has a limit
        self._anyones: list[str] = []  # ready for whoever comes
        self._ready: dict[str, list[str]] = {"": self._anyones}  # by target
        self._delayed: list[str] = []
        self._expiring: list[str] = []
        self._groups = Groups()
        self._settling: dict[str, str] = {}  # folder -> the name that something in it was held under
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

    def order(self, name: str) -> Order | None:
        """Return what orders a waiting file; None if it must be read first."""
        slot = self._parse(name)
        if slot is None or self._native:
            return slot
        known = self.known.get(slot.base)
        return known.at(slot) if known is not None else None

    def pop(self, target: str) -> tuple[str, Slot] | None:
        """Take the name that comes next for this consumer; the caller moves the file."""
        while (entry := self._pop_entry(target)) is not None:
            name = self._name(entry)
            order = self.order(name)
            if order is None or (order.group and not self._groups.leads(order.group, entry)):
                continue
            slot = order if isinstance(order, Slot) else self._parse(name)
            if slot is not None:
                return name, slot
        return None

    def gone(self, name: str) -> None:
        """Note that a waiting file is no more: its group goes on without it."""
        order = self.order(name)
        if order is not None and order.group:
            self._groups.leave(order.group, self._entry(name, order))
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
                self.strangers.setdefault(name, self._root.clock.boot())
            return
        entry = self._entry(name, order)
        if order.expires:
            heappush(self._expiring, f"{order.expires:013}{entry}")
        if order.group:
            if not self._grouped:
                self._grouped = self.stale = True  # to be listed again, watched in both directions
                return
            self._groups.join(order, entry, delayed=delayed)
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

    def _entry(self, name: str, order: Order) -> str:
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

    def _offer(self, entry: str, order: Order) -> None:
        if order.group:
            self._offer_head(order.group)
        else:
            self._push(entry, order)

    def _push(self, entry: str, order: Order) -> None:
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

    def _offer_head(self, key: str) -> None:
        head = self._groups.to_offer(key)
        order = self.order(self._name(head.entry)) if head is not None else None
        if head is None or order is None or (head.delayed and order.due > self._root.now()):
            return  # offered when it leads and is due
        self._groups.offered(key, head.entry)
        self._push(head.entry, order)

    def _leased(self, name: str) -> None:
        order = self.order(name)
        if order is None and not self._native and (slot := self._parse(name)) is not None:
            order = self._learn(self._spool.inflight, name, slot)
        if order is not None and order.group:
            self._groups.hold(order, name)

    def _released(self, name: str) -> None:
        holder, slot = self._groups.holder(name), self._parse(name)
        if holder is None or slot is None:
            return
        prefix = f"{holder[1]}~{slot.token}~"
        folders = [
            f"{self._root.settling}/{each}" for each in os.listdir(self._root.settling) if each.startswith(prefix)
        ]
        folder = next((each for each in folders if os.path.lexists(f"{each}/input")), None)
        if folder is not None:
            # Settled with follow-ups, and perhaps to come back: it counts as held until that is finished.
            self._settling[folder] = name
        else:
            self._offer_head(self._groups.release(name))

    def _recheck_settling(self) -> None:
        for folder, name in list(self._settling.items()):
            if not os.path.lexists(f"{folder}/input"):
                del self._settling[folder]
                self._offer_head(self._groups.release(name))

    def _list_settling(self) -> None:
        """Count as held what is on its way back into this queue together with its follow-ups."""
        for each in os.listdir(self._root.settling):
            folder = f"{self._root.settling}/{each}"
            try:
                with open(f"{folder}/plan.json", "rb") as file:
                    plan = jsontext.decode(file.read())
            except (OSError, ValueError):
                continue
            slot = self._parse(plan["name"])
            if plan["queue"] != self._spool.name or slot is None or not os.path.lexists(f"{folder}/input"):
                continue
            order = slot if self._native else self._learn(folder, "input", slot)
            if order is not None and order.group:
                self._groups.hold(order, plan["name"])
                self._settling[folder] = plan["name"]

    # Keeping up

    def _happened(self, directory: str, mask: int, name: str) -> None:
        if not mask & ARRIVALS and os.path.lexists(f"{directory}/{name}"):
            return  # it changed places with an edited copy of itself
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
        for known in (self._delayed, self._expiring, self._groups, self._settling):
            known.clear()
        if self._grouped:
            for name in os.listdir(self._spool.inflight):
                self._leased(name)
            self._list_settling()
        names = sorted((name, path) for path in self._spool.waiting for name in self._list(path))
        there = {name for name, _ in names}
        self.strangers = {name: seen for name, seen in self.strangers.items() if name in there}
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
