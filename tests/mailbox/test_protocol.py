"""Requests as they are read: every mistake has its name, and as many as possible an answer."""

import json
from typing import Any

import pytest

from pabal import errors
from pabal.errors import PabalError, Refused, Uncertain
from pabal.mailbox.commands import COMMANDS
from pabal.mailbox.protocol import (
    ALIASES,
    MAX_REQUESTS,
    Batch,
    Code,
    Problem,
    Request,
    answer_of,
    code_of,
    read_batch,
    refusal_of,
)

WHOLE: dict[str, Any] = {"requestId": "r1", "clientId": "me", "command": "publish", "payload": {"queue": "jobs"}}


def read(document: Any) -> Batch:
    return read_batch(document if isinstance(document, bytes) else json.dumps(document).encode())


def request(document: Any) -> Request:
    [found] = read(document).requests
    assert isinstance(found, Request), found
    return found


def problem(document: Any) -> Problem:
    [found] = read(document).requests
    assert isinstance(found, Problem), found
    return found


def test_a_request_is_read_whole() -> None:
    found = request(WHOLE | {"timestampMs": 1500, "deadlineMs": 2500.5})
    assert found == Request("r1", "me", "publish", {"queue": "jobs"}, at=1.5, deadline=2.5005)


def test_only_three_fields_are_needed() -> None:
    found = request({"requestId": "r1", "clientId": "me", "command": "health"})
    assert (found.payload, found.at, found.deadline) == ({}, 0.0, 0.0)


@pytest.mark.parametrize("name", ["requestId", "clientId", "command"])
@pytest.mark.parametrize("value", [None, "", 5, ["x"], "absent"])
def test_a_missing_field_is_named(name: str, value: Any) -> None:
    document = {key: each for key, each in WHOLE.items() if value != "absent" or key != name}
    if value != "absent":
        document[name] = value
    found = problem(document)
    assert type(found.error) is errors.InvalidRequest and name in str(found.error)


@pytest.mark.parametrize("command", ["PUBLISH", "Publish", "publish"])
def test_commands_are_known_in_any_case(command: str) -> None:
    assert request(WHOLE | {"command": command}).command == "publish"


@pytest.mark.parametrize(
    ("alias", "command"),
    [
        ("consume_next", "consume_next"),
        ("consumenext", "consume_next"),
        ("ConsumeNext", "consume_next"),
        ("consume", "consume_next"),
        ("extend_lease", "extend_lease"),
        ("ExtendLease", "extend_lease"),
        ("extend", "extend_lease"),
        ("list_dlq", "list_dlq"),
        ("listdlq", "list_dlq"),
        ("dlq", "list_dlq"),
        ("reprocess_dlq", "reprocess_dlq"),
        ("reprocessdlq", "reprocess_dlq"),
        ("reprocess", "reprocess_dlq"),
    ],
)
def test_every_alias_leads_to_its_command(alias: str, command: str) -> None:
    assert request(WHOLE | {"command": alias}).command == command


def test_no_alias_leads_nowhere() -> None:
    assert set(ALIASES.values()) <= set(COMMANDS)
    assert not set(ALIASES) & set(COMMANDS)


@pytest.mark.parametrize(
    "client", ["../x", "/etc/x", "a/b", ".", "..", ".hidden", "-x", "a\nb", "a\x00b", "é", "c" * 201]
)
def test_a_client_name_that_is_no_name_is_nobodys(client: str) -> None:
    batch = read(WHOLE | {"clientId": client})
    assert batch.client == ""
    assert type(problem(WHOLE | {"clientId": client}).error) is errors.InvalidName


@pytest.mark.parametrize("value", [-1, -0.001, 1e15, 1e300, True, "5", [], None])
def test_a_deadline_that_is_no_moment_is_refused(value: Any) -> None:
    found = problem(WHOLE | {"deadlineMs": value})
    assert type(found.error) is errors.InvalidDeadline and found.client == "me"
    assert code_of(found.error) is Code.ERR_INVALID_REQUEST


@pytest.mark.parametrize("value", [-1, "5", 1e300])
def test_a_timestamp_that_is_no_moment_is_refused(value: Any) -> None:
    assert type(problem(WHOLE | {"timestampMs": value}).error) is errors.InvalidRequest


def test_a_payload_is_an_object() -> None:
    assert "payload" in str(problem(WHOLE | {"payload": [1]}).error)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", errors.NotJson),
        (b"hello", errors.NotJson),
        (b'{"clientId":"me","requestId":"r1"', errors.NotJson),
        (b'{"clientId":"me","requestId":"r1","payload":{"a":1,"a":2},"command":"publish"}', errors.DuplicateKey),
        (b'{"clientId":"me","requestId":"r1","payload":{"a":NaN},"command":"publish"}', errors.InvalidNumber),
        (b'{"clientId":"me","requestId":"r1","payload":{"a":1e999},"command":"publish"}', errors.InvalidNumber),
        (b'{"clientId":"me","requestId":"r1","payload":{"a":' + b"9" * 5000 + b"}}", errors.NumberOutOfRange),
        (b'{"clientId":"me","requestId":"r1","payload":{"a":"\\ud800"},"command":"publish"}', errors.InvalidText),
        (b'{"clientId":"me","requestId":"r1","payload":{"a":"\xff"},"command":"publish"}', errors.NotUtf8),
        (b'{"clientId":"me","requestId":"r1","payload":' + b"[" * 100_000 + b"]" * 100_000 + b"}", errors.TooDeep),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_text_that_cannot_be_read_has_its_own_error_and_is_still_somebodys(
    data: bytes, error: type[PabalError]
) -> None:
    found = problem(data)
    assert type(found.error) is error and code_of(found.error) is Code.PARSE_ERROR
    if b"clientId" in data:
        assert (read(data).client, found.client, found.id) == ("me", "me", "r1")


@pytest.mark.parametrize("deep", [b"[" * 100_000, b'{"a":' * 100_000])
def test_a_deep_request_of_the_library_is_refused(deep: bytes) -> None:
    data = b'{"clientId":"me","requestId":"r1","command":"store.publish","payload":' + deep
    assert type(problem(data).error) is errors.TooDeep


def test_an_array_is_many_requests_in_order() -> None:
    batch = read([WHOLE | {"requestId": f"r{n}"} for n in range(3)])
    assert batch.many and [found.id for found in batch.requests] == ["r0", "r1", "r2"]


def test_equal_ids_in_one_file_are_told_apart() -> None:
    batch = read([WHOLE, WHOLE | {"requestId": "other"}, WHOLE])
    assert [found.occurrence for found in batch.requests if isinstance(found, Request)] == [0, 0, 1]


def test_one_bad_request_of_an_array_leaves_the_others() -> None:
    batch = read([WHOLE, {"requestId": "r2", "clientId": "me"}, 7, WHOLE | {"clientId": "you"}, WHOLE])
    kinds = [type(found) for found in batch.requests]
    assert kinds == [Request, Problem, Problem, Problem, Request]
    assert batch.client == "me" and batch.requests[1].id == "r2"


@pytest.mark.parametrize("many", [0, MAX_REQUESTS + 1])
def test_an_array_of_too_few_or_too_many_is_refused_whole(many: int) -> None:
    assert type(problem([WHOLE] * many).error) is errors.InvalidRequest


def test_a_full_array_is_taken() -> None:
    assert len(read([WHOLE] * MAX_REQUESTS).requests) == MAX_REQUESTS


def test_answers_are_documents() -> None:
    assert answer_of("r1", {"a": 1}) == {"requestId": "r1", "ok": True, "data": {"a": 1}}
    told = refusal_of("r1", errors.LeaseLost("gone"))
    assert told == {
        "requestId": "r1",
        "ok": False,
        "error": {"code": "LEASE_EXPIRED", "message": "gone", "type": "LeaseLost"},
    }
    assert refusal_of("r1", Uncertain("who knows", ("a", "b")))["error"]["ids"] == ["a", "b"]
    assert refusal_of("r1", Refused("LEASE_MISMATCH", "x", kind="LeaseLost"))["error"]["type"] == "LeaseLost"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ValidationFailed, Code.VALIDATION_FAILED),
        (errors.QueueUnknown, Code.QUEUE_NOT_FOUND),
        (errors.MessageUnknown, Code.MESSAGE_NOT_FOUND),
        (errors.DeadlinePassed, Code.TIMEOUT),
        (errors.NotJson, Code.PARSE_ERROR),
        (errors.InvalidName, Code.ERR_INVALID_REQUEST),
        (errors.WrongOwner, Code.ERR_INVALID_REQUEST),
        (errors.SenderMismatch, Code.ERR_INVALID_REQUEST),
        (errors.StoreFull, Code.INTERNAL_ERROR),
        (errors.QueueFull, Code.QUEUE_FULL),
        (errors.MailboxFull, Code.INTERNAL_ERROR),
    ],
)
def test_every_error_has_a_code(error: type[PabalError], code: Code) -> None:
    assert code_of(error("x")) is code
