"""The policy document, its limits, and the delays it asks for."""

import pytest

from pabal.errors import InvalidPolicy
from pabal.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy, document_of, policy_from

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
        retry=RetryPolicy(backoff=Backoff.FULL_JITTER, limit=2), paused=True, body_schema={"type": "object"}
    )
    assert policy_from(document_of(policy)) == policy


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"visibilityTimeoutSec": 0}, "visibilityTimeoutSec must be"),
        ({"visibilityTimeoutSec": "30"}, r"\$\.visibilityTimeoutSec"),
        ({"retry": {"limit": 0}}, "retry.limit must be"),
        ({"retry": {"backoff": "random"}}, r"\$\.retry\.backoff"),
        ({"retry": {"initialDelaySec": 9, "maxDelaySec": 3}}, "below retry.initialDelaySec"),
        ({"dlq": {"queue": "../x"}}, "dlq.queue: queue name must be"),
        ({"maxBytes": (64 << 20) + 1}, "maxBytes must be"),
        ({"visibility": 3}, "unknown field `visibility`"),
        ({"retry": {"poisonLimit": -1}}, "retry.poisonLimit must be"),
        ({"onInvalid": "dead-letter"}, "onInvalid dead-letter needs dlq.queue"),
        ({"onInvalid": "drop"}, r"\$\.onInvalid"),
        ({"messageSchema": {"rules": [{"field": "a", "type": "odd"}]}}, r"rules\[0\]\.type"),
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
