"""The commands that publish, lease and settle messages, each by the policy of its queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from msgspec import UNSET

from pabal import jsontext
from pabal.envelope import document_of_message
from pabal.errors import InvalidRequest, LeaseLost, MessageUnknown, Refused
from pabal.mailbox.calls import check_token
from pabal.mailbox.commands.context import (
    MAX_MESSAGES,
    NO_MESSAGE,
    Command,
    Context,
    Kind,
    Later,
    Payload,
    Work,
    key_of,
    parse_key,
)
from pabal.mailbox.protocol import Code, Request
from pabal.message import Message, check_seconds, replace
from pabal.names import check_name
from pabal.queues.queue import MIN_LEASE, Queue
from pabal.queues.replies import SUFFIX, reply_draft
from pabal.queues.verdicts import log_failure, report_dead
from pabal.store import (
    Dead,
    Draft,
    Entry,
    FailureCode,
    Lease,
    Outcome,
    Published,
    Receipt,
    Retry,
    Settlement,
    State,
    Verdict,
    with_copies,
)


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
    unique_key: str = ""
    thread_id: str = ""
    trace_id: str = ""
    reply_to: str = ""
    sender: str = ""
    ttl_sec: float | None = None


class _Cancel(Payload, frozen=True):
    queue: str
    message_ids: list[str]
    inflight: bool = False


def publish(context: Context, request: Request) -> Work:
    asked = request.read(_Publish)
    queue = context.queue(asked.queue)
    context.check_sender(request, asked.sender)
    options: dict[str, Any] = {
        "id": asked.message_id or context.message_id(request),
        "type": asked.type,
        "version": asked.version,
        "sender": asked.sender or request.client,
        "target": asked.target_consumer_id,
        "attributes": _attributes(asked.attributes),
        "headers": asked.headers,
        "priority": asked.priority,
        "group": asked.group,
        "dedup_key": asked.deduplication_key,
        "unique": asked.unique_key,
        "thread_id": asked.thread_id,
        "trace_id": asked.trace_id,
        "reply_to": asked.reply_to,
        "delay": asked.delay_ms / 1000,
    }
    if asked.ttl_sec is not None:
        options["ttl"] = asked.ttl_sec
    # A string is JSON text, as the protocol defines; any other value is the message itself.
    body = jsontext.read(asked.message.encode()) if isinstance(asked.message, str) else asked.message

    draft = queue.draft(body, **options)

    def finish(found: Sequence[Published]) -> dict[str, Any]:
        [first] = report_dead([draft], found)
        answer: dict[str, Any] = {"messageId": first.id, "messageKey": key_of(draft.queue, first.id)}
        if first.duplicate:
            answer["duplicate"] = True
        if first.dead and draft.failure is not None:
            answer |= {"deadLettered": True, "reason": draft.failure.reason}
        return answer

    return Work(with_copies([draft]), finish)


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


def consume_next(context: Context, request: Request) -> Any:
    asked = request.read(_Consume)
    queue = context.queue(asked.queue)
    if not 1 <= asked.limit <= MAX_MESSAGES:
        raise InvalidRequest(f"payload.limit: 1 to {MAX_MESSAGES} is expected; found {asked.limit}")
    check_seconds("waitMs / 1000", asked.wait_ms / 1000)
    consumer = check_name(asked.consumer_id or request.client, "consumer")
    seconds = queue.policy.visibility
    if asked.visibility_timeout_sec is not None:
        seconds = check_seconds("visibilityTimeoutSec", asked.visibility_timeout_sec, least=MIN_LEASE)
    leases = _lease(queue, asked.limit, seconds, consumer, context.token(request, consumer))
    empty = {**NO_MESSAGE, "paused": True} if not leases and queue.paused else NO_MESSAGE
    if not leases and asked.wait_ms:
        until = context.clock.boot() + min(asked.wait_ms / 1000, context.settings.longest_wait)
        return Later(queue.name, until, empty)
    lease_until = round((context.clock.now() + seconds) * 1000)
    found = [_delivery(lease, consumer, lease_until) for lease in leases]
    first = found[0] if found else empty
    return first if asked.limit == 1 else {**first, "messages": found}


def _lease(queue: Queue, limit: int, seconds: float, consumer: str, token: str) -> list[Lease]:
    if queue.paused:
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
    lease_document = {"leaseId": lease.receipt.token, "messageKey": key, "consumerId": consumer, "leaseUntil": until}
    return {"message": message, "lease": lease_document}


class _Settle(Payload, frozen=True):
    message_key: str
    lease_id: str = ""
    consumer_id: str = ""
    force: bool = False  # without leaseId: settle the current lease, of any consumer


class _Ack(_Settle, frozen=True):
    reply: Any = UNSET  # the body of the reply to a request; null is one too
    reply_type: str = ""


class _Nack(_Settle, frozen=True):
    reason: str = ""
    requeue: bool = False
    delay_ms: float | None = None


class _Extend(_Settle, frozen=True):
    visibility_timeout_sec: float = 30.0


def ack(context: Context, request: Request) -> Work:
    asked = request.read(_Ack)
    queue, receipt = _receipt(context, asked)
    message = None if asked.reply is UNSET else _entry(queue, receipt.id).message  # None: it was settled before
    then = [] if message is None else [_reply(context, queue, message, asked)]
    return _settlement(context, queue, Settlement(receipt, queue.settler.done(then)))


def _reply(context: Context, queue: Queue, message: Message, asked: _Ack) -> Draft:
    if not message.reply_to:
        raise InvalidRequest(f"payload.reply: {message.id} is no request, it has no replyTo")
    own = message.reply_to == f"{queue.name}{SUFFIX}"  # else the requester could have any queue written to
    target = context.any_queue(message.reply_to) if own else context.queue(message.reply_to)
    type, trace_id = asked.reply_type or None, message.trace_id or None
    return reply_draft(target, message.id, asked.reply, type=type, trace_id=trace_id)


def nack(context: Context, request: Request) -> Work:
    asked = request.read(_Nack)
    queue, receipt = _receipt(context, asked)
    consumer = check_name(asked.consumer_id or request.client, "consumer")
    entry = _entry(queue, receipt.id)
    failure = queue.settler.failure(FailureCode.NACKED, asked.reason, entry.attempt, entry.failure)
    delay = None if asked.delay_ms is None else asked.delay_ms / 1000
    verdict = queue.settler.verdict_on(entry, replace(failure, consumer=consumer), delay=delay, final=not asked.requeue)
    due = entry.due_at - context.clock.now() if entry.state is State.DELAYED else None  # it was settled before
    return _settlement(context, queue, Settlement(receipt, verdict), _outcome(verdict, due))


def _outcome(verdict: Verdict, due: float | None) -> dict[str, Any]:
    """Return what becomes of a failed message: again after some time, dead, or dropped by its policy."""
    if isinstance(verdict, Retry):
        delay = verdict.delay if due is None else max(0.0, due)
        return {"state": "delayed" if delay else "ready", "delayMs": round(delay * 1000)}
    return {"state": "dlq" if isinstance(verdict, Dead) else "dropped"}


def _settlement(
    context: Context, queue: Queue, settlement: Settlement, answer: Mapping[str, Any] = MappingProxyType({})
) -> Work:
    def finish(outcomes: Sequence[Outcome]) -> dict[str, Any]:
        if outcomes[0] is Outcome.LOST:
            raise _lost(queue, settlement.receipt)
        if outcomes[0] is Outcome.APPLIED:
            log_failure(*settlement)
        return dict(answer)

    return Work([settlement], finish, durable=queue.policy.durable_acks)


def extend_lease(context: Context, request: Request) -> Work:
    asked = request.read(_Extend)
    queue, receipt = _receipt(context, asked)
    seconds = check_seconds("visibilityTimeoutSec", asked.visibility_timeout_sec, least=MIN_LEASE)

    def finish(outcomes: Sequence[Outcome]) -> dict[str, Any]:
        if outcomes[0] is Outcome.LOST:
            raise _lost(queue, receipt)
        return {"leaseUntil": round((context.clock.now() + seconds) * 1000)}

    return Work([receipt], finish, seconds=seconds)


def cancel(context: Context, request: Request) -> dict[str, Any]:
    asked = request.read(_Cancel)
    found = context.queue(asked.queue).cancel(asked.message_ids, inflight=asked.inflight)
    return {"queue": asked.queue, "cancelled": found}


def _receipt(context: Context, asked: _Settle) -> tuple[Queue, Receipt]:
    name, id = parse_key(asked.message_key)
    queue = context.queue(name)
    if asked.lease_id:
        return queue, Receipt(name, id, check_token(asked.lease_id))
    if not asked.force:
        raise InvalidRequest("payload.leaseId: missing; it is in the answer to consume, and force does without")
    return queue, Receipt(name, id, _entry(queue, id).token or "none")


def _entry(queue: Queue, id: str) -> Entry:
    entry = queue.find(id)
    if entry is None:
        raise MessageUnknown(f"no message {id} in {queue.name}")
    return entry


def _lost(queue: Queue, receipt: Receipt) -> Refused:
    if _entry(queue, receipt.id).state is State.INFLIGHT:
        code, state = Code.LEASE_MISMATCH, "is leased under another leaseId"
    else:
        code, state = Code.LEASE_EXPIRED, "is not leased any more"
    return Refused(code, f"{receipt.id} of {receipt.queue} {state}; nothing was changed", kind=LeaseLost.__name__)


MESSAGE_COMMANDS: dict[str, Command] = {
    "publish": Command(publish, Kind.PUBLISH),
    "consume_next": Command(consume_next),
    "ack": Command(ack, Kind.SETTLE),
    "nack": Command(nack, Kind.SETTLE),
    "extend_lease": Command(extend_lease, Kind.EXTEND),
    "cancel": Command(cancel),
}
