"""The queue: a name and a policy over a store. Publish, lease, settle, look, and the sweep that keeps it moving.

Without a daemon nothing is stuck: every consumer sweeps, at most once a second and always before it sleeps.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Unpack

from pabal.clock import Clock, SystemClock
from pabal.delivery import Delivery, Local
from pabal.drafting import Drafting, Options
from pabal.errors import InvalidInput, InvalidReceipt
from pabal.in_force import InForce
from pabal.jsontext import Json
from pabal.judge import Letters, dead_letters
from pabal.message import Message, check_count, check_seconds
from pabal.names import check_name
from pabal.policy import Policy
from pabal.renewal import Renewal
from pabal.settling import Settling, lost_leases
from pabal.store import (
    Dead,
    Done,
    Draft,
    Entry,
    Failure,
    FailureCode,
    Outcome,
    Published,
    Receipt,
    Retry,
    State,
    Store,
    Verdict,
    Waitable,
    Watch,
)
from pabal.waiter import SLOW_POLL, Waiter

MIN_LEASE = 0.001  # seconds
PURGE_SLICE = 1000


class Queue(Local):
    """A queue of a store, as one consumer or publisher sees it. Threads may share it.

    What begins with an underscore is also for its deliveries, waiters and workers.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        clock: Clock | None = None,
        consumer: str = "",
        chance: Callable[[], float] = random.random,
        letters: Letters = dead_letters,
    ) -> None:
        self.name = check_name(name)
        self.consumer = check_name(consumer, "consumer") if consumer else ""
        self.store = store
        self._clock = clock or SystemClock()
        self._in_force = InForce(name, store, self._clock)
        self._settling = Settling(
            name, store, self._in_force, self._clock, consumer=self.consumer, chance=chance, letters=letters
        )
        self._drafting = Drafting(name, self._in_force, self._clock, self._settling.failure)
        self._renewal = Renewal(store.extend, time.monotonic)
        self._swept_at = float("-inf")

    # Publishing

    def publish(self, body: Json | bytes, **options: Unpack[Options]) -> Published:
        """Store one message durably; the answer says its id and whether it was there already."""
        return self.store.publish([self._drafting.draft(body, options)])[0]

    def publish_many(
        self, bodies: Iterable[Json | bytes | Message | Draft], **options: Unpack[Options]
    ) -> list[Published]:
        """Store many messages with one flush. Takes bodies (to which the options apply), messages and drafts."""
        drafts = self._drafting.drafts(bodies, options)
        return self.store.publish(drafts) if drafts else []

    def draft(self, body: Json | bytes, **options: Unpack[Options]) -> Draft:
        """Make a message for this queue without publishing it: for `ack(then=[…])` and `publish_many`."""
        return self._drafting.draft(body, options)

    # Leasing

    def lease(self, limit: int = 1, seconds: float | None = None, wait: float = 0.0) -> list[Delivery]:
        """Take up to `limit` messages for `seconds`, waiting up to `wait` seconds for the first."""
        check_count("limit", limit)
        if not wait >= 0:
            raise InvalidInput(f"wait must be 0 seconds or more; found {wait!r:.40}")
        if not wait:
            return self._take(limit, seconds)
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

    def watch(self) -> Watch | None:
        """Return a watch on this queue, or None where the store has none to give."""
        return self.store.watch([self.name]) if isinstance(self.store, Waitable) else None

    def _take(self, limit: int, seconds: float | None) -> list[Delivery]:
        """Lease what is ready at this moment."""
        policy = self._in_force().policy
        term = policy.visibility if seconds is None else check_seconds("lease", seconds, least=MIN_LEASE)
        if self._clock.boot() - self._swept_at >= SLOW_POLL:
            self.sweep()
        if policy.paused:
            self._settling.judge_expired()
            return []
        leases = self.store.lease(self.name, limit, term, consumer=self.consumer)
        if not leases and self._settling.judge_expired():
            leases = self.store.lease(self.name, limit, term, consumer=self.consumer)
        return [Delivery(self, lease, term) for lease in leases]

    # Settling

    def ack(self, receipt: Receipt | str, then: Sequence[Draft] = ()) -> None:
        """Settle as done by receipt alone. Raise LeaseLost if the receipt is no longer current."""
        self._settling.ack(self._own(receipt), then)

    def nack(self, receipt: Receipt | str, delay: float | None = None, reason: str = "") -> None:
        """Settle as failed by receipt alone: the policy decides."""
        self._fail(receipt, reason, delay=delay)

    def bury(self, receipt: Receipt | str, reason: str = "") -> None:
        """Settle as dead by receipt alone."""
        self._fail(receipt, reason, final=True)

    def extend(self, receipt: Receipt | str, seconds: float) -> None:
        """Let the lease end `seconds` from now. Raise LeaseLost if the receipt is no longer current."""
        receipt = self._own(receipt)
        check_seconds("extension", seconds, least=MIN_LEASE)
        if self.store.extend([receipt], seconds)[0] is Outcome.LOST:
            raise lost_leases([receipt])

    def ack_many(self, deliveries: Sequence[Delivery]) -> None:
        """Settle many as done in one commit. Raise LeaseLost naming those that were not ours; the others are done."""
        self._settling.ack_many([self._own(delivery.receipt) for delivery in deliveries])

    def done(self, then: Sequence[Draft] = ()) -> Done:
        """Return the verdict of an ack, for who settles through the store."""
        return self._settling.done(then)

    def failure(self, code: str, reason: str, attempt: int, before: Failure | None = None) -> Failure:
        """Return a failure of now; `before` is the one of the attempt before it, with which it is compared."""
        return self._settling.failure(code, reason, attempt, before)

    def judge(self, message: Message, failure: Failure, *, delay: float | None = None, final: bool = False) -> Verdict:
        """Return what the policy makes of this failure; a delay given by the caller replaces the policy's."""
        return self._settling.judge(message, failure, delay=delay, final=final)

    def verdict_on(self, found: Entry, failure: Failure, *, delay: float | None = None, final: bool = False) -> Verdict:
        """Return the same for a message as the store has it: one that is settled gets the verdict that did it."""
        if found.state is State.INFLIGHT and found.message is not None:
            return self.judge(found.message, failure, delay=delay, final=final)
        if found.state is State.DEAD:
            return Dead(failure)
        return Done() if found.state is State.DONE else Retry(0.0, failure)

    def _fail(self, receipt: Receipt | str, reason: str, *, delay: float | None = None, final: bool = False) -> None:
        receipt = self._own(receipt)
        entry = self.find(receipt.id)
        if entry is None:
            raise lost_leases([receipt])
        failure = self.failure(FailureCode.NACKED, reason, entry.attempt, entry.failure)
        self._settling.settle(receipt, self.verdict_on(entry, failure, delay=delay, final=final))

    def _own(self, receipt: Receipt | str) -> Receipt:
        own = Receipt.parse(receipt) if isinstance(receipt, str) else receipt
        if own.queue != self.name:
            raise InvalidReceipt(f"a receipt of queue {own.queue} was given to queue {self.name}")
        return own

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
        judged = self._settling.judge_expired()
        self.store.purge(self.name, State.DONE, age=policy.tombstone, limit=PURGE_SLICE * 10)
        if policy.dead_letters.retention_days:
            age = policy.dead_letters.retention_days * 86400
            self.store.purge(self.name, State.DEAD, age=age, limit=PURGE_SLICE)
        return judged

    # Policy

    @property
    def policy(self) -> Policy:
        """The policy in force: read again at most once a second, so that a change reaches running consumers."""
        return self._in_force().policy

    def configure(self, policy: Policy) -> None:
        """Give this queue a policy, for all its users."""
        self._in_force.put(policy)

    def pause(self) -> None:
        """Let nobody lease from this queue until resumed; publishing goes on."""
        self._in_force.pause(True)

    def resume(self) -> None:
        self._in_force.pause(False)
