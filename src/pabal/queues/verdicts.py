"""Verdicts: the decision of the policy on a failed attempt, the same for every way of failing; and the settler.

The settler applies every end of a lease: done, failed and judged by the policy, or expired and taken over.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import TypeAlias

from pabal import jsontext
from pabal.clock import Clock, iso_stamp
from pabal.envelope import document_of_message
from pabal.errors import InvalidInput, InvalidPolicy, LeaseLost, QueueUnknown
from pabal.jsontext import Json, storable
from pabal.message import MAX_INSTANT, Message, check_seconds, replace
from pabal.policy.policy import LARGEST_MAX_BYTES, Policy
from pabal.queues.effective_policy import PolicyCache
from pabal.store import (
    Dead,
    Done,
    Draft,
    Entry,
    Failure,
    FailureCode,
    Lease,
    Outcome,
    Published,
    Receipt,
    Retry,
    Settlement,
    State,
    Store,
    Terms,
    Verdict,
    check_targets,
    queue_exists,
    with_copies,
)

log = logging.getLogger("pabal")

SWEEP_SLICE = 100

# Returns the drafts that are published when a message becomes dead, in the same step.
DeadLetterWriter: TypeAlias = Callable[[Policy, str, Message, Failure], tuple[Draft, ...]]

# How a failure is logged, by its verdict: level, text, outcome.
_ABOUT = ": %(queue)s/%(id)s: %(code)s %(reason)r"  # quoted: a consumer may give any text for a reason
_LOGGED = {
    Retry: (logging.INFO, "message failed" + _ABOUT, "retry"),
    Dead: (logging.WARNING, "message dead" + _ABOUT, "dead"),
    Done: (logging.WARNING, "message dropped" + _ABOUT, "dropped"),
}
_MOVED = (logging.WARNING, "message moved to its dead-letter queue" + _ABOUT, "moved")
# Headers of a message in a dead-letter queue to which it was moved.
SOURCE_QUEUE = "source-queue"
ORIGINAL_ID = "original-id"
# Another attempt cannot help against these.
_FINAL = frozenset({FailureCode.VALIDATION_ERROR, FailureCode.EXPIRED})


def write_dead_letter(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
    """Return a document for the dead-letter queue that the policy names, if it names one."""
    dlq, days = policy.dead_letters.queue, policy.dead_letters.retention_days
    expires_at = min(failure.at + days * 86400, MAX_INSTANT) if days else None
    return (_dead_letter(dlq, queue, message, failure, expires_at),) if dlq else ()


def judge(
    policy: Policy,
    queue: str,
    message: Message,
    failure: Failure,
    *,
    chance: Callable[[], float],
    final: bool = False,
    dead_letters: DeadLetterWriter = write_dead_letter,
) -> Verdict:
    """Return Retry while the policy allows another attempt, else Dead, or Done if it keeps no dead letters."""
    if not final and failure.code not in _FINAL:
        last = _last_failure(policy, failure)
        if last is None:
            return Retry(policy.retry.delay(failure.attempt, chance()), failure)
        failure = last
    if not policy.dead_letters.enabled:
        return Done(failure=failure, keep=policy.done_retention > 0)
    if policy.dead_letters.move and failure.code in _FINAL:
        return Dead(failure)  # nobody failed: it stays here, and its dead-letter queue holds only what failed
    if policy.dead_letters.move:
        moved = _moved(policy.dead_letters.queue, queue, message, failure)
        return Done((moved,), failure, keep=policy.done_retention > 0)
    return Dead(failure, then=dead_letters(policy, queue, message, failure))


def _last_failure(policy: Policy, failure: Failure) -> Failure | None:
    """Return the failure with the limit of the policy that it reached; None if another attempt is allowed."""
    limit, poison = policy.retry.limit, policy.retry.poison_limit
    if poison and failure.repeats >= poison:
        code, why = FailureCode.POISON, f"{failure.repeats} times in a row"
    elif failure.attempt >= limit:
        code, why = FailureCode.RETRY_LIMIT, f"attempt {failure.attempt} of {limit}"
    else:
        return None
    cause = f"{failure.code}: {failure.reason}" if failure.reason else failure.code
    return replace(failure, code=str(code), reason=f"{why}: {cause}")


def lasting_dead_letter(dlq: str, queue: str, message: Message, failure: Failure) -> Draft:
    """Return a document that replaces a dead message. It is all that is left, so it has no end."""
    return _dead_letter(dlq, queue, message, failure, None)


def _dead_letter(dlq: str, queue: str, message: Message, failure: Failure, expires_at: float | None) -> Draft:
    copy = Message(
        id=_id_of_copy(queue, message.id, failure),
        body=failure_document(queue, message, failure, dlq),
        type=message.type,
        thread_id=message.thread_id,
        trace_id=message.trace_id,
        headers=message.headers,
        created_at=failure.at,
        expires_at=expires_at,
    )
    if len(jsontext.encode(document_of_message(copy, dlq))) > LARGEST_MAX_BYTES:
        # The original stays whole in its own queue as dead: here its name is enough.
        name = {"messageId": message.id, "queue": queue, "tooLargeToCopy": True}
        copy = replace(copy, body={**failure_document(queue, message, failure, dlq), "originalMessage": name})
    return Draft(dlq, copy, terms=Terms(max_bytes=LARGEST_MAX_BYTES))


def _moved(dlq: str, queue: str, message: Message, failure: Failure) -> Draft:
    """Return a message as it goes on in its dead-letter queue: whole, with where it comes from in its headers.

    Its id is new, so that a message which is sent back, and fails again, is not taken for a duplicate of itself.
    """
    original = message.headers.get(ORIGINAL_ID, message.id)
    headers = {**message.headers, SOURCE_QUEUE: queue, ORIGINAL_ID: original}
    id = f"{original[:100].rstrip('.')}.{_death(queue, message.id, failure)}"
    terms = Terms(max_bytes=LARGEST_MAX_BYTES)
    # Without its keys: they are known there if a message with the same ones came before, and it would be dropped.
    moved = replace(message, id=id, dedup_key="", unique="", headers=headers, expires_at=None)
    return Draft(dlq, moved, terms=terms, existing=True)


def _id_of_copy(queue: str, id: str, failure: Failure) -> str:
    return f"{id[:100].rstrip('.')}.dlq.{_death(queue, id, failure)}"


def _death(queue: str, id: str, failure: Failure) -> str:
    """Return a mark of one death: queues may use the same ids, and a revived message may die again."""
    return sha256(f"{queue}/{id}/{failure.at}/{failure.attempt}".encode()).hexdigest()[:12]


def _is_copy(id: str) -> bool:
    """Return whether this is the id of a document in a dead-letter queue."""
    return re.search(r"\.dlq\.[0-9a-f]{12}$", id) is not None


def failure_document(queue: str, message: Message, failure: Failure, dlq: str = "") -> dict[str, Json]:
    """Return the document of a dead letter: the message, its failure, and where it came from."""
    return {
        "originalMessage": document_of_message(message, queue),
        "failure": {
            "reasonCode": failure.code,
            "reasonMessage": failure.reason,
            "failedAt": iso_stamp(failure.at, timespec="auto", utc="+00:00"),
            "attempt": failure.attempt,
            "consumerId": failure.consumer,
        },
        "routing": {"sourceQueue": queue, "dlqQueue": dlq},
    }


class Settler:
    """Settles the messages of one queue for one consumer."""

    def __init__(
        self,
        name: str,
        store: Store,
        effective: PolicyCache,
        clock: Clock,
        *,
        consumer: str,
        chance: Callable[[], float],
        dead_letters: DeadLetterWriter,
    ) -> None:
        self._name = name
        self._store = store
        self._effective = effective
        self._clock = clock
        self._consumer = consumer
        self._chance = chance
        self._dead_letters = dead_letters

    def ack(self, receipt: Receipt, then: Sequence[Draft] = ()) -> None:
        """Settle as done, with its follow-ups. Raise LeaseLost if the receipt is no longer current."""
        durable = self._effective().policy.durable_acks
        [outcome] = self._store.settle([Settlement(receipt, self.done(then))], durable=durable)
        if outcome is Outcome.LOST:
            raise lost_leases([receipt])

    def ack_many(self, receipts: Sequence[Receipt]) -> None:
        """Settle many as done in one commit. Raise LeaseLost that names the lost ones; the others are done."""
        effective = self._effective()
        outcomes = self._store.settle(
            [Settlement(receipt, effective.done) for receipt in receipts], durable=effective.policy.durable_acks
        )
        lost = [receipt for receipt, outcome in zip(receipts, outcomes, strict=True) if outcome is Outcome.LOST]
        if lost:
            raise lost_leases(lost)

    def settle(self, receipt: Receipt, verdict: Verdict) -> None:
        """Apply a verdict on a failure, and log it."""
        [outcome] = self.settle_many([Settlement(receipt, verdict)])
        if outcome is Outcome.LOST:
            raise lost_leases([receipt])

    def settle_many(self, settlements: Sequence[Settlement]) -> list[Outcome]:
        """Apply verdicts in one commit, and log the failures."""
        outcomes = self._store.settle(settlements, durable=self._effective().policy.durable_acks)
        for (receipt, verdict), outcome in zip(settlements, outcomes, strict=True):
            if outcome is Outcome.APPLIED and verdict.failure is not None:
                log_failure(receipt, verdict)
        return outcomes

    def done(self, then: Sequence[Draft] = ()) -> Done:
        """Return the verdict of an ack, with its follow-ups."""
        done = self._effective().done
        if not then:
            return done
        check_targets(self._store, then)
        return done._replace(then=tuple(with_copies(then)))

    def failure(self, code: str, reason: str, attempt: int, before: Failure | None = None) -> Failure:
        """Return a failure at this time; `before` is the one of the attempt before, which it keeps."""
        reason = storable(reason)
        again = before is not None and (before.code, before.reason) == (str(code), reason)
        repeats = before.repeats + 1 if again and before is not None else 1
        earlier = () if before is None else before.as_earlier()
        return Failure(str(code), reason, round(self._clock.now(), 3), attempt, self._consumer, repeats, earlier)

    def judge(self, message: Message, failure: Failure, *, delay: float | None = None, final: bool = False) -> Verdict:
        """Return the verdict of the policy on this failure; a delay given by the caller replaces the policy's."""
        if delay is not None:
            check_seconds("delay", delay)
        verdict = judge(
            self._effective().policy,
            self._name,
            message,
            failure,
            chance=self._chance,
            final=final,
            dead_letters=self._dead_letters,
        )
        if type(verdict) is Done and verdict.then:
            [moved] = verdict.then
            if not queue_exists(self._store, moved.queue):
                return Dead(verdict.failure or failure)  # its queue was deleted, and no move makes it again
            return verdict._replace(then=(self._with_end(moved),))
        return Retry(delay, failure) if type(verdict) is Retry and delay is not None else verdict

    def _with_end(self, moved: Draft) -> Draft:
        """Return a message that moves with the end of its time in its dead-letter queue, counted from its publish."""
        ttl = 0.0
        with suppress(InvalidPolicy):  # then it is kept without end
            ttl = PolicyCache(moved.queue, self._store, self._clock)().policy.ttl
        expires_at = min(round(moved.message.created_at + ttl, 3), MAX_INSTANT) if ttl else None
        return replace(moved, message=replace(moved.message, expires_at=expires_at))

    def verdict_on(self, found: Entry, failure: Failure, *, delay: float | None = None, final: bool = False) -> Verdict:
        """Return the verdict for an entry of the store; for a settled message, the verdict that repeats a failure.

        If the message did not fail, as after an ack, or was to come again and is now to be dead, that is LOST.
        """
        if found.state is State.INFLIGHT and found.message is not None:
            return self.judge(found.message, failure, delay=delay, final=final)
        if found.state is State.DONE and found.failure is not None:
            return Done()  # it was dropped
        return Dead(failure) if final or found.state in (State.DEAD, State.DONE) else Retry(0.0, failure)

    def judge_expired(self) -> int:
        """Take over and judge every expired lease and message; return how many."""
        judged = 0
        while leases := self._store.expired(self._name, SWEEP_SLICE):
            for settlement in self._apply([Settlement(lease.receipt, self._verdict_on(lease)) for lease in leases]):
                log_failure(*settlement)
            judged += len(leases)
            if len(leases) < SWEEP_SLICE:
                break
        return judged

    def _apply(self, settlements: list[Settlement]) -> list[Settlement]:
        """Settle these; return those that were applied.

        If a queue refuses a dead letter, its message is settled without it, or stays dead where it is if it was to be
        moved; the others are settled with theirs.
        """
        try:
            outcomes = self._store.settle(settlements)
        except (InvalidInput, QueueUnknown):
            if len(settlements) > 1:
                return [applied for each in settlements for applied in self._apply([each])]
            [(receipt, verdict)] = settlements
            settlements = [Settlement(receipt, _alone(verdict))]
            outcomes = self._store.settle(settlements)
        return [each for each, outcome in zip(settlements, outcomes, strict=True) if outcome is Outcome.APPLIED]

    def _verdict_on(self, lease: Lease) -> Verdict:
        expires_at, expired = lease.message.expires_at, lease.expired
        if expired is None:
            expired = expires_at is not None and expires_at <= self._clock.now()
        if expired:
            failure = self.failure(FailureCode.EXPIRED, "its time to live ended", lease.attempt, lease.failure)
            if _is_copy(lease.message.id):
                return Done(failure=failure)  # it was kept as long as the policy says
        else:
            failure = self.failure(FailureCode.LEASE_EXPIRED, "the lease ran out", lease.attempt, lease.failure)
        # The consumer that died, if any; not this one, which only found it.
        return self.judge(lease.message, replace(failure, consumer=lease.consumer))


def lost_leases(receipts: Sequence[Receipt]) -> LeaseLost:
    """Return the error that names the lost leases."""
    names = tuple(str(receipt) for receipt in receipts)
    some = f"{', '.join(names[:5])}{' and more' if len(names) > 5 else ''}"
    return LeaseLost(f"no longer held: {some}; it was settled or leased again", names)


def report_dead(drafts: Sequence[Draft], answers: Sequence[Published]) -> list[Published]:
    """Mark and log those of these messages, the first ones of a publish, that are stored as dead."""
    found = []
    for draft, answer in zip(drafts, answers, strict=False):  # after them come the answers of the copies
        if draft.failure is not None and not answer.duplicate:
            answer = replace(answer, dead=True)
            log_failure(Receipt(draft.queue, answer.id, ""), Dead(draft.failure))
        found.append(answer)
    return found


def _alone(verdict: Verdict) -> Verdict:
    """Return a verdict on a failure without its follow-ups. A message that cannot be moved is dead, not done."""
    if type(verdict) is Done and verdict.failure is not None:
        return Dead(verdict.failure)
    return verdict._replace(then=())


def log_failure(receipt: Receipt, verdict: Verdict) -> None:
    """Log a verdict on a failure that was applied: a retry as information, a death or a drop as a warning."""
    level, text, outcome = _MOVED if type(verdict) is Done and verdict.then else _LOGGED[type(verdict)]
    if log.isEnabledFor(level) and (failure := verdict.failure) is not None:
        about = {"queue": receipt.queue, "id": receipt.id, "outcome": outcome}
        fields = {**about, "code": failure.code, "reason": failure.reason}
        log.log(level, text, fields)
