"""Every ending of a lease: done, failed and judged by the policy, or run out and taken over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from pabal.clock import Clock
from pabal.errors import InvalidInput, LeaseLost
from pabal.in_force import InForce
from pabal.jsontext import storable
from pabal.judge import Letters, judge
from pabal.message import Message, check_seconds
from pabal.store import (
    Dead,
    Done,
    Draft,
    Failure,
    FailureCode,
    Lease,
    Outcome,
    Receipt,
    Retry,
    Settlement,
    Store,
    Verdict,
)

log = logging.getLogger("pabal")

SWEEP_SLICE = 100


class Settling:
    """Settles the messages of one queue for one consumer."""

    def __init__(
        self,
        name: str,
        store: Store,
        in_force: InForce,
        clock: Clock,
        *,
        consumer: str,
        chance: Callable[[], float],
        letters: Letters,
    ) -> None:
        self._name = name
        self._store = store
        self._in_force = in_force
        self._clock = clock
        self._consumer = consumer
        self._chance = chance
        self._letters = letters

    def ack(self, receipt: Receipt, then: Sequence[Draft] = ()) -> None:
        """Settle as done, with what follows from it."""
        ruling = self._in_force()
        verdict = ruling.done._replace(then=tuple(then)) if then else ruling.done
        [outcome] = self._store.settle([Settlement(receipt, verdict)], durable=ruling.policy.durable_acks)
        if outcome is Outcome.LOST:
            raise lost_leases([receipt])

    def ack_many(self, receipts: Sequence[Receipt]) -> None:
        """Settle many as done in one commit. Raise LeaseLost naming those that were not ours; the others are done."""
        ruling = self._in_force()
        outcomes = self._store.settle(
            [Settlement(receipt, ruling.done) for receipt in receipts], durable=ruling.policy.durable_acks
        )
        lost = [receipt for receipt, outcome in zip(receipts, outcomes, strict=True) if outcome is Outcome.LOST]
        if lost:
            raise lost_leases(lost)

    def settle(self, receipt: Receipt, verdict: Verdict) -> None:
        """Apply a verdict on a failure."""
        [outcome] = self._store.settle([Settlement(receipt, verdict)], durable=self._in_force().policy.durable_acks)
        if outcome is Outcome.LOST:
            raise lost_leases([receipt])
        _tell_failure(receipt, verdict)

    def done(self, then: Sequence[Draft] = ()) -> Done:
        """Return the verdict of an ack, with what follows from it."""
        return self._in_force().done._replace(then=tuple(then))

    def failure(self, code: str, reason: str, attempt: int, before: Failure | None = None) -> Failure:
        """Return a failure of now; `before` is the one of the attempt before it, with which it is compared."""
        reason = storable(reason)
        again = before is not None and (before.code, before.reason) == (str(code), reason)
        repeats = before.repeats + 1 if again and before is not None else 1
        return Failure(str(code), reason, round(self._clock.now(), 3), attempt, self._consumer, repeats)

    def judge(self, message: Message, failure: Failure, *, delay: float | None = None, final: bool = False) -> Verdict:
        """Return what the policy makes of this failure; a delay given by the caller replaces the policy's."""
        if delay is not None:
            check_seconds("delay", delay)
        verdict = judge(
            self._in_force().policy,
            self._name,
            message,
            failure,
            chance=self._chance,
            final=final,
            letters=self._letters,
        )
        return Retry(delay, failure) if type(verdict) is Retry and delay is not None else verdict

    def judge_expired(self) -> int:
        """Take over and judge every lease and message that ran out; return how many."""
        judged = 0
        while leases := self._store.expired(self._name, SWEEP_SLICE):
            for settlement in self._apply([Settlement(lease.receipt, self._verdict_on(lease)) for lease in leases]):
                _tell_failure(*settlement)
            judged += len(leases)
            if len(leases) < SWEEP_SLICE:
                break
        return judged

    def _apply(self, settlements: list[Settlement]) -> list[Settlement]:
        """Settle these; return those that were applied.

        A dead letter that its queue refuses holds back neither the others with theirs nor its own message.
        """
        try:
            outcomes = self._store.settle(settlements)
        except InvalidInput:
            if len(settlements) > 1:
                return [applied for each in settlements for applied in self._apply([each])]
            [(receipt, verdict)] = settlements
            settlements = [Settlement(receipt, verdict._replace(then=()))]
            outcomes = self._store.settle(settlements)
        return [each for each, outcome in zip(settlements, outcomes, strict=True) if outcome is Outcome.APPLIED]

    def _verdict_on(self, lease: Lease) -> Verdict:
        expires_at = lease.message.expires_at
        if expires_at is not None and expires_at <= self._clock.now():
            failure = self.failure(FailureCode.EXPIRED, "its time to live ended", lease.attempt)
        else:
            failure = self.failure(FailureCode.LEASE_EXPIRED, "the lease ran out", lease.attempt, lease.failure)
        return self.judge(lease.message, failure)


def lost_leases(receipts: Sequence[Receipt]) -> LeaseLost:
    """Return the error that names what is no longer held."""
    names = tuple(str(receipt) for receipt in receipts)
    some = f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"
    return LeaseLost(f"no longer held: {some}; it was settled or leased again", names)


def _tell_failure(receipt: Receipt, verdict: Verdict) -> None:
    level = logging.WARNING if type(verdict) is Dead else logging.INFO
    if log.isEnabledFor(level) and verdict.failure is not None:
        outcome = type(verdict).__name__.lower()
        fields = {"queue": receipt.queue, "id": receipt.id, "outcome": outcome, "code": verdict.failure.code}
        log.log(level, "%(queue)s/%(id)s: %(code)s, %(outcome)s", fields, extra={"pabal": fields})
