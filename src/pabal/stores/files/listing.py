"""What waits in a queue, in lease order: the directories listed once, then fed by inotify.

All of it is called with the queue's lock held. Entries are strings that sort in lease order; one that is no longer true
is met with ENOENT when its file is moved, and skipped. Of a group only the earliest waiting member is on offer, and
only while none before it is in flight: a queue with groups, or with a limit, is watched for what leaves it too. What
leaves unseen is forgotten when the directories are listed again, as they are after so many arrivals.
"""

from __future__ import annotations

import os
from collections import deque
from contextlib import suppress
from heapq import heappush
from typing import TYPE_CHECKING

from pabal.store import State
from pabal.stores.files.directories import Directories
from pabal.stores.files.feed import Feed
from pabal.stores.files.groups import Groups, Learn, Order
from pabal.stores.files.heaps import Heaps, pop_due
from pabal.stores.files.names import Slot
from pabal.stores.files.orders import Orders
from pabal.stores.files.remembering import Unread
from pabal.stores.files.returning import Returning
from pabal.watch import ARRIVALS, DELETE, MOVED_FROM, MOVED_TO

if TYPE_CHECKING:
    from pabal.stores.files.root import Root
    from pabal.stores.files.spool import Spool

_PROMOTE_SLICE = 1000
_ARRIVALS = 10_000  # after these, and as many as were listed, all is listed again


class Listing:
    """The waiting messages of one queue as this process knows them."""

    def __init__(self, root: Root, spool: Spool, feed: Feed, learn: Learn) -> None:
        self._root, self._spool, self._feed, self._learn = root, spool, feed, learn
        self._native, self._parse = root.names.native, root.names.parse
        self.stale = True
        self.pending: deque[tuple[str, int, str]] = deque()  # directory, what happened, name
        self.strangers: dict[str, float] = {}  # names to be taken in, and when each was first seen (boot clock)
        self.orders = Orders(root.names.extension)  # of plain names only
        self.census: set[str] | None = None  # every waiting name, kept only where the queue has a limit
        self._heaps = Heaps()
        self._groups = Groups()
        self._returning = Returning(root, spool.name)
        self.unread = Unread(root, spool)
        self._grouped = False
        self._moves = 0
        self._until_reload = _ARRIVALS
        # Where ready and delayed share a directory, only the due time tells them apart.
        self._only_ready = spool.dirs[State.READY] if len(spool.waiting) > 1 else ""
        self._directories = Directories(spool, native=self._native)

    def refresh(self) -> None:
        """Catch up with the directories and with the clock."""
        self._moves = _PROMOTE_SLICE
        self._feed.drain()
        if not self._feed.working and self._directories.changed():
            self.stale = True
        while self.stale or self.pending:
            if self.stale or self._until_reload <= 0:
                self._reload()
            else:
                self._happened(*self.pending.popleft())
        for name in self._returning.finished():
            self._offer_head(self._groups.release(name))
        if self._heaps.delayed:
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
        return slot if slot is None or self._native else self.orders.of(slot)

    def pop(self, target: str) -> tuple[str, Slot] | None:
        """Take the name that comes next for this consumer; the caller moves the file."""
        while (entry := self._heaps.pop(target)) is not None:
            name, order = self._standing(entry)
            if order is None or order.group and not self._groups.leads(order.group, entry):
                continue
            slot = order if isinstance(order, Slot) else self._parse(name)
            if slot is not None and self.unread.is_first(name, slot.base, order.id):
                return name, slot
            self.strangers.setdefault(name, self._root.clock.boot())  # to be read, and set aside with its reason
        return None

    def gone(self, name: str) -> None:
        """Note that a waiting file is no more: its group goes on without it."""
        order = self.order(name)
        if order is not None and order.group:
            self._groups.leave(order.group, self._entry(name, order))
            self._offer_head(order.group)

    def pop_expired(self, now: int) -> str | None:
        """Take the name of a waiting message whose time to live is over."""
        while (entry := pop_due(self._heaps.expiring, now)) is not None:
            name, order = self._standing(entry)
            if order is not None:
                return name
        return None

    def next_change(self) -> int | None:
        """Return when the earliest delay or time to live ends, in milliseconds."""
        return self._heaps.next_time(self._waits)

    def arrive(self, name: str, directory: str) -> None:
        """Take note of a waiting file."""
        if directory == self._only_ready and self._root.names.is_simple(name):
            heappush(self._heaps.anyones, name.replace("~", "\1"))
            return
        order, delayed = self.order(name), directory != self._only_ready
        if order is None and self._grouped and (slot := self._parse(name)) is not None and slot.attempt:
            order = self._learn(directory, name, slot)  # at once: none of its group may go before it
        if order is None:
            if self._root.layout.admits(name):
                self.strangers.setdefault(name, self._root.clock.boot())
            return
        entry = self._entry(name, order)
        if order.expires:
            self._heaps.expire(entry, order.expires)
        if order.group:
            if not self._grouped:
                self._grouped = self.stale = True  # to be listed again, watched in both directions
                return
            self._groups.join(order, entry, delayed=delayed)
        if delayed and order.due > self._root.now():
            self._heaps.delay(entry, order.due)
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

    def _standing(self, entry: str) -> tuple[str, Order | None]:
        """Return the name of an entry and what orders it; None if the two do not belong together."""
        name = self._name(entry)
        order = self.order(name)
        if order is not None and (self._native or entry == self._entry(name, order)):
            return name, order
        # What was known under this name, or is now, is of another file of that name: to be read.
        self.strangers.setdefault(name, self._root.clock.boot())
        return name, None

    def _offer(self, entry: str, order: Order) -> None:
        if order.group:
            self._offer_head(order.group)
        else:
            self._heaps.push(entry, order.target)

    def _promote(self, now: int) -> None:
        while (entry := pop_due(self._heaps.delayed, now)) is not None:
            name, order = self._standing(entry)
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

    def _waits(self, entry: str) -> bool:
        return any(os.path.lexists(f"{path}/{self._name(entry)}") for path in self._spool.waiting)

    # Groups

    def _offer_head(self, key: str) -> None:
        head = self._groups.to_offer(key)
        order = self.order(self._name(head.entry)) if head is not None else None
        if head is None or order is None or (head.delayed and order.due > self._root.now()):
            return  # offered when it leads and is due
        self._groups.offered(key, head.entry)
        self._heaps.push(head.entry, order.target)

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
        if not self._returning.note(holder[1], slot.token, name):
            self._offer_head(self._groups.release(name))

    def _hold_returning(self) -> None:
        for folder, name, slot in self._returning.reload():
            order = slot if self._native else self._learn(folder, "input", slot)
            if order is not None and order.group:
                self._groups.hold(order, name)
                self._returning.hold(folder, name)

    # Keeping up

    def _happened(self, directory: str, mask: int, name: str) -> None:
        if not mask & ARRIVALS and os.path.lexists(f"{directory}/{name}"):
            return  # it changed places with an edited copy of itself
        if directory == self._spool.inflight:
            (self._leased if mask & MOVED_TO else self._released)(name)
        elif mask & ARRIVALS:
            if self.census is not None and self._root.layout.admits(name):
                self.census.add(name)
            self._until_reload -= 1
            self._forget_earlier(directory, name)
            self.arrive(name, directory)
        else:
            if self.census is not None:
                self.census.discard(name)
            if self._grouped:
                self.gone(name)

    def _forget_earlier(self, directory: str, name: str) -> None:
        """Forget a file that had the name of one that is there: another process may have settled it."""
        if self.orders and (stem := self.orders.of_another(directory, name)):
            self.gone(name)
            self.orders.forget(stem)

    def _watch(self) -> None:
        both_ways = self._grouped or self.census is not None
        for path in self._spool.waiting:
            self._feed.watch(path, ARRIVALS | MOVED_FROM | DELETE if both_ways else ARRIVALS, self)
        if self._grouped:
            self._feed.watch(self._spool.inflight, MOVED_TO | MOVED_FROM | DELETE, self)

    def _reload(self) -> None:
        self.stale = False
        self._watch()
        self.pending.clear()
        self._directories.mark()
        self._heaps.clear()
        self._groups.clear()
        names = self._directories.waiting()
        leased = os.listdir(self._spool.inflight) if self._grouped or not self._native else []
        self._keep({name for name, _ in names}, leased)
        for name in leased:
            self._forget_earlier(self._spool.inflight, name)
            if self._grouped:
                self._leased(name)
        if self._grouped:
            self._hold_returning()
        for name, path in names:
            self._forget_earlier(path, name)
            self.arrive(name, path)

    def _keep(self, waiting: set[str], leased: list[str]) -> None:
        """Forget what has left."""
        self._until_reload = len(waiting) + _ARRIVALS
        self.strangers = {name: seen for name, seen in self.strangers.items() if name in waiting}
        if self.census is not None:
            self.census = {name for name in waiting if self._root.layout.admits(name)}
        if not self._native:
            self.unread.keep(waiting)
            self.orders.keep((*waiting, *leased))
