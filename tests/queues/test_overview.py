"""The overview: rates, lines and what needs attention, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import pabal
from pabal.queues.overview import OverviewReader, QueueRow, severity, silence_fault
from pabal.store import State
from pabal.testing import ManualClock


class Place:
    """A store on a manual clock, and a reader of its overview with steps of 10 seconds."""

    def __init__(self, mq: pabal.Connection, clock: ManualClock) -> None:
        self.mq = mq
        self.clock = clock
        self.now = 0.0
        self.reader = OverviewReader(clock, step=10.0, steps=3, monotonic=lambda: self.now)

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        self.clock.advance(seconds)

    def row(self, queue: str = "jobs") -> QueueRow:
        return next(row for row in self.reader.read(self.mq)["queues"] if row["queue"] == queue)


@pytest.fixture
def place() -> Iterator[Place]:
    clock = ManualClock()
    with pabal.connect("memory:", clock=clock, consumer="one") as mq:
        yield Place(mq, clock)


def test_rates_are_of_the_last_seconds(place: Place) -> None:
    queue = place.mq.queue("jobs")
    queue.publish_many(range(10))
    assert (place.row()["in_rate"], place.row()["out_rate"]) == (0.0, 0.0)  # what was there before is no rate
    place.go_on(2)
    queue.publish_many(range(8))
    queue.ack_many(queue.lease(4))
    row = place.row()
    assert (row["in_rate"], row["out_rate"]) == (4.0, 2.0)
    for _ in range(6):
        place.go_on(1)
        row = place.row()
    assert (row["in_rate"], row["out_rate"]) == (0.0, 0.0)


def test_a_line_has_what_came_and_went_in_each_step(place: Place) -> None:
    queue = place.mq.queue("jobs")
    queue.create()
    assert place.row()["line"] == [(0, 0)]
    for count in (1, 2, 3, 4):
        queue.publish_many(range(count))
        queue.ack_many(queue.lease(1))
        assert place.row()["line"][-1] == (count, 1)
        place.go_on(10)
        place.row()
    assert place.row()["line"] == [(3, 1), (4, 1), (0, 0)]


def test_what_needs_attention_and_who_holds_messages(place: Place) -> None:
    queue = place.mq.queue("jobs")
    queue.create(pabal.Policy(retry=pabal.RetryPolicy(limit=1)))
    queue.publish_many(range(3))
    queue.lease()[0].nack()
    queue.lease()
    assert place.row()["consumers"] == 1
    queue.pause()
    place.go_on(400)
    found = place.row()["attention"]
    assert [(each["kind"], each["words"]) for each in found] == [
        ("bad", "1 dead"),
        ("warn", "paused"),
        ("warn", "waits for 7 min"),
    ]
    assert severity(place.row()) == 2
    queue.purge(State.DEAD)
    assert severity(place.row()) == 1
    queue.delete(force=True)
    assert place.reader.read(place.mq)["queues"] == []
    queue.publish(1)
    assert severity(place.row()) == 0


def test_a_look_takes_a_small_share_of_the_time_and_silence_is_measured(place: Place) -> None:
    def slow(seconds: float) -> str:
        place.now += seconds
        return silence_fault(place.reader.silent())

    assert place.reader.silent() == 0.0
    assert place.reader.ask(lambda: slow(3.0)) == "the store has not answered for 3 s"
    assert place.reader.silent() == 0.0

    class Slow:
        """A connection whose list of queues takes a while."""

        def __init__(self, seconds: float) -> None:
            self._seconds = seconds

        def queues(self) -> list[str]:
            slow(self._seconds)
            return []

        def queue(self, name: str) -> pabal.Queue:
            return place.mq.queue(name)

        consumers = place.mq.consumers

    for seconds, rest in ((0.001, 1.0), (0.1, 5.0), (0.7, 35.0), (3.0, 3.0), (40.0, 10.0)):
        place.reader.read(Slow(seconds))
        assert place.reader.rest == pytest.approx(rest)
