"""The actions of SQS, each a few calls of `pabal.aio`. It keeps nothing but what it has read of queues a second ago."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, TypeVar
from urllib.parse import unquote, urlsplit

import pabal.aio
from pabal.clock import Clock
from pabal.errors import LeaseLost, NameTaken, PabalError
from pabal.gateway.sqs import attributes, messages, requests
from pabal.gateway.sqs.errors import SqsError, error_of, invalid_value, no_queue
from pabal.gateway.sqs.moves import MoveTasks, Note, handle_of_task, task_in
from pabal.gateway.sqs.requests import (
    DeleteEntry,
    NewMessage,
    SendEntry,
    VisibilityEntry,
)
from pabal.message import replace
from pabal.policy.policy import Policy
from pabal.store import Receipt, State

ATTACHED = "sqs"  # the name of our document with a queue
_FRESH = 1.0  # seconds for which what was read of a queue is believed
_BATCH = 10
_LONGEST = 43_200  # seconds of a lease
_PURGE_PAUSE = 60  # seconds between two purges of a queue
_PAGE = 1000
_ENTRY_ID = re.compile("[A-Za-z0-9_-]{1,80}")
_LABEL = re.compile("[A-Za-z0-9_-]{1,80}")
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

Result = dict[str, Any] | None
Entry = TypeVar("Entry", SendEntry, DeleteEntry, VisibilityEntry)


class Caller(NamedTuple):
    """Who asks, and where: what answers need of a request."""

    base: str  # http://host:port, as the client calls us
    region: str = "us-east-1"
    name: str = ""
    allows: Callable[[str, str], bool] = lambda action, queue: True


class Known(NamedTuple):
    """What was read of a queue, and when."""

    queue: pabal.aio.Queue
    policy: Policy
    document: Mapping[str, Any]
    at: float

    @property
    def fifo(self) -> bool:
        return self.queue.name.endswith(".fifo")

    def number(self, name: str, default: int = 0) -> int:
        return int(self.document.get("attributes", {}).get(name, default))


class Service:
    """Serves the actions over one connection."""

    def __init__(self, mq: pabal.aio.Connection, clock: Clock) -> None:
        self._mq = mq
        self._clock = clock
        self._moves = MoveTasks(mq, clock)
        self._known: dict[str, Known] = {}
        self._names: frozenset[str] = frozenset()
        self._named_at = float("-inf")
        self._actions: dict[str, tuple[type[Any], Callable[[Any, Caller], Awaitable[Result]]]] = {
            "AddPermission": (requests.AddPermission, self.add_permission),
            "CancelMessageMoveTask": (requests.CancelMessageMoveTask, self.cancel_move),
            "ChangeMessageVisibility": (requests.ChangeMessageVisibility, self.change_visibility),
            "ChangeMessageVisibilityBatch": (requests.ChangeMessageVisibilityBatch, self.change_visibility_batch),
            "CreateQueue": (requests.CreateQueue, self.create_queue),
            "DeleteMessage": (requests.DeleteMessage, self.delete_message),
            "DeleteMessageBatch": (requests.DeleteMessageBatch, self.delete_message_batch),
            "DeleteQueue": (requests.OfQueue, self.delete_queue),
            "GetQueueAttributes": (requests.GetQueueAttributes, self.get_attributes),
            "GetQueueUrl": (requests.GetQueueUrl, self.get_url),
            "ListDeadLetterSourceQueues": (requests.ListDeadLetterSourceQueues, self.list_sources),
            "ListMessageMoveTasks": (requests.ListMessageMoveTasks, self.list_moves),
            "ListQueueTags": (requests.OfQueue, self.list_tags),
            "ListQueues": (requests.ListQueues, self.list_queues),
            "PurgeQueue": (requests.OfQueue, self.purge),
            "ReceiveMessage": (requests.ReceiveMessage, self.receive),
            "RemovePermission": (requests.RemovePermission, self.remove_permission),
            "SendMessage": (requests.SendMessage, self.send),
            "SendMessageBatch": (requests.SendMessageBatch, self.send_batch),
            "SetQueueAttributes": (requests.SetQueueAttributes, self.set_attributes),
            "StartMessageMoveTask": (requests.StartMessageMoveTask, self.start_move),
            "TagQueue": (requests.TagQueue, self.tag),
            "UntagQueue": (requests.UntagQueue, self.untag),
        }

    async def call(self, action: str, given: dict[str, Any], caller: Caller) -> Result:
        """Do one action; raise the SqsError that refuses it."""
        if action not in self._actions:
            raise SqsError("InvalidAction", f"The action {action} is not valid for this endpoint.")
        kind, act = self._actions[action]
        asked = requests.read(kind, given)
        for need, queue in _needs(action, asked):
            if not caller.allows(need, queue):
                what = f"{need} on {queue}" if queue else need
                raise SqsError("AccessDeniedException", f"The key of this request may not do {what}.")
        try:
            return await act(asked, caller)
        except PabalError as exc:
            raise error_of(exc) from exc

    # Queues

    async def create_queue(self, asked: requests.CreateQueue, caller: Caller) -> Result:
        fifo = asked.attributes.get("FifoQueue") == "true"
        attributes.check_queue_name(asked.queue_name, fifo=fifo)
        attributes.check_attributes(asked.attributes, fifo=fifo)
        policy = replace(attributes.new_policy(), **attributes.policy_changes(asked.attributes))
        await self._check_redrive(policy, fifo)
        stamp = int(self._clock.now())
        document = {"attributes": dict(asked.attributes), "CreatedTimestamp": stamp, "LastModifiedTimestamp": stamp}
        if asked.tags:
            document["tags"] = dict(asked.tags)
        self._forget(asked.queue_name)
        try:
            made = await self._mq.queue(asked.queue_name).create(policy, attached={ATTACHED: document})
        except NameTaken as exc:
            raise SqsError("QueueNameExists", f"{exc}: names differ in more than case here") from exc
        if not made:
            known = await self._look(asked.queue_name)
            now = attributes.attributes_of(known.policy, known.document, caller.region)
            for name, value in asked.attributes.items():
                if not _same(name, now.get(name, ""), value):
                    raise SqsError(
                        "QueueNameExists",
                        f"A queue already exists with the same name and a different value for attribute {name}",
                    )
        return {"QueueUrl": self._url(asked.queue_name, caller)}

    async def _check_redrive(self, policy: Policy, fifo: bool) -> None:
        redrive = attributes.redrive_of(policy)
        if redrive is None:
            return
        if redrive.queue not in await self._queue_names():
            reason = "Dead letter target does not exist."
            raise invalid_value("RedrivePolicy", redrive.queue, reason)
        if redrive.queue.endswith(".fifo") != fifo:
            reason = "Dead-letter queue must be same type of queue as the source."
            raise invalid_value("RedrivePolicy", redrive.queue, reason)

    async def get_url(self, asked: requests.GetQueueUrl, caller: Caller) -> Result:
        await self._look(asked.queue_name)
        return {"QueueUrl": self._url(asked.queue_name, caller)}

    async def list_queues(self, asked: requests.ListQueues, caller: Caller) -> Result:
        self._forget_names()
        found = [name for name in await self._queue_names() if name.startswith(asked.queue_name_prefix)]
        names = sorted(name for name in found if caller.allows("ListQueues", name))
        return self._page(names, asked.next_token, asked.max_results, "QueueUrls", caller)

    async def list_sources(self, asked: requests.ListDeadLetterSourceQueues, caller: Caller) -> Result:
        sources = await self._sources((await self._of(asked.queue_url)).queue.name)
        found = [name for name in sources if caller.allows("ListDeadLetterSourceQueues", name)]
        page = self._page(found, asked.next_token, asked.max_results, "queueUrls", caller) or {}
        return {"queueUrls": [], **page}

    def _page(self, names: list[str], token: str, most: int | None, key: str, caller: Caller) -> Result:
        if most is not None and not 1 <= most <= _PAGE:
            raise invalid_value("MaxResults", most, "Value must be between 1 and 1000.")
        names = [name for name in names if name > token]
        page = names[: most or _PAGE]
        found: dict[str, Any] = {key: [self._url(name, caller) for name in page]} if page else {}
        if len(names) > len(page) and most is not None:
            found["NextToken"] = page[-1]
        return found

    async def delete_queue(self, asked: requests.OfQueue, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        await known.queue.delete(force=True)
        self._forget(known.queue.name)
        return None

    async def purge(self, asked: requests.OfQueue, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        now = self._clock.now()

        def note(document: Mapping[str, Any]) -> Mapping[str, Any]:
            if now - document.get("purgedAt", 0) < _PURGE_PAUSE:
                raise SqsError(
                    "PurgeQueueInProgress",
                    f"Only one PurgeQueue operation on {known.queue.name} is allowed every 60 seconds.",
                )
            return {**document, "purgedAt": now}

        await known.queue.attach(ATTACHED, note)
        for state in (State.READY, State.DELAYED):
            await known.queue.purge(state)
        held = [entry.id async for entry in known.queue.entries(State.INFLIGHT)]
        await known.queue.cancel(held, inflight=True)
        return None

    async def get_attributes(self, asked: requests.GetQueueAttributes, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        wanted = set(asked.attribute_names)
        if unknown := wanted - attributes.SETTABLE - attributes.READ_ONLY - {"All"}:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {min(unknown)}.")
        if not wanted:
            return {}
        found = attributes.attributes_of(known.policy, known.document, caller.region)
        found["QueueArn"] = attributes.arn_of(known.queue.name, caller.region)
        if wanted & {*attributes.COUNTED, "All"}:
            counts = await known.queue.counts()
            states = (State.READY, State.DELAYED, State.INFLIGHT)
            found |= {name: str(counts[state]) for name, state in zip(attributes.COUNTED, states, strict=True)}
        shown = found if "All" in wanted else {name: value for name, value in found.items() if name in wanted}
        return {"Attributes": shown} if shown else {}

    async def set_attributes(self, asked: requests.SetQueueAttributes, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        given = asked.attributes
        attributes.check_attributes(given, fifo=known.fifo)
        if given.get("FifoQueue", "true") != "true":
            raise SqsError("InvalidAttributeValue", "Invalid value for the parameter FifoQueue.")
        changes = attributes.policy_changes(given)
        await self._check_redrive(replace(known.policy, **changes), known.fifo)
        if changes:
            await known.queue.update_policy(**changes)
        stamp = int(self._clock.now())

        def change(document: Mapping[str, Any]) -> Mapping[str, Any]:
            merged = {**document.get("attributes", {}), **given}
            return {**document, "attributes": merged, "LastModifiedTimestamp": stamp}

        await known.queue.attach(ATTACHED, change)
        self._forget(known.queue.name)
        return None

    async def tag(self, asked: requests.TagQueue, caller: Caller) -> Result:
        await self._change(asked.queue_url, "tags", lambda tags: {**tags, **asked.tags})
        return None

    async def untag(self, asked: requests.UntagQueue, caller: Caller) -> Result:
        def change(tags: Mapping[str, Any]) -> Mapping[str, Any]:
            return {key: value for key, value in tags.items() if key not in asked.tag_keys}

        await self._change(asked.queue_url, "tags", change)
        return None

    async def list_tags(self, asked: requests.OfQueue, caller: Caller) -> Result:
        tags = (await self._of(asked.queue_url)).document.get("tags")
        return {"Tags": tags} if tags else {}

    async def add_permission(self, asked: requests.AddPermission, caller: Caller) -> Result:
        if not _LABEL.fullmatch(asked.label):
            raise invalid_value(
                "Label", asked.label, "Can only include alphanumeric characters, hyphens, or underscores."
            )
        given = {"accounts": asked.account_ids, "actions": asked.actions}

        def change(permissions: Mapping[str, Any]) -> Mapping[str, Any]:
            if asked.label in permissions:
                raise invalid_value("Label", asked.label, "Already exists.")
            return {**permissions, asked.label: given}

        await self._change(asked.queue_url, "permissions", change)
        return None

    async def remove_permission(self, asked: requests.RemovePermission, caller: Caller) -> Result:
        def change(permissions: Mapping[str, Any]) -> Mapping[str, Any]:
            if asked.label not in permissions:
                raise invalid_value("Label", asked.label, "can't find label on existing policy.")
            return {label: value for label, value in permissions.items() if label != asked.label}

        await self._change(asked.queue_url, "permissions", change)
        return None

    async def _change(self, url: str, part: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        known = await self._of(url)
        await known.queue.attach(ATTACHED, lambda document: {**document, part: change(document.get(part, {}))})
        self._forget(known.queue.name)

    # Messages

    async def send(self, asked: requests.SendMessage, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        messages.check_new(asked, most=_most(known), fifo=known.fifo)
        return await self._publish(known, asked, caller)

    async def send_batch(self, asked: requests.SendMessageBatch, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        _check_batch(asked.entries, "SendMessageBatch")
        total = sum(map(messages.size_of, asked.entries))
        if total > attributes.LARGEST:
            raise SqsError(
                "BatchRequestTooLong",
                f"Batch requests cannot be longer than {attributes.LARGEST} bytes. You have sent {total} bytes.",
            )

        async def one(entry: SendEntry) -> dict[str, Any]:
            messages.check_new(entry, most=_most(known), fifo=known.fifo)
            return await self._publish(known, entry, caller)

        return await _each(asked.entries, one)

    async def _publish(self, known: Known, asked: NewMessage, caller: Caller) -> dict[str, Any]:
        delay = known.number("DelaySeconds") if asked.delay_seconds is None else asked.delay_seconds
        published = await known.queue.publish(
            asked.message_body,
            attributes=messages.attributes_in(asked.message_attributes) or None,
            headers=messages.headers_in(asked) or None,
            sender=caller.name or None,
            group=asked.message_group_id,
            dedup_key=_dedup_key(known, asked),
            delay=delay or None,
        )
        answer = {"MessageId": published.id, "MD5OfMessageBody": messages.md5_of(asked.message_body)}
        if asked.message_attributes:
            answer["MD5OfMessageAttributes"] = messages.md5_of_attributes(asked.message_attributes)
        if asked.message_system_attributes:
            answer["MD5OfMessageSystemAttributes"] = messages.md5_of_attributes(asked.message_system_attributes)
        return answer

    async def receive(self, asked: requests.ReceiveMessage, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
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
        found = await known.queue.lease(
            asked.max_number_of_messages,
            visibility=None if asked.visibility_timeout is None else max(0.001, float(asked.visibility_timeout)),
            wait=float(known.number("ReceiveMessageWaitTimeSeconds") if wait is None else wait),
        )
        shown = [_shown(delivery, wanted, asked.message_attribute_names, caller, self._clock) for delivery in found]
        return {"Messages": shown} if shown else {}

    async def delete_message(self, asked: requests.DeleteMessage, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        await self._delete(known, messages.receipt_of(asked.receipt_handle, known.queue.name))
        return None

    async def delete_message_batch(self, asked: requests.DeleteMessageBatch, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        _check_batch(asked.entries, "DeleteMessageBatch")

        async def one(entry: DeleteEntry) -> dict[str, Any]:
            await self._delete(known, messages.receipt_of(entry.receipt_handle, known.queue.name))
            return {}

        return await _each(asked.entries, one)

    async def _delete(self, known: Known, receipt: Receipt) -> None:
        """An old handle deletes too, from a standard queue: also a message that another consumer has received since."""
        try:
            await known.queue.ack(receipt)
        except LeaseLost:
            entry = await known.queue.find(receipt.id)
            if entry is None or entry.state is State.DONE:
                return
            if known.fifo:
                reason = "The receipt handle has expired."
                raise invalid_value("ReceiptHandle", messages.handle_of(receipt), reason) from None
            await known.queue.cancel([receipt.id], inflight=True)

    async def change_visibility(self, asked: requests.ChangeMessageVisibility, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        await self._hide(known, asked.receipt_handle, asked.visibility_timeout)
        return None

    async def change_visibility_batch(self, asked: requests.ChangeMessageVisibilityBatch, caller: Caller) -> Result:
        known = await self._of(asked.queue_url)
        _check_batch(asked.entries, "ChangeMessageVisibilityBatch")

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

    # Move tasks

    async def start_move(self, asked: requests.StartMessageMoveTask, caller: Caller) -> Result:
        source = await self._of_arn(asked.source_arn)
        rate = asked.max_number_of_messages_per_second
        if rate is not None and not 1 <= rate <= 500:
            raise invalid_value("MaxNumberOfMessagesPerSecond", rate, "Value must be between 1 and 500.")
        target = ""
        if asked.destination_arn:
            target = (await self._of_arn(asked.destination_arn)).queue.name
        elif not await self._sources(source.queue.name):
            raise SqsError("InvalidParameterValueException", "Source queue must be configured as a Dead Letter Queue.")
        handle = await self._moves.start(source.queue, target, rate, self._note(source))
        return {"TaskHandle": handle}

    async def list_moves(self, asked: requests.ListMessageMoveTasks, caller: Caller) -> Result:
        source = await self._of_arn(asked.source_arn)
        if not 1 <= asked.max_results <= 10:
            raise invalid_value("MaxResults", asked.max_results, "Value must be between 1 and 10.")
        document = await source.queue.attached(ATTACHED)
        shown = []
        for task in self._moves.shown(document)[: asked.max_results]:
            about: dict[str, Any] = {
                "Status": task["status"],
                "SourceArn": asked.source_arn,
                "ApproximateNumberOfMessagesMoved": task["moved"],
                "ApproximateNumberOfMessagesToMove": task["toMove"],
                "StartedTimestamp": round(task["startedAt"] * 1000),
            }
            if task["status"] == "RUNNING":
                about["TaskHandle"] = handle_of_task(source.queue.name, task["id"])
            if task["target"]:
                about["DestinationArn"] = attributes.arn_of(task["target"], caller.region)
            if task["rate"]:
                about["MaxNumberOfMessagesPerSecond"] = task["rate"]
            if task.get("reason"):
                about["FailureReason"] = task["reason"]
            shown.append(about)
        return {"Results": shown} if shown else {}

    async def cancel_move(self, asked: requests.CancelMessageMoveTask, caller: Caller) -> Result:
        name, id = task_in(asked.task_handle)
        try:
            source = await self._look(name)
        except SqsError as exc:
            raise SqsError("ResourceNotFoundException", "Task does not exist.") from exc
        return {"ApproximateNumberOfMessagesMoved": await self._moves.cancel(id, self._note(source))}

    async def close(self) -> None:
        """End what goes on in the background."""
        await self._moves.close()

    def _note(self, known: Known) -> Note:
        return partial(known.queue.attach, ATTACHED)

    async def _of_arn(self, arn: str) -> Known:
        try:
            return await self._look(attributes.name_in_arn(arn))
        except SqsError as exc:
            if exc.shape != "QueueDoesNotExist":
                raise
            raise SqsError(
                "ResourceNotFoundException",
                "The resource that you specified for the SourceArn parameter doesn't exist.",
            ) from exc

    async def _sources(self, target: str) -> list[str]:
        """Return the queues whose messages move to this one."""
        found = []
        for name in sorted(await self._queue_names()):
            redrive = attributes.redrive_of((await self._look(name)).policy)
            if redrive is not None and redrive.queue == target:
                found.append(name)
        return found

    # What is known of queues

    async def _of(self, url: str) -> Known:
        """Return what is known of the queue of a URL."""
        name = queue_in(url)
        if not name:
            raise SqsError("InvalidAddress", f"The address {url:.200} is not valid for this endpoint.")
        return await self._look(name)

    async def _look(self, name: str) -> Known:
        known = self._known.get(name)
        now = self._clock.boot()
        if known is not None and now - known.at < _FRESH:
            return known
        if name not in await self._queue_names():
            self._known.pop(name, None)
            raise no_queue()
        queue = self._mq.queue(name)
        policy, document = await self._mq.threads(lambda: (queue.blocking.policy, queue.blocking.attached(ATTACHED)))
        if len(self._known) > _PAGE:
            self._known.clear()
        self._known[name] = known = Known(queue, policy, document, now)
        return known

    async def _queue_names(self) -> frozenset[str]:
        now = self._clock.boot()
        if now - self._named_at >= _FRESH:
            self._names, self._named_at = frozenset(await self._mq.queues()), now
        return self._names

    def _forget(self, name: str) -> None:
        self._known.pop(name, None)
        self._forget_names()

    def _forget_names(self) -> None:
        self._named_at = float("-inf")

    def _url(self, name: str, caller: Caller) -> str:
        return f"{caller.base}/{attributes.ACCOUNT}/{name}"


def queue_in(url: str) -> str:
    """Return the name of the queue that a URL of a queue ends with."""
    try:
        return unquote(urlsplit(url).path.rstrip("/").rpartition("/")[2])
    except ValueError as exc:
        raise SqsError("InvalidAddress", f"The address {url:.200} is not valid for this endpoint.") from exc


def _needs(action: str, asked: Any) -> Iterator[tuple[str, str]]:
    """Yield every right that a request needs: an action, and the queue that it names in whatever way."""
    named = False
    for field in ("queue_url", "queue_name", "source_arn", "task_handle"):
        if given := getattr(asked, field, ""):
            named = True
            yield action, _NAMES[field](given)
    if not named:
        yield action, ""
    if action == "StartMessageMoveTask":  # it takes from one queue and sends to another
        yield "ReceiveMessage", attributes.name_in_arn(asked.source_arn)
        if asked.destination_arn:
            yield "SendMessage", attributes.name_in_arn(asked.destination_arn)
    given = getattr(asked, "attributes", {})
    with suppress(SqsError):  # one that cannot be read is refused as a wrong value
        if isinstance(given, dict) and (redrive := attributes.redrive_in(given.get("RedrivePolicy", ""))):
            yield "SendMessage", redrive.queue


_NAMES: Mapping[str, Callable[[str], str]] = {
    "queue_url": queue_in,
    "queue_name": str,
    "source_arn": attributes.name_in_arn,
    "task_handle": lambda handle: task_in(handle)[0],
}


def _same(name: str, now: str, asked: str) -> bool:
    """Return whether an attribute that is asked for is as it is."""
    if name == "RedrivePolicy":
        redrive = attributes.redrive_in(asked)
        return (attributes.redrive_in(now) if now else None) == redrive
    return now == asked


def _most(known: Known) -> int:
    return known.number("MaximumMessageSize", min(known.policy.max_bytes, attributes.LARGEST))


def _dedup_key(known: Known, asked: NewMessage) -> str | None:
    if not known.fifo:
        return None
    key = asked.message_deduplication_id
    settings = known.document.get("attributes", {})
    if key is None:
        if settings.get("ContentBasedDeduplication") != "true":
            raise SqsError(
                "InvalidParameterValueException",
                "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided"
                " explicitly",
            )
        key = messages.content_key(asked.message_body)
    if settings.get("DeduplicationScope") != "messageGroup":
        return key
    group = asked.message_group_id or ""
    return messages.content_key(f"{len(group)}:{group}{key}")  # no two groups have one in common


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
    answers = await asyncio.gather(*map(act, entries), return_exceptions=True)
    successful, failed = [], []
    for entry, answer in zip(entries, answers, strict=True):
        if isinstance(answer, PabalError):
            answer = error_of(answer)
        if isinstance(answer, SqsError):
            about = {"SenderFault": answer.by_sender, "Code": answer.code, "Message": answer.message}
            failed.append({"Id": entry.id, **about})
        elif isinstance(answer, BaseException):
            raise answer
        else:
            successful.append({"Id": entry.id, **answer})
    found: dict[str, Any] = {"Successful": successful} if successful else {}
    return found | {"Failed": failed} if failed else found


def _shown(
    delivery: pabal.aio.Delivery, wanted: set[str], names: Sequence[str], caller: Caller, clock: Clock
) -> dict[str, Any]:
    """Return a delivery as SQS shows a message."""
    message = delivery.message
    body = messages.body_out(message)
    shown: dict[str, Any] = {
        "MessageId": messages.id_out(message),
        "ReceiptHandle": messages.handle_of(delivery.receipt),
        "MD5OfBody": messages.md5_of(body),
        "Body": body,
    }
    system = messages.system_attributes(delivery, caller.region, clock.now()) if wanted else {}
    if system := {name: value for name, value in system.items() if name in wanted or "All" in wanted}:
        shown["Attributes"] = system
    if attributes_asked := messages.chosen(messages.attributes_out(message), names):
        shown["MD5OfMessageAttributes"] = messages.md5_of_attributes(attributes_asked)
        shown["MessageAttributes"] = messages.as_given(attributes_asked)
    return shown
