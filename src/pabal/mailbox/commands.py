"""The commands of the mailbox, each by the policy of its queue: publish and consume here, the others beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pabal import jsontext
from pabal.envelope import document_of_message
from pabal.errors import InvalidRequest
from pabal.mailbox.command import Command, Payload, key_of
from pabal.mailbox.desk import Desk, Kind, Later, Work
from pabal.mailbox.dlq import DLQ
from pabal.mailbox.looking import LOOKING
from pabal.mailbox.protocol import Request
from pabal.mailbox.settling import SETTLING
from pabal.message import check_seconds
from pabal.names import check_name
from pabal.queue import MIN_LEASE, Options, Queue
from pabal.store import Lease, Published

MOST_AT_ONCE = 1000


class _Publish(Payload, frozen=True, kw_only=True):
    queue: str
    message: Any
    attributes: str | dict[str, Any] = ""
    priority: int | str = 0
    delay_ms: float = 0
    target_consumer_id: str = ""
    message_id: str = ""
    type: str = ""
    version: int = 1
    headers: dict[str, str] = {}
    group: str = ""
    deduplication_key: str = ""
    thread_id: str = ""
    trace_id: str = ""
    reply_to: str = ""
    sender: str = ""
    ttl_sec: float | None = None


def publish(desk: Desk, request: Request) -> Work:
    asked = request.read(_Publish)
    queue = desk.queue(asked.queue)
    desk.check_sender(request, asked.sender)
    said: Options = {
        "id": asked.message_id or desk.message_id(request),
        "type": asked.type,
        "version": asked.version,
        "sender": asked.sender or request.client,
        "target": asked.target_consumer_id,
        "attributes": _attributes(asked.attributes),
        "headers": asked.headers,
        "priority": asked.priority,
        "group": asked.group,
        "dedup_key": asked.deduplication_key,
        "thread_id": asked.thread_id,
        "trace_id": asked.trace_id,
        "reply_to": asked.reply_to,
        "delay": asked.delay_ms / 1000,
    }
    if asked.ttl_sec is not None:
        said["ttl"] = asked.ttl_sec
    # Text is JSON text, as it always was here; anything else is the message itself.
    body = jsontext.read(asked.message.encode()) if isinstance(asked.message, str) else asked.message

    draft = queue.draft(body, **said)

    def finish(found: Sequence[Published]) -> dict[str, Any]:
        [(id, duplicate)] = found
        answer: dict[str, Any] = {"messageId": id, "messageKey": key_of(draft.queue, id)}
        if duplicate:
            answer["duplicate"] = True
        if draft.queue != queue.name:
            answer["deadLettered"] = True  # the policy takes invalid messages in as dead letters
        return answer

    return Work([draft], finish)


def _attributes(given: str | dict[str, Any]) -> dict[str, Any]:
    found = jsontext.read(given.encode()) if isinstance(given, str) and given else given or {}
    if not isinstance(found, dict):
        raise InvalidRequest(f"payload.attributes: an object is expected; found {type(found).__name__}")
    return found


class _Consume(Payload, frozen=True):
    queue: str
    consumer_id: str = ""
    visibility_timeout_sec: float | None = None
    wait_ms: float = 0
    limit: int = 1


def consume_next(desk: Desk, request: Request) -> Any:
    asked = request.read(_Consume)
    queue = desk.queue(asked.queue)
    if not 1 <= asked.limit <= MOST_AT_ONCE:
        raise InvalidRequest(f"payload.limit: 1 to {MOST_AT_ONCE} is expected; found {asked.limit}")
    check_seconds("waitMs / 1000", asked.wait_ms / 1000)
    consumer = check_name(asked.consumer_id or request.client, "consumer")
    term = asked.visibility_timeout_sec
    seconds = queue.policy.visibility if term is None else check_seconds("visibilityTimeoutSec", term, least=MIN_LEASE)
    leases = _lease(queue, asked.limit, seconds, consumer, desk.token(request))
    if not leases and asked.wait_ms:
        return Later(queue.name, desk.clock.boot() + min(asked.wait_ms / 1000, desk.settings.longest_wait))
    desk.tell_leased(leases)
    until = round((desk.clock.now() + seconds) * 1000)
    found = [_delivery(lease, consumer, until) for lease in leases]
    first = found[0] if found else {"message": None, "lease": None}
    return first if asked.limit == 1 else {**first, "messages": found}


def _lease(queue: Queue, limit: int, seconds: float, consumer: str, token: str) -> list[Lease]:
    if queue.policy.paused:
        return []
    leases = queue.store.lease(queue.name, limit, seconds, consumer=consumer, token=token)
    if not leases and (due := queue.store.next_due(queue.name)) is not None and due <= 0 and queue.sweep():
        leases = queue.store.lease(queue.name, limit, seconds, consumer=consumer, token=token)
    return leases


def _delivery(lease: Lease, consumer: str, until: int) -> dict[str, Any]:
    envelope = document_of_message(lease.message, lease.receipt.queue)
    key = key_of(lease.receipt.queue, lease.receipt.id)
    message = {
        **envelope,
        "messageKey": key,
        "attributes": lease.message.attributes,
        "priority": lease.message.priority,
        "attempt": lease.attempt,
        "createdAt": round(lease.message.created_at * 1000),
    }
    held = {"leaseId": lease.receipt.token, "messageKey": key, "consumerId": consumer, "leaseUntil": until}
    return {"message": message, "lease": held}


COMMANDS: dict[str, Command] = {
    "publish": Command(publish, Kind.PUBLISH),
    "consume_next": Command(consume_next),
    **SETTLING,
    **LOOKING,
    **DLQ,
}
