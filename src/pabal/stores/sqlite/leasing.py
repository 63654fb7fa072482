"""Leasing, extending and taking over. What cannot be read is set aside, and others are taken in its place."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import DecodeError, StoreFailed
from pabal.ids import new_token
from pabal.message import lasting
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.store import Lease, Outcome, Receipt
from pabal.stores.sqlite import moves, reads
from pabal.stores.sqlite.bodies import Bodies
from pabal.stores.sqlite.boot import Boot
from pabal.stores.sqlite.queues import Queues
from pabal.stores.sqlite.rows import failure_of, fault, read_message
from pabal.stores.sqlite.settle import set_aside

SWEEPER_SECONDS = 5.0  # how long who took over a message has to settle it


class Leasing:
    def __init__(self, db: Database, queues: Queues, boot: Boot, clock: Clock, codec: Codec, bodies: Bodies) -> None:
        self._db = db
        self._queues = queues
        self._boot = boot
        self._clock = clock
        self._codec = codec
        self._bodies = bodies
        self._in_vain: dict[str, int] = {}  # leases in a row that found nothing in a queue

    def lease(self, queue: str, limit: int, seconds: float, consumer: str, token: str) -> list[Lease]:
        """Lease what is ready. Whoever came twice in vain looks before taking the write lock.

        Not who came once: it is woken when there is something, and unless others are quicker a look only loses time.
        """
        number = self._queues.number(queue)
        if number is None or limit <= 0:
            return []
        self._boot.check(self._db)
        if self._in_vain.get(queue, 0) > 1 and not token and not self._anything(number, consumer):
            return []
        again, token = bool(token), token or new_token()
        leases: list[Lease] = []
        while True:
            wanted = limit - len(leases)
            take = partial(self._take, number, wanted, seconds, consumer, token, again)
            rows, held = self._db.write(take, durable=False, essential=True)
            found, unread = self._leases(queue, number, token, rows, 0 if held else 1)
            leases += found
            if unread is not None and not leases:
                raise unread
            if unread is not None or held or len(rows) < wanted or len(leases) == limit:
                break
            again = False  # some could not be read and were set aside: take others in their place
        self._in_vain[queue] = 0 if leases else self._in_vain.get(queue, 0) + 1
        return leases

    def expired(self, queue: str, limit: int) -> list[Lease]:
        """Take over what ran out; the write lock is taken only if there is something."""
        number = self._queues.number(queue)
        if number is None or limit <= 0:
            return []
        self._boot.check(self._db)
        now, boot, token = self._clock.now(), self._clock.boot(), new_token()
        if not self._db.read(lambda db: reads.lapsed(db, number, boot, now)):
            return []
        rows = self._db.write(
            lambda tx: moves.take_over(
                tx, number, limit, token=token, now=now, boot=boot, until=boot + SWEEPER_SECONDS
            ),
            durable=False,
            essential=True,
        )
        return self._leases(queue, number, token, rows, 0)[0]

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        """Move the end of each lease whose token is current."""
        self._boot.check(self._db)
        numbers = [self._queues.number(receipt.queue) for receipt in receipts]

        def work(tx: Transaction) -> list[Outcome]:
            until = self._clock.boot() + seconds
            return [
                Outcome.APPLIED
                if number is not None and moves.extend(tx, number, receipt.id, receipt.token, until)
                else Outcome.LOST
                for receipt, number in zip(receipts, numbers, strict=True)
            ]

        return self._db.write(work, durable=False, essential=True)

    def _anything(self, number: int, consumer: str) -> bool:
        now = self._clock.now()
        return self._db.read(lambda db: reads.anything(db, number, consumer, now))

    def _take(
        self, number: int, limit: int, seconds: float, consumer: str, token: str, again: bool, tx: Transaction
    ) -> tuple[list[moves.Row], bool]:
        """Return rows and whether the token held them before."""
        if again and (held := moves.held_by(tx, number, token)):
            return held, True
        rows = moves.ready(tx, number, consumer, self._clock.now(), limit)
        if rows:
            moves.lease(tx, rows, token, self._clock.boot() + seconds)
        return rows, False

    def _leases(
        self, queue: str, number: int, token: str, rows: Sequence[moves.Row], counted: int
    ) -> tuple[list[Lease], StoreFailed | None]:
        """Return what can be read, and why some cannot for now: these stay in flight until their lease is over."""
        leases, unreadable, unread = [], [], None
        for seq, id, attempt, due_at, failure, crc, place, _, expires_at, *_ in rows:
            attempt += counted
            try:
                message = lasting(read_message(self._codec, self._bodies, place, crc), expires_at)
            except DecodeError as exc:
                unreadable.append((seq, *fault(exc, self._clock.now(), attempt)))
                continue
            except StoreFailed as exc:
                unread = exc
                continue
            leases.append(Lease(Receipt(queue, id, token), message, attempt, due_at, failure_of(failure)))
        if unreadable:
            self._db.write(
                lambda tx: set_aside(tx, number, queue, token, unreadable, self._clock.now()),
                durable=False,
                essential=True,
            )
        return leases, unread
