"""The actions of SQS on queues: make, list, delete, their attributes, tags and permissions, and move tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from pabal.clock import Clock
from pabal.errors import NameTaken
from pabal.gateway.sqs import attributes, requests
from pabal.gateway.sqs.directory import ATTACHED, Caller, Directory, Known, Result, queue_in
from pabal.gateway.sqs.errors import SqsError, invalid_value, missing
from pabal.gateway.sqs.moves import MoveTasks, handle_of_task, task_in
from pabal.message import replace
from pabal.policy.policy import Policy
from pabal.store import State

_PURGE_PAUSE = 60  # seconds between two purges of a queue
_PAGE = 1000
_LABEL = re.compile("[A-Za-z0-9_-]{1,80}")
_ACCOUNT = re.compile("[0-9]{12}")
_MOST_ACTIONS = 7  # of one permission
# What other accounts may be allowed; all else is for the owner of a queue.
_SHARED = {
    "*",
    "ChangeMessageVisibility",
    "DeleteMessage",
    "GetQueueAttributes",
    "GetQueueUrl",
    "ListDeadLetterSourceQueues",
    "PurgeQueue",
    "ReceiveMessage",
    "SendMessage",
}


class QueueActions:
    """What clients do with queues."""

    def __init__(self, queues: Directory, clock: Clock, *, read_only: bool = False) -> None:
        self._queues = queues
        self._clock = clock
        self._read_only = read_only
        self._moves = MoveTasks(queues.mq, clock, ATTACHED)

    async def create_queue(self, asked: requests.CreateQueue, caller: Caller) -> Result:
        fifo = asked.attributes.get("FifoQueue") == "true"
        attributes.check_queue_name(asked.queue_name, fifo=fifo)
        attributes.check_attributes(asked.attributes, fifo=fifo)
        policy = replace(attributes.new_policy(), **attributes.policy_changes(asked.attributes))
        await self._check_redrive(asked.queue_name, policy, fifo)
        stamp = int(self._clock.now())
        document = {"attributes": dict(asked.attributes), "CreatedTimestamp": stamp, "LastModifiedTimestamp": stamp}
        if asked.tags:
            document["tags"] = dict(asked.tags)
        self._queues.forget(asked.queue_name)
        try:
            made = await self._queues.mq.queue(asked.queue_name).create(policy, attached={ATTACHED: document})
        except NameTaken as exc:
            raise SqsError("QueueNameExists", f"{exc}: names differ in more than case here") from exc
        if not made:
            known = await self._queues.look(asked.queue_name)
            now = attributes.attributes_of(known.policy, known.document, caller.region, fifo=known.fifo)
            for name, value in asked.attributes.items():
                if not _same(name, now.get(name, ""), value):
                    raise SqsError(
                        "QueueNameExists",
                        f"A queue already exists with the same name and a different value for attribute {name}",
                    )
        return {"QueueUrl": _url(asked.queue_name, caller)}

    async def _check_redrive(self, source: str, policy: Policy, fifo: bool) -> None:
        redrive = attributes.redrive_of(policy)
        if redrive is None:
            return
        if not await self._queues.has(redrive.queue):
            reason = "Dead letter target does not exist."
            raise invalid_value("RedrivePolicy", redrive.queue, reason)
        if redrive.queue.endswith(".fifo") != fifo:
            reason = "Dead-letter queue must be same type of queue as the source."
            raise invalid_value("RedrivePolicy", redrive.queue, reason)
        if not attributes.may_be_source((await self._queues.look(redrive.queue)).setting("RedriveAllowPolicy"), source):
            reason = "The RedriveAllowPolicy of the dead-letter queue does not allow this source."
            raise invalid_value("RedrivePolicy", redrive.queue, reason)

    async def get_url(self, asked: requests.GetQueueUrl, caller: Caller) -> Result:
        await self._queues.look(asked.queue_name)
        return {"QueueUrl": _url(asked.queue_name, caller)}

    async def list_queues(self, asked: requests.ListQueues, caller: Caller) -> Result:
        self._queues.forget_names()
        found = [name for name in await self._queues.names() if name.startswith(asked.queue_name_prefix)]
        names = sorted(name for name in found if caller.may("ListQueues", name))
        return self._page(names, asked.next_token, asked.max_results, "QueueUrls", caller)

    async def list_sources(self, asked: requests.ListDeadLetterSourceQueues, caller: Caller) -> Result:
        sources = await self._sources((await self._queues.of(asked.queue_url)).queue.name)
        found = [name for name in sources if caller.may("ListDeadLetterSourceQueues", name)]
        page = self._page(found, asked.next_token, asked.max_results, "queueUrls", caller) or {}
        return {"queueUrls": [], **page}

    def _page(self, names: list[str], token: str, most: int | None, key: str, caller: Caller) -> Result:
        if most is not None and not 1 <= most <= _PAGE:
            raise invalid_value("MaxResults", most, "Value must be between 1 and 1000.")
        names = [name for name in names if name > token]
        page = names[: most or _PAGE]
        found: dict[str, Any] = {key: [_url(name, caller) for name in page]} if page else {}
        if len(names) > len(page) and most is not None:
            found["NextToken"] = page[-1]
        return found

    async def delete_queue(self, asked: requests.OfQueue, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        await known.queue.delete(force=True)
        self._queues.forget(known.queue.name)
        return None

    async def purge(self, asked: requests.OfQueue, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
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
        known = await self._queues.of(asked.queue_url)
        wanted = set(asked.attribute_names)
        if unknown := wanted - attributes.SETTABLE - attributes.READ_ONLY - {"All"}:
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {min(unknown)}.")
        if not wanted:
            return {}
        found = attributes.attributes_of(known.policy, known.document, caller.region, fifo=known.fifo)
        found["QueueArn"] = attributes.arn_of(known.queue.name, caller.region)
        if wanted & {*attributes.COUNTED, "All"}:
            if not self._read_only:  # nobody may receive, and a lease that ran out would count as one for ever
                await self._queues.mq.threads(known.queue.blocking.settler.judge_expired)
            counts = await known.queue.counts()
            states = (State.READY, State.DELAYED, State.INFLIGHT)
            found |= {name: str(counts[state]) for name, state in zip(attributes.COUNTED, states, strict=True)}
        shown = found if "All" in wanted else {name: value for name, value in found.items() if name in wanted}
        return {"Attributes": shown} if shown else {}

    async def set_attributes(self, asked: requests.SetQueueAttributes, caller: Caller) -> Result:
        known = await self._queues.of(asked.queue_url)
        given = asked.attributes
        attributes.check_attributes(given, fifo=known.fifo)
        if given.get("FifoQueue", "true") != "true":
            raise SqsError("InvalidAttributeValue", "Invalid value for the parameter FifoQueue.")
        changes = attributes.policy_changes(given)
        if "RedrivePolicy" in given:
            await self._check_redrive(known.queue.name, replace(known.policy, **changes), known.fifo)
        if changes:
            await known.queue.update_policy(**changes)
        stamp = int(self._clock.now())

        def change(document: Mapping[str, Any]) -> Mapping[str, Any]:
            merged = {**document.get("attributes", {}), **given}
            return {**document, "attributes": merged, "LastModifiedTimestamp": stamp}

        await known.queue.attach(ATTACHED, change)
        self._queues.forget(known.queue.name)
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
        tags = (await self._queues.of(asked.queue_url)).document.get("tags")
        return {"Tags": tags} if tags else {}

    async def add_permission(self, asked: requests.AddPermission, caller: Caller) -> Result:
        if not _LABEL.fullmatch(asked.label):
            raise invalid_value(
                "Label", asked.label, "Can only include alphanumeric characters, hyphens, or underscores."
            )
        if not asked.actions:
            raise missing("Actions")
        if len(asked.actions) > _MOST_ACTIONS:
            found = len(asked.actions)
            raise SqsError("OverLimit", f"{found} Actions were found, maximum allowed is {_MOST_ACTIONS}.")
        if not asked.account_ids or not all(map(_ACCOUNT.fullmatch, asked.account_ids)):
            raise invalid_value("PrincipalId", asked.account_ids, "Unable to verify.")
        if wrong := [action for action in asked.actions if action not in _SHARED]:
            reason = "Only the queue owner is allowed to invoke this action."
            raise invalid_value("ActionName", f"SQS:{wrong[0]}", reason)
        arn = attributes.arn_of(queue_in(asked.queue_url), caller.region)
        given = asked.label, asked.account_ids, asked.actions
        await self._change_policy(asked.queue_url, lambda policy: attributes.with_permission(policy, arn, *given))
        return None

    async def remove_permission(self, asked: requests.RemovePermission, caller: Caller) -> Result:
        await self._change_policy(asked.queue_url, lambda policy: attributes.without_permission(policy, asked.label))
        return None

    async def _change_policy(self, url: str, change: Callable[[str], str]) -> None:
        await self._change(url, "attributes", lambda known: {**known, "Policy": change(known.get("Policy", ""))})

    async def _change(self, url: str, part: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        known = await self._queues.of(url)
        await known.queue.attach(ATTACHED, lambda document: {**document, part: change(document.get(part, {}))})
        self._queues.forget(known.queue.name)

    # Move tasks

    async def start_move(self, asked: requests.StartMessageMoveTask, caller: Caller) -> Result:
        source = await self._of_arn(asked.source_arn)
        rate = asked.max_number_of_messages_per_second
        if rate is not None and not 1 <= rate <= 500:
            raise invalid_value("MaxNumberOfMessagesPerSecond", rate, "Value must be between 1 and 500.")
        if not await self._sources(source.queue.name):
            raise SqsError("InvalidParameterValueException", "Source queue must be configured as a Dead Letter Queue.")
        target = ""
        if asked.destination_arn:
            destination = await self._of_arn(asked.destination_arn)
            target = destination.queue.name
            if target == source.queue.name:
                raise invalid_value("DestinationArn", asked.destination_arn, "It is the source.")
            if destination.fifo != source.fifo:
                raise invalid_value("DestinationArn", asked.destination_arn, "It must be the same type of queue.")
        return {"TaskHandle": await self._moves.start(source.queue, target, rate)}

    async def list_moves(self, asked: requests.ListMessageMoveTasks, caller: Caller) -> Result:
        source = await self._of_arn(asked.source_arn)
        if not 1 <= asked.max_results <= 10:
            raise invalid_value("MaxResults", asked.max_results, "Value must be between 1 and 10.")
        shown = []
        for task in (await self._moves.shown(source.queue))[: asked.max_results]:
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
            source = await self._queues.look(name)
        except SqsError as exc:
            raise SqsError("ResourceNotFoundException", "Task does not exist.") from exc
        return {"ApproximateNumberOfMessagesMoved": await self._moves.cancel(source.queue, id)}

    def begin(self) -> None:
        """Take over the move tasks of gateways that have ended."""
        self._moves.look_after()

    async def close(self) -> None:
        """End the work in the background."""
        await self._moves.close()

    async def _of_arn(self, arn: str) -> Known:
        try:
            return await self._queues.look(attributes.name_in_arn(arn))
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
        for name in sorted(await self._queues.names()):
            redrive = attributes.redrive_of((await self._queues.look(name)).policy)
            if redrive is not None and redrive.queue == target:
                found.append(name)
        return found


def _url(name: str, caller: Caller) -> str:
    return f"{caller.base}/{attributes.ACCOUNT}/{name}"


def _same(name: str, now: str, asked: str) -> bool:
    """Return whether an attribute that is asked for is as it is."""
    if name == "RedrivePolicy":
        redrive = attributes.redrive_in(asked)
        return (attributes.redrive_in(now) if now else None) == redrive
    return now == asked
