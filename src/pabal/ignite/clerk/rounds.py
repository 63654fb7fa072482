"""The clerk's rounds: what follows from time alone. Lost tasks are taken back, free workers get work, reports go out.

Letters are in the outbox from the same commit that changed the books until they are in their queues, under ids that are
fixed with them: whoever is killed in between sends them once more, and the store keeps one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pabal.clock import Clock
from pabal.errors import QueueFull
from pabal.ids import IdMaker
from pabal.ignite.clerk.books import Books
from pabal.ignite.clerk.desk import Desk
from pabal.ignite.clerk.progress import GAP, report, report_held
from pabal.ignite.clerk.tasks import assign, reclaim
from pabal.ignite.clerk.values import Letter, Roster, Status, Task

log = logging.getLogger("pabal.ignite")

EVERY = 5.0  # seconds
REMEMBERED = 7 * 86400.0  # seconds that a decision is kept
KEPT = 30 * 86400.0  # seconds that a thread is kept in which nothing is left to do
Died = Callable[[Sequence[Task]], Mapping[str, str]]
Send = Callable[[Sequence[tuple[str, Letter]]], object]


class Rounds:
    """A task of a service.

    `roster` says who is there now, `died` which of these tasks' assignments were given up, by id, with the reasons;
    `send` puts letters under their ids into queues.
    """

    def __init__(self, desk: Desk, *, roster: Callable[[], Roster], died: Died, send: Send, clock: Clock) -> None:
        self._desk = desk
        self._roster = roster
        self._died = died
        self._send = send
        self._clock = clock
        self._ids = IdMaker(clock)
        self._due = clock.boot()

    def step(self) -> None:
        """Make a round if one is due."""
        if self._clock.boot() < self._due:
            return
        try:
            held = self._make_round() if self._anything() else False
        except QueueFull as exc:  # the letters stay in the outbox
            log.warning("the coordinator's letters wait: %s", exc)
            held = True
        self._due = self._clock.boot() + (GAP if held else EVERY)

    def next_due(self) -> float:
        return max(0.0, self._due - self._clock.boot())

    def _anything(self) -> bool:
        def look(connection: Any) -> bool:
            books = Books(connection)
            return bool(books.tasks(Status.IN_PROGRESS, Status.QUEUED) or books.outbox() or books.unreported())

        return self._desk.database.read(look)

    def _make_round(self) -> bool:
        roster, now = self._roster(), self._clock.now()
        died = self._died(self._desk.tasks(Status.IN_PROGRESS))

        def work(tx: Any) -> tuple[list[tuple[str, Letter]], bool]:
            books = Books(tx.connection)
            books.forget(decisions=now - REMEMBERED, threads=now - KEPT)
            letters = [*reclaim(books, roster, now, died), *assign(books, roster, now)]
            for thread in sorted({letter.thread_id for letter in letters}):
                letters += report(books, roster, thread, now)
            letters += report_held(books, roster, now)
            books.post((letter.id or self._ids(), letter) for letter in letters)
            return books.outbox(), bool(books.unreported())

        letters, held = self._desk.database.write(work, durable=True)
        if letters:
            self._send(letters)
            ids = [id for id, _ in letters]
            self._desk.database.write(lambda tx: Books(tx.connection).sent(ids), durable=False)
        return held
