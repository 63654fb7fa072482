"""Reopening: a service or worker whose store failed is opened again after a pause that grows while it fails."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import closing
from typing import Protocol

from pabal.runtime.service import Service
from pabal.runtime.wake import FdWatch

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a store that failed is opened again


class Stoppable(Protocol):
    def stop(self) -> None:
        """End the work soon. Signal handlers and other threads may call it."""
        ...


class Reopening:
    """Runs a service again and again, until it is stopped.

    `errors` are those that waiting may mend. `failed` is called with the error and the pause, and `hangup`, if given,
    for a SIGHUP that comes while no service runs. An error before the first service began is raised: then it never
    worked, and the operator should know at once.
    """

    def __init__(
        self,
        errors: tuple[type[Exception], ...],
        *,
        failed: Callable[[Exception, float], None],
        hangup: Callable[[], None] | None = None,
    ) -> None:
        self._errors = errors
        self._failed = failed
        self._hangup = hangup
        self._service: Stoppable | None = None
        self._failures = 0
        self.stopping = False

    def run(self, serve: Callable[[], None]) -> None:
        """Call `serve`, which opens everything, reports its service to `began` and runs it, until `stopping`."""
        if (hangup := self._hangup) is not None:
            signal.signal(signal.SIGHUP, lambda number, frame: hangup())  # while no service listens for it
        while not self.stopping:
            try:
                serve()
            except self._errors as exc:
                if self._service is None:
                    raise
                self._wait(exc)

    def began(self, service: Stoppable) -> None:
        """Note the service that is going to run."""
        self._service = service

    def passed(self) -> None:
        """Note a finished pass: the next failure is the first one again."""
        self._failures = 0

    def stop(self) -> None:
        """End `run` after the current pass."""
        self.stopping = True
        if self._service is not None:
            self._service.stop()

    def _wait(self, exc: Exception) -> None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures, 10))
        self._failures += 1
        self._failed(exc, pause)
        with closing(FdWatch()) as watch:
            service = self._service = Service(watch)
            with service.on_signals({}):
                if not self.stopping:
                    watch.wait(pause)
                self.stopping = self.stopping or service.stopping
