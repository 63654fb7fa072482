"""The policy document, its limits, and the delays it asks for."""

from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.errors import InvalidPolicy
from pabal.policy.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy, document_of, policy_from

SEED = {
    "visibilityTimeoutSec": 30,
    "retry": {"limit": 5, "backoff": "exponential", "initialDelaySec": 1, "maxDelaySec": 60},
    "dlq": {"enabled": True, "queue": "telemetry-dlq", "retentionDays": 14},
}


def test_the_original_document_is_read_as_it_stands() -> None:
    policy = policy_from(SEED)
    assert policy == Policy(dead_letters=DeadLetterPolicy(queue="telemetry-dlq"))


def test_a_policy_survives_its_document() -> None:
    policy = Policy(
        retry=RetryPolicy(backoff=Backoff.FULL_JITTER, limit=2), durable_acks=True, body_schema={"type": "object"}
    )
    assert policy_from(document_of(policy)) == policy


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"visibilityTimeoutSec": 0}, "visibilityTimeoutSec must be"),
        ({"visibilityTimeoutSec": "30"}, r"\$\.visibilityTimeoutSec"),
        ({"retry": {"limit": 0}}, "retry.limit must be"),
        (
            {"retry": {"backoff": "random"}},
            r"allowed are fixed, linear, exponential, full-jitter - at `\$\.retry\.backoff",
        ),
        ({"retry": {"backoff": "x - at `$.y`"}}, r"allowed are fixed, .* - at `\$\.retry\.backoff"),
        ({"retry": {"limt": 3}}, r"unknown field `limt`; did you mean limit\? - at `\$\.retry`"),
        ({"maxByte": 3}, r"unknown field `maxByte`; did you mean maxBytes\?"),
        ({"limt": 3}, r"unknown field `limt`; known are visibilityTimeoutSec, ttlSec, "),
        ({"maxBytes": 10**8}, "maxBytes must be 1 to 67108864; found 100000000$"),
        ({"visibilityTimeoutSec": 4e7}, "visibilityTimeoutSec must be 0.001 to 31622400; found 40000000$"),
        ({"retry": {"initialDelaySec": 9, "maxDelaySec": 3}}, "below retry.initialDelaySec"),
        ({"dlq": {"queue": "../x"}}, "dlq.queue: queue name must be"),
        ({"maxBytes": (64 << 20) + 1}, "maxBytes must be"),
        ({"visibility": 3}, "unknown field `visibility`"),
        ({"retry": {"poisonLimit": -1}}, "retry.poisonLimit must be"),
        ({"onInvalid": "dead-letter", "dlq": {"enabled": False}}, "onInvalid dead-letter needs dlq.enabled"),
        ({"onInvalid": "drop"}, r"allowed are refuse, dead-letter - at `\$\.onInvalid"),
        (
            {"messageSchema": {"rules": [{"field": "a", "type": "odd"}]}},
            r"required, type, .*, custom - at .*rules\[0\]\.type",
        ),
        (
            {"messageSchema": {"rules": [{"field": "a", "type": "type", "expectedType": "int"}]}},
            r"allowed are string, number, .* - at `\$\.messageSchema\.rules\[0\]\.expectedType",
        ),
        ({"messageSchema": {"rule": []}}, r"did you mean rules\? - at `\$\.messageSchema`"),
        ({"messageSchema": {"rules": [{"field": "a", "type": "minLength"}]}}, "rule minLength of a needs `value`"),
    ],
)
def test_a_wrong_value_is_named(document: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidPolicy, match=says):
        policy_from(document)


def test_the_largest_size_is_allowed() -> None:
    assert policy_from({"maxBytes": 64 << 20}).max_bytes == 64 << 20


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff.FIXED, [2, 2, 2, 2]),
        (Backoff.LINEAR, [2, 4, 6, 8]),
        (Backoff.EXPONENTIAL, [2, 4, 8, 10]),
        (Backoff.FULL_JITTER, [1, 2, 4, 5]),
    ],
)
def test_delays_grow_as_the_backoff_says(backoff: Backoff, expected: list[float]) -> None:
    retry = RetryPolicy(backoff=backoff, initial=2, max=10)
    assert [retry.delay(attempt, 0.5) for attempt in (1, 2, 3, 4)] == expected


def test_a_huge_attempt_does_not_overflow() -> None:
    assert RetryPolicy().delay(1_000_000, 0.5) == 60


def test_a_tombstone_outlives_the_dedup_window() -> None:
    assert Policy().tombstone == 600
    assert Policy(dedup_window=3600).tombstone == 3600
    assert Policy(done_retention=7200).tombstone == 7200


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"retry": 3}, r"retry must be a RetryPolicy\(…\); found 3"),
        ({"dead_letters": "jobs-dead"}, r"dead_letters must be a DeadLetterPolicy\(…\); found 'jobs-dead'"),
        ({"visibility": "30"}, "visibility must be 0.001 to 31622400; found '30'"),
        ({"retry": {"limit": "3"}}, "retry.limit must be 1 to 1000000; found '3'"),
        ({"retry": {"limit": 3.5}}, "retry.limit must be 1 to 1000000; found 3.5"),
        ({"retry": {"backoff": "expo"}}, "retry.backoff must be one of fixed, linear, .*; found 'expo'"),
        ({"retry": {"initial": 9, "max": 3}}, r"retry.max \(3\) is below retry.initial \(9\)"),
        ({"ttl": True}, "ttl must be"),
        ({"max_bytes": 1e6}, "max_bytes must be"),
        ({"durable_acks": "yes"}, "durable_acks must be true or false; found 'yes'"),
        ({"on_invalid": "drop"}, "on_invalid must be refuse or dead-letter; found 'drop'"),
        ({"body_schema": 5}, "body_schema must be a JSON Schema, as a dict; found 5"),
        ({"message_schema": []}, "message_schema must be a MessageSchema"),
        ({"dead_letters": {"queue": 5}}, "dead_letters.queue: queue name must be"),
        ({"dead_letters": {"enabled": 1}}, "dead_letters.enabled must be"),
    ],
)
def test_a_policy_of_wrong_parts_is_refused_when_made(given: dict[str, Any], says: str) -> None:
    parts = {"retry": RetryPolicy, "dead_letters": DeadLetterPolicy}
    with pytest.raises(InvalidPolicy, match=says):
        made = {name: parts[name](**value) if isinstance(value, dict) else value for name, value in given.items()}
        Policy(**made)


UNREADABLE: list[tuple[Any, str]] = [
    (Policy(body_schema={"maximum": 2**70}), "64 bits"),
    (Policy(body_schema={"maximum": float("nan")}), "JSON number"),
    ({"retry": {"limit": 3}}, r"a pabal\.Policy, .* found dict"),
    (None, "found NoneType"),
]


@pytest.mark.parametrize(("policy", "says"), UNREADABLE, ids=[says for _, says in UNREADABLE])
def test_a_policy_that_nobody_could_read_again_is_not_stored(tmp_path: Path, policy: Any, says: str) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        with pytest.raises(InvalidPolicy, match=says):
            mq.queue("jobs").configure(policy)
        assert mq.queue("jobs").store.settings("jobs") is None


def test_whoever_stores_a_policy_lives_by_it_as_its_readers_do(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        queue = mq.queue("jobs")
        queue.configure(Policy(retry=RetryPolicy(backoff="fixed", initial=2)))  # type: ignore[arg-type]
        assert queue.policy.retry.backoff is Backoff.FIXED
        assert mq.queue("jobs").policy == queue.policy


def test_a_stored_policy_that_cannot_be_read_names_its_queue_and_can_be_replaced(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        mq.store.configure("jobs", {"maxBytes": 1.5})
        queue = mq.queue("jobs")
        with pytest.raises(InvalidPolicy, match=r"queue jobs has a policy .*maxBytes.*`pabal policy set jobs --file"):
            queue.lease()
        queue.configure(Policy())
        assert queue.lease() == []


def test_an_unknown_type_in_a_schema_is_named(tmp_path: Path) -> None:
    pytest.importorskip("fastjsonschema")
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq, pytest.raises(InvalidPolicy, match="Unknown type 'strng'"):
        mq.queue("jobs").configure(Policy(body_schema={"properties": {"a": {"type": "strng"}}}))
