"""The worker as a service: opens what it needs, works until told to stop, and begins anew when something broke.

One thread handles messages, the service's own publishes the outbox. When topics or database are not there, at the start
or later, the worker waits and tries again; what no waiting mends, such as a wrong URL, ends it.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

from pabal.chat.events import MESSAGES, PERSISTED, PERSISTOR, make_topics
from pabal.chat.ledger import open_ledger
from pabal.chat.worker.outbox import Outbox
from pabal.chat.worker.persisting import BATCH, Persisting
from pabal.clock import SystemClock
from pabal.connect_topics import connect_topics
from pabal.consuming import consumer
from pabal.errors import Fenced, Outage, StoreFailed, StoreFull, Uncertain
from pabal.lanes import OUTAGE
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.service import Service
from pabal.runtime.wake import FdWatch
from pabal.topic import DEFAULT_SESSION

log = logging.getLogger("pabal.chat")

PASSING = (StoreFailed, StoreFull, Uncertain, Outage, Fenced)


class Shift:
    """Work with one set of connections, until one of them breaks."""

    def __init__(self, topics_url: str, db_url: str, session: float, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._topics = connect_topics(topics_url)
        try:
            make_topics(self._topics)
            self._ledger = open_ledger(db_url)
        except BaseException:
            self._topics.close()
            raise
        self._outbox = Outbox(self._ledger, self._topics.topic(PERSISTED))
        handler = Persisting(self._ledger, self._stored)
        self._consumer = consumer(
            self._topics.topic(MESSAGES), PERSISTOR, handler, together=True, batch=BATCH, session=session
        )
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._consume, name="pabal-chat-persistor")
        self._thread.start()

    def step(self) -> None:
        """Publish what is stored; raise what ended the other thread."""
        if self._error is not None:
            raise self._error
        self._outbox.step()

    def next_due(self) -> float:
        return self._outbox.next_due()

    def close(self) -> None:
        """Finish what the handler has, tell what is stored, leave the group."""
        self._consumer.stop()
        self._thread.join()
        self._outbox.step()
        self._ledger.close()
        self._topics.close()

    def _consume(self) -> None:
        try:
            self._consumer.run()
        except BaseException as exc:
            self._error = exc
            self._wake()

    def _stored(self) -> None:
        self._outbox.ring()
        self._wake()


class Duty:
    """A task that always has a shift at work, or waits to begin the next one."""

    def __init__(self, begin: Callable[[], Shift]) -> None:
        self._begin = begin
        self._shift: Shift | None = None
        self._failures = 0
        self._due = 0.0

    def step(self) -> None:
        try:
            if self._shift is None and self.next_due() <= 0:
                self._shift = self._begin()
                log.info("at work")
            if self._shift is not None:
                self._shift.step()
                self._failures = 0
        except PASSING as exc:
            self._failures += 1
            self._due = time.monotonic() + OUTAGE.delay(self._failures, random.random())
            log.warning("the worker waits: %s", exc)
            self.close()

    def next_due(self) -> float:
        return self._shift.next_due() if self._shift is not None else max(0.0, self._due - time.monotonic())

    def close(self) -> None:
        shift, self._shift = self._shift, None
        if shift is not None:
            shift.close()


def run_worker(
    topics_url: str, db_url: str, name: str, *, heartbeat: Path | None = None, session: float = DEFAULT_SESSION
) -> None:
    """Work in this process, in its main thread, until SIGTERM or SIGINT. `heartbeat` is a file that shows it alive.

    Another worker takes over when this one is silent for `session` seconds.
    """
    watch = FdWatch()
    duty = Duty(lambda: Shift(topics_url, db_url, session, watch.wake))
    beat = Heartbeat(heartbeat, name, SystemClock()) if heartbeat is not None else None
    service = Service(watch, duty, heartbeat=beat)
    with service.on_signals({}):
        try:
            service.run()
        finally:
            duty.close()
            watch.close()
