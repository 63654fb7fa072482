"""The worker: stores each message once and publishes what it stored. Any number of workers may run at once.

- One thread stores messages: those that were read together are stored in one transaction. A record that is no valid
  event, or that the ledger rejects, goes to the dead-letter topic at once, and so its sender is informed. While the
  database is down nothing is lost and no attempt is counted: the ledger raises Outage, and the partitions wait.
- The service's own thread publishes the outbox, beginning with the oldest row, and removes rows only after they were
  appended. So after a crash a message may be published twice, but the sequences of a room first appear in order.
- When the topics or the database are unavailable, at the start or later, the worker waits and tries again. An error
  that waiting cannot repair, such as a wrong URL, ends it.
- A server that hangs cannot keep the process from ending: what was not committed is repeated by another worker.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pabal.apps.chat.errors import TRANSIENT
from pabal.apps.chat.events import MESSAGES, PERSISTED, PERSISTOR, MessageCreated, as_client, make_topics, read_created
from pabal.apps.chat.ledger import Ledger, Rejected, open_ledger
from pabal.clock import SystemClock
from pabal.connect import connect_topics
from pabal.errors import InvalidBody, PabalError
from pabal.runtime.grace import run_until_signal
from pabal.runtime.heartbeat import Heartbeat
from pabal.runtime.service import Service
from pabal.runtime.wake import FdWatch
from pabal.topic_store import DEFAULT_SESSION, NewRecord
from pabal.topics.attempts import Received, Refusal
from pabal.topics.consumer import consumer
from pabal.topics.paused_partitions import OUTAGE
from pabal.topics.topic import Topic

log = logging.getLogger("pabal.chat")


class Session:
    """Connections to the topics and the database, and the threads that use them, until one of them fails."""

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
        handler = Persister(self._ledger, self._stored)
        self._consumer = consumer(
            self._topics.topic(MESSAGES), PERSISTOR, handler, together=True, batch=BATCH, session=session
        )
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._consume, name="pabal-chat-persistor", daemon=True)
        self._thread.start()

    def step(self) -> None:
        """Publish stored messages; raise the error that ended the other thread."""
        if self._error is not None:
            raise self._error
        self._outbox.step()

    def next_due(self) -> float:
        return self._outbox.next_due()

    def close(self) -> None:
        """Finish the running handler, publish what it stored, and leave the group."""
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
        self._outbox.notify()
        self._wake()


class WorkerTask:
    """A task that keeps one session open: after a failure it waits and opens the next one."""

    def __init__(self, begin: Callable[[], Session]) -> None:
        self._begin = begin
        self._session: Session | None = None
        self._failures = 0
        self._due = 0.0

    def step(self) -> None:
        try:
            if self._session is None and self.next_due() <= 0:
                self._session = self._begin()
                log.info("the worker is at work", extra={"pabal": {"failures": self._failures}})
            if self._session is not None:
                self._session.step()
                self._failures = 0
        except TRANSIENT as exc:
            self._failures += 1
            self._due = time.monotonic() + OUTAGE.delay(self._failures, random.random())
            log.warning("the worker waits: %(error)s", {"error": str(exc)})
            self.close()

    def next_due(self) -> float:
        return self._session.next_due() if self._session is not None else max(0.0, self._due - time.monotonic())

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()


def run_worker(
    topics_url: str, db_url: str, name: str, *, heartbeat: Path | None = None, session: float = DEFAULT_SESSION
) -> None:
    """Run a worker until SIGTERM or SIGINT. `heartbeat` is the path of its heartbeat file.

    Another worker takes over when this one is silent for `session` seconds.
    """
    watch = FdWatch()
    topics_url = as_client(topics_url, "worker", name)
    task = WorkerTask(lambda: Session(topics_url, db_url, session, watch.wake))
    beat = Heartbeat(heartbeat, name, SystemClock()) if heartbeat is not None else None
    service = Service(watch, task, heartbeat=beat)

    def work() -> None:
        try:
            service.run()
        finally:
            task.close()

    log.info("the worker starts")
    try:
        run_until_signal(work, service.stop)
        log.info("the worker has stopped")
    finally:
        if beat is not None:
            beat.end()


BATCH = 100


class Persister:
    """The handler of accepted messages; it calls `stored` after each commit that put rows into the outbox."""

    def __init__(self, ledger: Ledger, stored: Callable[[], None]) -> None:
        self._ledger = ledger
        self._stored = stored

    def __call__(self, received: Sequence[Received]) -> list[Refusal]:
        refusals: list[Refusal] = []
        events: list[tuple[Received, MessageCreated]] = []
        for one in received:
            try:
                events.append((one, read_created(one.record.value)))
            except InvalidBody as exc:
                refusals.append(Refusal(one, str(exc)))
        answers = self._ledger.persist([event for _, event in events])
        if answers:
            self._stored()
        for (one, _), answer in zip(events, answers, strict=True):
            if isinstance(answer, Rejected):
                refusals.append(Refusal(one, answer.reason))
        return refusals


OUTBOX_BATCH = 200
SLOW_POLL = 1.0  # seconds between checks for rows that a dead worker left behind


class Outbox:
    """A task that appends the rows of the outbox to a topic. Call `notify`, and wake its service, for new rows."""

    def __init__(self, ledger: Ledger, topic: Topic) -> None:
        self._ledger = ledger
        self._topic = topic
        self._due = 0.0
        self._notified = True
        self._failures = 0

    def notify(self) -> None:
        """Note that there are new rows; called from other threads."""
        self._notified = True

    def step(self) -> None:
        """Publish all rows; after an error wait with backoff."""
        if self.next_due() > 0:
            return
        self._notified = False
        try:
            while self.publish() == OUTBOX_BATCH:
                pass
            if self._failures:
                log.info("the outbox goes on after %(failures)d failures", {"failures": self._failures})
            self._failures = 0
            self._due = time.monotonic() + SLOW_POLL
        except PabalError as exc:
            self._failures += 1
            self._due = time.monotonic() + OUTAGE.delay(self._failures, random.random())
            log.warning("the outbox waits: %(error)s", {"error": str(exc)})

    def next_due(self) -> float:
        return 0.0 if self._notified and not self._failures else max(0.0, self._due - time.monotonic())

    def publish(self) -> int:
        """Append the oldest rows in one call, then remove them; return how many."""
        rows = self._ledger.outbox(OUTBOX_BATCH)
        if rows:
            self._topic.topics.append(self._topic.name, [NewRecord(row.event, row.room_id) for row in rows])
            self._ledger.sent([row.number for row in rows])
        return len(rows)
