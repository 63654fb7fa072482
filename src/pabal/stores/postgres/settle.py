"""Settle in one statement, whose columns are the verdicts: it compares the token where it changes the row."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pabal.errors import Uncertain
from pabal.sql.postgres_link import Link
from pabal.store import Done, Outcome, Retry, Settlement, Verdict
from pabal.stores.postgres.publish import Encoded, Publisher, array, columns_of, texts
from pabal.stores.rows import EncodedDraft, failure_text

_OUTCOMES = (Outcome.APPLIED, Outcome.REPEATED, Outcome.LOST)
_DONE, _KEEP, _RETRY, _DEAD = range(4)
_PLAIN = Done()
_ARGUMENTS = "%s::integer[], %s::text[], %s::text[], %s::smallint[], %s::double precision[], %s::text[]"
_ACK = "select pabal.ack(%s, %s::text[], %s)"
_SETTLE = f"select pabal.settle({_ARGUMENTS})"
_THEN = f"""
select pabal.settle_then({_ARGUMENTS}, %s::integer[], %s::integer[], %s::text[], %s::smallint[],
  %s::double precision[], %s::text[], %s::text[], %s::text[], %s::double precision[], %s::jsonb,
  %s::bigint[], %s::integer[], %b::bytea, %s)"""


class Settler(Publisher):
    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        """Apply each verdict that is current, with its follow-ups. Every commit here is durable."""
        self._server.require_usable()
        then = {place: self._encode(verdict.then) for place, (_, verdict) in enumerate(settlements) if verdict.then}
        for queue in {receipt.queue for receipt, _ in settlements}:
            self._number(queue)
        outcomes: dict[int, Outcome] = {}
        for places in _rounds(settlements):
            some = [settlements[place] for place in places]
            follow_ups = [(ord, one) for ord, place in enumerate(places, 1) for one in then.get(place, ())]
            found = self._server.run(partial(self._settle, some, follow_ups))
            outcomes.update(zip(places, found, strict=True))
        found = [outcomes[place] for place in range(len(settlements))]
        self._counters.settled(settlements, found)
        return found

    def _settle(
        self, settlements: Sequence[Settlement], follow_ups: Sequence[tuple[int, EncodedDraft[bytes]]], link: Link
    ) -> list[Outcome]:
        """Apply verdicts, of which none names the same message as another.

        `follow_ups` are drafts, each with the position of its settlement, from 1 on.
        """
        statement, values = _statement(settlements, follow_ups, self._known, self._clock.now())
        [(numbers,)] = link.ask(self._sql(statement), values)
        if numbers is None:
            return [Outcome.APPLIED] * len(settlements)
        outcomes = [_OUTCOMES[number] for number in numbers]
        if link.again and Outcome.LOST in outcomes:
            # An earlier try was cut off: a receipt that is lost now may have been applied by it.
            ids = tuple(receipt.id for receipt, _ in settlements)
            raise Uncertain("the link broke: these verdicts may have been applied, or the leases were lost before", ids)
        return outcomes


def _statement(
    settlements: Sequence[Settlement],
    follow_ups: Sequence[tuple[int, EncodedDraft[bytes]]],
    known: dict[str, int],
    now: float,
) -> tuple[str, list[Any]]:
    if follow_ups:
        encoded: Encoded = [one for _, one in follow_ups]
        columns = columns_of(encoded, known, now, limited=False)
        return _THEN, [*_columns(settlements, known), array(ord for ord, _ in follow_ups), *columns]
    first = settlements[0].receipt
    if _are_acks_of_one_lease(settlements):
        return _ACK, [known.get(first.queue, -1), texts(receipt.id for receipt, _ in settlements), first.token]
    return _SETTLE, _columns(settlements, known)


def _are_acks_of_one_lease(settlements: Sequence[Settlement]) -> bool:
    """Return whether these are plain acks of one queue under one token: the usual call."""
    first = settlements[0].receipt
    return all(
        verdict == _PLAIN and receipt.token == first.token and receipt.queue == first.queue
        for receipt, verdict in settlements
    )


def _columns(settlements: Sequence[Settlement], known: Mapping[str, int]) -> list[Any]:
    return [
        array(known.get(receipt.queue, -1) for receipt, _ in settlements),
        texts(receipt.id for receipt, _ in settlements),
        texts(receipt.token for receipt, _ in settlements),
        array(_kind(verdict) for _, verdict in settlements),
        array(_delay(verdict) for _, verdict in settlements),
        texts(failure_text(verdict.failure) for _, verdict in settlements),
    ]


def _delay(verdict: Verdict) -> float:
    """Return the delay of a retry; below 0 if its lease does not count as an attempt."""
    if type(verdict) is not Retry:
        return 0.0
    return verdict.delay if verdict.counted else -1.0


def _kind(verdict: Verdict) -> int:
    if type(verdict) is Retry:
        return _RETRY
    if type(verdict) is Done:
        return _KEEP if verdict.keep else _DONE
    return _DEAD


def _rounds(settlements: Sequence[Settlement]) -> Sequence[Sequence[int]]:
    """Return the positions of the settlements, in rounds none of which names the same message twice."""
    if len({receipt.id for receipt, _ in settlements}) == len(settlements):
        return [range(len(settlements))] if settlements else []
    rounds: list[list[int]] = []
    seen: dict[tuple[str, str], int] = {}
    for place, (receipt, _) in enumerate(settlements):
        number = seen[receipt.queue, receipt.id] = seen.get((receipt.queue, receipt.id), -1) + 1
        if number == len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds
