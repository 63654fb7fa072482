"""Leasing in one statement, repeated under the same token if the link breaks: what it holds is given again."""

from collections.abc import Sequence
from operator import itemgetter

from pabal.codec import Codec
from pabal.errors import DecodeError
from pabal.ids import new_token
from pabal.message import lasting
from pabal.sql.links import Link
from pabal.sql.postgres import Server
from pabal.store import Lease, Outcome, Receipt
from pabal.stores.postgres.queues import Queues
from pabal.stores.postgres.rows import Row, array, failure_of, fault, read_message, words
from pabal.stores.postgres.schema import Schema

SWEEPER_SECONDS = 5.0  # how long who took over a message has to settle it

# Rows of both: id, attempt, due_at, failure, crc, document, rank, whether the token held it before, and expires_at.
_LEASE = "select * from pabal.lease(%s, %s, %s, %s, %s, %s)"
_TAKE_OVER = "select * from pabal.take_over(%s, %s, %s, %s)"
_EXTEND = "select pabal.extend(%s::integer[], %s::text[], %s::text[], %s)"
_ASIDE = "select pabal.set_aside(%s, %s::text[], %s, %s::smallint[], %s::text[])"


class Leasing:
    def __init__(self, server: Server, schema: Schema, queues: Queues, codec: Codec) -> None:
        self._server = server
        self._sql = schema
        self._queues = queues
        self._codec = codec

    def lease(self, queue: str, limit: int, seconds: float, consumer: str, token: str) -> list[Lease]:
        """Lease what is ready; see the contract."""
        number = self._queues.number(queue)
        if number is None or limit <= 0:
            return []
        leases: list[Lease] = []
        asked, token = bool(token), token or new_token()
        while True:
            wanted = limit - len(leases)
            rows = self._take((number, consumer, wanted, seconds, token), asked)
            leases += self._leases(queue, number, token, rows)
            if len(rows) < wanted or len(leases) >= limit or rows[0][7]:
                return leases
            asked = False  # some could not be read and were set aside: take others in their place

    def _take(self, values: tuple[object, ...], asked: bool) -> list[Row]:
        def work(link: Link) -> list[Row]:
            return link.ask(self._sql(_LEASE), (*values, asked or link.again), binary=True)

        return self._server.run(work)

    def expired(self, queue: str, limit: int) -> list[Lease]:
        """Take over what ran out; see the contract."""
        number = self._queues.number(queue)
        if number is None or limit <= 0:
            return []
        token = new_token()
        values = (number, limit, SWEEPER_SECONDS, token)

        def work(link: Link) -> list[Row]:
            return link.ask(self._sql(_TAKE_OVER), values, binary=True)

        return self._leases(queue, number, token, self._server.run(work))

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        """Move the end of each lease whose token is current."""
        self._server.require_usable()
        if not receipts:
            return []
        values = (
            array(self._queues.number(receipt.queue) or -1 for receipt in receipts),
            words(receipt.id for receipt in receipts),
            words(receipt.token for receipt in receipts),
            seconds,
        )
        found = self._server.run(lambda link: link.execute(self._sql(_EXTEND), values).fetchone())
        extended = set((found or ((),))[0])
        return [Outcome.APPLIED if place in extended else Outcome.LOST for place in range(1, len(receipts) + 1)]

    def _leases(self, queue: str, number: int, token: str, rows: list[Row]) -> list[Lease]:
        leases, unreadable = [], []
        rows.sort(key=itemgetter(6, 2, 0))
        for id, attempt, due_at, failure, crc, document, _, _, expires_at in rows:
            try:
                message = lasting(read_message(self._codec, document, crc), expires_at)
            except DecodeError as exc:
                unreadable.append((id, *fault(exc, due_at, attempt)))
                continue
            leases.append(Lease(Receipt(queue, id, token), message, attempt, due_at, failure_of(failure)))
        if unreadable:
            ids, states, failures = (list(column) for column in zip(*unreadable, strict=True))
            self._server.run(lambda link: link.execute(self._sql(_ASIDE), (number, ids, token, states, failures)))
        return leases
