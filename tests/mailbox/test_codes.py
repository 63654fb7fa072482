"""Every code of the protocol is really used: the same mistake gets the same code on every store."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.mailbox.protocol import Code
from pabal.policy.policy import Policy
from pabal.testing import ManualClock
from tests.mailbox.room import Room
from tests.openers import OPENERS

FORGED = "0123456789abcdef"


@pytest.fixture(params=OPENERS)
def room(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Room]:
    store = OPENERS[request.param].open(tmp_path, clock)
    made = Room(tmp_path / "ipc", store, clock=clock, queues=frozenset({"jobs"}))
    yield made
    made.close()


def publish(room: Room, **more: Any) -> str:
    key: str = room.good("publish", {"queue": "jobs", "message": {}, **more})["messageKey"]
    return key


def invalid(room: Room) -> str:
    return room.code("publish", {"queue": "jobs"})


def unknown_command(room: Room) -> str:
    return room.code("frobnicate")


def unknown_queue(room: Room) -> str:
    return room.code("consume", {"queue": "nobodys"})


def unknown_message(room: Room) -> str:
    return room.code("ack", {"messageKey": "msg:jobs:nobody", "leaseId": FORGED})


def expired(room: Room) -> str:
    return room.code("ack", {"messageKey": publish(room), "leaseId": FORGED})


def mismatch(room: Room) -> str:
    publish(room)
    key = room.good("consume", {"queue": "jobs"})["lease"]["messageKey"]
    return room.code("extend", {"messageKey": key, "leaseId": FORGED})


def full(room: Room) -> str:
    room.connection.queue("jobs").configure(Policy(max_waiting=1))
    publish(room)
    return room.code("publish", {"queue": "jobs", "message": {}})


def not_empty(room: Room) -> str:
    room.good("publish", {"queue": "jobs.quarantine", "message": {}})
    return room.code("delete_queue", {"queue": "jobs.quarantine"})


def internal(room: Room) -> str:
    publish(room)
    (room.root / "archive/jobs").write_text("in the way")  # of the folder of an archive
    lease = room.good("consume", {"queue": "jobs"})["lease"]
    room.good("nack", {"messageKey": lease["messageKey"], "leaseId": lease["leaseId"]})
    return room.code("archive_dlq", {"queue": "jobs"})


def late(room: Room) -> str:
    return room.code("health", deadlineMs=round(room.clock.now() * 1000) - 1)


def garbled(room: Room) -> str:
    return room.code("publish", {"queue": "jobs", "message": '{"a": '})


def unfit(room: Room) -> str:
    room.connection.queue("jobs").configure(Policy(body_schema={"type": "object", "required": ["temp"]}))
    return room.code("publish", {"queue": "jobs", "message": {}})


def not_dead(room: Room) -> str:
    return room.code("reprocess", {"messageKey": publish(room)})


MISTAKES: dict[Code, Callable[[Room], str]] = {
    Code.ERR_INVALID_REQUEST: invalid,
    Code.UNKNOWN_COMMAND: unknown_command,
    Code.QUEUE_NOT_FOUND: unknown_queue,
    Code.MESSAGE_NOT_FOUND: unknown_message,
    Code.LEASE_EXPIRED: expired,
    Code.LEASE_MISMATCH: mismatch,
    Code.QUEUE_FULL: full,
    Code.QUEUE_NOT_EMPTY: not_empty,
    Code.INTERNAL_ERROR: internal,
    Code.TIMEOUT: late,
    Code.PARSE_ERROR: garbled,
    Code.VALIDATION_FAILED: unfit,
    Code.DLQ_NOT_FOUND: not_dead,
}


@pytest.mark.parametrize("code", Code)
def test_each_mistake_has_its_code(room: Room, code: Code) -> None:
    assert MISTAKES[code](room) == code
    assert room.good("metrics")["errors"]["codes"] == {code: 1}


def test_quotes_in_reasons_and_attributes_are_only_text(room: Room) -> None:
    nasty = "it's \"over\"'); drop table messages; --\\ \N{SNOWMAN}\x00"
    publish(room, attributes={"a'b": nasty}, deduplicationKey="k'; --", message={"n": nasty})
    found = room.good("consume", {"queue": "jobs"})
    assert found["message"]["attributes"] == {"a'b": nasty} and found["message"]["payload"] == {"n": nasty}
    held = {name: found["lease"][name] for name in ("messageKey", "leaseId")}
    room.good("nack", {**held, "reason": nasty})
    [dead] = room.good("list_dlq", {"queue": "jobs"})["messages"]
    assert dead["reason"] == nasty and dead["reasonCode"] == "NACKED"
    assert (
        room.code("publish", {"queue": "jobs", "message": 1, "targetConsumerId": "a' or 1=1"}) == "ERR_INVALID_REQUEST"
    )
