"""The queue: a name and a policy over a store. Publish, lease, settle, browse, and sweep.

Nothing gets stuck without a daemon: every consumer sweeps, at most once a second and always before it sleeps.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, Generic, Unpack

from pabal.clock import SLOW_POLL, Clock, SystemClock
from pabal.errors import InvalidInput, InvalidPolicy, InvalidReceipt, LeaseLost, PabalError, ValidationFailed
from pabal.jsontext import Json
from pabal.message import Message, Priority, Seconds, check_count, check_seconds
from pabal.names import check_id, check_name
from pabal.policy.policy import Policy, PolicyChanges, Settings
from pabal.policy.validation import Check, checker
from pabal.queues.delivery import Body, Delivery, Local, reason_of
from pabal.queues.draft import Drafter, Options
from pabal.queues.effective_policy import PolicyCache
from pabal.queues.renewal import Renewal
from pabal.queues.replies import SUFFIX, Replies, request_ttl, wait_for_reply
from pabal.queues.schedules import Schedules, tend
from pabal.queues.verdicts import DeadLetterWriter, Settler, lost_leases, report_dead, write_dead_letter
from pabal.queues.waiter import Waiter
from pabal.store import (
    Draft,
    Entry,
    FailureCode,
    Outcome,
    Published,
    Receipt,
    Retry,
    Settlement,
    State,
    Store,
    Transactional,
    Waitable,
    Watch,
    check_token,
    with_copies,
)

MIN_LEASE = 0.001  # seconds
PURGE_SLICE = 1000
_SIBLINGS = 100  # other queues that a queue remembers


class Queue(Local, Generic[Body]):
    """A queue of a store, as one consumer or publisher sees it. Threads may share it.

    With a type for its bodies it takes and gives values of that type. A message whose body does not fit is dead.

    Deliveries and workers use two parts of it directly: `settler` settles receipts, `renewal` keeps leases alive.
    """

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        body: type[Body] | None = None,
        clock: Clock | None = None,
        consumer: str = "",
        chance: Callable[[], float] = random.random,
        dead_letters: DeadLetterWriter = write_dead_letter,
        tends: bool = True,
        create: bool = True,
    ) -> None:
        """`tends`: its consumers also publish what schedules of the store are due.

        `create`: its first message or policy makes the queue. Else QueueUnknown is raised if it is not there.
        """
        self.name = check_name(name)
        self.consumer = check_name(consumer, "consumer") if consumer else ""
        self.store = store
        self._clock = clock or SystemClock()
        self._effective = PolicyCache(name, store, self._clock, create=create)
        self.settler = Settler(
            name, store, self._effective, self._clock, consumer=self.consumer, chance=chance, dead_letters=dead_letters
        )
        self.renewal = Renewal(store.extend, time.monotonic)
        self._drafter = Drafter(
            name, self._effective, self._clock, self.settler.failure, dead_letters, existing=not create
        )
        self._check = None if body is None else checker(body)
        self._swept_at = float("-inf")
        self._tends = tends
        self._tended: Schedules | None = None
        self._reply_waiter: Replies | None = None
        self._siblings: dict[str, Queue] = {}
        self._making = threading.RLock()  # of the two above

    def __repr__(self) -> str:
        return f"<Queue {self.name}>"

    def _schedules(self) -> Schedules:
        if self._tended is None:
            self._tended = schedules_of(self.store, self._clock)
        return self._tended

    # Publish

    def publish(
        self,
        body: Body,
        *,
        id: str | None = None,
        type: str | None = None,
        version: int | None = None,
        sender: str | None = None,
        target: str | None = None,
        attributes: dict[str, Json] | None = None,
        headers: dict[str, str] | None = None,
        priority: Priority | None = None,
        group: str | None = None,
        dedup_key: str | None = None,
        thread_id: str | None = None,
        trace_id: str | None = None,
        reply_to: str | None = None,
        ttl: Seconds | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        unique: str | None = None,
    ) -> Published:
        """Store one message durably; return its id, and whether it was a duplicate or is dead because of its body.

        - `id`: an id of the caller's own. Publishing it again stores nothing. By default one is made.
        - `type`, `version`: what kind of message it is. `sender`: who sends it. `target`: the one consumer that may
          lease it.
        - `attributes` (JSON) and `headers` (text): fields of the application.
        - `priority`: -100 to 100, or critical (9), high (6), normal (0), low (-6). The larger comes first.
        - `group`: messages of a group are delivered one after another, in the order in which they were published.
        - `dedup_key`: within the policy's window, a second message with this key stores nothing.
        - `unique`: while a message with this key waits or is in flight, for however long, a second one stores nothing.
        - `thread_id`, `trace_id`, `reply_to`: what it belongs to, and where to answer.
        - `ttl`: seconds, or a timedelta, after which it is dead if nobody has taken it.
        - `delay`: seconds, or a timedelta, before it can be leased; or `at`, a datetime with a time zone.
        """
        options = Options(
            id=id,
            type=type,
            version=version,
            sender=sender,
            target=target,
            attributes=attributes,
            headers=headers,
            priority=priority,
            group=group,
            dedup_key=dedup_key,
            thread_id=thread_id,
            trace_id=trace_id,
            reply_to=reply_to,
            ttl=ttl,
            delay=delay,
            at=at,
            unique=unique,
        )
        return publish_drafts(self.store.publish, [self._drafter.draft(body, options)])[0]

    def publish_many(
        self,
        bodies: Iterable[Body | Message | Draft],
        *,
        type: str | None = None,
        version: int | None = None,
        sender: str | None = None,
        target: str | None = None,
        attributes: dict[str, Json] | None = None,
        headers: dict[str, str] | None = None,
        priority: Priority | None = None,
        group: str | None = None,
        thread_id: str | None = None,
        trace_id: str | None = None,
        reply_to: str | None = None,
        ttl: Seconds | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
    ) -> list[Published]:
        """Store many messages with one flush: bodies, to which the keywords of `publish` apply, messages and drafts."""
        options = Options(
            type=type,
            version=version,
            sender=sender,
            target=target,
            attributes=attributes,
            headers=headers,
            priority=priority,
            group=group,
            thread_id=thread_id,
            trace_id=trace_id,
            reply_to=reply_to,
            ttl=ttl,
            delay=delay,
            at=at,
        )
        drafts = self._drafter.drafts(bodies, options)
        return publish_drafts(self.store.publish, drafts) if drafts else []

    def publish_in(self, connection: Any, drafts: Sequence[Draft]) -> list[Published]:
        """Publish drafts inside a transaction of the application: they are stored if and only if it commits.

        `connection` is a psycopg connection to the database of the store, which must be on PostgreSQL.
        """
        if not isinstance(self.store, Transactional):
            raise InvalidInput("publish_in needs a store on PostgreSQL, where the data of the application lies too")
        return publish_drafts(partial(self.store.publish_in, connection), drafts)

    def validate(self, message: Message) -> None:
        """Raise ValidationFailed if the body does not fit the schema of the queue."""
        if (check := self._effective().check) is not None:
            check(message.body)

    def draft(
        self,
        body: Body,
        *,
        id: str | None = None,
        type: str | None = None,
        version: int | None = None,
        sender: str | None = None,
        target: str | None = None,
        attributes: dict[str, Json] | None = None,
        headers: dict[str, str] | None = None,
        priority: Priority | None = None,
        group: str | None = None,
        dedup_key: str | None = None,
        thread_id: str | None = None,
        trace_id: str | None = None,
        reply_to: str | None = None,
        ttl: Seconds | None = None,
        delay: Seconds | None = None,
        at: datetime | None = None,
        unique: str | None = None,
    ) -> Draft:
        """Make a message for this queue without publishing it: for `ack(then=[…])` and `publish_many`.

        The keywords are those of `publish`.
        """
        options = Options(
            id=id,
            type=type,
            version=version,
            sender=sender,
            target=target,
            attributes=attributes,
            headers=headers,
            priority=priority,
            group=group,
            dedup_key=dedup_key,
            thread_id=thread_id,
            trace_id=trace_id,
            reply_to=reply_to,
            ttl=ttl,
            delay=delay,
            at=at,
            unique=unique,
        )
        return self._drafter.draft(body, options)

    # Request and reply

    def request(
        self,
        body: Body,
        timeout: float = 30.0,
        *,
        id: str | None = None,
        type: str | None = None,
        version: int | None = None,
        sender: str | None = None,
        target: str | None = None,
        attributes: dict[str, Json] | None = None,
        headers: dict[str, str] | None = None,
        priority: Priority | None = None,
        group: str | None = None,
        thread_id: str | None = None,
        trace_id: str | None = None,
    ) -> Any:
        """Publish a message, wait for the reply of its consumer (`delivery.reply(body)`), and return the body of it.

        Raise NoReply after `timeout` seconds, and RequestFailed if the message is dead or was handled without a reply.
        A request that nobody has taken by then is cancelled. With an `id` of the caller's own it is not, and the reply
        is kept for an hour: repeating the call with this id after a crash returns the same reply.
        """
        check_seconds("timeout", timeout)
        request, replies = id or self._drafter.new_id(), self._replies
        answer = replies.expect(request)
        try:
            self.publish(
                body,
                id=request,
                type=type,
                version=version,
                sender=sender,
                target=target,
                attributes=attributes,
                headers=headers,
                priority=priority,
                group=group,
                thread_id=thread_id,
                trace_id=trace_id,
                reply_to=replies.queue,
                ttl=None if id else request_ttl(timeout),
            )
        except BaseException:
            replies.give_up(request, keep=True)
            raise
        return wait_for_reply(replies, request, answer, timeout, keep=id is not None)

    @property
    def _replies(self) -> Replies:
        """The replies to requests of this queue; `request` waits for them."""
        with self._making:
            if self._reply_waiter is None:
                self._reply_waiter = Replies(self._sibling(self.name), self._sibling(f"{self.name}{SUFFIX}"))
            return self._reply_waiter

    def _sibling(self, name: str) -> Queue:
        """Return another queue of the same store, for bodies of any type."""
        with self._making:
            if len(self._siblings) > _SIBLINGS:
                self._siblings.clear()
            found = self._siblings.get(name)
            if found is None:
                found = self._siblings[name] = Queue(
                    name, self.store, clock=self._clock, consumer=self.consumer, tends=False
                )
            return found

    # Lease

    def lease(
        self,
        limit: int = 1,
        *,
        visibility: float | None = None,
        wait: float | None = 0.0,
        successive: bool = False,
        token: str = "",
    ) -> list[Delivery[Body]]:
        """Take up to `limit` messages; wait up to `wait` seconds for the first, or for ever if it is None.

        The messages belong to the caller for `visibility` seconds, by default those of the policy. A group gives one
        message at a time; with `successive`, as many as there are, in order, and no more until all of them are settled.
        A caller that had no answer repeats the call with the same `token`, and gets what it holds under this token.
        """
        check_count("limit", limit)
        check_wait(wait)
        check_token(token)
        if wait == 0:
            return self._take(limit, visibility, successive, token)
        with Waiter(self) as waiter:
            return waiter.lease(limit, visibility, wait, successive, token)

    def consume(
        self, *, wait: float | None = None, visibility: float | None = None, prefetch: int = 1
    ) -> Iterator[Delivery[Body]]:
        """Yield messages one at a time as they come; end after `wait` seconds without one, or never.

        Up to `prefetch` of them are leased together. Those that were not yielded yet are kept from expiring, and given
        back when the iteration ends early.
        """
        check_count("prefetch", prefetch)
        check_wait(wait)
        return self._consume(wait, visibility, prefetch)

    def _consume(self, wait: float | None, visibility: float | None, prefetch: int) -> Iterator[Delivery[Body]]:
        with Waiter(self) as waiter:
            while found := waiter.lease(prefetch, visibility, wait):
                yield from self._one_by_one(found)

    def _one_by_one(self, found: list[Delivery[Body]]) -> Iterator[Delivery[Body]]:
        later = found[:0:-1]
        try:
            for delivery in later:
                delivery._hold()
            yield found[0]
            while later:
                later[-1]._let_go()
                yield later.pop()
        finally:
            for delivery in later:
                delivery._let_go()
            self._give_back(later[::-1])

    def _give_back(self, deliveries: Sequence[Delivery[Body]]) -> None:
        """Make messages ready again that nobody is there for, in one commit; if it fails, when their leases end."""
        if deliveries:
            with suppress(PabalError):
                self.settler.settle_many(
                    [Settlement(each.receipt, Retry(0.0, each.failure, counted=False)) for each in deliveries]
                )

    def watch(self) -> Watch | None:
        """Return a watch on this queue, or None if the store has none."""
        return self.store.watch([self.name]) if isinstance(self.store, Waitable) else None

    def _take(
        self, limit: int, visibility: float | None, successive: bool = False, token: str = ""
    ) -> list[Delivery[Body]]:
        """Lease messages that are ready now, without waiting; those whose bodies do not fit are dead."""
        while (found := self._leased(limit, visibility, successive, token)) and self._check is not None:
            if fitting := self._fitting(found, self._check):
                return fitting
        return found

    def _leased(self, limit: int, visibility: float | None, successive: bool, token: str) -> list[Delivery[Body]]:
        policy = self._effective().policy
        term = policy.visibility if visibility is None else check_seconds("visibility", visibility, least=MIN_LEASE)
        swept = self._clock.boot() - self._swept_at >= SLOW_POLL
        if swept:
            self.sweep()  # which judges what has expired
        if self.paused:
            if not swept:
                self.settler.judge_expired()
            return []
        lease = partial(
            self.store.lease, self.name, limit, term, consumer=self.consumer, token=token, successive=successive
        )
        leases = lease()
        if not leases and not swept and self.settler.judge_expired():
            leases = lease()
        return [Delivery(self, lease, term) for lease in leases]

    def _fitting(self, deliveries: list[Delivery[Body]], check: Check) -> list[Delivery[Body]]:
        """Convert the bodies; settle those that do not fit, and return the others."""
        found: list[Delivery[Body]] = []
        unfit: list[Settlement] = []
        try:
            for delivery in deliveries:
                try:
                    delivery.body = check(delivery.body)
                    found.append(delivery)
                except ValidationFailed as exc:
                    verdict = delivery._judge(FailureCode.VALIDATION_ERROR, str(exc))
                    unfit.append(Settlement(delivery.receipt, verdict))
                except Exception as exc:  # a type of the application whose own check fails
                    verdict = delivery._judge(FailureCode.HANDLER_ERROR, reason_of(exc))
                    unfit.append(Settlement(delivery.receipt, verdict))
            if unfit:
                self.settler.settle_many(unfit)
        except BaseException:
            self._give_back(deliveries)
            raise
        return found

    # Settle

    def ack(self, receipt: Receipt | str, then: Sequence[Draft] = ()) -> None:
        """Settle as done by receipt alone. Raise LeaseLost if the receipt is no longer current."""
        self.settler.ack(self._own(receipt), then)

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

    def ack_many(self, deliveries: Sequence[Delivery[Body] | Receipt]) -> None:
        """Settle many as done in one commit. Raise LeaseLost that names the lost ones; the others are done."""
        receipts = [each if isinstance(each, Receipt) else each.receipt for each in deliveries]
        error: LeaseLost | None = None
        try:
            self.settler.ack_many(list(map(self._own, receipts)))
        except LeaseLost as exc:
            error = exc
        for each in deliveries:
            if not isinstance(each, Receipt):
                each._settled = error is None or str(each.receipt) not in error.receipts
        if error is not None:
            raise error

    def _fail(self, receipt: Receipt | str, reason: str, *, delay: float | None = None, final: bool = False) -> None:
        receipt = self._own(receipt)
        entry = self.find(receipt.id)
        if entry is None:
            raise lost_leases([receipt])
        failure = self.settler.failure(FailureCode.NACKED, reason, entry.attempt, entry.failure)
        self.settler.settle(receipt, self.settler.verdict_on(entry, failure, delay=delay, final=final))

    def _own(self, receipt: Receipt | str) -> Receipt:
        own = Receipt.parse(receipt) if isinstance(receipt, str) else receipt
        if not isinstance(own, Receipt):
            raise InvalidReceipt(
                f"expected a receipt; found {type(own).__name__}: a delivery is settled by its own methods, and has a "
                "receipt in `receipt`"
            )
        if own.queue != self.name:
            raise InvalidReceipt(f"a receipt of queue {own.queue} was given to queue {self.name}")
        return own

    # Browse and maintain

    def counts(self) -> dict[State, int]:
        """Count the messages in each state."""
        return self.store.counts(self.name)

    def browse(self, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state without changing them; `after` is the cursor of the last entry seen."""
        return self.store.browse(self.name, _state(state), after=after, limit=limit)

    def entries(self, state: State) -> Iterator[Entry]:
        """Yield all messages of one state without changing them."""
        after = ""
        while page := self.browse(state, after=after):
            yield from page
            after = page[-1].cursor

    def find(self, id: str) -> Entry | None:
        """Return one message in any state, or None."""
        return self.store.find(self.name, id)

    def revive(self, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again, with no attempts counted; return those that were dead.

        One that died because its body does not fit the schema of the queue, and still does not, stays dead.
        """
        self.read_policy()
        if self._effective().check is not None:
            ids = [id for id in ids if not self.still_unfit(id)]
        return self.store.revive(self.name, ids)

    def cancel(self, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        """Take back waiting messages, so that nobody gets them; return the ids of those that were waiting.

        With `inflight` also messages that a consumer holds: its next step raises LeaseLost. A cancelled message is done
        with the failure CANCELLED, and its id is remembered as after an ack.
        """
        check_ids(ids)
        return self.store.cancel(self.name, ids, inflight=inflight)

    def still_unfit(self, id: str) -> str:
        """Return why a message that died because of its body still does not fit the schema; empty if it fits."""
        entry = self.find(id)
        if entry is None or entry.message is None or entry.failure is None:
            return ""
        try:
            if entry.failure.code == FailureCode.VALIDATION_ERROR:
                self.validate(entry.message)
        except ValidationFailed as exc:
            return f"{exc}: mend its body with `pabal edit-dlq {self.name} {id}`, or the schema of the queue"
        return ""

    def purge(self, state: State, age: float = 0.0) -> int:
        """Remove every message that has been in this state for `age` seconds."""
        total = 0
        while removed := self.store.purge(self.name, _state(state), age=age, limit=PURGE_SLICE):
            total += removed
        return total

    def create(self, policy: Policy | None = None, *, attached: Mapping[str, Mapping[str, Any]] | None = None) -> bool:
        """Make this queue before its first message, with a policy and documents of applications (see `attach`).

        Return whether it was not there; if it was, nothing is changed.
        """
        return self._effective.create(Settings(policy or Policy(), attached=attached or {}))

    def delete(self, *, force: bool = False) -> int:
        """Remove this queue with its policy; return how many messages were removed.

        Raise QueueNotEmpty if it has messages that are not done. With `force` they are removed too, those in flight
        included. A process that still uses the queue makes it again.
        """
        removed = 0
        if force:  # in slices, so that nobody waits for long
            removed = sum(self.purge(state) for state in (State.READY, State.DELAYED, State.DEAD, State.CORRUPT))
        removed += self.store.delete(self.name, force=force)
        self._effective.forget()
        return removed

    def sweep(self) -> int:
        """Judge expired leases and messages, remove old tombstones and dead letters; return how many were judged.

        Schedules of the store that are due are published too.
        """
        self._swept_at = self._clock.boot()
        if self._tends:
            tend(self.store, self._clock, self._schedules)
        policy = self.policy
        judged = self.settler.judge_expired()
        remove_done = self.store.trim if policy.done_retention else self.store.purge  # else only tombstones are there
        remove_done(self.name, State.DONE, age=policy.tombstone, limit=PURGE_SLICE * 10)
        if policy.dead_letters.retention_days:
            age = policy.dead_letters.retention_days * 86400
            self.store.trim(self.name, State.DEAD, age=age, limit=PURGE_SLICE)
        return judged

    # Policy

    @property
    def policy(self) -> Policy:
        """The effective policy: read again at most once a second, so that a change reaches running consumers."""
        return self._effective().policy

    def read_policy(self) -> Policy:
        """Read the policy again, and return it: an act of an operator follows a change of a moment ago too."""
        self._effective.forget()
        return self.policy

    def configure(self, policy: Policy) -> None:
        """Give this queue a policy, for all its users. A paused queue stays paused."""
        self._effective.configure(policy)

    def update_policy(self, **changes: Unpack[PolicyChanges]) -> Policy:
        """Change the named fields of the policy as it is now, and nothing else: `update_policy(visibility=60)`.

        `retry` and `dead_letters` are changed as a whole. Return the new policy.
        """
        if unknown := changes.keys() - set(Policy.__struct_fields__):
            raise InvalidPolicy(f"a policy has no {min(unknown)}: it has {', '.join(Policy.__struct_fields__)}")
        return self._effective.update(changes)

    @property
    def paused(self) -> bool:
        """Whether an operator has paused this queue: then no message is leased."""
        return self._effective().paused

    def attached(self, name: str) -> Mapping[str, Any]:
        """Return the document that an application keeps with this queue; empty if there is none."""
        found: Mapping[str, Any] = self._effective().settings.attached.get(name, {})
        return found

    def attach(self, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Change the document that an application keeps with this queue; no policy touches it.

        `change` gets the document as it is now, and is called again if another process was faster.
        """
        self._effective.attach(name, change)

    def ensure_policy(self, policy: Policy) -> None:
        """Give this queue a policy if it has none, another one, or one that cannot be read."""
        self._effective.ensure(policy)

    def pause(self) -> None:
        """Stop all leasing from this queue until it is resumed; publishing continues."""
        self._effective.pause(True)

    def resume(self) -> None:
        self._effective.pause(False)


def schedules_of(store: Store, clock: Clock) -> Schedules:
    """Return the schedules of a store."""

    def make_queue(name: str, consumer: str) -> Queue:
        return Queue(name, store, clock=clock, consumer=consumer, tends=False)

    return Schedules(make_queue, clock)


def publish_drafts(store: Callable[[Sequence[Draft]], list[Published]], drafts: Sequence[Draft]) -> list[Published]:
    """Store drafts with their copies in dead-letter queues; return the answers for the drafts."""
    every = with_copies(drafts)
    answers = store(every)
    return answers if every is drafts else report_dead(drafts, answers)


def _state(state: State) -> State:
    """Return a state that may be given by its name; raise InvalidInput if there is none of that name."""
    try:
        return State(state)
    except ValueError:
        raise InvalidInput(f"a state is one of {', '.join(State)}; found {state!r:.40}") from None


def check_ids(ids: Sequence[str]) -> None:
    """Refuse one id where many are expected: its letters would be taken for ids."""
    if isinstance(ids, (str, bytes)):
        raise InvalidInput(f"a list of ids is expected; found one {type(ids).__name__}: write [id]")
    for id in ids:
        check_id(id)


def check_wait(wait: float | None) -> None:
    """Raise InvalidInput if this is no time to wait; None is for ever."""
    if wait is not None and (isinstance(wait, bool) or not isinstance(wait, (int, float)) or not wait >= 0):
        raise InvalidInput(f"wait must be 0 seconds or more, or None to wait for ever; found {wait!r:.40}")
