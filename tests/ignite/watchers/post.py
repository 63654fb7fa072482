"""A watcher at work whose messages are collected, with a clock that stands still."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pabal.ignite import types
from pabal.ignite.watchers.contract import Event, Watcher
from pabal.ignite.watchers.watching import Watching
from pabal.testing import ManualClock


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

    def look(self, watcher: Watcher) -> list[Event]:
        """Look once, as a process of its own would; return what was sent."""
        before = len(self.sent)
        count = Watching(watcher, path=self.path, send=self.send, clock=self.clock).once()
        assert count == len(self.sent) - before
        return self.sent[before:]
