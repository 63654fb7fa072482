"""Watching: a watcher looks, what is new becomes messages, and only then is it remembered."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pabal.clock import Clock
from pabal.errors import WatchFailed
from pabal.ignite.watchers import memory
from pabal.ignite.watchers.contract import Event, Look, Watcher

log = logging.getLogger("pabal.ignite.watchers")

LONGEST_PAUSE = 900.0  # seconds between looks that fail
Send = Callable[[Sequence[Event]], object]


class Watching:
    """One watcher at work. `send` returns when the messages are safe; `path` is where it remembers."""

    def __init__(self, watcher: Watcher, *, path: Path, send: Send, clock: Clock) -> None:
        self._watcher = watcher
        self._path = path
        self._send = send
        self._clock = clock

    def once(self) -> int:
        """Look once; return how many messages were sent. Raise WatchFailed if it could not finish looking."""
        began = self._clock.now()
        known = memory.load(self._path, began)
        sent = 0
        look = Look(began, known.initialized_at, known.last_check, known.cursor)
        for found in self._watcher.poll(look):
            events = known.new(found.events)
            if events:
                self._send(events)
            after = known.after(events, found.cursor)
            if after != known:
                memory.save(self._path, after)
            known = after
            sent += len(events)
        memory.save(self._path, known.finished(began))
        return sent

    def run(self, interval: float, *, sleep: Callable[[float], None] = time.sleep) -> None:
        """Look again and again, less often while it fails; whoever wants it to end raises in it."""
        failures = 0
        while True:
            try:
                self.once()
                failures, pause = 0, interval
            except WatchFailed as exc:
                failures += 1
                pause = max(exc.after, min(LONGEST_PAUSE, interval * 2.0 ** min(failures, 20)))
                log.warning("%s; looking again in %.0f s", exc, pause)
            sleep(pause)
