"""The overview of a store: the figures of every queue, their rates, and what needs attention.

The dashboard and `pabal top` both read it here, so they show the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, Protocol, TypedDict, TypeVar

from pabal.clock import Clock, iso_stamp
from pabal.queues.documents import QueueFigures, figures_document
from pabal.queues.queue import Queue
from pabal.store import Consumer

STUCK = 300.0  # seconds that a message may wait before its queue needs attention
RATE_SECONDS = 5.0  # over which a rate is counted
LOOK_SECONDS = 1.0  # from one look to the next, if looks are short
PATIENCE = 0.8  # seconds in which a store answers a call; then it is silent
_SHARE = 50  # a look is followed by a rest of so many times its length
_MOST_REST = 60.0
_AFTER_SILENCE = 10.0

T = TypeVar("T")


class Trouble(TypedDict):
    """One reason why a queue needs attention, and the state of the messages that it is about, if there are some."""

    kind: Literal["bad", "warn"]
    words: str
    state: Literal["ready", "dead", "corrupt"] | None


class QueueRow(QueueFigures):
    """A queue in the overview. Rates are messages per second; `consumers` hold messages of it now.

    `line` has what came and what went in each step of the time before, the present step last.
    """

    in_rate: float
    out_rate: float
    consumers: int
    line: list[tuple[int, int]]
    attention: list[Trouble]


class Overview(TypedDict):
    """All queues at one time. If the store does not answer, `fault` says so, and the rest is what it said last.

    `manager` says what is wrong with the manager beside which a gateway runs.
    """

    at: str
    queues: list[QueueRow]
    consumers: int
    fault: str | None
    manager: str | None


class Source(Protocol):
    """What an overview is read from: a connection."""

    def queues(self) -> list[str]: ...
    def queue(self, name: str) -> Queue: ...
    def consumers(self) -> list[Consumer]: ...


class _Sample(NamedTuple):
    at: float  # on the monotonic clock, or the number of a step
    published: int
    acked: int


class OverviewReader:
    """Reads the overview again and again, and keeps what rates and lines are made from.

    A line has up to `steps` steps of `step` seconds. One thread reads; any thread may ask how long the store is silent.
    """

    def __init__(
        self, clock: Clock, *, step: float, steps: int, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._step = step
        self._steps = steps
        self._monotonic = monotonic
        self._samples: dict[str, deque[_Sample]] = {}
        self._lines: dict[str, deque[_Sample]] = {}
        self._asked_at: float | None = None
        self._slowest = 0.0  # call of the present look
        self.rest = LOOK_SECONDS  # before the next look: so looks take a small share of the store's time

    def read(self, source: Source) -> Overview:
        """Read the figures of every queue."""
        begun, self._slowest, self.rest = self._monotonic(), 0.0, LOOK_SECONDS
        names = self.ask(source.queues)
        consumers = self.ask(source.consumers)
        for name in self._samples.keys() - set(names):
            del self._samples[name], self._lines[name]
        queues = [self._row(self.ask(partial(self._figures, source, name)), consumers) for name in names]
        took = self._monotonic() - begun
        if self._slowest < PATIENCE:
            self.rest = max(LOOK_SECONDS, min(took * _SHARE, _MOST_REST))
        else:  # that it was long says little: the store was away
            self.rest = max(LOOK_SECONDS, min(took, _AFTER_SILENCE))
        at = iso_stamp(self._clock.now())
        return Overview(at=at, queues=queues, consumers=len(consumers), fault=None, manager=None)

    def ask(self, call: Callable[[], T]) -> T:
        """Return what a call of the store gives, and note for how long it does not answer."""
        asked_at = self._asked_at = self._monotonic()
        try:
            return call()
        finally:
            self._asked_at = None
            self._slowest = max(self._slowest, self._monotonic() - asked_at)

    def silent(self) -> float:
        """Return for how many seconds the store has not answered the call that is under way; 0 if there is none."""
        asked_at = self._asked_at
        return 0.0 if asked_at is None else self._monotonic() - asked_at

    def _figures(self, source: Source, name: str) -> QueueFigures:
        return figures_document(source.queue(name), self._clock.now())

    def _row(self, figures: QueueFigures, consumers: Sequence[Consumer]) -> QueueRow:
        name, counted = figures["queue"], (figures["published"], figures["acked"])
        in_rate, out_rate = self._rates(name, counted)
        return QueueRow(
            **figures,
            in_rate=in_rate,
            out_rate=out_rate,
            consumers=sum(1 for each in consumers if name in each.holds),
            line=self._line(name, counted),
            attention=attention(figures),
        )

    def _rates(self, name: str, counted: tuple[int, int]) -> tuple[float, float]:
        """Return messages per second, in and out, of the last seconds."""
        now = self._monotonic()
        samples = self._samples.setdefault(name, deque())
        while len(samples) > 1 and now - samples[1].at >= RATE_SECONDS:
            samples.popleft()
        samples.append(_Sample(now, *counted))
        first = samples[0]
        if (span := now - first.at) <= 0:
            return 0.0, 0.0
        came, went = (max(0, last - before) for last, before in zip(counted, first[1:], strict=True))
        return round(came / span, 2), round(went / span, 2)

    def _line(self, name: str, counted: tuple[int, int]) -> list[tuple[int, int]]:
        """Return what came and went in each step; one in which nobody looked is left out."""
        step = self._clock.now() // self._step
        line = self._lines.setdefault(name, deque(maxlen=self._steps))
        if not line or line[-1].at != step:
            line.append(_Sample(step, *counted))
        ends = [*line, _Sample(step + 1, *counted)][1:]
        return [
            (max(0, end.published - begin.published), max(0, end.acked - begin.acked))
            for begin, end in zip(line, ends, strict=True)
        ]


def attention(figures: QueueFigures) -> list[Trouble]:
    """Return why a queue needs attention, the worst first."""
    found: list[Trouble] = []
    if figures["fault"]:
        found.append(Trouble(kind="bad", words="cannot be read", state=None))
    if figures["dead"]:
        found.append(Trouble(kind="bad", words=f"{figures['dead']:,} dead", state="dead"))
    if figures["corrupt"]:
        found.append(Trouble(kind="bad", words=f"{figures['corrupt']:,} corrupt", state="corrupt"))
    if figures["paused"]:
        found.append(Trouble(kind="warn", words="paused", state=None))
    waits = figures["oldest_ready_seconds"] or 0.0
    if waits > STUCK:
        words = f"{waits / 60:.0f} min" if waits < 7200 else f"{waits / 3600:.0f} h"
        found.append(Trouble(kind="warn", words=f"waits for {words}", state="ready"))
    return found


def severity(row: QueueRow) -> int:
    """Return how much a queue needs attention: 2 if something is bad, 1 for a warning, else 0."""
    return {"bad": 2, "warn": 1}[row["attention"][0]["kind"]] if row["attention"] else 0


def silence_fault(seconds: float) -> str:
    """Return the words for a store that does not answer."""
    return f"the store has not answered for {max(1, round(seconds))} s"
