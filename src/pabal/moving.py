"""Carry a queue from one store to another, with ids, attempts, delays, dead letters and settings.

Killed at any point and started again, it goes on where it was, and nothing is lost or doubled:

- The source is paused first, so that its consumers take nothing that is on its way.
- What is ready is leased under a token made of queue and target, carried, and acknowledged: whoever starts again holds
  what was held, and the target leaves alone what it has.
- What no consumer can take (delayed, dead, done) is carried and then removed.
- A queue is never moved onto itself, however the two stores are spelt, and what was moved away may come back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple, Protocol, TypeAlias

from pabal.clock import SystemClock
from pabal.errors import InvalidInput, StoreRefused
from pabal.ids import IdMaker
from pabal.policy import Policy, document_of, policy_from
from pabal.queue import Queue
from pabal.store import Done, Entry, Failure, Lease, Movable, Outcome, Settlement, State, Store
from pabal.waiter import SLOW_POLL

LEASE_SECONDS = 86_400.0
NEAR_SECONDS = 5.0  # what is due so soon is let come due, and is then taken as ready
HEARD_SECONDS = 1.25 * SLOW_POLL  # by then every consumer has heard that the queue is paused
MOVED = "MOVED"  # the code of the failure in the tombstones that the move leaves
_BATCH = 200
_PAUSE = 0.1
_WAITING = (State.READY, State.DELAYED, State.INFLIGHT)

_FIRST, _LAST = (float("-inf"), ""), (float("inf"), "")

Order: TypeAlias = tuple[float, str]
Told: TypeAlias = Callable[["Moved"], None]


class _Target(Store, Movable, Protocol):
    """A store that takes in what comes from another one."""


class Moved(NamedTuple):
    """What was carried so far, by the state it was in, and what is left at the source."""

    queue: str
    ready: int = 0
    delayed: int = 0
    dead: int = 0
    done: int = 0
    left: int = 0


def move(source: Store, target: Store, queue: str, *, wait: float = 0.0, told: Told = lambda moved: None) -> Moved:
    """Carry one queue, waiting up to `wait` seconds for what others hold; say what was carried and what is left."""
    if not isinstance(target, Movable):
        raise StoreRefused("this kind of store takes in no messages from another one: name a sqlite, file or SQL store")
    return _Move(source, target, queue, told).run(time.monotonic() + wait)


class _Move:
    def __init__(self, source: Store, target: _Target, queue: str, told: Told) -> None:
        self._source = source
        self._target = target
        self._queue = queue
        self._told = told
        self._moved = Moved(queue)
        # Of the target too: what a move to another one holds may be there already.
        place = target.facts().get("place", "")
        self._token = hashlib.sha256(f"pabal move {queue} to {place}".encode()).hexdigest()[:16]
        self._window = 300.0
        self._heard_at = 0.0

    def run(self, deadline: float) -> Moved:
        self._require_two()
        self._hand_over_settings()
        for page in self._pages(self._source, State.DONE):
            self._carry_done(page)
        tended = Queue(self._queue, self._source)
        while True:
            before = self._moved
            tended.sweep()
            self._take_ready()
            for page in self._pages(self._source, State.DEAD):
                self._carry_dead(page)
            self._carry_delayed()
            left = self._left()
            if left == 0 or (self._moved == before and not self._soon() and time.monotonic() > deadline):
                return self._moved._replace(left=left)
            if self._moved == before:  # else a group may have lost the delayed one that led it
                time.sleep(_PAUSE)

    def _require_two(self) -> None:
        """Refuse a queue that is its own target: taking away what was carried would take all there is.

        URLs may differ and mean the same, so a tombstone is put into the target and looked for in the source. Nobody
        consumes it, and what a kill leaves of it is forgotten like any other.
        """
        mark = IdMaker(SystemClock())()
        self._target.carry(self._queue, [Entry(self._queue, mark, State.DONE)])
        try:
            found = self._source.find(self._queue, mark)
        finally:
            self._target.purge(self._queue, State.DONE, ids=[mark])
        if found is not None:
            raise InvalidInput(f"source and target are the same store: {self._queue} is where it shall be")

    def _hand_over_settings(self) -> None:
        """Give the target the source's settings if it has none, then pause the source.

        In this order and always: else a second run would take the pause for a setting of the source's own.
        """
        found = self._source.settings(self._queue)
        policy = Policy() if found is None else policy_from(found)
        self._window = policy.dedup_window
        if self._target.settings(self._queue) is None:
            self._target.configure(self._queue, document_of(policy))
        self._source.configure(self._queue, {**document_of(policy), "paused": True})
        self._heard_at = time.monotonic() + HEARD_SECONDS

    # Ready: leased, carried, acknowledged

    def _take_ready(self) -> None:
        self._take_for("")
        for consumer in self._targets():
            self._take_for(consumer)

    def _take_for(self, consumer: str) -> None:
        while leases := self._source.lease(self._queue, _BATCH, LEASE_SECONDS, consumer=consumer, token=self._token):
            self._carry([_waiting(lease) for lease in leases])
            verdict = Done(failure=Failure(MOVED, "carried to another store"))
            settlements = [Settlement(lease.receipt, verdict) for lease in leases]
            outcomes = self._source.settle(settlements, durable=True)
            self._count("ready", sum(outcome is not Outcome.LOST for outcome in outcomes))

    def _targets(self) -> list[str]:
        page = self._source.browse(self._queue, State.READY, limit=_BATCH)
        return sorted({entry.message.target for entry in page if entry.message and entry.message.target})

    # Delayed, dead and done: carried, then removed where they stood

    def _carry_delayed(self) -> None:
        stays = self._first_to_stay()
        for page in self._pages(self._source, State.DELAYED):
            later = [entry for entry in page if entry.message is not None and not self._is_near(entry)]
            free = [entry for entry in later if _order_of(entry) < stays.get(_group_of(entry), _LAST)]
            self._carry(sorted(free, key=_order_of))
            self._count("delayed", self._remove(State.DELAYED, free))

    def _first_to_stay(self) -> dict[str, Order]:
        """Return, for each group with delayed members, where the first stands that cannot be carried with them."""
        heads: dict[str, Order] = {}
        stays: dict[str, Order] = {}
        for entry in self._grouped(State.DELAYED):
            group, order = _group_of(entry), _order_of(entry)
            heads[group] = min(order, heads.get(group, order))
            if self._is_near(entry):
                stays[group] = min(order, stays.get(group, order))
        for entry in self._grouped(State.READY) if heads else ():
            group = _group_of(entry)
            if group in heads:
                # A delayed one leads it, or this one had been taken: whatever the clocks of their publishers said.
                order = max(_order_of(entry), (heads[group][0], heads[group][1] + "\0"))
                stays[group] = min(order, stays.get(group, order))
        for entry in self._grouped(State.INFLIGHT) if heads else ():
            stays[_group_of(entry)] = _FIRST
        return stays

    def _grouped(self, state: State) -> Iterator[Entry]:
        return (entry for page in self._pages(self._source, state) for entry in page if _group_of(entry))

    def _carry_dead(self, page: Sequence[Entry]) -> None:
        whole = [entry for entry in page if entry.message is not None]
        self._carry(whole)
        self._count("dead", self._remove(State.DEAD, whole))

    def _carry_done(self, page: Sequence[Entry]) -> None:
        # They stay at the source too, until it forgets them: there a verdict may still be repeated.
        real = [entry for entry in page if entry.failure is None or entry.failure.code != MOVED]
        if real:
            self._count("done", len(self._target.carry(self._queue, real, window=self._window)))

    def _pages(self, store: Store, state: State) -> Iterator[Sequence[Entry]]:
        after = ""
        while page := store.browse(self._queue, state, after=after, limit=_BATCH):
            after = page[-1].cursor
            yield page

    def _carry(self, entries: Sequence[Entry]) -> None:
        """Have the target take these in, also those that it only remembers as moved away from there."""
        if not entries:
            return
        if any(entry.message.group for entry in entries if entry.message):
            # Else a consumer of the source might take the next of a group while the target has those before it.
            time.sleep(max(0.0, self._heard_at - time.monotonic()))
        taken = set(self._target.carry(self._queue, entries, window=self._window))
        back = [entry for entry in entries if entry.id not in taken and entry.id in self._moved_away]
        if back:
            self._target.purge(self._queue, State.DONE, ids=[entry.id for entry in back], limit=len(back))
            taken = set(self._target.carry(self._queue, back, window=self._window))
            self._moved_away.difference_update(taken)

    @cached_property
    def _moved_away(self) -> set[str]:
        """The ids of which the target has no more than the tombstone of a move."""
        pages = self._pages(self._target, State.DONE)
        return {entry.id for page in pages for entry in page if entry.failure and entry.failure.code == MOVED}

    def _remove(self, state: State, entries: Sequence[Entry]) -> int:
        if not entries:
            return 0
        return self._source.purge(self._queue, state, ids=[entry.id for entry in entries], limit=len(entries))

    # Where it stands

    def _is_near(self, entry: Entry) -> bool:
        return entry.due_at - time.time() < NEAR_SECONDS

    def _soon(self) -> bool:
        """Say whether something is about to come due that only the next round can take."""
        page = self._source.browse(self._queue, State.DELAYED, limit=1)
        return bool(page) and self._is_near(page[0])

    def _left(self) -> int:
        counts = self._source.counts(self._queue)
        return sum(counts.get(state, 0) for state in _WAITING)

    def _count(self, what: str, many: int) -> None:
        if many:
            self._moved = self._moved._replace(**{what: getattr(self._moved, what) + many})
            self._told(self._moved)


def _group_of(entry: Entry) -> str:
    return entry.message.group if entry.message else ""


def _order_of(entry: Entry) -> Order:
    """Return the place of a message in the order of publishing, as far as it tells it."""
    return (entry.message.created_at if entry.message else 0.0, entry.id)


def _waiting(lease: Lease) -> Entry:
    """Return a leased message as it waited: the lease by which it is moved is no attempt."""
    receipt = lease.receipt
    return Entry(receipt.queue, receipt.id, State.READY, lease.attempt - 1, lease.due_at, lease.message, lease.failure)
