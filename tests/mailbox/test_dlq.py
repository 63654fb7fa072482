"""Dead letters: listed, counted, given another chance, put away."""

import json
from pathlib import Path
from typing import Any

import pytest

from pabal.policy.policy import DeadLetterPolicy, Policy
from pabal.store import Dead, Entry, Failure, Movable, Settlement, State
from pabal.testing import ManualClock
from tests.mailbox.room import Room
from tests.openers import OPENERS


def bury(room: Room, body: Any, code: str = "NACKED", reason: str = "", at: float | None = None) -> str:
    """Publish a message and let it die of this."""
    room.good("publish", {"queue": "jobs", "message": {"n": body}})
    [lease] = room.store.lease("jobs", 1, 60.0)
    failure = Failure(code, reason, room.clock.now() if at is None else at, 1, "worker")
    room.store.settle([Settlement(lease.receipt, Dead(failure))])
    return lease.receipt.id


@pytest.fixture
def dead(room: Room, clock: ManualClock) -> list[str]:
    """Return the ids of four dead messages, of three reasons and two ages."""
    first = bury(room, 1, "NACKED", "no such file")
    clock.advance(100)
    return [first, bury(room, 2, "HANDLER_ERROR", "ValueError: x"), bury(room, 3, "NACKED"), bury(room, 4, "EXPIRED")]


def left(room: Room) -> list[str]:
    return [entry.id for entry in room.store.browse("jobs", State.DEAD)]


def test_list_says_why_and_when(room: Room, clock: ManualClock) -> None:
    id = bury(room, 1, "NACKED", "no such file")
    assert room.good("list_dlq", {"queue": "jobs"}) == {
        "queue": "jobs",
        "count": 1,
        "total": 1,
        "messages": [
            {
                "messageKey": f"msg:jobs:{id}",
                "queue": "jobs",
                "reason": "no such file",
                "reasonCode": "NACKED",
                "dlqAt": round(clock.now() * 1000),
                "attempt": 1,
                "consumerId": "worker",
            }
        ],
    }


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"limit": 2}, [0, 1]),
        ({"reason": "NACKED"}, [0, 2]),
        ({"reason": "nacked"}, [0, 2]),
        ({"reason": "such file"}, [0]),
        ({"reason": "nothing like it"}, []),
        ({"olderThanSec": 50}, [0]),
        ({"olderThanSec": 50, "reason": "EXPIRED"}, []),
    ],
)
def test_they_are_chosen_by_reason_and_age(
    room: Room, dead: list[str], choice: dict[str, Any], expected: list[int]
) -> None:
    found = room.good("list_dlq", {"queue": "jobs", **choice})
    assert [each["messageKey"] for each in found["messages"]] == [f"msg:jobs:{dead[n]}" for n in expected]
    assert (found["count"], found["total"]) == (len(expected), 4)


def test_count_has_no_limit(room: Room) -> None:
    assert isinstance(room.store, Movable)
    died = Failure("NACKED", "no", 1.0, 1)
    room.store.carry("jobs", [Entry("jobs", f"m{n}", State.DEAD, 1, failure=died) for n in range(10_001)])
    assert room.good("count_dlq")["count"] == 10_001
    assert room.good("purge_dlq", {"queue": "jobs"})["purged"] == 10_000


def test_count_is_by_queue_and_reason(room: Room, dead: list[str]) -> None:
    reasons = {"NACKED": 2, "HANDLER_ERROR": 1, "EXPIRED": 1}
    assert room.good("count_dlq") == {"count": 4, "queues": {"jobs": reasons}}
    assert room.good("count_dlq", {"queue": "jobs", "olderThanSec": 50})["queues"] == {"jobs": {"NACKED": 1}}


def test_reprocess_gives_one_another_chance(room: Room, dead: list[str]) -> None:
    key = f"msg:jobs:{dead[1]}"
    assert room.good("reprocess", {"messageKey": key}) == {"messageKey": key, "reprocessed": True}
    assert room.good("consume", {"queue": "jobs"})["message"]["attempt"] == 1
    assert room.code("reprocess", {"messageKey": key}) == "DLQ_NOT_FOUND"
    assert room.code("reprocess", {"messageKey": "msg:jobs:nobody"}) == "DLQ_NOT_FOUND"


def test_reprocess_gives_many_another_chance(room: Room, dead: list[str]) -> None:
    found = room.good("reprocess_dlq", {"queue": "jobs", "reason": "NACKED"})
    assert found == {"queue": "jobs", "reprocessed": 2}
    assert left(room) == [dead[1], dead[3]]


def test_purge_removes_those_chosen_for_good(room: Room, dead: list[str]) -> None:
    assert room.good("purge_dlq", {"queue": "jobs", "reason": "EXPIRED"}) == {"queue": "jobs", "purged": 1}
    assert left(room) == dead[:3]
    assert room.good("purge_dlq", {"queue": "jobs", "olderThanSec": 50}) == {"queue": "jobs", "purged": 1}
    assert room.good("purge_dlq", {"queue": "jobs"}) == {"queue": "jobs", "purged": 2}
    assert left(room) == []


def test_archive_writes_the_failure_documents_before_it_removes_them(
    room: Room, clock: ManualClock, dead: list[str]
) -> None:
    room.connection.queue("jobs").configure(Policy(dead_letters=DeadLetterPolicy(queue="letters")))
    clock.advance(2)  # the manager reads a policy at most once a second
    found = room.good("archive_dlq", {"queue": "jobs", "reason": "NACKED"})
    assert found["archived"] == 2 and left(room) == [dead[1], dead[3]]
    lines = [json.loads(line) for line in Path(found["file"]).read_text().splitlines()]
    assert [line["originalMessage"]["messageId"] for line in lines] == [dead[0], dead[2]]
    assert lines[0]["failure"]["reasonMessage"] == "no such file"
    assert lines[0]["routing"] == {"sourceQueue": "jobs", "dlqQueue": "letters"}
    again = room.good("archive_dlq", {"queue": "jobs"})
    assert again["archived"] == 2 and again["file"] != found["file"]
    assert room.good("archive_dlq", {"queue": "jobs"}) == {"queue": "jobs", "archived": 0, "file": None}


def test_quarantine_sets_them_apart_where_nobody_takes_them(room: Room, dead: list[str]) -> None:
    found = room.good("quarantine_dlq", {"queue": "jobs", "reason": "NACKED"})
    assert found == {"queue": "jobs", "quarantine": "jobs.quarantine", "quarantined": 2}
    assert left(room) == [dead[1], dead[3]]
    assert room.good("consume", {"queue": "jobs.quarantine"})["message"] is None
    assert room.store.counts("jobs.quarantine")[State.READY] == 2
    key = f"msg:jobs:{dead[3]}"
    assert room.good("quarantine", {"messageKey": key})["quarantined"] == 1
    assert room.code("quarantine", {"messageKey": key}) == "DLQ_NOT_FOUND"


def test_release_brings_them_back(room: Room, dead: list[str]) -> None:
    room.good("quarantine_dlq", {"queue": "jobs"})
    assert room.good("release_dlq", {"queue": "jobs"}) == {"queue": "jobs", "released": 4}
    assert room.store.counts("jobs.quarantine")[State.READY] == 0
    got = [room.good("consume", {"queue": "jobs"})["message"]["payload"]["n"] for _ in range(4)]
    assert sorted(got) == [1, 2, 3, 4]


def test_dying_again_after_a_release_is_another_death(room: Room, clock: ManualClock) -> None:
    id = bury(room, 1)
    for _ in range(3):
        assert room.good("quarantine_dlq", {"queue": "jobs"})["quarantined"] == 1
        assert room.good("release_dlq", {"queue": "jobs"})["released"] == 1
        [lease] = room.store.lease("jobs", 1, 60.0)
        clock.advance(1)
        failure = Failure("NACKED", "again", clock.now(), 1)
        room.store.settle([Settlement(lease.receipt, Dead(failure))])
    assert left(room) == [id]


@pytest.mark.parametrize("store", OPENERS)
def test_a_release_keeps_the_id_and_loses_nothing_where_it_is_taken(
    store: str, tmp_path: Path, clock: ManualClock
) -> None:
    room = Room(tmp_path / "ipc", OPENERS[store].open(tmp_path, clock), clock=clock)
    try:
        rounds: list[tuple[int, list[Any]]] = [(1, ["own"]), (2, [2, 1])]
        for round_, expected in rounds:
            if round_ == 1:
                room.good("publish", {"queue": "jobs", "message": round_, "messageId": "own"})
            [lease] = room.store.lease("jobs", 1, 60.0)
            clock.advance(1)
            failure = Failure("NACKED", "", clock.now(), 1, "worker")
            room.store.settle([Settlement(lease.receipt, Dead(failure))])
            assert room.good("quarantine", {"queue": "jobs"})["quarantined"] == 1
            if round_ == 2:
                clock.advance(1000)
                room.good("publish", {"queue": "jobs", "message": 2, "messageId": "own"})
            assert room.good("release_dlq", {"queue": "jobs"})["released"] == 1
            found = room.good("peek", {"queue": "jobs"})["messages"]
            assert [each["messageId"] if round_ == 1 else each["payload"] for each in found] == expected
    finally:
        room.close()


def test_quarantine_works_where_the_configuration_names_its_queues(strict: Room) -> None:
    bury(strict, 1)
    assert strict.good("quarantine_dlq", {"queue": "jobs"})["quarantined"] == 1
    assert strict.good("status", {"queue": "jobs.quarantine"})["metrics"]["ready"] == 1
