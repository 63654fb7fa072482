"""A watcher at work whose messages are collected, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pabal.apps.ignite import types
from pabal.apps.ignite.watchers.publish import EventMemory
from pabal.testing import ManualClock
from pabal.watchers import Event, Watcher, WatchLoop


class Post:
    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.path = folder / "watchers" / "w.json"
        self.sent: list[Event] = []
        self.refuse: Exception | None = None

    def send(self, events: Sequence[Event]) -> None:
        if self.refuse is not None:
            raise self.refuse
        for event in events:
            types.check(event.type, event.body)
        self.sent += events

    def loop(self, watcher: Watcher[Event], interval: float = 60.0) -> WatchLoop[Event]:
        memory = EventMemory(self.path)
        return WatchLoop(watcher, memory, emit=self.send, interval=lambda: interval, clock=self.clock)

    def look(self, watcher: Watcher[Event]) -> list[Event]:
        """Look once, as a process of its own would; return what was sent."""
        before = len(self.sent)
        count = self.loop(watcher).once()
        assert count == len(self.sent) - before
        return self.sent[before:]
