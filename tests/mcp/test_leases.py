"""Leases are renewed while the agent calls, and no longer; a cancelled call gives back what it took."""

import threading
import time
from collections.abc import Sequence

from pabal.mcp.leases import Call, Leases
from pabal.store import Outcome, Receipt
from tests.waiting import until

ONE, TWO = Receipt("jobs", "1", "a"), Receipt("jobs", "2", "b")
SHORT = 0.03  # seconds of a lease


class Extended:
    """Counts the extensions of each lease; those in `lost` are no longer there."""

    def __init__(self) -> None:
        self.counts = {ONE: 0, TWO: 0}
        self.lost: set[Receipt] = set()

    def __call__(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        for receipt in receipts:
            self.counts[receipt] += 1
        return [Outcome.LOST if receipt in self.lost else Outcome.APPLIED for receipt in receipts]


class Clock:
    """The monotonic clock, and what the test adds to it."""

    def __init__(self) -> None:
        self.more = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.more


def test_a_lease_is_renewed_until_the_agent_was_silent_for_too_long() -> None:
    extended, clock = Extended(), Clock()
    leases = Leases(extended, hold=1000.0, now=clock)
    leases.add(ONE, SHORT)
    leases.add(TWO, SHORT, hold=5000.0)
    until(lambda: min(extended.counts.values()) > 2)
    clock.more += 900
    leases.sign()
    clock.more += 900  # 900 since the last call
    count = extended.counts[ONE]
    until(lambda: extended.counts[ONE] > count)
    assert leases.receipts() == [ONE, TWO]
    clock.more += 200
    until(lambda: leases.receipts() == [TWO])  # for which the agent had asked more time
    clock.more += 5000
    until(lambda: leases.receipts() == [])


def test_a_message_that_a_busy_agent_forgot_is_not_held_for_ever() -> None:
    extended, clock = Extended(), Clock()
    leases = Leases(extended, hold=1000.0, now=clock)
    leases.add(ONE, SHORT)
    for _ in range(6):
        clock.more += 900
        leases.sign()
        leases.add(TWO, SHORT)  # which the agent names again and again
    until(lambda: leases.receipts() == [TWO])


def test_a_lease_that_is_lost_or_settled_is_renewed_no_more() -> None:
    extended = Extended()
    leases = Leases(extended, hold=1000.0)
    leases.add(ONE, SHORT)
    leases.add(TWO, SHORT)
    leases.drop(TWO)
    extended.lost.add(ONE)
    until(lambda: leases.receipts() == [])
    leases.add(TWO, 1000.0)
    assert leases.clear() == [TWO] and leases.receipts() == []


def test_a_call_that_is_stopped_while_it_waits_gives_back_what_it_takes_later() -> None:
    call, ended, given = Call(), threading.Event(), []
    call.waits(ended.set)
    call.stop()
    assert ended.is_set()
    call.took(lambda: given.append(1))
    assert given == [1]
    call.give_back()
    assert given == [1]


def test_a_call_that_is_stopped_before_it_waits_does_not_wait() -> None:
    call, ended = Call(), threading.Event()
    call.stop()
    call.waits(ended.set)
    assert ended.is_set()


def test_a_call_whose_answer_got_lost_gives_back_once() -> None:
    call, given = Call(), []
    call.took(lambda: given.append(1))
    assert given == []
    call.give_back()
    call.give_back()
    assert given == [1]
