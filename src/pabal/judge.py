"""One judgement for every way of failing: what the policy makes of a failed attempt."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from typing import TypeAlias

from pabal import jsontext
from pabal.envelope import document_of_message
from pabal.jsontext import Json
from pabal.message import Message, replace
from pabal.policy import LARGEST_MAX_BYTES, Policy
from pabal.store import Dead, Done, Draft, Failure, FailureCode, Retry, Terms, Verdict

# What is published when a message dies, as one step with its death.
Letters: TypeAlias = Callable[[Policy, str, Message, Failure], tuple[Draft, ...]]

# Trying again cannot help these.
_FINAL = frozenset({FailureCode.VALIDATION_ERROR, FailureCode.EXPIRED})


def dead_letters(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
    """Return what is written when a message dies: a document for the queue that the policy names, if it names one."""
    dlq = policy.dead_letters.queue
    return (_dead_letter(dlq, queue, message, failure),) if dlq else ()


def judge(
    policy: Policy,
    queue: str,
    message: Message,
    failure: Failure,
    *,
    chance: Callable[[], float],
    final: bool = False,
    letters: Letters = dead_letters,
) -> Verdict:
    """Return Retry while the policy allows another attempt, else what it wants done with the dead."""
    if not final and failure.code not in _FINAL:
        last = _last_straw(policy, failure)
        if last is None:
            return Retry(policy.retry.delay(failure.attempt, chance()), failure)
        failure = last
    if not policy.dead_letters.enabled:
        return Done(failure=failure, keep=policy.done_retention > 0)
    return Dead(failure, then=letters(policy, queue, message, failure))


def _last_straw(policy: Policy, failure: Failure) -> Failure | None:
    """Return the failure as the last one of its message, with what the policy had against it; None if it may go on."""
    limit, poison = policy.retry.limit, policy.retry.poison_limit
    if poison and failure.repeats >= poison:
        code, why = FailureCode.POISON, f"{failure.repeats} times in a row"
    elif failure.attempt >= limit:
        code, why = FailureCode.RETRY_LIMIT, f"attempt {failure.attempt} of {limit}"
    else:
        return None
    cause = f"{failure.code}: {failure.reason}" if failure.reason else failure.code
    return Failure(str(code), f"{why}: {cause}", failure.at, failure.attempt, failure.consumer, failure.repeats)


def refused(policy: Policy, queue: str, message: Message, failure: Failure) -> Draft:
    """Return the dead letter of a message that was not let in."""
    return _dead_letter(policy.dead_letters.queue, queue, message, failure)


def _dead_letter(dlq: str, queue: str, message: Message, failure: Failure) -> Draft:
    copy = Message(
        id=_id_of_copy(queue, message.id, failure),
        body=failure_document(queue, message, failure, dlq),
        type=message.type,
        thread_id=message.thread_id,
        trace_id=message.trace_id,
        headers=message.headers,
        created_at=failure.at,
    )
    if len(jsontext.encode(document_of_message(copy, dlq))) > LARGEST_MAX_BYTES:
        # The original stays whole in its own queue as dead; here its name must do.
        name = {"messageId": message.id, "queue": queue, "tooLargeToCopy": True}
        copy = replace(copy, body={**failure_document(queue, message, failure, dlq), "originalMessage": name})
    return Draft(dlq, copy, terms=Terms(max_bytes=LARGEST_MAX_BYTES))


def _id_of_copy(queue: str, id: str, failure: Failure) -> str:
    # Each death has a document of its own: of this queue, at this time, also where ids are alike or revived.
    death = sha256(f"{queue}/{id}/{failure.at}/{failure.attempt}".encode()).hexdigest()[:12]
    return f"{id[:100].rstrip('.')}.dlq.{death}"


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
