"""Verdicts in SQL: the token is compared in the statement that changes the row, so a stale one changes nothing."""

from collections.abc import Mapping, Sequence

from pabal.clock import Clock
from pabal.sql.writer import Transaction
from pabal.store import Done, Outcome, Receipt, Retry, Settlement, Verdict
from pabal.stores.sqlite.bodies import Bodies, Place
from pabal.stores.sqlite.encoding import Encoded
from pabal.stores.sqlite.groups import release, turn_of
from pabal.stores.sqlite.inserting import insert
from pabal.stores.sqlite.moves import Row
from pabal.stores.sqlite.rows import DEAD, DELAYED, DONE, HELD, READY, text_of

_TOGETHER = 20  # acks of one lease to a statement
_CURRENT = "where queue_id = ? and id = ? and state = 2 and token = ?"
_NAMED = f"{_CURRENT} returning seq, grp"
_DONE_BY = "update messages set state = 4, moment = ?, failure = ?, document = null"
_DONE = f"{_DONE_BY} {_NAMED}"
_DONE_ALONE = f"{_DONE_BY} {_CURRENT} and grp is null"  # `returning` costs as much as all the rest
_ACKS = f"""{_DONE_BY}
where queue_id = ? and state = 2 and token = ? and id in ({", ".join("?" * _TOGETHER)}) returning id, grp"""
_KEEP = f"update messages set state = 4, moment = ?, failure = ? {_NAMED}"
_DEAD = f"update messages set state = 5, moment = ?, failure = ? {_NAMED}"
_RETRY = f"update messages set state = ?, due_at = ?, moment = ?, failure = coalesce(?, failure) {_NAMED}"
_SPENT = f"insert into spent (name) select document from messages {_CURRENT} and typeof(document) = 'text'"
_FOUND = "select state, token from messages where queue_id = ? and id = ?"
_ASIDE = "update messages set state = ?, moment = ?, failure = ? where seq = ? and state = 2 and token = ?"
_PLAIN = Done()
_ALONE: list[Row] = [(None, None)]  # what `returning` would say of one without a group, whose place nobody needs


class Settling:
    """One call of settle: the settlements, the numbers of their queues, and their follow-ups as they were encoded."""

    def __init__(
        self,
        settlements: Sequence[Settlement],
        then: Mapping[int, Sequence[Encoded]],
        known: Mapping[str, int],
        clock: Clock,
        bodies: Bodies,
    ) -> None:
        self._settlements = settlements
        self._then = then
        self._known = known
        self._clock = clock
        self._bodies = bodies
        self.places: list[Place] = [place for items in then.values() for _, place, _ in items] if then else []
        self.unused = self.places  # those of follow-ups that no row names

    def __call__(self, tx: Transaction) -> list[Outcome]:
        if self._then:
            self._bodies.confirm(self.places)
            self.unused = self.places
        now = self._clock.now()
        acked = self._ack(tx, now)
        outcomes: list[Outcome] = []
        for place, (receipt, verdict) in enumerate(self._settlements):
            number = self._known.get(receipt.queue)
            if number is None:
                outcomes.append(Outcome.LOST)
            elif acked.pop(receipt, False):
                outcomes.append(Outcome.APPLIED)
            elif changed := self._apply(tx, number, receipt, verdict, now):
                outcomes.append(Outcome.APPLIED)
                seq, group = changed[0]
                if group is not None:
                    _regroup(tx, number, receipt.queue, seq, group, verdict)
                if place in self._then:
                    self._follow_up(tx, self._then[place], now)
            else:
                outcomes.append(_repeated(tx, number, receipt, verdict))
        return outcomes

    def _ack(self, tx: Transaction, now: float) -> dict[Receipt, bool]:
        """Apply a call of nothing but plain acks, the usual many, in one go; return which were current."""
        settlements = self._settlements
        if len(settlements) == 1 or self._bodies.apart or any(verdict != _PLAIN for _, verdict in settlements):
            return {}
        leases: dict[tuple[str, str], list[str]] = {}
        for receipt, _ in settlements:
            leases.setdefault((receipt.queue, receipt.token), []).append(receipt.id)
        acked: dict[Receipt, bool] = {}
        for (queue, token), ids in leases.items():
            number = self._known.get(queue)
            if number is None:
                continue
            groups = set[str | None]()
            for start in range(0, len(ids), _TOGETHER):
                some = ids[start : start + _TOGETHER]
                some += some[-1:] * (_TOGETHER - len(some))
                for id, group in tx.run(_ACKS, (now, None, number, token, *some)).fetchall():
                    acked[Receipt(queue, id, token)] = True
                    groups.add(group)
            release(tx, number, queue, groups)
        return acked

    def _apply(self, tx: Transaction, number: int, receipt: Receipt, verdict: Verdict, now: float) -> list[Row]:
        id, token = receipt.id, receipt.token
        failure = None if verdict.failure is None else text_of(verdict.failure)
        if type(verdict) is Retry:
            state, due = (DELAYED, now + verdict.delay) if verdict.delay > 0 else (READY, now)
            tx.rings[receipt.queue] = number
            changed: list[Row] = tx.run(_RETRY, (state, due, now, failure, number, id, token)).fetchall()
            return changed
        if type(verdict) is not Done:
            statement = _DEAD
        elif verdict.keep:
            statement = _KEEP
        else:
            statement = _DONE
            if self._bodies.apart:  # its file is noted, to be removed when it is no longer needed
                tx.run(_SPENT, (number, id, token))
            if tx.change(_DONE_ALONE, (now, failure, number, id, token)):
                return _ALONE
        changed = tx.run(statement, (now, failure, number, id, token)).fetchall()
        return changed

    def _follow_up(self, tx: Transaction, items: Sequence[Encoded], now: float) -> None:
        # Look for every id: a clash would undo the settlement with the follow-up.
        answers = insert(tx, self._known, items, now, limited=False, look=True)
        if self._bodies.apart:
            used = {place for (_, place, _), answer in zip(items, answers, strict=True) if not answer.duplicate}
            self.unused = [place for place in self.unused if place not in used]


def _regroup(tx: Transaction, number: int, queue: str, seq: int, group: str, verdict: Verdict) -> None:
    """Let the next of a group come up, or hold back one that came back to a group it does not lead."""
    if type(verdict) is not Retry:
        release(tx, number, queue, [group])
    elif verdict.delay <= 0 and turn_of(tx, number, seq, group) == HELD:
        tx.change("update messages set state = 3 where seq = ?", (seq,))


def _repeated(tx: Transaction, number: int, receipt: Receipt, verdict: Verdict) -> Outcome:
    found = tx.run(_FOUND, (number, receipt.id)).fetchall()
    if not found or found[0][1] != receipt.token:
        return Outcome.LOST
    if type(verdict) is Retry:
        same = found[0][0] in (READY, DELAYED, HELD)
    else:
        same = found[0][0] == (DONE if type(verdict) is Done else DEAD)
    return Outcome.REPEATED if same else Outcome.LOST


def set_aside(
    tx: Transaction, number: int, queue: str, token: str, found: Sequence[tuple[int, int, str]], now: float
) -> None:
    """Take messages that cannot be read out of the way, given as (seq, state, failure)."""
    for seq, state, failure in found:
        if tx.change(_ASIDE, (state, now, failure, seq, token)):
            release(tx, number, queue, tx.run("select grp from messages where seq = ?", (seq,)).fetchall()[0])
