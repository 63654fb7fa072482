"""Tending: the dead are revived; what was kept long enough is removed, and files that nothing names any more."""

import time
from collections.abc import Sequence
from functools import partial

from pabal.clock import Clock
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.store import State
from pabal.stores.sqlite import moves, reads
from pabal.stores.sqlite.bodies import Bodies
from pabal.stores.sqlite.queues import Queues

_SWEEP_SLICE = 200  # files
_SWEEP_SECONDS = 0.1


class Tending:
    def __init__(self, db: Database, queues: Queues, clock: Clock, bodies: Bodies) -> None:
        self._db = db
        self._queues = queues
        self._clock = clock
        self._bodies = bodies

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again; return the ids that were dead."""
        number = self._queues.number(queue)
        if number is None:
            return []

        def work(tx: Transaction) -> list[str]:
            now = self._clock.now()
            found = [id for id in ids if moves.revive(tx, number, id, now)]
            if found:
                tx.rings[queue] = number
            return found

        return self._db.write(work, durable=True, essential=True)

    def purge(self, queue: str, state: State, age: float, limit: int, ids: Sequence[str] | None) -> int:
        """Remove up to `limit` messages of a state; the write lock is taken only if there are any."""
        number = self._queues.number(queue)
        if number is None or state is State.INFLIGHT:
            return 0
        before = self._clock.now() - age if age > 0 else float("inf")
        removed = 0
        if self._db.read(lambda db: reads.purgeable(db.execute, number, state, before, 1, ids)):
            removed = self._db.write(
                lambda tx: moves.remove(tx, number, queue, reads.purgeable(tx.run, number, state, before, limit, ids)),
                durable=False,
                essential=True,
            )
            self._db.room.ballast.restore()
        if self._bodies.apart:
            self._sweep()
        return removed

    def _sweep(self) -> None:
        """Remove files of settled messages, for a tenth of a second at most: whoever leases does it in passing."""
        until = time.monotonic() + _SWEEP_SECONDS
        while self._db.read(reads.any_spent):
            # Synced, so that no power cut can bring back a row whose file is gone.
            names = self._db.write(partial(moves.take_spent, _SWEEP_SLICE), durable=True, essential=True)
            self._bodies.drop(names)
            if time.monotonic() >= until:
                return
