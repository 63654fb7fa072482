"""The command that leases, by the policy of its queue, and may wait for a message."""

from __future__ import annotations

from typing import Any

from pabal.envelope import document_of_message
from pabal.errors import InvalidRequest
from pabal.mailbox.commands.command import MOST_AT_ONCE, NO_MESSAGE, Command, Later, Payload, key_of
from pabal.mailbox.commands.context import Context
from pabal.mailbox.protocol import Request
from pabal.message import check_seconds
from pabal.names import check_name
from pabal.queue import MIN_LEASE, Queue
from pabal.store import Lease


class _Consume(Payload, frozen=True):
    queue: str
    consumer_id: str = ""
    visibility_timeout_sec: float | None = None
    wait_ms: float = 0
    limit: int = 1


def consume_next(context: Context, request: Request) -> Any:
    asked = request.read(_Consume)
    queue = context.queue(asked.queue)
    if not 1 <= asked.limit <= MOST_AT_ONCE:
        raise InvalidRequest(f"payload.limit: 1 to {MOST_AT_ONCE} is expected; found {asked.limit}")
    check_seconds("waitMs / 1000", asked.wait_ms / 1000)
    consumer = check_name(asked.consumer_id or request.client, "consumer")
    term = asked.visibility_timeout_sec
    seconds = queue.policy.visibility if term is None else check_seconds("visibilityTimeoutSec", term, least=MIN_LEASE)
    leases = _lease(queue, asked.limit, seconds, consumer, context.token(request))
    if not leases and asked.wait_ms:
        return Later(queue.name, context.clock.boot() + min(asked.wait_ms / 1000, context.settings.longest_wait))
    until = round((context.clock.now() + seconds) * 1000)
    found = [_delivery(lease, consumer, until) for lease in leases]
    first = found[0] if found else NO_MESSAGE
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


CONSUMING: dict[str, Command] = {"consume_next": Command(consume_next)}
