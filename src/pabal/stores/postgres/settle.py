"""Verdicts as the columns of one statement: the token is compared where the row is changed."""

from collections.abc import Mapping, Sequence
from typing import Any

from pabal.codec import Codec
from pabal.errors import Uncertain
from pabal.sql.links import Link
from pabal.store import Done, Outcome, Retry, Settlement, Verdict
from pabal.stores.postgres.rows import Sheet, array, columns_of, text_of, words, write_down
from pabal.stores.postgres.schema import Schema

_OUTCOMES = (Outcome.APPLIED, Outcome.REPEATED, Outcome.LOST)
_DONE, _KEEP, _RETRY, _DEAD = range(4)
_PLAIN = Done()
_ARGUMENTS = "%s::integer[], %s::text[], %s::text[], %s::smallint[], %s::double precision[], %s::text[]"
_LIMITS = 9  # the column of max_waiting, by which follow-ups are never kept out
_ACK = "select pabal.ack(%s, %s::text[], %s)"
_SETTLE = f"select pabal.settle({_ARGUMENTS})"
_THEN = f"""
select pabal.settle_then({_ARGUMENTS}, %s::integer[], %s::integer[], %s::text[], %s::smallint[],
  %s::double precision[], %s::text[], %s::text[], %s::text[], %s::double precision[], %s::double precision[],
  %s::bigint[], %s::integer[], %b::bytea)"""


class Settling:
    """One call of settle: its settlements with their follow-ups written down."""

    def __init__(self, settlements: Sequence[Settlement], codec: Codec) -> None:
        self.rounds = _rounds(settlements)
        self._settlements = settlements
        self._then: dict[int, list[Sheet]] = {
            place: write_down(verdict.then, codec) for place, (_, verdict) in enumerate(settlements) if verdict.then
        }

    @property
    def queues(self) -> list[str]:
        """Name the queues that follow-ups go to."""
        return list({sheet.draft.queue for sheets in self._then.values() for sheet in sheets})

    def run(self, places: Sequence[int], known: Mapping[str, int], schema: Schema, link: Link) -> list[Outcome]:
        """Settle those at some places of the call. After a try that was cut off, what is lost may have been applied."""
        statement, values = self._statement(places, known)
        [(numbers,)] = link.ask(schema(statement), values)
        if numbers is None:
            return [Outcome.APPLIED] * len(places)
        outcomes = [_OUTCOMES[number] for number in numbers]
        if link.again and Outcome.LOST in outcomes:
            ids = tuple(self._settlements[place].receipt.id for place in places)
            raise Uncertain("the link broke: these verdicts may have been applied, or the leases were lost before", ids)
        return outcomes

    def _statement(self, places: Sequence[int], known: Mapping[str, int]) -> tuple[str, list[Any]]:
        told = [self._settlements[place] for place in places]
        sheets = [(ord, sheet) for ord, place in enumerate(places, 1) for sheet in self._then.get(place, ())]
        if sheets:
            then = columns_of([sheet for _, sheet in sheets], dict(known))
            del then[_LIMITS]
            return _THEN, [*_columns(told, known), array(ord for ord, _ in sheets), *then]
        if _acks_of_one(told):
            first = told[0].receipt
            return _ACK, [known.get(first.queue, -1), words(receipt.id for receipt, _ in told), first.token]
        return _SETTLE, _columns(told, known)


def _acks_of_one(told: Sequence[Settlement]) -> bool:
    """Say whether these are plain acks of what one token holds of one queue: the usual call."""
    first = told[0].receipt
    return all(
        verdict == _PLAIN and receipt.token == first.token and receipt.queue == first.queue for receipt, verdict in told
    )


def _columns(told: Sequence[Settlement], known: Mapping[str, int]) -> list[Any]:
    return [
        array(known.get(receipt.queue, -1) for receipt, _ in told),
        words(receipt.id for receipt, _ in told),
        words(receipt.token for receipt, _ in told),
        array(_kind(verdict) for _, verdict in told),
        array(verdict.delay if type(verdict) is Retry else 0.0 for _, verdict in told),
        words(text_of(verdict.failure) for _, verdict in told),
    ]


def _kind(verdict: Verdict) -> int:
    if type(verdict) is Retry:
        return _RETRY
    if type(verdict) is Done:
        return _KEEP if verdict.keep else _DONE
    return _DEAD


def _rounds(settlements: Sequence[Settlement]) -> Sequence[Sequence[int]]:
    """Return the places of the settlements, shared out so that none of a round names the same message twice."""
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
