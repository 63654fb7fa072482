"""`pabal policy`, `pause`, `resume`."""

import json
from pathlib import Path
from typing import Any

import pytest

from pabal.connect import connect
from tests.cli.command import Pabal

# As operators of other systems have it in their files.
DOCUMENT = {
    "visibilityTimeoutSec": 45,
    "retry": {"limit": 4, "backoff": "exponential", "initialDelaySec": 1, "maxDelaySec": 60},
    "dlq": {"enabled": True, "queue": "telemetry-dlq", "retentionDays": 14},
}


def policy(pabal: Pabal) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pabal.ok("policy", "show", "jobs", "--json"))
    return found


def test_a_document_is_taken_as_it_stands(any_pabal: Pabal, tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text(json.dumps(DOCUMENT))
    printed = any_pabal.ok("policy", "set", "jobs", "--file", str(path)).splitlines()
    assert printed == [
        'dlq.queue: "" -> "telemetry-dlq"',
        "retry.limit: 5 -> 4",
        "visibilityTimeoutSec: 30.0 -> 45.0",
    ]
    found = policy(any_pabal)
    assert found["retry"].pop("poisonLimit") == 0 and not found["dlq"].pop("move")
    assert (
        found["visibilityTimeoutSec"] == 45 and found["retry"] == DOCUMENT["retry"] and found["dlq"] == DOCUMENT["dlq"]
    )


def test_what_show_prints_is_what_set_takes(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--file", "-", stdin=json.dumps(DOCUMENT))
    shown = pabal.ok("policy", "show", "jobs")
    assert len(shown.splitlines()) > 10
    assert pabal.ok("policy", "set", "jobs", "--file", "-", stdin=shown) == "jobs: nothing changed"


def test_single_values_are_set(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--set", "retry.limit=3", "--set", "retry.backoff=full-jitter")
    pabal.ok("policy", "set", "jobs", "--set", "dlq.queue=graves", "--set", "durableAcks=true")
    found = policy(pabal)
    assert (found["retry"]["limit"], found["retry"]["backoff"]) == (3, "full-jitter")
    assert (found["dlq"]["queue"], found["durableAcks"]) == ("graves", True)
    pabal.ok("policy", "set", "jobs", "--set", "dlq.queue=")
    assert policy(pabal)["dlq"]["queue"] == ""


def test_set_applies_on_top_of_a_file(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--set", "ttlSec=60")
    pabal.ok("policy", "set", "jobs", "--file", "-", "--set", "retry.limit=9", stdin=json.dumps(DOCUMENT))
    found = policy(pabal)
    assert (found["retry"]["limit"], found["visibilityTimeoutSec"], found["ttlSec"]) == (9, 45, 0)


def test_a_body_schema_can_be_set(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--set", 'schema={"type": "object", "required": ["temp"]}')
    ran = pabal("publish", "jobs", "{}")
    assert (ran.code, ran.err.split(":")[1]) == (2, " ValidationFailed")


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--set", "retry.limit"],
        ["--set", "retry.limit=many"],
        ["--set", "retry.limit=0"],
        ["--set", "nothing=1"],
        ["--set", "retry.nothing=1"],
        ["--set", "ttlSec.deep=1"],
        ["--set", "a.b=1"],
        ["--set", "visibilityTimeoutSec={"],
        ["--set", "dlq.queue=../x"],
        ["--file", "/nowhere/at/all"],
    ],
)
def test_what_is_no_policy_is_refused(pabal: Pabal, args: list[str]) -> None:
    pabal.ok("publish", "jobs", "1")
    ran = pabal("policy", "set", "jobs", *args)
    assert ran.code == 2, ran
    assert ran.err.startswith("pabal: ") and ran.err.count("\n") == 1


@pytest.mark.parametrize("text", ["", "[]", "{", '{"retry": {"limit": 1, "limit": 2}}', " " * (1 << 20) + "{}"])
def test_a_document_that_is_none_is_refused(pabal: Pabal, text: str) -> None:
    assert pabal("policy", "set", "jobs", "--file", "-", stdin=text).code == 2


def test_pause_and_resume(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    assert any_pabal.ok("pause", "jobs") == "jobs is paused"
    assert any_pabal("consume", "jobs").code == 1
    any_pabal.ok("publish", "jobs", "2")
    assert any_pabal.ok("resume", "jobs") == "jobs is running"
    assert any_pabal("consume", "jobs").code == 0


def test_a_policy_from_a_file_does_not_set_a_paused_queue_going(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    pabal.ok("pause", "jobs")
    pabal.ok("policy", "set", "jobs", "--file", "-", stdin=json.dumps(DOCUMENT))
    assert pabal("consume", "jobs").code == 1
    ran = pabal("policy", "set", "jobs", "--file", "-", stdin='{"paused": false}')
    assert ran.code == 2 and "pabal resume" in ran.err


def test_an_unknown_queue_is_neither_shown_nor_paused(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    for args in (["policy", "show", "job"], ["pause", "job"], ["resume", "job"]):
        assert pabal(*args).code == 3


def spoil(pabal: Pabal, document: dict[str, Any]) -> None:
    """Give the queue a policy that cannot be read."""
    with connect(pabal.url) as mq:
        mq.store.configure("jobs", document)


def test_a_policy_that_cannot_be_read_is_replaced_by_a_file(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    spoil(any_pabal, {"maxBytes": 1.5, "retry": {"backoff": "expo"}, "paused": True})
    ran = any_pabal("policy", "show", "jobs")
    assert ran.code == 2 and "queue jobs has a policy that cannot be read" in ran.err
    assert "pabal policy set jobs --file PATH" in ran.err
    any_pabal.ok("policy", "set", "jobs", "--file", "-", stdin=json.dumps(DOCUMENT))
    found = policy(any_pabal)
    assert (found["retry"]["limit"], found["maxBytes"]) == (4, 1 << 20)
    assert any_pabal("consume", "jobs").code == 1  # and it stays paused


def test_a_policy_that_cannot_be_read_is_put_right_by_its_wrong_value(pabal: Pabal) -> None:
    spoil(pabal, {"maxBytes": 1.5, "retry": {"limit": 3}})
    assert pabal("policy", "set", "jobs", "--set", "ttlSec=1").code == 2
    assert "maxBytes: 1.5 -> 2000" in pabal.ok("policy", "set", "jobs", "--set", "maxBytes=2000").splitlines()
    assert policy(pabal)["retry"]["limit"] == 3


def test_a_policy_that_cannot_be_read_hides_no_other_queue(any_pabal: Pabal) -> None:
    for name in ("a", "jobs", "z"):
        any_pabal.ok("publish", name, "1")
    spoil(any_pabal, {"maxBytes": 1.5})
    lines = any_pabal.ok("status").splitlines()
    assert [line.split()[:2] for line in lines[1:4]] == [["a", "1"], ["jobs", "1"], ["z", "1"]]
    assert "queue jobs has a policy that cannot be read" in lines[2] and "maxBytes" in lines[2]
    _, document, _ = any_pabal("status", "--json").documents
    assert document["paused"] is None and "maxBytes" in document["fault"]


@pytest.mark.parametrize("change", ["maxBytes=100MB", "visibilityTimeoutSec=5m", "retry.limit=3x"])
def test_a_value_with_a_unit_is_refused_by_its_key(pabal: Pabal, change: str) -> None:
    ran = pabal("policy", "set", "jobs", "--set", change)
    key, _, text = change.partition("=")
    assert ran.code == 2
    assert f"{key}: expected a JSON value" in ran.err and "a number alone" in ran.err and repr(text) in ran.err


@pytest.mark.parametrize(
    ("text", "says"), [("retry:\n  limit: 3\n", "NotJson: "), ("\n", "it is empty"), ("[]", "bytes")]
)
def test_a_file_that_is_no_json_is_named(pabal: Pabal, tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(text)
    ran = pabal("policy", "set", "jobs", "--file", str(path))
    assert ran.code == 2
    assert f"{path}: a policy is a JSON object of at most 1048576 bytes" in ran.err and says in ran.err
