"""What a policy makes of a failure, and the document a dead letter carries."""

import msgspec
import pytest

from pabal.message import Message
from pabal.policy.policy import LARGEST_MAX_BYTES, DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.verdicts import failure_document, judge
from pabal.store import Dead, Done, Failure, FailureCode, Retry, Verdict

MESSAGE = Message(id="m1", body={"temp": 1}, created_at=1700000000.0, trace_id="t1")


def verdict(policy: Policy, failure: Failure, *, final: bool = False) -> Verdict:
    return judge(policy, "jobs", MESSAGE, failure, chance=lambda: 0.5, final=final)


def failed(code: str = FailureCode.NACKED, attempt: int = 1, repeats: int = 1) -> Failure:
    return Failure(str(code), "why", 1700000001.0, attempt, "me", repeats)


def test_attempts_are_retried_up_to_the_limit() -> None:
    policy = Policy(retry=RetryPolicy(limit=3, initial=2))
    assert verdict(policy, failed(attempt=2)) == Retry(4.0, failed(attempt=2))
    last = Failure("RETRY_LIMIT", "attempt 3 of 3: NACKED: why", 1700000001.0, 3, "me")
    assert verdict(policy, failed(attempt=3)) == Dead(last)


def test_the_same_failure_again_and_again_is_poison() -> None:
    policy = Policy(retry=RetryPolicy(limit=100, poison_limit=3))
    assert type(verdict(policy, failed(repeats=2))) is Retry
    dead = Failure("POISON", "3 times in a row: NACKED: why", 1700000001.0, 1, "me", 3)
    assert verdict(policy, failed(repeats=3)) == Dead(dead)


def test_without_a_limit_nothing_is_poison() -> None:
    assert type(verdict(Policy(retry=RetryPolicy(limit=100)), failed(repeats=50))) is Retry


@pytest.mark.parametrize("code", [FailureCode.VALIDATION_ERROR, FailureCode.EXPIRED])
def test_what_cannot_get_better_is_dead_at_once(code: str) -> None:
    assert verdict(Policy(), failed(code)) == Dead(failed(code))


@pytest.mark.parametrize("code", [FailureCode.NACKED, FailureCode.HANDLER_ERROR, FailureCode.LEASE_EXPIRED])
def test_every_other_way_of_failing_is_judged_alike(code: str) -> None:
    assert type(verdict(Policy(), failed(code))) is Retry
    assert type(verdict(Policy(), failed(code, attempt=5))) is Dead


def test_a_final_failure_is_dead_at_once() -> None:
    assert type(verdict(Policy(), failed(), final=True)) is Dead


def test_without_dead_letters_it_is_dropped_with_its_failure() -> None:
    policy = Policy(dead_letters=DeadLetterPolicy(enabled=False))
    last = Failure("RETRY_LIMIT", "attempt 5 of 5: NACKED: why", 1700000001.0, 5, "me")
    assert verdict(policy, failed(attempt=5)) == Done(failure=last)


def test_the_dead_letter_document_tells_the_whole_story() -> None:
    assert failure_document("jobs", MESSAGE, failed(), "jobs-dlq") == {
        "originalMessage": {
            "messageId": "m1",
            "timestamp": "2023-11-14T22:13:20Z",
            "payload": {"temp": 1},
            "queue": "jobs",
            "traceId": "t1",
        },
        "failure": {
            "reasonCode": "NACKED",
            "reasonMessage": "why",
            "failedAt": "2023-11-14T22:13:21+00:00",
            "attempt": 1,
            "consumerId": "me",
        },
        "routing": {"sourceQueue": "jobs", "dlqQueue": "jobs-dlq"},
    }


def test_an_original_too_large_to_copy_is_named_instead() -> None:
    policy = Policy(dead_letters=DeadLetterPolicy(queue="dlq"))
    huge = msgspec.structs.replace(MESSAGE, body="x" * LARGEST_MAX_BYTES)
    dead = judge(policy, "jobs", huge, failed(), chance=lambda: 0.5, final=True)
    [draft] = dead.then
    assert isinstance(draft.message.body, dict)
    assert draft.message.body["originalMessage"] == {"messageId": "m1", "queue": "jobs", "tooLargeToCopy": True}


@pytest.mark.parametrize("id", ["m1", "x" * 128, "y" * 123 + ".zzzz"])
def test_the_copys_id_is_always_legal(id: str) -> None:
    from pabal.names import check_id

    policy = Policy(dead_letters=DeadLetterPolicy(queue="dlq"))
    named = msgspec.structs.replace(MESSAGE, id=id)
    [draft] = judge(policy, "jobs", named, failed(), chance=lambda: 0.5, final=True).then
    assert ".dlq." in check_id(draft.message.id)
