"""A queue and its deliveries, awaited. Each call is the one of `pabal.Queue`, made in a thread.

What many tasks publish or settle at the same time shares a commit. All tasks that wait for a queue share one thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any, Generic, TypeAlias, TypeVar, Unpack

from pabal.aio.calls import Batcher, Threads, finished, store_together
from pabal.aio.feed import Feed
from pabal.errors import InvalidInput, NoAnswer, PabalError, QueueFull, QueueUnknown, StoreClosed, StoreFull
from pabal.jsontext import Json
from pabal.message import Message, Priority, Seconds, check_count, check_seconds
from pabal.policy.bodies import check_many
from pabal.policy.policy import Policy, PolicyChanges
from pabal.queues.delivery import Body, Local, note_unsettled, reason_of
from pabal.queues.delivery import Delivery as HeldDelivery
from pabal.queues.draft import Options
from pabal.queues.queue import MIN_LEASE, check_wait, publish_drafts
from pabal.queues.queue import Queue as BlockingQueue
from pabal.queues.replies import request_ttl
from pabal.queues.verdicts import lost_leases
from pabal.store import (
    Draft,
    Entry,
    Failure,
    FailureCode,
    Outcome,
    Published,
    Receipt,
    Retry,
    Settlement,
    State,
    Store,
    Verdict,
    check_token,
)

_GRACE = 5.0  # seconds in which a look that is under way at the end of a wait must be answered
_LOOK_AGAIN = 0.02
_REFUSED = (InvalidInput, QueueFull, QueueUnknown, StoreFull)  # nothing was stored, and one item may be the reason
_NOT_STORED = "cancelled before it was handed to the store: the message is not stored"
_MAYBE_STORED = "cancelled while it was being stored: publish it again with the same id to be sure"

Publishes: TypeAlias = Batcher[Callable[[], list[Draft]], list[Published]]
MakeVerdict: TypeAlias = Callable[[], Verdict]
T = TypeVar("T")


def publishes(store: Store, threads: Threads) -> Publishes:
    """Return the batches of a connection, in which messages of all its queues share commits."""
    return Batcher(threads, partial(store_together, partial(publish_drafts, store.publish), _REFUSED))


class Delivery(Local, Generic[Body]):
    """A message that the consumer holds until it settles it or the lease ends.

    With `async with` the lease is renewed while the block runs, the message is acked at its end, and fails by policy if
    it raises. If the task is cancelled in the block, the message is given back at once.
    """

    __slots__ = ("_held", "_queue")

    def __init__(self, queue: Queue[Body], held: HeldDelivery[Body]) -> None:
        self._queue = queue
        self._held = held

    @property
    def body(self) -> Body:
        return self._held.body

    @body.setter
    def body(self, body: Body) -> None:
        self._held.body = body

    @property
    def message(self) -> Message:
        return self._held.message

    @property
    def receipt(self) -> Receipt:
        return self._held.receipt

    @property
    def attempt(self) -> int:
        return self._held.attempt

    @property
    def visibility(self) -> float:
        """Seconds of its lease, from each renewal on."""
        return self._held.visibility

    @property
    def due_at(self) -> float:
        return self._held.due_at

    @property
    def failure(self) -> Failure | None:
        """The failure of the attempt before this one."""
        return self._held.failure

    @property
    def queue(self) -> str:
        return self._held.queue

    @property
    def settled(self) -> bool:
        return self._held.settled

    async def ack(self, then: Sequence[Draft] = ()) -> None:
        """Settle as done and publish the follow-ups `then`, as one step. Raise LeaseLost if the lease was lost."""
        await self._settle(partial(self._queue.blocking.settler.done, then))

    async def reply(self, body: Any, *, type: str | None = None, then: Sequence[Draft] = ()) -> None:
        """Settle as done and send the reply to the requester (`queue.request`), as one step."""

        def verdict() -> Verdict:
            return self._queue.blocking.settler.done([self._held._reply(body, type), *then])

        await self._settle(verdict)

    async def nack(self, delay: float | None = None, reason: str = "") -> None:
        """Settle as failed: the policy decides whether the message comes back, and when, unless `delay` is given."""
        await self.fail(FailureCode.NACKED, reason, delay=delay)

    async def bury(self, reason: str = "") -> None:
        """Settle as dead, even if attempts are left."""
        await self.fail(FailureCode.NACKED, reason, final=True)

    async def release(self, *, counted: bool = True) -> None:
        """Give the message back, ready at once for any consumer. With `counted=False` this lease is no attempt."""
        await self._settle(lambda: Retry(0.0, self._held.failure, counted=counted))

    async def fail(self, code: str, reason: str, *, delay: float | None = None, final: bool = False) -> None:
        """Settle as the queue's policy decides for this failure; `final` allows no other attempt."""
        await self._settle(partial(self._held._judge, code, reason, delay=delay, final=final))

    async def extend(self, seconds: float) -> None:
        """Let the lease end `seconds` from now. Raise LeaseLost if it was settled or leased again."""
        await self._queue.threads(self._held.extend, seconds)

    async def _settle(self, make: MakeVerdict) -> None:
        await self._queue.settle([self.receipt], lambda: [Settlement(self.receipt, make())], [self._held])

    async def __aenter__(self) -> Delivery[Body]:
        self._held._hold()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held._let_go()
        if self.settled:
            return
        if error is None:
            await self.ack()
            return
        try:
            if isinstance(error, Exception):
                await self.fail(FailureCode.HANDLER_ERROR, reason_of(error))
            else:
                await self.release()
        except PabalError as exc:
            note_unsettled(error, exc)

    def __repr__(self) -> str:
        return f"<aio.Delivery {self.receipt} attempt {self.attempt}>"


class Queue(Local, Generic[Body]):
    """A queue of a connection. Tasks, loops and threads may share it. `blocking` is the same, as `pabal.Queue`."""

    def __init__(self, blocking: BlockingQueue[Body], threads: Threads, publishes: Publishes) -> None:
        self.blocking = blocking
        self.name = blocking.name
        self.threads = threads
        self._publishes = publishes
        self._leases = Batcher(threads, self._lease, self._give_back_unclaimed)
        self._settlements = Batcher(threads, self._settle)
        self._feed = Feed(blocking)

    def __repr__(self) -> str:
        return f"<aio.Queue {self.name}>"

    def close(self) -> None:
        """End the waiting of its tasks; part of the close of the connection."""
        self._feed.close()

    # Publish

    async def publish(
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

        The keywords are those of `pabal.Queue.publish`. The text of the CancelledError of a cancelled call says whether
        the message may be stored.
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
        [answer] = await self._publish(lambda: [self.blocking._drafter.draft(body, options)], 1)
        return answer

    async def publish_many(
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
        """Store many messages in one commit: bodies, to which the keywords of `publish` apply, messages and drafts."""
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
        check_many(bodies, "publish")
        every = list(bodies)
        return await self._publish(partial(self.blocking._drafter.drafts, every, options), len(every)) if every else []

    async def _publish(self, make: Callable[[], list[Draft]], many: int) -> list[Published]:
        answer = self._publishes.add(make, many)
        try:
            return await answer
        except asyncio.CancelledError:
            raise asyncio.CancelledError(_MAYBE_STORED if answer.begun else _NOT_STORED) from None

    async def draft(
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

        The keywords are those of `pabal.Queue.publish`.
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
        return await self.threads(self.blocking._drafter.draft, body, options)

    async def request(
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
        """Publish a message, wait for the reply of its consumer, and return the body of it.

        See `pabal.Queue.request`. If the task is cancelled, a request that nobody has taken is cancelled too.
        """
        check_seconds("timeout", timeout)
        replies, request = await self.threads(lambda: (self.blocking._replies, id or self.blocking._drafter.new_id()))
        answer = await self.threads(replies.expect, request)
        keep = id is not None
        try:
            await self.publish(
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
            found = asyncio.wrap_future(answer)
            await asyncio.wait([found], timeout=timeout)
            if not found.done():
                raise replies.nothing_came(request, timeout)
            reply = found.result()
        except BaseException:
            with suppress(StoreClosed):
                self.threads.start(replies.give_up, request, keep=keep)
            raise
        await self.threads(replies.received, request, keep=keep)
        return reply

    # Lease

    async def lease(
        self,
        limit: int = 1,
        *,
        visibility: float | None = None,
        wait: float | None = 0.0,
        successive: bool = False,
        token: str = "",
    ) -> list[Delivery[Body]]:
        """Take up to `limit` messages for `visibility` seconds, waiting up to `wait` seconds for the first.

        With `wait=None` it waits for ever. A cancelled call gives back what it has taken. With `successive`, a group
        gives more than one message, in order, and no more until all of them are settled. With a `token`, a call that is
        repeated gets the same messages while it holds any; so a cancelled one gives nothing back.
        """
        check_count("limit", limit)
        check_wait(wait)
        check_token(token)
        if visibility is not None:
            check_seconds("visibility", visibility, least=MIN_LEASE)
        found: list[HeldDelivery[Body]] = []
        if wait == 0 or token:  # what the token holds already is there at once, whoever else waits
            found = await self._take(limit, visibility, successive, token)
        if not found and wait != 0:
            found = await self._wait(limit, visibility, wait, successive, token)
        return [Delivery(self, held) for held in found]

    async def _take(
        self, limit: int, visibility: float | None, successive: bool, token: str
    ) -> list[HeldDelivery[Body]]:
        if successive or token:  # what is leased so is not divided
            return await self._take_alone(limit, visibility, successive, token)
        taking = self._leases.add((limit, visibility), limit)
        try:
            return await taking
        except BaseException:
            if not taking.cancel():
                self._start_give_back(result_of(taking))  # they came as the task was cancelled
            raise

    def _lease(self, asks: Sequence[tuple[int, float | None]]) -> list[list[HeldDelivery[Body]] | BaseException]:
        """Take messages for many tasks: those that want them for the same time share a lease, in their order."""
        wanted: dict[float | None, int] = {}
        for limit, visibility in asks:
            wanted[visibility] = wanted.get(visibility, 0) + limit
        found: dict[float | None, Iterator[HeldDelivery[Body]] | Exception] = {}
        for visibility, many in wanted.items():
            try:
                found[visibility] = iter(self.blocking._take(many, visibility))
            except Exception as exc:
                found[visibility] = exc
        return [
            leased if isinstance(leased := found[visibility], Exception) else list(islice(leased, limit))
            for limit, visibility in asks
        ]

    def _give_back_unclaimed(self, unclaimed: Sequence[list[HeldDelivery[Body]]]) -> None:
        self._start_give_back([held for taken in unclaimed for held in taken])

    async def _take_alone(
        self, limit: int, visibility: float | None, successive: bool, token: str
    ) -> list[HeldDelivery[Body]]:
        taking = self.threads.start(self.blocking._take, limit, visibility, successive, token)
        try:
            return await asyncio.wrap_future(taking)
        except BaseException:
            if not token:
                self._give_back_taken(taking)
            raise

    async def _wait(
        self, limit: int, visibility: float | None, wait: float | None, successive: bool, token: str
    ) -> list[HeldDelivery[Body]]:
        ask = self._feed.ask(limit, visibility, successive, token)
        try:
            found = asyncio.wrap_future(ask.found)
            await asyncio.wait([found], timeout=wait)
            answered = await self._has_answered(found)
            if not found.done() and self._feed.withdraw(ask):
                if answered:
                    return []
                raise NoAnswer("the store does not answer: see that its server runs and repeat", withdrawn=True)
            return await asyncio.shield(found)
        except BaseException:
            if not self._feed.withdraw(ask) and not token:
                self._give_back_taken(ask.found)
            raise

    async def _has_answered(self, found: asyncio.Future[list[HeldDelivery[Body]]]) -> bool:
        """Wait a little for a look that is under way; return False if the store does not answer it."""
        end = time.monotonic() + _GRACE
        while not (found.done() or self._feed.asleep):
            if time.monotonic() > end:
                return False
            await asyncio.wait([found], timeout=_LOOK_AGAIN)
        return True

    def _give_back_taken(self, taken: Future[list[HeldDelivery[Body]]]) -> None:
        """Give back what a call has taken, or will have taken, for a task that is gone."""
        if taken.done():
            self._start_give_back(result_of(taken))
        else:  # in the thread of the call, for which a close waits
            taken.add_done_callback(lambda taken: self.blocking._give_back(result_of(taken)))

    def give_back_leased(self, leased: asyncio.Future[list[Delivery[Body]]]) -> None:
        """Make the messages of a lease ready again that nobody is there for."""
        self._start_give_back([delivery._held for delivery in result_of(leased)])

    def _start_give_back(self, held: Sequence[HeldDelivery[Body]]) -> Future[None] | None:
        try:
            return self.threads.start(self.blocking._give_back, held) if held else None
        except StoreClosed:  # it is being closed, and waits for no further call
            self.blocking._give_back(held)
            return None

    def consume(
        self, *, wait: float | None = None, visibility: float | None = None, prefetch: int = 1
    ) -> AsyncGenerator[Delivery[Body], None]:
        """Yield messages one at a time as they come; end after `wait` seconds without one, or never.

        Up to `prefetch` of them are leased together. Those that were not yielded yet are kept from expiring, and given
        back when the iteration ends early.
        """
        check_count("prefetch", prefetch)
        check_wait(wait)
        return self._consume(wait, visibility, prefetch)

    async def _consume(
        self, wait: float | None, visibility: float | None, prefetch: int
    ) -> AsyncGenerator[Delivery[Body], None]:
        while found := await self.lease(prefetch, visibility=visibility, wait=wait):
            later = found[:0:-1]
            try:
                for delivery in later:
                    delivery._held._hold()
                yield found[0]
                while later:
                    later[-1]._held._let_go()
                    yield later.pop()
            finally:
                for delivery in later:
                    delivery._held._let_go()
                back = self._start_give_back([delivery._held for delivery in reversed(later)])
                if back is not None:
                    await finished(back)

    # Settle

    async def ack(self, receipt: Receipt | str, then: Sequence[Draft] = ()) -> None:
        """Settle as done by receipt alone. Raise LeaseLost if the receipt is no longer current."""
        own = self.blocking._own(receipt)
        await self.settle([own], lambda: [Settlement(own, self.blocking.settler.done(then))])

    async def nack(self, receipt: Receipt | str, delay: float | None = None, reason: str = "") -> None:
        """Settle as failed by receipt alone: the policy decides."""
        await finished(self.threads.start(self.blocking.nack, receipt, delay, reason))

    async def bury(self, receipt: Receipt | str, reason: str = "") -> None:
        """Settle as dead by receipt alone."""
        await finished(self.threads.start(self.blocking.bury, receipt, reason))

    async def extend(self, receipt: Receipt | str, seconds: float) -> None:
        """Let the lease end `seconds` from now. Raise LeaseLost if the receipt is no longer current."""
        await finished(self.threads.start(self.blocking.extend, receipt, seconds))

    async def ack_many(self, deliveries: Sequence[Delivery[Body] | Receipt]) -> None:
        """Settle many as done in one commit. Raise LeaseLost that names the lost ones; the others are done."""
        receipts = [self.blocking._own(each if isinstance(each, Receipt) else each.receipt) for each in deliveries]
        held = [each._held for each in deliveries if not isinstance(each, Receipt)]

        def make() -> list[Settlement]:
            done = self.blocking.settler.done()
            return [Settlement(receipt, done) for receipt in receipts]

        await self.settle(receipts, make, held)

    async def settle(
        self,
        receipts: Sequence[Receipt],
        make: Callable[[], list[Settlement]],
        held: Sequence[HeldDelivery[Body]] = (),
    ) -> None:
        """Settle these, together with what other tasks settle. Raise LeaseLost that names the lost ones.

        It goes on if the task is cancelled: then too, the deliveries are marked that are settled.
        """

        def note(settled: asyncio.Future[list[Outcome]]) -> None:
            if not settled.cancelled() and settled.exception() is None:
                lost = set(_lost(receipts, settled.result()))
                for each in held:
                    each._settled = each._settled or each.receipt not in lost

        settled = self._settlements.add(make, len(receipts))
        if held:
            settled.add_done_callback(note)
        if lost := _lost(receipts, await asyncio.shield(settled)):
            raise lost_leases(lost)

    def _settle(self, makes: Sequence[Callable[[], list[Settlement]]]) -> list[list[Outcome] | BaseException]:
        return store_together(self.blocking.settler.settle_many, _REFUSED, makes)

    # Browse and maintain

    async def counts(self) -> dict[State, int]:
        """Count the messages in each state."""
        return await self.threads(self.blocking.counts)

    async def browse(self, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages of one state without changing them; `after` is the cursor of the last entry seen."""
        return await self.threads(self.blocking.browse, state, after=after, limit=limit)

    async def entries(self, state: State) -> AsyncGenerator[Entry, None]:
        """Yield all messages of one state without changing them."""
        after = ""
        while page := await self.browse(state, after=after):
            for entry in page:
                yield entry
            after = page[-1].cursor

    async def find(self, id: str) -> Entry | None:
        """Return one message in any state, or None."""
        return await self.threads(self.blocking.find, id)

    async def revive(self, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again, with no attempts counted; return those that were dead."""
        return await self.threads(self.blocking.revive, ids)

    async def cancel(self, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        """Take back waiting messages; return the ids of those that were waiting.

        With `inflight` also messages that a consumer holds: its next step raises LeaseLost.
        """
        return await finished(self.threads.start(self.blocking.cancel, ids, inflight=inflight))

    async def purge(self, state: State, age: float = 0.0) -> int:
        """Remove every message that has been in this state for `age` seconds."""
        return await self.threads(self.blocking.purge, state, age)

    async def create(
        self, policy: Policy | None = None, *, attached: Mapping[str, Mapping[str, Any]] | None = None
    ) -> bool:
        """Make this queue before its first message, with a policy and documents of applications (see `attach`).

        Return whether it was not there; if it was, nothing is changed.
        """
        return await self.threads(partial(self.blocking.create, policy, attached=attached))

    async def delete(self, *, force: bool = False) -> int:
        """Remove this queue with its policy; return how many messages were removed."""
        return await self.threads(self.blocking.delete, force=force)

    async def sweep(self) -> int:
        """Judge expired leases and messages, remove old tombstones and dead letters; return how many were judged."""
        return await self.threads(self.blocking.sweep)

    # Policy

    async def policy(self) -> Policy:
        """Return the effective policy."""
        return await self.threads(lambda: self.blocking.policy)

    async def configure(self, policy: Policy) -> None:
        """Give this queue a policy, for all its users."""
        await self.threads(self.blocking.configure, policy)

    async def update_policy(self, **changes: Unpack[PolicyChanges]) -> Policy:
        """Change the named fields of the policy as it is now, and nothing else; return the new policy."""
        return await self.threads(partial(self.blocking.update_policy, **changes))

    async def attached(self, name: str) -> Mapping[str, Any]:
        """Return the document that an application keeps with this queue; empty if there is none."""
        return await self.threads(self.blocking.attached, name)

    async def attach(self, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Change the document that an application keeps with this queue, in a thread."""
        await self.threads(self.blocking.attach, name, change)

    async def ensure_policy(self, policy: Policy) -> None:
        """Give this queue a policy if it has none, another one, or one that cannot be read."""
        await self.threads(self.blocking.ensure_policy, policy)

    async def paused(self) -> bool:
        """Return whether an operator has paused this queue: then no message is leased."""
        return await self.threads(lambda: self.blocking.paused)

    async def pause(self) -> None:
        """Stop all leasing from this queue until it is resumed; publishing continues."""
        await self.threads(self.blocking.pause)

    async def resume(self) -> None:
        await self.threads(self.blocking.resume)


def _lost(receipts: Sequence[Receipt], outcomes: Sequence[Outcome]) -> list[Receipt]:
    return [receipt for receipt, outcome in zip(receipts, outcomes, strict=True) if outcome is Outcome.LOST]


def result_of(ended: Future[list[T]] | asyncio.Future[list[T]]) -> list[T]:
    """Return what a call has given, or nothing if it failed or was cancelled."""
    return [] if ended.cancelled() or ended.exception() is not None else ended.result()
