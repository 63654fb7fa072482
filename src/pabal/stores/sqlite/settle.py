"""Settle: the statement that changes a row compares its token, so a stale receipt changes nothing."""

from collections.abc import Mapping, Sequence
from functools import partial

from pabal.errors import PabalError, StoreFull, Uncertain
from pabal.sql.connection import Conflict, damaged_index
from pabal.sql.writer import Transaction, Update
from pabal.store import Done, Draft, Outcome, Receipt, Retry, Settlement, Verdict
from pabal.stores.rows import DEAD, DELAYED, DONE, HELD, READY, Row, encode_drafts, failure_text
from pabal.stores.sqlite.bodies import Place
from pabal.stores.sqlite.groups import release
from pabal.stores.sqlite.publish import Placed, Publisher

_TOGETHER = 20  # acks of one lease in one statement
_MIXED_CALLS = 50
_CURRENT = "where queue_id = ?1 and state = 2 and token = ?2 and {}"
# All messages of a lease have one token, and a damaged index may lead from an id to the row of another. The new values
# are made from the row itself: a state that becomes null breaks the statement.
_DONE_BY = f"update messages set state = iif({{}}, 4, null), state_since = ?3, failure = ?4, document = null {_CURRENT}"
_ID = "id = ?5"
_SOME = f"id in ({', '.join(f'?{number}' for number in range(5, 5 + _TOGETHER))})"
_DONE = f"{_DONE_BY} returning seq, grp".replace("{}", _ID)
_DONE_ALONE = f"{_DONE_BY} and grp is null".replace("{}", _ID)  # `returning` costs as much as all the rest
_ACKS = f"{_DONE_BY} returning id, grp".replace("{}", _SOME)
# Without `returning`, which costs half as much again.
_ACKS_ALONE = Update(f"{_DONE_BY} and grp is null", "id", 4)
_KEEP = f"""
update messages set state = iif({{}}, 4, null), state_since = ?3, failure = ?4
{_CURRENT} returning seq, grp""".replace("{}", _ID)
_DEAD = f"""
update messages set state = iif({{}}, 5, null), state_since = ?3, failure = ?4
{_CURRENT} returning seq, grp""".replace("{}", _ID)
_RETRY = f"""
update messages set state = iif({{}}, ?6, null), due_at = ?7, state_since = ?3, failure = coalesce(?4, failure),
attempt = attempt - ?8 {_CURRENT} returning seq, grp""".replace("{}", _ID)
_ORPHAN = f"""
insert into orphaned_files (name) select document from messages
{_CURRENT} and typeof(document) = 'text'""".replace("{}", "id = ?3")
_FOUND = """
select own.state, own.token, own.id from messages join messages as own not indexed on own.seq = messages.seq
where messages.queue_id = ? and messages.id = ?"""
_PLAIN = Done()
_ALONE: Row = (None, None)  # as `returning` would answer for a message without a group, whose seq is not needed


class _Mixed(Exception):
    """Not all acks of a call are of current leases without a group: to be applied with an answer for each."""


class Settler(Publisher):
    _mixed_left = 0  # how many calls with acks of many still look at each ack, after one had to

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        """Apply each verdict that is current, with its follow-ups, in one commit."""
        then: dict[int, Sequence[Placed]] = {}
        try:
            if self._are_plain(settlements):
                outcomes, unused = self._ack_plain(settlements, durable)
            else:
                for position, (receipt, verdict) in enumerate(settlements):
                    if receipt.queue not in self._known:
                        self._number(receipt.queue)
                    if verdict.then:
                        then[position] = self._encode_follow_ups(verdict.then)
                outcomes, unused = self._db.write(
                    partial(self._settle, settlements, then), durable=durable or bool(then), essential=True
                )
        except Uncertain:
            raise
        except (PabalError, Conflict) as exc:
            self._bodies.drop(place for encoded in then.values() for _, place, _ in encoded)
            if isinstance(exc, Conflict):
                raise self._db.read(damaged_index) from exc
            raise
        if unused:
            self._bodies.drop(unused)
        self._counters.settled(settlements, outcomes)
        return outcomes

    def _are_plain(self, settlements: Sequence[Settlement]) -> bool:
        """Return whether these are several plain acks, as usual."""
        return (
            len(settlements) > 1
            and not self._bodies.apart
            and [verdict for _, verdict in settlements].count(_PLAIN) == len(settlements)
        )

    def _ack_plain(self, settlements: Sequence[Settlement], durable: bool) -> tuple[list[Outcome], Sequence[Place]]:
        """Apply plain acks: first as if all were current and without a group, which costs least."""
        leases = _by_lease(settlements)
        for queue, _ in leases:
            if queue not in self._known:
                self._number(queue)
        if self._mixed_left > 0:
            self._mixed_left -= 1
        else:
            try:
                self._db.write(partial(self._ack_all, leases), durable=durable, essential=True)
                return [Outcome.APPLIED] * len(settlements), ()
            except _Mixed:
                self._mixed_left = _MIXED_CALLS
        return self._db.write(partial(self._settle, settlements, {}), durable=durable, essential=True)

    def _ack_all(self, leases: Mapping[tuple[str, str], Sequence[str]], tx: Transaction) -> None:
        """Apply plain acks many to a statement; raise _Mixed if one of them is not as expected."""
        now = self._clock.now()
        for (queue, token), ids in leases.items():
            number = self._known.get(queue)
            if number is None or _ACKS_ALONE.run(tx, (number, token, now, None), ids) != len(ids):
                raise _Mixed

    def _encode_follow_ups(self, drafts: Sequence[Draft]) -> Sequence[Placed]:
        """Encode follow-ups and store their bodies, with the space of the ballast if the disk is full."""
        encoded = encode_drafts(drafts, self._codec)
        if drafts[0].queue not in self._known:
            self._number(drafts[0].queue)
        if not self._bodies.apart:
            return encoded
        try:
            return self._store_bodies(encoded)
        except StoreFull:
            if self._db.reserve.ballast.release():
                return self._store_bodies(encoded)
            raise

    def _settle(
        self, settlements: Sequence[Settlement], then: Mapping[int, Sequence[Placed]], tx: Transaction
    ) -> tuple[list[Outcome], Sequence[Place]]:
        """Return the outcomes, and the bodies of follow-ups that no row names."""
        unused = [place for encoded in then.values() for _, place, _ in encoded] if self._bodies.apart and then else []
        if unused:
            self._bodies.confirm(unused)
        now = self._clock.now()
        acked = self._ack_together(settlements, now, tx) if self._are_plain(settlements) else {}
        outcomes: list[Outcome] = []
        for position, (receipt, verdict) in enumerate(settlements):
            number = self._known.get(receipt.queue)
            if number is None:
                outcomes.append(Outcome.LOST)
            elif acked.pop(receipt, False):
                outcomes.append(Outcome.APPLIED)
            elif changed := self._apply(tx, number, receipt, verdict, now):
                outcomes.append(Outcome.APPLIED)
                seq, group = changed
                if group is not None:
                    _regroup(tx, number, receipt.queue, seq, group, verdict)
                if position in then:
                    # Look for every id: a conflict would undo the settlement together with the follow-up.
                    answers = self._insert(then[position], False, True, tx)
                    if unused:
                        pairs = zip(then[position], answers, strict=True)
                        used = {place for (_, place, _), answer in pairs if not answer.duplicate}
                        unused = [place for place in unused if place not in used]
            else:
                outcomes.append(_repeated(tx, number, receipt, verdict))
        return outcomes, unused

    def _ack_together(self, settlements: Sequence[Settlement], now: float, tx: Transaction) -> dict[Receipt, bool]:
        """Apply plain acks many to a statement; return those that were current."""
        acked: dict[Receipt, bool] = {}
        for (queue, token), ids in _by_lease(settlements).items():
            number = self._known.get(queue)
            if number is None:
                continue
            groups = set[str | None]()
            for start in range(0, len(ids), _TOGETHER):
                some = ids[start : start + _TOGETHER]
                some += some[-1:] * (_TOGETHER - len(some))
                for id, group in tx.run(_ACKS, (number, token, now, None, *some)).fetchall():
                    acked[Receipt(queue, id, token)] = True
                    groups.add(group)
            release(tx, number, queue, groups)
        return acked

    def _apply(self, tx: Transaction, number: int, receipt: Receipt, verdict: Verdict, now: float) -> Row | None:
        """Change the row if the token is current; return (seq, group) of it, or None."""
        id, token = receipt.id, receipt.token
        failure = None if verdict.failure is None else failure_text(verdict.failure)
        if type(verdict) is Retry:
            state, due = (DELAYED, now + verdict.delay) if verdict.delay > 0 else (READY, now)
            tx.wakeups[receipt.queue] = number
            values = (number, token, now, failure, id, state, due, int(not verdict.counted))
            changed: Row | None = tx.run(_RETRY, values).fetchone()
            return changed
        if type(verdict) is not Done:
            statement = _DEAD
        elif verdict.keep:
            statement = _KEEP
        else:
            statement = _DONE
            if self._bodies.apart:  # note its file, to be removed when it is no longer needed
                tx.run(_ORPHAN, (number, token, id))
            tx.run(_DONE_ALONE, (number, token, now, failure, id))
            if tx.changes():
                return _ALONE
        changed = tx.run(statement, (number, token, now, failure, id)).fetchone()
        return changed


def _regroup(tx: Transaction, number: int, queue: str, seq: int, group: str, verdict: Verdict) -> None:
    """Let the first member of a group come, which may be one that came back, once no member is in flight."""
    if type(verdict) is Retry and verdict.delay <= 0:
        tx.change("update messages set state = 3 where seq = ? and state = 0", (seq,))
    release(tx, number, queue, [group])


def _by_lease(settlements: Sequence[Settlement]) -> dict[tuple[str, str], list[str]]:
    """Return the ids by queue and token."""
    leases: dict[tuple[str, str], list[str]] = {}
    queue = token = ""
    ids: list[str] = []
    for receipt, _ in settlements:
        if receipt.token != token or receipt.queue != queue:
            queue, token = receipt.queue, receipt.token
            ids = leases.setdefault((queue, token), [])
        ids.append(receipt.id)
    return leases


def _repeated(tx: Transaction, number: int, receipt: Receipt, verdict: Verdict) -> Outcome:
    found = tx.run(_FOUND, (number, receipt.id)).fetchall()
    if found and found[0][2] != receipt.id:
        raise damaged_index(tx.connection)
    if not found or found[0][1] != receipt.token:
        return Outcome.LOST
    if type(verdict) is Retry:
        same = found[0][0] in (READY, DELAYED, HELD)
    else:
        same = found[0][0] == (DONE if type(verdict) is Done else DEAD)
    return Outcome.REPEATED if same else Outcome.LOST
