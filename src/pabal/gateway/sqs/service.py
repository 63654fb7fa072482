"""The table of the actions of SQS: the parameters of each, the rights that it needs, and the method that does it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import pabal.aio
from pabal.clock import Clock
from pabal.errors import PabalError
from pabal.gateway.sqs import attributes, requests
from pabal.gateway.sqs.directory import Caller, Directory, Result, queue_in
from pabal.gateway.sqs.errors import SqsError, error_of, missing
from pabal.gateway.sqs.message_actions import MessageActions
from pabal.gateway.sqs.moves import task_in
from pabal.gateway.sqs.queue_actions import QueueActions
from pabal.store import State

LOOK_PATH = "/_aws/sqs/messages"  # the address that users of LocalStack know


class Service:
    """Serves the actions over one connection. Of the queues it remembers for a second what it has read."""

    def __init__(self, mq: pabal.aio.Connection, clock: Clock, *, read_only: bool = False) -> None:
        known = Directory(mq, clock)
        self._queues = queues = QueueActions(known, clock, read_only=read_only)
        self._messages = messages = MessageActions(known, clock)
        self._actions: dict[str, tuple[type[Any], Callable[[Any, Caller], Awaitable[Result]]]] = {
            "AddPermission": (requests.AddPermission, queues.add_permission),
            "CancelMessageMoveTask": (requests.CancelMessageMoveTask, queues.cancel_move),
            "ChangeMessageVisibility": (requests.ChangeMessageVisibility, messages.change_visibility),
            "ChangeMessageVisibilityBatch": (requests.ChangeMessageVisibilityBatch, messages.change_visibility_batch),
            "CreateQueue": (requests.CreateQueue, queues.create_queue),
            "DeleteMessage": (requests.DeleteMessage, messages.delete_message),
            "DeleteMessageBatch": (requests.DeleteMessageBatch, messages.delete_message_batch),
            "DeleteQueue": (requests.OfQueue, queues.delete_queue),
            "GetQueueAttributes": (requests.GetQueueAttributes, queues.get_attributes),
            "GetQueueUrl": (requests.GetQueueUrl, queues.get_url),
            "ListDeadLetterSourceQueues": (requests.ListDeadLetterSourceQueues, queues.list_sources),
            "ListMessageMoveTasks": (requests.ListMessageMoveTasks, queues.list_moves),
            "ListQueueTags": (requests.OfQueue, queues.list_tags),
            "ListQueues": (requests.ListQueues, queues.list_queues),
            "PurgeQueue": (requests.OfQueue, queues.purge),
            "ReceiveMessage": (requests.ReceiveMessage, messages.receive),
            "RemovePermission": (requests.RemovePermission, queues.remove_permission),
            "SendMessage": (requests.SendMessage, messages.send),
            "SendMessageBatch": (requests.SendMessageBatch, messages.send_batch),
            "SetQueueAttributes": (requests.SetQueueAttributes, queues.set_attributes),
            "StartMessageMoveTask": (requests.StartMessageMoveTask, queues.start_move),
            "TagQueue": (requests.TagQueue, queues.tag),
            "UntagQueue": (requests.UntagQueue, queues.untag),
        }

    async def call(self, action: str, given: dict[str, Any] | bytes, caller: Caller) -> Result:
        """Do one action; raise the SqsError that refuses it."""
        if action not in self._actions:
            raise SqsError("InvalidAction", f"The action {action} is not valid for this endpoint.")
        kind, act = self._actions[action]
        asked = requests.read(kind, given)
        if caller.allows is not None:
            for need, queue in _needs(action, asked):
                _check_right(caller, need, queue)
        try:
            return await act(asked, caller)
        except PabalError as exc:
            raise error_of(exc) from exc

    async def look(self, path: str, given: dict[str, Any] | bytes, caller: Caller) -> Result:
        """Return the messages of a queue without leasing them; the queue is named by its URL or by the path."""
        asked = requests.read(requests.LookAtMessages, given)
        name = queue_in(asked.queue_url or path.removeprefix(LOOK_PATH))
        if not name:
            raise missing("QueueUrl")
        _check_right(caller, "LookAtMessages", name)
        states = {State.READY: True, State.INFLIGHT: asked.show_invisible, State.DELAYED: asked.show_delayed}
        try:
            return await self._messages.look(name, [state for state, shown in states.items() if shown], caller)
        except PabalError as exc:
            raise error_of(exc) from exc

    def begin(self) -> None:
        """Take over the move tasks of gateways that have ended."""
        self._queues.begin()

    async def close(self) -> None:
        """End the work in the background."""
        await self._queues.close()


def _check_right(caller: Caller, action: str, queue: str) -> None:
    if not caller.may(action, queue):
        what = f"{action} on {queue}" if queue else action
        raise SqsError("AccessDeniedException", f"The key of this request may not do {what}.")


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
