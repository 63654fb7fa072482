"""The commands that settle: ack, nack and extend_lease, by the lease or, with force, in the stead of its holder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pabal.errors import InvalidRequest, LeaseLost, MessageUnknown, Refused
from pabal.mailbox.commands.command import Command, Kind, Payload, Work, parse_key
from pabal.mailbox.commands.context import Context
from pabal.mailbox.protocol import Code, Request
from pabal.mailbox.wire import check_token
from pabal.message import check_seconds, replace
from pabal.names import check_name
from pabal.queue import MIN_LEASE, Queue
from pabal.store import Entry, FailureCode, Outcome, Receipt, Settlement, State, Verdict


class _Settle(Payload, frozen=True):
    message_key: str
    lease_id: str = ""
    consumer_id: str = ""
    force: bool = False  # without a lease: in the stead of whoever holds it


class _Nack(_Settle, frozen=True):
    reason: str = ""
    requeue: bool = False
    delay_ms: float | None = None


class _Extend(_Settle, frozen=True):
    visibility_timeout_sec: float = 30.0


def ack(context: Context, request: Request) -> Work:
    asked = request.read(_Settle)
    queue, receipt = _receipt(context, asked)
    return _settlement(context, queue, Settlement(receipt, queue.done()))


def nack(context: Context, request: Request) -> Work:
    asked = request.read(_Nack)
    queue, receipt = _receipt(context, asked)
    consumer = check_name(asked.consumer_id or request.client, "consumer")
    return _settlement(context, queue, Settlement(receipt, _judged(queue, receipt, asked, consumer)))


def _judged(queue: Queue, receipt: Receipt, asked: _Nack, consumer: str) -> Verdict:
    entry = _entry(queue, receipt.id)
    failure = queue.failure(FailureCode.NACKED, asked.reason, entry.attempt, entry.failure)
    delay = None if asked.delay_ms is None else asked.delay_ms / 1000
    return queue.verdict_on(entry, replace(failure, consumer=consumer), delay=delay, final=not asked.requeue)


def _settlement(context: Context, queue: Queue, settlement: Settlement) -> Work:
    def finish(outcomes: Sequence[Outcome]) -> dict[str, Any]:
        if outcomes[0] is Outcome.LOST:
            raise _lost(queue, settlement.receipt)
        return {}

    return Work([settlement], finish, durable=queue.policy.durable_acks)


def extend_lease(context: Context, request: Request) -> Work:
    asked = request.read(_Extend)
    queue, receipt = _receipt(context, asked)
    seconds = check_seconds("visibilityTimeoutSec", asked.visibility_timeout_sec, least=MIN_LEASE)

    def finish(outcomes: Sequence[Outcome]) -> dict[str, Any]:
        if outcomes[0] is Outcome.LOST:
            raise _lost(queue, receipt)
        return {"leaseUntil": round((context.clock.now() + seconds) * 1000)}

    return Work([receipt], finish, term=seconds)


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
        code, told = Code.LEASE_MISMATCH, "is leased under another leaseId"
    else:
        code, told = Code.LEASE_EXPIRED, "is not leased any more"
    return Refused(code, f"{receipt.id} of {receipt.queue} {told}; nothing was changed", kind=LeaseLost.__name__)


SETTLING: dict[str, Command] = {
    "ack": Command(ack, Kind.SETTLE),
    "nack": Command(nack, Kind.SETTLE),
    "extend_lease": Command(extend_lease, Kind.EXTEND),
}
