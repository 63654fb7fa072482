"""Move a queue from one store to another, with ids, attempts, delays, dead letters and settings.

A move may be killed at any point and started again. It then continues, and no message is lost or stored twice:

- The source is paused first, so that its consumers take no message that is being moved.
- Ready messages are leased under a token made of queue and target, carried, and acknowledged. A move that is started
  again has the same token and so the same leases, and the target ignores messages that it has.
- Messages that no consumer can take (delayed, dead, done) are carried and then removed.
- A queue is never moved onto itself, however the two URLs are written. A queue that was moved away may come back.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import NamedTuple, Protocol, TypeAlias

from pabal.clock import SLOW_POLL, Clock, SystemClock
from pabal.errors import InvalidInput, StoreFailed, StoreRefused
from pabal.ids import IdMaker
from pabal.policy.policy import Settings, document_of_settings, settings_from
from pabal.queues.queue import Queue
from pabal.store import Done, Entry, Failure, Lease, Movable, Outcome, Settlement, State, Store

LEASE_SECONDS = 86_400.0
NEAR_SECONDS = 5.0  # a message that is due so soon is left until it is ready
PAUSE_SEEN_SECONDS = 1.25 * SLOW_POLL  # by then every consumer has read that the queue is paused
MOVED = "MOVED"  # the code of the failure in the tombstones that the move leaves
_BATCH = 200
_PAUSE = 0.1
_WAITING = (State.READY, State.DELAYED, State.INFLIGHT)

_FIRST, _LAST = (float("-inf"), ""), (float("inf"), "")

Order: TypeAlias = tuple[float, str]
Progress: TypeAlias = Callable[["Moved"], None]


class _Target(Store, Movable, Protocol):
    """A store that can take in messages from another store."""


class Moved(NamedTuple):
    """How many messages were moved so far, by the state they were in, and how many are left at the source."""

    queue: str
    ready: int = 0
    delayed: int = 0
    dead: int = 0
    done: int = 0
    left: int = 0


def move(
    source: Store,
    target: Store,
    queue: str,
    *,
    wait: float = 0.0,
    progress: Progress = lambda moved: None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Moved:
    """Move one queue, waiting up to `wait` seconds for messages that consumers hold; return how many were moved.

    `progress` is called after each step. Clock and sleep are arguments for tests.
    """
    [moved] = move_all(source, target, [queue], wait=wait, progress=progress, clock=clock, sleep=sleep)
    return moved


def move_all(
    source: Store,
    target: Store,
    queues: Iterable[str],
    *,
    wait: float = 0.0,
    progress: Progress = lambda moved: None,
    clock: Clock | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Moved]:
    """Move queues one after the other, each as `move` does, and yield how much of it was moved."""
    if not isinstance(target, Movable):
        raise StoreRefused("this kind of store takes in no messages from another one: name a sqlite, file or SQL store")
    place = target.facts().get("place", "")  # asked once: a store looks at all its queues for it
    for queue in queues:
        yield _Move(source, target, place, queue, progress, clock or SystemClock(), sleep).run(wait)


class _Move:
    def __init__(
        self,
        source: Store,
        target: _Target,
        place: str,
        queue: str,
        progress: Progress,
        clock: Clock,
        sleep: Callable[[float], None],
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._source = source
        self._target = target
        self._queue = queue
        self._progress = progress
        self._moved = Moved(queue)
        # The token depends on the target too: a move to another target may hold messages that are there already.
        self._token = hashlib.sha256(f"pabal move {queue} to {place}".encode()).hexdigest()[:16]
        self._window = 300.0
        self._pause_seen_at = 0.0

    def run(self, wait: float) -> Moved:
        deadline = self._clock.boot() + wait
        self._require_two()
        self._hand_over_settings()
        for page in self._pages(self._source, State.DONE):
            self._carry_done(page)
        source = Queue(self._queue, self._source, clock=self._clock)
        while True:
            before = self._moved
            source.sweep()
            self._take_ready()
            for page in self._pages(self._source, State.DEAD):
                self._carry_dead(page)
            self._carry_delayed()
            left = self._left()
            if left == 0 or (self._moved == before and not self._soon() and self._clock.boot() > deadline):
                return self._moved._replace(left=left)
            if self._moved == before:  # else a group may have lost its delayed head: look again at once
                self._sleep(_PAUSE)

    def _require_two(self) -> None:
        """Refuse a queue that is its own target: removing the carried messages would remove them all.

        Different URLs may mean the same store, so a tombstone is put into the target and searched for in the source. No
        consumer gets it, and one that a kill leaves behind is removed like any other.
        """
        mark = IdMaker(self._clock)()
        self._target.carry(self._queue, [Entry(self._queue, mark, State.DONE)])
        try:
            found = self._source.find(self._queue, mark)
        finally:
            self._target.purge(self._queue, State.DONE, ids=[mark])
        if found is not None:
            raise InvalidInput(f"source and target are the same store: {self._queue} is where it shall be")

    def _hand_over_settings(self) -> None:
        """Give the target the settings of the source if it has none, then pause the source.

        Always in this order: else a second run would take the pause for a setting of the source.
        """
        found = self._source.settings(self._queue)
        settings = Settings() if found is None else settings_from(found)
        self._window = settings.policy.dedup_window
        if self._target.settings(self._queue) is None:
            self._target.configure(self._queue, document_of_settings(settings))
        self._source.configure(self._queue, document_of_settings(settings._replace(paused=True)))
        self._pause_seen_at = self._clock.boot() + PAUSE_SEEN_SECONDS

    # Ready messages: leased, carried, acknowledged

    def _take_ready(self) -> None:
        self._take_for("")
        for consumer in self._targets():
            self._take_for(consumer)

    def _take_for(self, consumer: str) -> None:
        lost: set[str] = set()
        take = partial(self._source.lease, self._queue, _BATCH, LEASE_SECONDS, token=self._token, successive=True)
        while leases := take(consumer=consumer):
            self._carry([_waiting(lease) for lease in leases])
            verdict = Done(failure=Failure(MOVED, "carried to another store"))
            settlements = [Settlement(lease.receipt, verdict) for lease in leases]
            outcomes = self._source.settle(settlements, durable=True)
            self._count("ready", sum(outcome is not Outcome.LOST for outcome in outcomes))
            if lost & (again := {lease.receipt.id for lease in leases}):
                raise StoreFailed(
                    f"{min(lost & again)} of {self._queue} can be leased and not settled: run `pabal doctor --repair`"
                )
            lost = again if all(outcome is Outcome.LOST for outcome in outcomes) else set()

    def _targets(self) -> list[str]:
        page = self._source.browse(self._queue, State.READY, limit=_BATCH)
        return sorted({entry.message.target for entry in page if entry.message and entry.message.target})

    # Delayed, dead and done messages: carried, then removed at the source

    def _carry_delayed(self) -> None:
        stays = self._first_to_stay()
        for page in self._pages(self._source, State.DELAYED):
            later = [entry for entry in page if entry.message is not None and not self._is_near(entry)]
            free = [entry for entry in later if _order_of(entry) < stays.get(_group_of(entry), _LAST)]
            self._carry(sorted(free, key=_order_of))
            self._count("delayed", self._remove(State.DELAYED, free))

    def _first_to_stay(self) -> dict[str, Order]:
        """Return, for each group with delayed members, the order of its first member that cannot be carried yet."""
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
                # A delayed member leads it, else this one would have been taken: publishers' clocks do not count.
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
        # They stay at the source too until they are purged: a consumer may still repeat a verdict there.
        real = [entry for entry in page if entry.failure is None or entry.failure.code != MOVED]
        if real:
            self._count("done", len(self._target.carry(self._queue, real, window=self._window)))

    def _pages(self, store: Store, state: State) -> Iterator[Sequence[Entry]]:
        after = ""
        while page := store.browse(self._queue, state, after=after, limit=_BATCH):
            after = page[-1].cursor
            yield page

    def _carry(self, entries: Sequence[Entry]) -> None:
        """Let the target take in these entries, also those of which it has only the tombstone of an earlier move."""
        if not entries:
            return
        if any(entry.message.group for entry in entries if entry.message):
            # Else a consumer of the source might take the next member of a group while the target has those before.
            self._sleep(max(0.0, self._pause_seen_at - self._clock.boot()))
            self._remove_tombstones(entries)  # before: else those that come for the first time would come first
        taken = set(self._target.carry(self._queue, entries, window=self._window))
        back = self._remove_tombstones([entry for entry in entries if entry.id not in taken])
        if back:
            taken.update(self._target.carry(self._queue, back, window=self._window))
            if left := [entry.id for entry in back if entry.id not in taken]:
                raise StoreFailed(
                    f"the target did not take in {left[0]} of {self._queue}: it stays in the source; repeat the move"
                )
        self._moved_away.difference_update(taken)

    def _remove_tombstones(self, entries: Sequence[Entry]) -> list[Entry]:
        """Remove what the target has of messages that were moved away from it; return the entries of these messages."""
        back = [entry for entry in entries if entry.id in self._moved_away]
        if back:
            self._target.purge(self._queue, State.DONE, ids=[entry.id for entry in back], limit=len(back))
        return back

    @cached_property
    def _moved_away(self) -> set[str]:
        """The ids of which the target has only the tombstone of a move."""
        pages = self._pages(self._target, State.DONE)
        return {entry.id for page in pages for entry in page if entry.failure and entry.failure.code == MOVED}

    def _remove(self, state: State, entries: Sequence[Entry]) -> int:
        if not entries:
            return 0
        return self._source.purge(self._queue, state, ids=[entry.id for entry in entries], limit=len(entries))

    # Progress

    def _is_near(self, entry: Entry) -> bool:
        return entry.due_at - self._clock.now() < NEAR_SECONDS

    def _soon(self) -> bool:
        """Return whether a message is due so soon that only the next round can take it."""
        page = self._source.browse(self._queue, State.DELAYED, limit=1)
        return bool(page) and self._is_near(page[0])

    def _left(self) -> int:
        counts = self._source.counts(self._queue)
        return sum(counts.get(state, 0) for state in _WAITING)

    def _count(self, state: str, many: int) -> None:
        if many:
            self._moved = self._moved._replace(**{state: getattr(self._moved, state) + many})
            self._progress(self._moved)


def _group_of(entry: Entry) -> str:
    return entry.message.group if entry.message else ""


def _order_of(entry: Entry) -> Order:
    """Return the position of a message in publish order, as far as the message shows it."""
    return (entry.message.created_at if entry.message else 0.0, entry.id)


def _waiting(lease: Lease) -> Entry:
    """Return a leased message as it was before the lease: the lease of a move is no attempt."""
    receipt = lease.receipt
    return Entry(receipt.queue, receipt.id, State.READY, lease.attempt - 1, lease.due_at, lease.message, lease.failure)
