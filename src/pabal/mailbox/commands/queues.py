"""The commands that look into a queue without taking anything, and those that make, configure and empty one."""

from __future__ import annotations

from base64 import b64encode
from itertools import chain, islice
from typing import Any

from pabal.envelope import document_of_message
from pabal.errors import InvalidPolicy, InvalidRequest, MessageUnknown
from pabal.mailbox.commands.context import MAX_MESSAGES, Command, Context, Payload, QueuePayload, key_of, parse_key
from pabal.mailbox.protocol import Request
from pabal.message import check_seconds
from pabal.policy.policy import document_of, merged, policy_from
from pabal.queues.queue import Queue
from pabal.store import Entry, State

_LIVE = (State.READY, State.DELAYED, State.INFLIGHT)
_STATES = {**{str(state): state for state in State}, "dlq": State.DEAD}


class _Peek(QueuePayload, frozen=True):
    states: list[str] = []
    limit: int = 20


def peek(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Peek)
    queue = context.known_queue(asked.queue)
    if not 1 <= asked.limit <= MAX_MESSAGES:
        raise InvalidRequest(f"payload.limit: 1 to {MAX_MESSAGES} is expected; found {asked.limit}")
    states = [_state(name) for name in asked.states] or _LIVE
    entries = islice(chain.from_iterable(queue.entries(state) for state in states), asked.limit)
    return {"queue": queue.name, "messages": [_document(entry) for entry in entries]}


class _Show(Payload, frozen=True):
    message_key: str


def show(context: Context, request: Request) -> dict[str, Any]:
    name, id = parse_key(request.read(_Show).message_key)
    queue = context.known_queue(name)
    entry = queue.find(id)
    if entry is None:
        raise MessageUnknown(f"no message {id} in {queue.name}")
    return _document(entry)


def _document(entry: Entry) -> dict[str, Any]:
    """Return a message as `consume` does, with its state and its last failure; without body if that is gone."""
    key = key_of(entry.queue, entry.id)
    found: dict[str, Any] = {"messageId": entry.id, "messageKey": key, "queue": entry.queue, "state": str(entry.state)}
    if entry.message is not None:
        found |= document_of_message(entry.message, entry.queue)
        found |= {"attributes": entry.message.attributes, "priority": entry.message.priority}
        found["createdAt"] = round(entry.message.created_at * 1000)
    elif entry.data:
        found["data"] = b64encode(entry.data).decode()
    found |= {"attempt": entry.attempt, "dueAt": round(entry.due_at * 1000)}
    if (failure := entry.failure) is not None:
        found |= {"reason": failure.reason or failure.code, "reasonCode": failure.code}
        found |= {"failedAt": round(failure.at * 1000), "consumerId": failure.consumer}
    return found


class _Purge(QueuePayload, frozen=True):
    state: str
    older_than_sec: float = 0.0


def purge(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Purge)
    queue, state = context.known_queue(asked.queue), _state(asked.state)
    if state is State.INFLIGHT:
        raise InvalidRequest("payload.state: messages in flight are with their consumers and are not purged")
    removed = queue.purge(state, check_seconds("olderThanSec", asked.older_than_sec))
    return {"queue": queue.name, "state": str(state), "purged": removed}


def get_policy(context: Context, request: Request) -> dict[str, Any]:
    queue = context.known_queue(request.read(QueuePayload).queue)
    return {"queue": queue.name, "policy": document_of(queue.policy)}


class _SetPolicy(QueuePayload, frozen=True):
    policy: dict[str, Any]
    replace: bool = False  # values that are not given get their defaults; else they stay


def set_policy(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_SetPolicy)
    queue = context.known_queue(asked.queue)
    before = _policy_document(queue, replaced=asked.replace)
    queue.configure(policy_from(asked.policy if asked.replace else merged(before, asked.policy)))
    return {"queue": queue.name, "policy": document_of(queue.policy)}


def _policy_document(queue: Queue, *, replaced: bool) -> dict[str, Any]:
    try:
        return document_of(queue.policy)
    except InvalidPolicy:
        if replaced:
            return {}
        raise


class _Create(QueuePayload, frozen=True):
    policy: dict[str, Any] = {}


def create_queue(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Create)
    queue = context.queue(asked.queue)
    created = queue.name not in context.store.queues()
    if created:
        queue.configure(policy_from(merged(document_of(context.settings.new_queue), asked.policy)))
    return {"queue": queue.name, "created": created}


class _Delete(QueuePayload, frozen=True):
    force: bool = False


def delete_queue(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Delete)
    queue = context.known_queue(asked.queue)
    return {"queue": queue.name, "deleted": True, "removed": context.delete(queue.name, force=asked.force)}


def _state(name: str) -> State:
    if name not in _STATES:
        raise InvalidRequest(f"payload.state: one of {', '.join(map(str, State))} is expected; found {name!r:.40}")
    return _STATES[name]


LOOK_COMMANDS: dict[str, Command] = {
    "peek": Command(peek),
    "show": Command(show),
    "purge": Command(purge),
    "get_policy": Command(get_policy),
    "set_policy": Command(set_policy),
    "create_queue": Command(create_queue),
    "delete_queue": Command(delete_queue),
}
