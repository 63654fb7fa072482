"""The outbox: what is stored is told to the gateways, however often somebody dies on the way.

Whoever publishes begins with the oldest row and removes rows only after they were appended. So two workers, or one that
was killed, may tell a message twice, but each sequence of a room appears for the first time in its order.
"""

from __future__ import annotations

import logging
import random
import time

from pabal.appending import Topic
from pabal.chat.ledger import Ledger
from pabal.errors import PabalError
from pabal.lanes import OUTAGE
from pabal.topic import NewRecord

log = logging.getLogger("pabal.chat")

BATCH = 200
SLOW_POLL = 1.0  # seconds between looks for rows of a worker that died


class Outbox:
    """A task that appends the rows of the outbox to a topic. Ring it, and wake its service, when there are new ones."""

    def __init__(self, ledger: Ledger, topic: Topic) -> None:
        self._ledger = ledger
        self._topic = topic
        self._due = 0.0
        self._rung = True
        self._failures = 0

    def ring(self) -> None:
        """Say that there are new rows. For other threads."""
        self._rung = True

    def step(self) -> None:
        """Publish what is there; what does not answer is left in peace for a while."""
        if self.next_due() > 0:
            return
        self._rung = False
        try:
            while self.publish() == BATCH:
                pass
            self._failures = 0
            self._due = time.monotonic() + SLOW_POLL
        except PabalError as exc:
            self._failures += 1
            self._due = time.monotonic() + OUTAGE.delay(self._failures, random.random())
            log.warning("the outbox waits: %s", exc)

    def next_due(self) -> float:
        return 0.0 if self._rung and not self._failures else max(0.0, self._due - time.monotonic())

    def publish(self) -> int:
        """Append the oldest rows in one call, then remove them; return how many."""
        rows = self._ledger.outbox(BATCH)
        if rows:
            self._topic.topics.append(self._topic.name, [NewRecord(row.event, row.room_id) for row in rows])
            self._ledger.sent([row.number for row in rows])
        return len(rows)
