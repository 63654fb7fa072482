"""The handler of taken-in messages: what was read together is stored in one transaction.

What is no event, and what the ledger rejects, is refused: it goes to the dlq at once, and that tells its sender. While
the database is down nothing is lost or tried: the ledger raises Outage, and the partitions wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pabal.chat.events import MessageCreated, read_created
from pabal.chat.ledger import Ledger, Rejected
from pabal.errors import InvalidBody
from pabal.handling import Received, Refusal

BATCH = 100


class Persisting:
    """Stores messages; calls `stored` after each commit, when there is something in the outbox."""

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
