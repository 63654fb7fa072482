"""The actions of SQS on messages: send, receive, delete, change how long they are hidden, and look at them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain
from typing import Any, TypeVar

import pabal.aio
from pabal.clock import Clock
from pabal.errors import LeaseLost, PabalError
from pabal.gateway.sqs import attributes, messages, requests
from pabal.gateway.sqs.directory import Caller, Directory, Known, Result
from pabal.gateway.sqs.errors import SqsError, error_of, invalid_value
from pabal.gateway.sqs.requests import DeleteEntry, NewMessage, SendEntry, VisibilityEntry
from pabal.message import Message
from pabal.store import Entry as StoredEntry
from pabal.store import Published, Receipt, State

_BATCH = 10
_LONGEST = 43_200  # seconds of a lease
_REPEATED = 300.0  # seconds for which a receive can be repeated
_ATTEMPTS = 10_000  # ids of receives that are remembered
_TOKEN = 32  # characters of the lease token of a receive that may be repeated
_LOOKED_AT = 1000  # messages that a look shows at most
_LOOKED_BYTES = 4 << 20  # of their bodies
_NO_HANDLE = "look"  # of a message that was only looked at: SDKs expect one, and it settles nothing
_ENTRY_ID = re.compile("[A-Za-z0-9_-]{1,80}")
_SYSTEM = {
    "All",
    "SenderId",
    "SentTimestamp",
    "ApproximateReceiveCount",
    "ApproximateFirstReceiveTimestamp",
    "SequenceNumber",
    "MessageDeduplicationId",
    "MessageGroupId",
    "AWSTraceHeader",
    "DeadLetterQueueSourceArn",
}
_OF_A_LOOK = _SYSTEM - {"All", "ApproximateFirstReceiveTimestamp"}  # the store keeps no time of a receive

Entry = TypeVar("Entry", SendEntry, DeleteEntry, VisibilityEntry)


class MessageActions:
    """What clients do with messages."""

    def __init__(self, queues: Directory, clock: Clock) -> None:
        self._queues = queues
        self._clock = clock
        self._attempts = Attempts(clock)

    async def send(self, asked: requests.SendMessage, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        options = _options(known, asked, caller)
        return _sent(known, asked, await known.queue.publish(asked.message_body, **options))

    async def send_batch(self, asked: requests.SendMessageBatch, caller: Caller) -> Result:
        """Store all entries that can be stored in one commit, in their order."""
        known = await self._queues.of(asked.queue_url)
        _check_batch(asked.entries, "SendMessageBatch")
        total = sum(map(messages.size_of, asked.entries))
        if total > attributes.LARGEST:
            raise SqsError(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {attributes.LARGEST} bytes. You have sent {total} bytes.",
            )
        answers: dict[str, dict[str, Any] | BaseException] = {}
        good: list[tuple[SendEntry, dict[str, Any]]] = []
        for entry in asked.entries:
            try:
                good.append((entry, _options(known, entry, caller)))
            except SqsError as exc:
                answers[entry.id] = exc
        if good:
            for (entry, _), answer in zip(good, await self._publish(known, good), strict=True):
                answers[entry.id] = _sent(known, entry, answer)
        return _answered(asked.entries, [answers[entry.id] for entry in asked.entries])

    async def _publish(self, known: Known, entries: Sequence[tuple[SendEntry, dict[str, Any]]]) -> list[Published]:
        options = entries[0][1]
        if not known.fifo and all(each == options for _, each in entries):  # as usual: drafted in the call that stores
            shared = {name: value for name, value in options.items() if name != "dedup_key"}
            return await known.queue.publish_many([entry.message_body for entry, _ in entries], **shared)
        draft = known.queue.blocking.draft
        drafts = await self._queues.mq.threads(lambda: [draft(entry.message_body, **each) for entry, each in entries])
        return await known.queue.publish_many(drafts)

    async def receive(self, asked: requests.ReceiveMessage, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        if not 1 <= asked.max_number_of_messages <= _BATCH:
            raise invalid_value(
                "MaxNumberOfMessages", asked.max_number_of_messages, "Must be between 1 and 10, if provided."
            )
        wait = asked.wait_time_seconds
        if wait is not None and not 0 <= wait <= 20:
            raise invalid_value("WaitTimeSeconds", wait, "Must be >= 0 and <= 20, if provided.")
        _check_visibility(asked.visibility_timeout)
        wanted = {*asked.attribute_names, *asked.message_system_attribute_names}
        if unknown := wanted - _SYSTEM:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {min(unknown)}.")
        visibility = None if asked.visibility_timeout is None else max(0.001, float(asked.visibility_timeout))
        token = self._attempts.token(asked, known) if known.fifo else ""
        wait = known.number("ReceiveMessageWaitTimeSeconds") if wait is None else wait
        leasing = known.queue.lease(
            asked.max_number_of_messages, visibility=visibility, wait=float(wait), successive=known.fifo, token=token
        )
        found: list[pabal.aio.Delivery] = await (caller.waiting(leasing) if wait else leasing)
        if found and not token and caller.gone():
            await asyncio.gather(*(delivery.release(counted=False) for delivery in found))
            return {}
        if token:  # a repeated receive gives the same messages, for the whole time again
            seconds = known.policy.visibility if visibility is None else visibility
            held = await asyncio.gather(*(_extend(known.queue, each.receipt, seconds) for each in found))
            found = [each for each, is_held in zip(found, held, strict=True) if is_held]
        names = asked.message_attribute_names
        shown = [_shown(each, each.message, wanted, names, caller, self._clock) for each in found]
        for answer, each in zip(shown, found, strict=True):
            answer["ReceiptHandle"] = str(each.receipt)
        return {"Messages": shown} if shown else {}

    async def delete_message(self, asked: requests.DeleteMessage, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        receipt = messages.receipt_of(asked.receipt_handle, known.queue.name)
        for error in (await self._delete(known, [receipt])).values():
            raise error
        return None

    async def delete_message_batch(self, asked: requests.DeleteMessageBatch, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        _check_batch(asked.entries, "DeleteMessageBatch")
        answers: dict[str, dict[str, Any] | BaseException] = {entry.id: {} for entry in asked.entries}
        receipts: dict[str, Receipt] = {}
        for entry in asked.entries:
            try:
                receipts[entry.id] = messages.receipt_of(entry.receipt_handle, known.queue.name)
            except SqsError as exc:
                answers[entry.id] = exc
        errors = await self._delete(known, list(dict.fromkeys(receipts.values())))
        answers |= {id: errors[receipt] for id, receipt in receipts.items() if receipt in errors}
        return _answered(asked.entries, [answers[entry.id] for entry in asked.entries])

    async def _delete(self, known: Known, receipts: Sequence[Receipt]) -> dict[Receipt, SqsError]:
        """Delete messages; return the errors of those that cannot be.

        An old handle deletes too, from a standard queue: also a message that another consumer has received since.
        """
        await self._end_old_leases(known)
        errors: dict[Receipt, SqsError] = {}
        try:
            await known.queue.ack_many(receipts)
        except LeaseLost as exc:
            for receipt in receipts:
                if str(receipt) in exc.receipts and (error := await self._delete_old(known, receipt)):
                    errors[receipt] = error
        return errors

    async def _end_old_leases(self, known: Known) -> None:
        """Let no handle of a FIFO queue count after its time, whether or not another consumer has come."""
        if known.fifo:
            await self._queues.mq.threads(known.queue.blocking.settler.judge_expired)

    async def _delete_old(self, known: Known, receipt: Receipt) -> SqsError | None:
        entry = await known.queue.find(receipt.id)
        if entry is None or entry.state is State.DONE:
            return None
        if known.fifo:
            return invalid_value("ReceiptHandle", receipt, "The receipt handle has expired.")
        await known.queue.cancel([receipt.id], inflight=True)
        return None

    async def change_visibility(self, asked: requests.ChangeMessageVisibility, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        await self._end_old_leases(known)
        await self._hide(known, asked.receipt_handle, asked.visibility_timeout)
        return None

    async def change_visibility_batch(self, asked: requests.ChangeMessageVisibilityBatch, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        _check_batch(asked.entries, "ChangeMessageVisibilityBatch")
        await self._end_old_leases(known)

        async def one(entry: VisibilityEntry) -> dict[str, Any]:
            await self._hide(known, entry.receipt_handle, entry.visibility_timeout)
            return {}

        return await _each(asked.entries, one)

    async def _hide(self, known: Known, handle: str, seconds: int) -> None:
        _check_visibility(seconds)
        receipt = messages.receipt_of(handle, known.queue.name)
        try:
            if seconds:
                await known.queue.extend(receipt, float(seconds))
            else:
                await known.queue.nack(receipt, delay=0.0)  # the policy says whether it may come again
        except LeaseLost:
            entry = await known.queue.find(receipt.id)
            if entry is None or entry.state is State.DONE:
                reason = "Message does not exist or is not available for visibility timeout change."
            elif entry.state is State.INFLIGHT:
                reason = "The receipt handle has expired."
            else:
                raise SqsError("MessageNotInflight", "The message referred to isn't in flight.") from None
            raise invalid_value("ReceiptHandle", handle, reason) from None

    async def look(self, name: str, states: Sequence[State], caller: Caller) -> Result:
        """Return the first messages of a queue as a receive would, without leasing them."""
        queue = (await self._queues.look(name)).queue.blocking

        def read() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            room = _LOOKED_BYTES
            for entry in chain.from_iterable(map(queue.entries, states)):
                if entry.message is None:
                    continue
                shown = _shown(entry, entry.message, _OF_A_LOOK, ["All"], caller, self._clock)
                room -= len(shown["Body"])
                if found and room < 0:
                    break
                found.append({**shown, "ReceiptHandle": _NO_HANDLE})
                if len(found) == _LOOKED_AT:
                    break
            return found

        shown = await self._queues.mq.threads(read)
        return {"Messages": shown} if shown else {}


async def _extend(queue: pabal.aio.Queue, receipt: Receipt, seconds: float) -> bool:
    """Extend a lease; return False if another request has settled it meanwhile."""
    try:
        await queue.extend(receipt, seconds)
    except LeaseLost:
        return False
    return True


def _most(known: Known) -> int:
    return known.number("MaximumMessageSize", min(known.policy.max_bytes, attributes.LARGEST))


def _options(known: Known, asked: NewMessage, caller: Caller) -> dict[str, Any]:
    """Check a message to be sent; return what the library publishes beside its body."""
    messages.check_new(asked, most=_most(known), fifo=known.fifo)
    delay = asked.delay_seconds
    if delay is None or (known.fifo and not delay):
        delay = known.number("DelaySeconds")
    key, headers = _dedup_key(known, asked) if known.fifo else None, messages.headers_in(asked)
    if known.fifo:
        headers[messages.DEDUPLICATION_ID] = key or ""  # which also a message shows that was moved
        if known.setting("DeduplicationScope") == "messageGroup":
            key = messages.content_key(f"{len(asked.message_group_id or '')}:{asked.message_group_id}{key}")
    elif asked.message_group_id is not None:  # it tells tenants apart there, and orders nothing
        headers[messages.GROUP_ID] = asked.message_group_id
    return {
        "attributes": messages.attributes_in(asked.message_attributes) or None,
        "headers": headers or None,
        "sender": caller.name or None,
        "group": asked.message_group_id if known.fifo else None,
        "dedup_key": key,
        "delay": delay or None,
    }


def _dedup_key(known: Known, asked: NewMessage) -> str:
    if asked.message_deduplication_id is not None:
        return asked.message_deduplication_id
    if known.setting("ContentBasedDeduplication") != "true":
        raise SqsError(
            "InvalidParameterValueException",
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided"
            " explicitly",
        )
    return messages.content_key(asked.message_body)


def _sent(known: Known, asked: NewMessage, published: Published) -> dict[str, Any]:
    """Return the answer for a message that was sent."""
    answer = {"MessageId": published.id, "MD5OfMessageBody": messages.md5_of(asked.message_body)}
    if asked.message_attributes:
        answer["MD5OfMessageAttributes"] = messages.md5_of_attributes(asked.message_attributes)
    if asked.message_system_attributes:
        answer["MD5OfMessageSystemAttributes"] = messages.md5_of_attributes(asked.message_system_attributes)
    if known.fifo:
        answer["SequenceNumber"] = messages.sequence_number(published.id)
    return answer


class Attempts:
    """The receives that clients may repeat: for five minutes one id is one receive, then it is another one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: dict[str, tuple[float, int]] = {}  # by queue and id: when, and how many times before

    def token(self, asked: requests.ReceiveMessage, known: Known) -> str:
        """Return the lease token of a receive, or '' if it has no id. All gateways find the first one of an id."""
        attempt = asked.receive_request_attempt_id
        messages.check_word("ReceiveRequestAttemptId", attempt)
        if not attempt:
            return ""
        name, now = f"{known.queue.name}/{attempt}", self._clock.boot()
        begun, times = self._begun.pop(name, (now, 0))
        if now - begun >= _REPEATED:
            begun, times = now, times + 1
        self._begun[name] = begun, times
        if len(self._begun) > _ATTEMPTS:
            del self._begun[next(iter(self._begun))]
        return messages.content_key(f"{name}/{times}" if times else name)[:_TOKEN]


def _check_visibility(seconds: int | None) -> None:
    if seconds is not None and not 0 <= seconds <= _LONGEST:
        raise invalid_value("VisibilityTimeout", seconds, "VisibilityTimeout must be an integer between 0 and 43200.")


def _check_batch(entries: Sequence[SendEntry | DeleteEntry | VisibilityEntry], action: str) -> None:
    if not entries:
        raise SqsError("EmptyBatchRequest", f"There should be at least one {action}RequestEntry in the request.")
    if len(entries) > _BATCH:
        raise SqsError(
            "TooManyEntriesInBatchRequest",
            f"Maximum number of entries per request are {_BATCH}. You have sent {len(entries)}.",
        )
    seen: set[str] = set()
    for entry in entries:
        if not _ENTRY_ID.fullmatch(entry.id):
            raise SqsError(
                "InvalidBatchEntryId",
                "A batch entry id can only contain alphanumeric characters, hyphens and underscores. It can be at most"
                " 80 letters long.",
            )
        if entry.id in seen:
            raise SqsError("BatchEntryIdsNotDistinct", f"Id {entry.id} repeated.")
        seen.add(entry.id)


async def _each(entries: Sequence[Entry], act: Callable[[Entry], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Act on all entries of a batch at once, so that they share a commit; each has its own answer."""
    return _answered(entries, await asyncio.gather(*map(act, entries), return_exceptions=True))


def _answered(entries: Sequence[Entry], answers: Sequence[dict[str, Any] | BaseException]) -> dict[str, Any]:
    """Return the answer of a batch: what was done, and what was refused."""
    successful, failed = [], []
    for entry, answer in zip(entries, answers, strict=True):
        if isinstance(answer, dict):
            successful.append({"Id": entry.id, **answer})
            continue
        error = error_of(answer) if isinstance(answer, PabalError) else answer
        if not isinstance(error, SqsError):
            raise error
        about = {"SenderFault": error.by_sender, "Code": error.code, "Message": error.message}
        failed.append({"Id": entry.id, **about})
    found: dict[str, Any] = {"Successful": successful} if successful else {}
    return found | {"Failed": failed} if failed else found


def _shown(
    found: pabal.aio.Delivery | StoredEntry,
    message: Message,
    wanted: set[str],
    names: Sequence[str],
    caller: Caller,
    clock: Clock,
) -> dict[str, Any]:
    """Return a message as SQS shows it, but for its receipt handle."""
    body = messages.body_out(message)
    shown: dict[str, Any] = {
        "MessageId": messages.id_out(message),
        "MD5OfBody": messages.md5_of(body),
        "Body": body,
    }
    system = messages.system_attributes(found, message, caller.region, clock.now()) if wanted else {}
    if system := {name: value for name, value in system.items() if name in wanted or "All" in wanted}:
        shown["Attributes"] = system
    if names and (attributes_asked := messages.chosen(messages.attributes_out(message), names)):
        shown["MD5OfMessageAttributes"] = messages.md5_of_attributes(attributes_asked)
        shown["MessageAttributes"] = messages.as_given(attributes_asked)
    return shown
