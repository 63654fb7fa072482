"""The queue: a name and a policy over a store. Publish, lease, settle, look, and the sweep that keeps it moving.

Without a daemon nothing is stuck: every consumer sweeps, at most once a second and always before it sleeps.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, TypedDict, Unpack

from pabal.clock import Clock, SystemClock
from pabal.delivery import Delivery
from pabal.errors import InvalidInput, InvalidPolicy, InvalidReceipt, LeaseLost, ValidationFailed
from pabal.ids import IdMaker
from pabal.jsontext import Json, check
from pabal.judge import judge, refused
from pabal.message import Message, check_count, check_message, check_seconds, priority_of, replace
from pabal.names import check_name
from pabal.policy import Policy, document_of, policy_from
from pabal.renewal import Renewal
from pabal.schema import Check, checker, rule_checker
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
    Waitable,
    Watch,
)
from pabal.waiter import SLOW_POLL, Waiter

log = logging.getLogger("pabal")

MIN_LEASE = 0.001  # seconds
SWEEP_SLICE = 100
PURGE_SLICE = 1000


class Options(TypedDict, total=False):
    """What may be said of a message beside its body."""

    id: str
    type: str
    version: int
    sender: str
    target: str
    attributes: dict[str, Json]
    headers: dict[str, str]
    priority: int | str
    group: str
    dedup_key: str
    thread_id: str
    trace_id: str
    reply_to: str
    ttl: float
    delay: float


class Queue:
    """A queue of a store, as one consumer or publisher sees it. Threads may share it."""

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        clock: Clock | None = None,
        consumer: str = "",
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = check_name(name)
        self.consumer = check_name(consumer, "consumer") if consumer else ""
        self.store = store
        self._clock = clock or SystemClock()
        self._ids = IdMaker(self._clock)
        self._chance = chance
        self._in_force = _InForce(Policy())
        self._policy_read_at = self._swept_at = float("-inf")
        self.renewal = Renewal(store.extend, time.monotonic)

    # Publishing

    def publish(self, body: Json | bytes, **options: Unpack[Options]) -> Published:
        """Store one message durably; the answer says its id and whether it was there already."""
        return self.store.publish([self._draft(body, *self._read(options))])[0]

    def publish_many(
        self, bodies: Iterable[Json | bytes | Message | Draft], **options: Unpack[Options]
    ) -> list[Published]:
        """Store many messages with one flush. Takes bodies (to which the options apply), messages and drafts."""
        said = self._read(options)
        drafts = [
            item
            if isinstance(item, Draft)
            else self._draft_of(item)
            if isinstance(item, Message)
            else self._draft(item, *said)
            for item in bodies
        ]
        return self.store.publish(drafts) if drafts else []

    def draft(self, body: Json | bytes, **options: Unpack[Options]) -> Draft:
        """Make a message for this queue without publishing it: for `ack(then=[…])` and `publish_many`."""
        return self._draft(body, *self._read(options))

    def _read(self, options: Options) -> tuple[str, float, dict[str, Any]]:
        """Return the id that the options give, the delay, and the fields of the message."""
        policy = self.policy
        fields: dict[str, Any] = {"created_at": round(self._clock.now(), 3)}
        if not (options or policy.ttl):
            return "", 0.0, fields
        fields |= options
        given, delay = fields.pop("id", ""), check_seconds("delay", fields.pop("delay", 0.0))
        ttl = check_seconds("ttl", fields.pop("ttl")) if "ttl" in fields else policy.ttl
        if ttl:
            fields["expires_at"] = round(fields["created_at"] + ttl, 3)
        if "priority" in fields:
            fields["priority"] = priority_of(fields["priority"])
        check_message(Message(id=given or "any", body=None, **fields))
        return given, delay, fields

    def _draft(self, body: Json | bytes, given: str, delay: float, fields: dict[str, Any]) -> Draft:
        if type(body) is not bytes:
            check(body)
        message = Message(id=given or self._ids(), body=body, **fields)
        return self._fit(message) or Draft(self.name, message, delay, given != "", self._in_force.terms)

    def _draft_of(self, message: Message) -> Draft:
        policy = self.policy
        check_message(message)
        if policy.ttl and message.expires_at is None:
            message = replace(message, expires_at=round(message.created_at + policy.ttl, 3))
        return self._fit(message) or Draft(self.name, message, terms=self._in_force.terms)

    def _fit(self, message: Message) -> Draft | None:
        """Hold the body against the queue's schema: raise if it is refused, return a dead letter in its stead, or None."""
        in_force = self._in_force
        if in_force.check is None:
            return None
        try:
            in_force.check(message.body)
        except ValidationFailed as exc:
            if in_force.policy.on_invalid == "refuse":
                raise
            failure = self.failure(FailureCode.VALIDATION_ERROR, str(exc), 0)
            return refused(in_force.policy, self.name, message, failure)
        return None

    # Leasing

    def lease(self, limit: int = 1, seconds: float | None = None, wait: float = 0.0) -> list[Delivery]:
        """Take up to `limit` messages for `seconds`, waiting up to `wait` seconds for the first."""
        check_count("limit", limit)
        if not wait >= 0:
            raise InvalidInput(f"wait must be 0 seconds or more; found {wait!r:.40}")
        with Waiter(self) as waiter:
            return waiter.lease(limit, seconds, wait)

    def consume(self, wait: float | None = None, seconds: float | None = None) -> Iterator[Delivery]:
        """Yield messages one at a time as they come; end after `wait` seconds without one, or never."""
        with Waiter(self) as waiter:
            while True:
                found = waiter.lease(1, seconds, float("inf") if wait is None else wait)
                if not found:
                    return
                yield found[0]

    def try_lease(self, limit: int, seconds: float | None) -> list[Delivery]:
        """Take what is ready at this moment."""
        policy = self.policy
        term = policy.visibility if seconds is None else check_seconds("lease", seconds, least=MIN_LEASE)
        if self._clock.boot() - self._swept_at >= SLOW_POLL:
            self.sweep()
        if policy.paused:
            self._judge_expired()
            return []
        leases = self.store.lease(self.name, limit, term, consumer=self.consumer)
        if not leases and self._judge_expired():
            leases = self.store.lease(self.name, limit, term, consumer=self.consumer)
        return [Delivery(self, lease, term) for lease in leases]

    def watch(self) -> Watch | None:
        """Return a watch on this queue, or None where the store has none to give."""
        return self.store.watch([self.name]) if isinstance(self.store, Waitable) else None

    # Settling

    def ack(self, receipt: Receipt | str, then: Sequence[Draft] = ()) -> None:
        """Settle as done by receipt alone. Raise LeaseLost if the receipt is no longer current."""
        self.settle(self._own(receipt), self.done(then))

    def nack(self, receipt: Receipt | str, delay: float | None = None, reason: str = "") -> None:
        """Settle as failed by receipt alone: the policy decides."""
        self._delivery(receipt).nack(delay, reason)

    def bury(self, receipt: Receipt | str, reason: str = "") -> None:
        """Settle as dead by receipt alone."""
        self._delivery(receipt).bury(reason)

    def extend(self, receipt: Receipt | str, seconds: float) -> None:
        """Let the lease end `seconds` from now. Raise LeaseLost if the receipt is no longer current."""
        receipt = self._own(receipt)
        check_seconds("extension", seconds, least=MIN_LEASE)
        if self.store.extend([receipt], seconds)[0] is Outcome.LOST:
            raise _lost([receipt])

    def ack_many(self, deliveries: Sequence[Delivery]) -> None:
        """Settle many as done in one commit. Raise LeaseLost naming those that were not ours; the others are done."""
        done = self.done()
        settlements = [Settlement(delivery.receipt, done) for delivery in deliveries]
        outcomes = self.store.settle(settlements, durable=self.policy.durable_acks)
        lost = [given.receipt for given, outcome in zip(settlements, outcomes, strict=True) if outcome is Outcome.LOST]
        if lost:
            raise _lost(lost)

    def settle(self, receipt: Receipt, verdict: Verdict) -> None:
        """Apply one verdict: the single way out for every delivery."""
        [outcome] = self.store.settle([Settlement(receipt, verdict)], durable=self.policy.durable_acks)
        if outcome is Outcome.LOST:
            raise _lost([receipt])
        if type(verdict) is not Done or verdict.failure:
            _tell_failure(receipt, verdict)

    def done(self, then: Sequence[Draft] = ()) -> Done:
        return Done(tuple(then), keep=self.policy.done_retention > 0)

    def failure(self, code: str, reason: str, attempt: int, before: Failure | None = None) -> Failure:
        """Return a failure of now; `before` is the one of the attempt before it, with which it is compared."""
        reason = reason.encode("utf-8", "replace").decode()  # whatever an exception or a user says must be storable
        again = before is not None and (before.code, before.reason) == (str(code), reason)
        repeats = before.repeats + 1 if again and before is not None else 1
        return Failure(str(code), reason, round(self._clock.now(), 3), attempt, self.consumer, repeats)

    def judge(self, message: Message, failure: Failure, *, delay: float | None = None, final: bool = False) -> Verdict:
        """Return what the policy makes of this failure; a delay given by the caller replaces the policy's."""
        if delay is not None:
            check_seconds("delay", delay)
        verdict = judge(self.policy, self.name, message, failure, chance=self._chance, final=final)
        return Retry(delay, failure) if type(verdict) is Retry and delay is not None else verdict

    # Looking and tending

    def counts(self) -> dict[State, int]:
        """Count the messages in each state."""
        return self.store.counts(self.name)

    def browse(self, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state without changing them; `after` is the cursor of the last entry seen."""
        return self.store.browse(self.name, state, after=after, limit=limit)

    def entries(self, state: State) -> Iterator[Entry]:
        """Go through all messages of one state without changing them."""
        after = ""
        while page := self.browse(state, after=after):
            yield from page
            after = page[-1].cursor

    def find(self, id: str) -> Entry | None:
        """Return one message in whatever state it is."""
        return self.store.find(self.name, id)

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again, with no attempts counted; return those that were dead."""
        return self.store.revive(self.name, ids)

    def purge(self, state: State, age: float = 0.0) -> int:
        """Remove every message that has been in this state for `age` seconds."""
        total = 0
        while removed := self.store.purge(self.name, state, age=age, limit=PURGE_SLICE):
            total += removed
        return total

    def sweep(self) -> int:
        """Judge leases and messages that ran out and forget what need not be kept; return how many were judged."""
        self._swept_at = self._clock.boot()
        policy = self.policy
        judged = self._judge_expired()
        self.store.purge(self.name, State.DONE, age=policy.tombstone, limit=PURGE_SLICE * 10)
        if policy.dead_letters.retention_days:
            age = policy.dead_letters.retention_days * 86400
            self.store.purge(self.name, State.DEAD, age=age, limit=PURGE_SLICE)
        return judged

    # Policy

    @property
    def policy(self) -> Policy:
        """The policy in force: read again at most once a second, so that a change reaches running consumers."""
        now = self._clock.boot()
        if now - self._policy_read_at >= SLOW_POLL:
            found = self.store.settings(self.name)
            self._adopt(policy_from(found) if found is not None else Policy())
            self._policy_read_at = now  # last: until it is known, nobody goes on under another
        return self._in_force.policy

    def configure(self, policy: Policy) -> None:
        """Give this queue a policy, for all its users."""
        if policy.dead_letters.queue == self.name:
            raise InvalidPolicy(f"dlq.queue: {self.name} cannot be the queue of its own dead letters")
        _check_of(policy)  # a schema that cannot be used is refused here, not at the next publish
        self.store.configure(self.name, document_of(policy))
        self._policy_read_at = self._clock.boot()
        self._adopt(policy)

    def pause(self) -> None:
        """Let nobody lease from this queue until resumed; publishing goes on."""
        self._switch(paused=True)

    def resume(self) -> None:
        self._switch(paused=False)

    def _switch(self, *, paused: bool) -> None:
        self._policy_read_at = float("-inf")
        self.configure(policy_from({**document_of(self.policy), "paused": paused}))

    def _adopt(self, policy: Policy) -> None:
        if policy != self._in_force.policy:
            self._in_force = _InForce(policy)

    # Below the surface

    def _judge_expired(self) -> int:
        judged = 0
        while leases := self.store.expired(self.name, SWEEP_SLICE):
            settlements = [Settlement(lease.receipt, self._verdict_on(lease)) for lease in leases]
            try:
                outcomes = self.store.settle(settlements)
            except (
                InvalidInput
            ):  # a dead letter that its queue refuses must not hold back the others, nor its own message
                settlements = [Settlement(receipt, verdict._replace(then=())) for receipt, verdict in settlements]
                outcomes = self.store.settle(settlements)
            for settlement, outcome in zip(settlements, outcomes, strict=True):
                if outcome is Outcome.APPLIED:
                    _tell_failure(*settlement)
            judged += len(leases)
            if len(leases) < SWEEP_SLICE:
                break
        return judged

    def _verdict_on(self, lease: Lease) -> Verdict:
        expires_at = lease.message.expires_at
        if expires_at is not None and expires_at <= self._clock.now():
            failure = self.failure(FailureCode.EXPIRED, "its time to live ended", lease.attempt)
        else:
            failure = self.failure(FailureCode.LEASE_EXPIRED, "the lease ran out", lease.attempt, lease.failure)
        return self.judge(lease.message, failure)

    def _own(self, receipt: Receipt | str) -> Receipt:
        own = Receipt.parse(receipt) if isinstance(receipt, str) else receipt
        if own.queue != self.name:
            raise InvalidReceipt(f"a receipt of queue {own.queue} was given to queue {self.name}")
        return own

    def _delivery(self, receipt: Receipt | str) -> Delivery:
        receipt = self._own(receipt)
        found = self.store.find(self.name, receipt.id)
        if found is None or found.message is None:
            raise _lost([receipt])
        lease = Lease(receipt, found.message, found.attempt, found.due_at, found.failure)
        return Delivery(self, lease, self.policy.visibility)


def _check_of(policy: Policy) -> Check | None:
    checks = [] if policy.body_schema is None else [checker(policy.body_schema)]
    if policy.message_schema is not None:
        checks.append(rule_checker(policy.message_schema))
    if len(checks) < 2:
        return checks[0] if checks else None

    def both(body: Any) -> Any:
        for each in checks:
            each(body)
        return body

    return both


class _InForce:
    """A policy and what follows from it, replaced whole when the policy changes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.terms = Terms(policy.dedup_window, policy.max_bytes, policy.max_waiting)

    @cached_property
    def check(self) -> Check | None:
        return _check_of(self.policy)  # made only where bodies are published: consumers need no schema package


def _lost(receipts: Sequence[Receipt]) -> LeaseLost:
    names = ", ".join(str(receipt) for receipt in receipts[:5])
    return LeaseLost(
        f"no longer held: {names}{' and more' if len(receipts) > 5 else ''}; it was settled or leased again"
    )


def _tell_failure(receipt: Receipt, verdict: Verdict) -> None:
    level = logging.WARNING if type(verdict) is Dead else logging.INFO
    if log.isEnabledFor(level) and verdict.failure is not None:
        outcome = type(verdict).__name__.lower()
        fields = {"queue": receipt.queue, "id": receipt.id, "outcome": outcome, "code": verdict.failure.code}
        log.log(level, "%(queue)s/%(id)s: %(code)s, %(outcome)s", fields, extra={"pabal": fields})
