"""Lease in one statement. If the connection breaks, it is repeated with its token, which holds the leased messages."""

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter

from pabal.errors import DecodeError, StoreFailed
from pabal.ids import lease_token
from pabal.message import drop_expiry_if_revived, replace
from pabal.sql.postgres_link import Link
from pabal.store import Lease, Outcome, Receipt
from pabal.stores.postgres.publish import array, texts
from pabal.stores.postgres.queues import Queues
from pabal.stores.rows import Row, by_group, failure_of, log_corrupt, read_message, unreadable

SWEEPER_SECONDS = 5.0  # the lease of a consumer that took over an expired message and must settle it

# Rows of both: id, attempt, due_at, failure, crc, document, rank, a flag, and expires_at. The flag of a lease says
# whether the token held the message before, that of a take-over whether its time to live is over. A row of a take-over
# has also its token and the name of the consumer whose lease ran out, a row of a lease its group and its place in it.
_LEASE = "select * from pabal.lease(%s, %s, %s, %s, %s, %s, %s)"
_TAKE_OVER = "select * from pabal.take_over(%s, %s, %s, %s)"
_EXTEND = "select pabal.extend(%s::integer[], %s::text[], %s::text[], %s)"
_SET_ASIDE = "select pabal.set_aside(%s, %s::text[], %s, %s::smallint[], %s::text[])"
_order_of, _group_of, _seq_of = itemgetter(6, 2, 0), itemgetter(9), itemgetter(10)


class Leaser(Queues):
    def lease(
        self,
        queue: str,
        limit: int,
        seconds: float,
        *,
        consumer: str = "",
        token: str = "",
        successive: bool = False,
    ) -> list[Lease]:
        """Lease ready messages."""
        number = self._number(queue)
        if number is None or limit <= 0:
            return []
        leases: list[Lease] = []
        given = asked = bool(token)
        tag = self._consumers.tag(consumer, token)
        token = token or lease_token(tag)
        seen = set[str]()

        def work(link: Link) -> list[Row]:
            values = (number, consumer, limit - len(leases), seconds, token, asked or link.again, successive)
            return link.ask(self._sql(_LEASE), values, binary=True)

        while True:
            wanted = limit - len(leases)
            rows = self._server.run(work)
            while rows and rows[0][0] is None:  # more delayed messages came due than one call promotes
                rows = self._server.run(work)
            if rows and (successive or rows[0][7]):
                rows = by_group(rows, _order_of, _group_of, _seq_of)
            else:
                rows.sort(key=_order_of)
            leases += self._leases(queue, number, token, rows)
            if len(rows) < wanted or len(leases) >= limit or rows[0][7]:
                if leases:
                    self._counters.leased(leases, asked=given)
                return leases
            if not seen.isdisjoint(ids := {row[0] for row in rows}):
                raise StoreFailed(f"an index of queue {queue} does not fit its rows: run `reindex` on its tables")
            seen |= ids
            asked = False  # some could not be read and were set aside: take others in their place

    def expired(self, queue: str, limit: int) -> list[Lease]:
        """Take over leases and messages that ran out."""
        number = self._number(queue)
        if number is None or limit <= 0:
            return []
        self._consumers.sweep(set)
        values = (number, limit, SWEEPER_SECONDS, lease_token())
        rows = self._server.run(lambda link: link.ask(self._sql(_TAKE_OVER), values, binary=True))
        taken: dict[str, list[Row]] = {}
        facts = {}
        for *row, token, consumer in sorted(rows, key=_order_of):
            taken.setdefault(token, []).append(tuple(row))
            facts[row[0]] = {"expired": row[7], "consumer": consumer or ""}
        found = chain.from_iterable(self._leases(queue, number, token, some) for token, some in taken.items())
        leases = [replace(lease, **facts[lease.receipt.id]) for lease in found]
        self._counters.expired(leases)
        return leases

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        """Move the end of each lease whose token is current."""
        self._server.require_usable()
        if not receipts:
            return []
        self._consumers.extended(receipts)
        values = (
            array(self._number(receipt.queue) or -1 for receipt in receipts),
            texts(receipt.id for receipt in receipts),
            texts(receipt.token for receipt in receipts),
            seconds,
        )
        found = self._server.run(lambda link: link.execute(self._sql(_EXTEND), values).fetchone())
        extended = set((found or ((),))[0])
        return [Outcome.APPLIED if place in extended else Outcome.LOST for place in range(1, len(receipts) + 1)]

    def _leases(self, queue: str, number: int, token: str, rows: list[Row]) -> list[Lease]:
        """Return the leases of messages that can be read; set the others aside."""
        leases, aside = [], []
        for id, attempt, due_at, failure, crc, document, _, _, expires_at, *_ in rows:
            try:
                message = read_message(self._codec, document, crc)
            except DecodeError as exc:
                aside.append((id, *unreadable(exc, due_at, attempt)))
                log_corrupt(queue, id, exc.reason)
                continue
            if message.expires_at is not None:
                message = drop_expiry_if_revived(message, expires_at)
            before = None if failure is None else failure_of(failure)
            leases.append(Lease(Receipt(queue, id, token), message, attempt, due_at, before))
        if aside:
            ids, states, failures = (list(column) for column in zip(*aside, strict=True))
            self._server.run(lambda link: link.execute(self._sql(_SET_ASIDE), (number, ids, token, states, failures)))
        return leases
