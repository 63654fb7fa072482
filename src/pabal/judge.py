"""One judgement for every way of failing: what the policy makes of a failed attempt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

from pabal import jsontext
from pabal.envelope import document_of_message
from pabal.jsontext import Json
from pabal.message import Message
from pabal.policy import LARGEST_MAX_BYTES, Policy
from pabal.store import Dead, Done, Draft, Failure, FailureCode, Retry, Terms, Verdict

# Trying again cannot help these.
_FINAL = frozenset({FailureCode.VALIDATION_ERROR, FailureCode.EXPIRED})


def judge(
    policy: Policy, queue: str, message: Message, failure: Failure, *, chance: Callable[[], float], final: bool = False
) -> Verdict:
    """Return Retry while the policy allows another attempt, else what it wants done with the dead."""
    if not final and failure.code not in _FINAL and failure.attempt < policy.retry.limit:
        return Retry(policy.retry.delay(failure.attempt, chance()), failure)
    if not policy.dead_letters.enabled:
        return Done(failure=failure, keep=policy.done_retention > 0)
    if not policy.dead_letters.queue:
        return Dead(failure)
    return Dead(failure, then=(_dead_letter(policy.dead_letters.queue, queue, message, failure),))


def _dead_letter(dlq: str, queue: str, message: Message, failure: Failure) -> Draft:
    body = failure_document(queue, message, failure, dlq)
    if len(jsontext.encode(body)) > LARGEST_MAX_BYTES - 4096:
        # The original stays whole in its own queue as dead; here its name must do.
        body["originalMessage"] = {"messageId": message.id, "queue": queue, "tooLargeToCopy": True}
    copy = Message(
        id=f"{message.id[:124].rstrip('.')}.dlq",
        body=body,
        type=message.type,
        thread_id=message.thread_id,
        trace_id=message.trace_id,
        headers=message.headers,
        created_at=failure.at,
    )
    return Draft(dlq, copy, terms=Terms(max_bytes=LARGEST_MAX_BYTES))


def failure_document(queue: str, message: Message, failure: Failure, dlq: str = "") -> dict[str, Json]:
    """Return the document that tells a dead letter's whole story."""
    return {
        "originalMessage": document_of_message(message, queue),
        "failure": {
            "reasonCode": failure.code,
            "reasonMessage": failure.reason,
            "failedAt": datetime.fromtimestamp(failure.at, UTC).isoformat(),
            "attempt": failure.attempt,
            "consumerId": failure.consumer,
        },
        "routing": {"sourceQueue": queue, "dlqQueue": dlq},
    }
