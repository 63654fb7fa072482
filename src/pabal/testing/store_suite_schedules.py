"""Schedules: each occurrence is published once, when the clock of the store says so (G14)."""

from collections.abc import Iterable
from functools import partial
from typing import Literal

import pytest

from pabal.queues.queue import schedules_of
from pabal.queues.schedules import QUEUE as SCHEDULES
from pabal.queues.schedules import Schedule, Schedules, make_schedule, occurrence_id
from pabal.store import Done, Outcome, Settlement, State, Store
from pabal.testing.clock import ManualClock
from pabal.testing.store_place import Reopen, StorePlace, in_threads, take_one

REPORTS = "reports"
MINUTE = 60.0


def taken(store: Store) -> list[str]:
    """Take and ack what was published; return the ids."""
    found: list[str] = []
    while leases := store.lease(REPORTS, 10, 60.0):
        assert store.settle([Settlement(lease.receipt, Done()) for lease in leases]) == [Outcome.APPLIED] * len(leases)
        found += [lease.message.id for lease in leases]
    return found


def expected(first: float, many: int, name: str = "job") -> list[str]:
    return [occurrence_id(name, first + n * MINUTE) for n in range(many)]


def minutely(name: str = "job", catch_up: Literal["once", "skip"] = "once", body: int = 0) -> Schedule:
    return make_schedule(name, queue=REPORTS, body=body, every=MINUTE, catch_up=catch_up)


class ScheduleTests(StorePlace):
    def schedules(self, store: Store, clock: ManualClock, ahead: float = 0.0) -> Schedules:
        """The schedules of a store, for a process whose clock is so many seconds ahead of that of the store."""
        return schedules_of(store, ManualClock(clock.now() + ahead, boot=clock.boot()))

    @pytest.mark.parametrize("catch_up", ["once", "skip"])
    def test_g14_no_occurrence_is_lost_or_comes_twice_although_clocks_differ(
        self, store: Store, reopen: Reopen, clock: ManualClock, catch_up: Literal["once", "skip"]
    ) -> None:
        other, aheads = reopen(), (-450.0, 450.0, 0.0, 900.0, -900.0)
        first = self.schedules(store, clock, 450.0).add(minutely(catch_up=catch_up)).next
        assert 0 < first - clock.now() <= MINUTE
        found: list[str] = []
        clock.advance(first - clock.now())
        for turn in range(30):
            self.schedules((store, other)[turn % 2], clock, aheads[turn % 5]).tend()
            found += taken(store)
            clock.advance(MINUTE / 3)
        assert found == expected(first, 10)
        other.close()

    def test_g14_of_consumers_at_the_same_time_one_publishes(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        handles = [store, *(reopen() for _ in range(3))]
        in_threads(*(partial(self.schedules(handle, clock).add, minutely()) for handle in handles))
        [made] = self.schedules(store, clock).all()
        found: list[str] = []
        clock.advance(made.next - clock.now())
        for _ in range(3):
            in_threads(*(self.schedules(handle, clock).tend for handle in handles))
            found += taken(store)
            clock.advance(MINUTE)
        assert found == expected(made.next, 3) and store.counters(REPORTS).published == 3
        for handle in handles[1:]:
            handle.close()

    def test_g14_a_consumer_that_lost_the_schedule_publishes_nothing(
        self, store: Store, reopen: Reopen, clock: ManualClock
    ) -> None:
        made = self.schedules(store, clock).add(minutely())
        clock.advance(made.next - clock.now())
        held, other = take_one(store, queue=SCHEDULES), reopen()  # and its process stops here for a while
        clock.advance(MINUTE)
        assert self.schedules(other, clock).tend() == 2  # a minute late is in time
        late = Done(then=tuple(self.schedules(store, clock)._messages_of(made, made)))
        assert store.settle([Settlement(held.receipt, late)]) == [Outcome.LOST]
        assert taken(store) == expected(made.next, 2) and len(self.schedules(store, clock).all()) == 1
        # One that is removed while a consumer holds it is not moved on.
        clock.advance(MINUTE)
        held = take_one(store, queue=SCHEDULES)
        assert self.schedules(other, clock).remove("job") and not self.schedules(other, clock).remove("job")
        assert store.settle([Settlement(held.receipt, late)]) == [Outcome.LOST]
        assert taken(store) == [] and self.schedules(store, clock).all() == []
        other.close()

    def test_g14_a_change_counts_although_a_consumer_moves_the_schedule_on(
        self, store: Store, clock: ManualClock
    ) -> None:
        old = self.schedules(store, clock).add(minutely(body=1))
        clock.advance(old.next - clock.now())
        held, change = take_one(store, queue=SCHEDULES), self.schedules(store, clock, -900.0)
        then = tuple(self.schedules(store, clock, 900.0)._messages_of(old, old))
        cancel = change._cancel

        def slow_cancel(ids: Iterable[str]) -> None:
            store.settle([Settlement(held.receipt, Done(then=then))])  # a consumer is faster
            cancel(ids)

        change._cancel = slow_cancel  # type: ignore[method-assign]
        change.add(minutely(body=2))
        assert taken(store) == expected(old.next, 1) and [each.body for each in change.all()] == [2]
        clock.advance(MINUTE)
        assert self.schedules(store, clock).tend() == 1
        [lease] = store.lease(REPORTS, 10, 60.0)
        assert lease.message.body == 2 and len(store.browse(SCHEDULES, State.DELAYED)) == 1
