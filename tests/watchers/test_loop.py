"""The watch loop: what is made safe before what is remembered, one step at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pytest

from pabal.errors import StoreFailed, WatchFailed
from pabal.jsontext import Json
from pabal.testing import ManualClock
from pabal.watchers import Found, Look, WatchLoop


class Notes:
    """A memory, an outlet and a watcher that write down what happens, in order."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.done: list[str] = []
        self.cursor: Mapping[str, Json] = {}
        self.fails = False
        self.problems: list[tuple[str, float]] = []

    def look(self, now: float) -> Look:
        return Look(now, 0.0, 0.0, self.cursor)

    def unknown(self, events: Sequence[str]) -> Sequence[str]:
        return events

    def remember(self, events: Sequence[str], cursor: Mapping[str, Json]) -> None:
        self.cursor = cursor
        self.done.append(f"remember {cursor}")

    def finish(self, began: float) -> None:
        self.done.append("finish")

    def emit(self, events: Sequence[str]) -> None:
        if self.fails:
            raise StoreFailed("no disk")
        self.done.append(f"emit {', '.join(events)}")

    def poll(self, look: Look) -> Iterator[Found[str] | None]:
        yield None
        yield Found(("a",), {"at": 1}, ("odd item",))
        self.done.append("acknowledge a")
        yield Found((), {"at": 2})

    def loop(self) -> WatchLoop[str]:
        def ended(problem: str, pause: float) -> None:
            self.problems.append((problem, pause))

        return WatchLoop(self, self, emit=self.emit, interval=lambda: 60.0, clock=self.clock, ended=ended)


def test_events_are_safe_before_they_are_remembered_and_then_the_watcher_goes_on() -> None:
    notes = Notes()
    assert notes.loop().once() == 1
    assert notes.done == ["emit a", "remember {'at': 1}", "acknowledge a", "remember {'at': 2}", "finish"]


def test_what_could_not_be_made_safe_is_neither_remembered_nor_acknowledged() -> None:
    notes = Notes()
    notes.fails = True
    with pytest.raises(StoreFailed):
        notes.loop().once()
    assert notes.done == [] and notes.cursor == {}


def test_a_task_takes_one_step_at_a_time_and_rests_for_the_interval() -> None:
    notes = Notes()
    loop = notes.loop()
    dues = []
    for _ in range(4):
        loop.step()
        dues.append(loop.next_due())
    assert dues == [1.0, 0.0, 0.0, 60.0]
    assert notes.problems == [("odd item", 60.0)]
    loop.step()
    assert notes.done.count("finish") == 1, "the next look is not due"


def test_a_failure_is_reported_with_the_pause_and_ended_looks_begin_anew() -> None:
    notes = Notes()

    def poll(look: Look) -> Iterator[Found[str] | None]:
        raise WatchFailed("not now")

    notes.poll = poll  # type: ignore[method-assign]  # a watcher that never finds anything
    loop = notes.loop()
    for _ in range(6):
        loop.step()
        notes.clock.advance(loop.next_due())
    assert notes.problems == [("not now", pause) for pause in (120.0, 240.0, 480.0, 900.0, 900.0, 900.0)]
