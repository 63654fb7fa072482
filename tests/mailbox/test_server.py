"""The way of a request: found however it came, answered once, in time, together with others, and after a restart."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pabal import errors
from pabal.mailbox.inbox import CLAIMED_AT_ONCE, RUN_AT_ONCE
from pabal.policy.policy import Policy
from pabal.store import State, Store
from pabal.testing import ManualClock
from tests.mailbox.room import Room
from tests.openers import OPENERS
from tests.waiting import until


class Counted:
    """A store that counts the calls that reach it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def call(*args: Any, **more: Any) -> Any:
            self.calls[name] += 1
            return found(*args, **more)

        return call


@pytest.fixture
def counted(tmp_path: Path, clock: ManualClock) -> Iterator[tuple[Room, Counter[str]]]:
    store = Counted(OPENERS["sqlite"].open(tmp_path, clock))
    made = Room(tmp_path / "ipc", store, clock=clock)
    yield made, store.calls
    made.close()


def publication(room: Room, n: int = 0, **more: Any) -> dict[str, Any]:
    return room.request("publish", {"queue": "jobs", "message": n}, **more)


def bodies(room: Room) -> list[Any]:
    return [entry.message.body for entry in room.store.browse("jobs", State.READY, limit=10_000) if entry.message]


# How requests arrive


def test_a_file_moved_in_by_a_shell_is_answered(served: Room, tmp_path: Path) -> None:
    document = json.dumps(publication(served, 5, requestId="from-sh"))
    script = """
    umask 077
    printf '%s' "$1" > "$2/requests/from-sh.json.tmp"
    mv "$2/requests/from-sh.json.tmp" "$2/requests/from-sh.json"
    for _ in $(seq 500); do [ -e "$2/responses/client/from-sh.json" ] && break; sleep 0.01; done
    cat "$2/responses/client/from-sh.json"
    """
    done = subprocess.run(
        ["sh", "-c", script, "sh", document, str(served.root)], capture_output=True, text=True, timeout=20, check=True
    )
    assert json.loads(done.stdout)["ok"] and bodies(served) == [5]


def test_a_file_moved_in_from_elsewhere_on_the_disk_is_answered(served: Room, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere.json"
    path.write_text(json.dumps(publication(served, 5)))
    path.chmod(0o600)
    path.rename(served.root / "requests" / "moved.json")
    assert until(lambda: served.answer("moved.json"))["ok"]


def test_a_file_written_in_place_is_answered(served: Room) -> None:
    with open(os.open(served.root / "requests" / "slow.json", os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        text = json.dumps(publication(served, 5))
        file.write(text[:20])
        file.flush()
        served.server.watch.wake()
        assert served.client("other").ask("health")["status"] == "ok"
        file.write(text[20:])
    assert until(lambda: served.answer("slow.json"))["ok"]


def test_a_half_written_file_waits_until_it_is_whole(room: Room, clock: ManualClock) -> None:
    text = json.dumps(publication(room, 5)).encode()
    path = room.root / "requests" / "half.json"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(fd, text[:30])
    os.utime(fd, (clock.now(), clock.now()))
    room.server._inbox.arrivals.rescan()
    assert room.server.step() == 0 and room.answer("half.json") is None
    due = room.server.next_due()
    assert due is not None and due < 2
    os.write(fd, text[30:])
    os.close(fd)
    clock.advance(due)
    assert room.server.step() == 1 and room.answer("half.json")["ok"]


def test_a_file_that_never_becomes_whole_is_refused(room: Room, clock: ManualClock) -> None:
    room.drop(b'{"clientId": "client", "requestId": "r9", "comm', "half.json")
    room.server.step()
    assert room.answer("half.json") is None
    clock.advance(3)
    room.server.step()
    answer = room.answer("half.json")
    assert (answer["requestId"], answer["error"]["code"]) == ("r9", "PARSE_ERROR")
    assert "NotJson" in room.reason("half.json") and room.files("processing") == []


def test_drafts_are_left_alone(room: Room) -> None:
    document = json.dumps(publication(room, 5))
    for name in ("x.json.tmp", ".hidden.json", ".tmp", "y.tmp"):
        path = room.root / "requests" / name
        path.write_text(document)
        path.chmod(0o600)
    room.server._inbox.arrivals.rescan()
    assert room.server.step() == 0
    assert set(os.listdir(room.root / "requests")) == {"x.json.tmp", ".hidden.json", ".tmp", "y.tmp"}


def test_a_request_without_a_client_is_dead_with_its_reason(room: Room, clock: ManualClock) -> None:
    document = {"requestId": "r1", "command": "health"}
    room.drop(document)
    room.server.step()
    assert "clientId" in room.reason("r1.json") and room.files("dead") == ["r1.json", "r1.json.reason"]
    told = json.loads((room.root / "dead" / "r1.json.reason").read_text())
    assert told["movedAt"] == round(clock.now() * 1000)
    room.drop(document)
    room.server.step()
    assert len(room.files("dead")) == 4


def test_a_malformed_request_with_a_client_gets_an_answer_and_is_dead(room: Room) -> None:
    answer = room.ask("", payload={})
    assert answer["error"]["code"] == "ERR_INVALID_REQUEST"
    assert "command" in room.reason(f"{answer['requestId']}.json")


@pytest.mark.parametrize(
    "name", ["no-extension", "spaced name.json", "new\nline.json", "한.json", "a~b.json", "-.json"]
)
def test_a_name_that_no_answer_could_have_is_dead(room: Room, name: str) -> None:
    room.drop(publication(room), name)
    room.server.step()
    assert bodies(room) == [] and room.files("requests") == []
    [reason] = [each for each in room.files("dead") if each.endswith(".reason")]
    assert "InvalidName" in (room.root / "dead" / reason).read_text()


def test_answers_lie_under_the_name_of_their_request(room: Room) -> None:
    room.drop(publication(room, requestId="one"), "another.json")
    room.server.step()
    assert room.answer("another.json")["requestId"] == "one" and room.answer("one.json") is None


def test_nothing_is_left_of_a_request_that_was_answered(room: Room) -> None:
    room.good("publish", {"queue": "jobs", "message": 1})
    assert room.files("requests") == room.files("processing") == room.files("dead") == []


# Time


def test_a_passed_deadline_is_a_timeout_and_nothing_is_done(room: Room, clock: ManualClock) -> None:
    now = round(clock.now() * 1000)
    answer = room.ask("publish", {"queue": "jobs", "message": 1}, deadlineMs=now - 1)
    assert (answer["error"]["code"], answer["error"]["type"]) == ("TIMEOUT", "DeadlinePassed")
    assert room.store.queues() == [] and "deadline" in room.reason(f"{answer['requestId']}.json")
    room.good("publish", {"queue": "jobs", "message": 1}, deadlineMs=now + 1)
    room.good("publish", {"queue": "jobs", "message": 1}, deadlineMs=0)


def test_a_request_older_than_the_dedup_window_is_a_timeout(room: Room, clock: ManualClock) -> None:
    now = round(clock.now() * 1000)
    room.good("publish", {"queue": "jobs", "message": 1}, timestampMs=now - 299_000)
    assert room.code("publish", {"queue": "jobs", "message": 1}, timestampMs=now - 301_000) == "TIMEOUT"
    assert len(bodies(room)) == 1


def test_a_consume_that_waits_is_answered_when_something_comes(served: Room) -> None:
    name = served.drop(served.request("consume", {"queue": "jobs", "waitMs": 20_000}))
    until(lambda: served.files("processing") == [name])
    served.client("other").ask("publish", {"queue": "jobs", "message": 7})
    assert until(lambda: served.answer(name))["data"]["message"]["payload"] == 7


def test_a_consume_that_waits_hears_what_comes_past_the_mailbox(served: Room) -> None:
    name = served.drop(served.request("consume", {"queue": "jobs", "waitMs": 20_000}))
    until(lambda: served.files("processing") == [name])
    served.connection.queue("jobs").publish(8)
    assert until(lambda: served.answer(name))["data"]["message"]["payload"] == 8


def test_a_consume_that_waits_hears_a_delay_end(room: Room, clock: ManualClock) -> None:
    room.good("publish", {"queue": "jobs", "message": 1, "delayMs": 5000})
    name = room.drop(room.request("consume", {"queue": "jobs", "waitMs": 20_000}))
    room.server.step()
    assert room.server.next_due() == pytest.approx(5.0, abs=0.01)
    clock.advance(5.1)
    room.server.step()
    assert room.answer(name)["data"]["message"]["payload"] == 1


def test_a_consume_that_waits_in_vain_is_answered_with_nothing(room: Room, clock: ManualClock) -> None:
    name = room.drop(room.request("consume", {"queue": "jobs", "waitMs": 5000}))
    assert room.server.step() == 0 and room.server.next_due() == pytest.approx(5.0)
    clock.advance(4.9)
    assert room.server.step() == 0
    clock.advance(0.2)
    assert room.server.step() == 1
    assert room.answer(name)["data"] == {"message": None, "lease": None}


def test_a_consume_waits_no_longer_than_its_deadline(room: Room, clock: ManualClock) -> None:
    deadline = round((clock.now() + 2) * 1000)
    name = room.drop(room.request("consume", {"queue": "jobs", "waitMs": 60_000}, deadlineMs=deadline))
    room.server.step()
    clock.advance(2)
    room.server.step()
    assert room.answer(name)["data"]["message"] is None


def test_two_who_wait_get_one_message_each(room: Room) -> None:
    names = [room.drop(room.request("consume", {"queue": "jobs", "waitMs": 9000}, client=who)) for who in ("a", "b")]
    room.server.step()
    room.good("publish", {"queue": "jobs", "message": 1})
    room.server.step()
    answers = [room.answer(name, who) for name, who in zip(names, ("a", "b"), strict=True)]
    assert [answer is None for answer in answers].count(False) == 1
    room.good("publish", {"queue": "jobs", "message": 2})
    room.server.step()
    got = [room.answer(name, who)["data"]["message"]["payload"] for name, who in zip(names, ("a", "b"), strict=True)]
    assert sorted(got) == [1, 2]


def test_closing_answers_what_was_taken(room: Room) -> None:
    name = room.drop(room.request("consume", {"queue": "jobs", "waitMs": 60_000}))
    room.server.step()
    room.restart()
    assert room.answer(name)["data"]["message"] is None and room.files("processing") == []


def test_two_requests_of_one_name_do_not_meet(room: Room) -> None:
    waiting = {"queue": "jobs", "waitMs": 60_000}
    room.drop(room.request("consume", waiting, client="a"), "same.json")
    room.server.step()
    room.drop(room.request("health", client="b"), "same.json")
    room.server.step()
    assert room.answer("same.json", "b")["ok"] and room.answer("same.json", "a") is None
    room.drop(room.request("consume", waiting, client="b"), "same.json")
    room.server.step()
    assert len(room.files("processing")) == 2
    room.good("publish", {"queue": "jobs", "message": 1})
    room.good("publish", {"queue": "jobs", "message": 2})
    room.server.step()
    assert room.answer("same.json", "a")["ok"] and room.answer("same.json", "b")["data"]["message"]


# Together


def test_requests_found_together_are_one_commit(counted: tuple[Room, Counter[str]]) -> None:
    room, calls = counted
    names = [room.drop(publication(room, n, client=f"c{n}")) for n in range(50)]
    assert room.server.step() == 50
    assert calls["publish"] == 1 and sorted(bodies(room)) == list(range(50))
    leases = [room.good("consume", {"queue": "jobs"})["lease"] for _ in range(20)]
    for number, lease in enumerate(leases):
        command = ("ack", "nack")[number % 2]
        held = {"messageKey": lease["messageKey"], "leaseId": lease["leaseId"]}
        room.drop(room.request(command, held, client=f"c{number}"))
    calls.clear()
    assert room.server.step() == 20 and calls["settle"] == 1
    assert all(room.answer(name, f"c{n}")["ok"] for n, name in enumerate(names))


def test_one_file_of_many_requests_is_one_commit(counted: tuple[Room, Counter[str]]) -> None:
    room, calls = counted
    requests = [publication(room, n) for n in range(1000)]
    room.drop(requests, "many.json")
    assert room.server.step() == 1000 and calls["publish"] == 1
    answers = room.answer("many.json")
    assert [answer["requestId"] for answer in answers] == [request["requestId"] for request in requests]
    assert bodies(room) == list(range(1000))


def test_extensions_of_one_length_are_one_call(counted: tuple[Room, Counter[str]]) -> None:
    room, calls = counted
    for n in range(6):
        room.good("publish", {"queue": "jobs", "message": n})
    leases = [room.good("consume", {"queue": "jobs"})["lease"] for _ in range(6)]
    for n, lease in enumerate(leases):
        held = {"messageKey": lease["messageKey"], "leaseId": lease["leaseId"]}
        room.drop(room.request("extend", {**held, "visibilityTimeoutSec": (60, 90)[n % 2]}, client=f"c{n}"))
    calls.clear()
    assert room.server.step() == 6 and calls["extend"] == 2


def test_the_requests_of_one_client_are_run_in_order(room: Room) -> None:
    message = {"queue": "jobs", "messageId": "m"}
    requests = [
        room.request("publish", {**message, "message": 1}),
        room.request("consume", {"queue": "jobs"}),
        room.request("status", {"queue": "jobs"}),
        room.request("publish", {**message, "messageId": "m2", "message": 2}),
        room.request("status", {"queue": "jobs"}),
    ]
    room.drop(requests, "many.json")
    room.server.step()
    first, second = (answer["data"]["metrics"] for answer in room.answer("many.json") if "metrics" in answer["data"])
    assert (first["ready"], first["inflight"]) == (0, 1) and (second["ready"], second["inflight"]) == (1, 1)


def test_one_bad_request_does_not_spoil_the_others_of_its_commit(counted: tuple[Room, Counter[str]]) -> None:
    room, calls = counted
    room.connection.queue("jobs").configure(Policy(max_bytes=2000))
    calls.clear()
    names = []
    for n in range(48):
        message = {"n": n, "text": "x" * (5000 if n == 40 else 5)}
        names.append(room.drop(room.request("publish", {"queue": "jobs", "message": message}, client=f"c{n}")))
    room.server.step()
    oks = [room.answer(name, f"c{n}")["ok"] for n, name in enumerate(names)]
    assert [n for n, ok in enumerate(oks) if not ok] == [40]
    assert len(bodies(room)) == 47 and calls["publish"] <= 15


def test_an_error_nobody_expected_is_answered_and_harms_nobody_else(room: Room, caplog: Any) -> None:
    room.extras["health"] = lambda: {"x": 1 // 0}
    bad = room.drop(room.request("health"))
    good = room.drop(publication(room))
    room.server.step()
    assert room.answer(bad)["error"]["code"] == "INTERNAL_ERROR" and room.answer(good)["ok"]
    assert "ZeroDivisionError" in caplog.text


def test_a_failed_store_is_told(room: Room) -> None:
    def fail(*args: Any, **more: Any) -> Any:
        raise errors.StoreFailed("the disk is on fire")

    room.store.publish = fail  # type: ignore[method-assign]  # breaks on purpose
    assert room.code("publish", {"queue": "jobs", "message": 1}) == "INTERNAL_ERROR"
    assert isinstance(room.server.broken, errors.StoreFailed)


# Once


def test_a_publish_asked_again_is_done_once(room: Room) -> None:
    request = publication(room, 1)
    answers = []
    for _ in range(3):
        name = room.drop(request)
        room.server.step()
        answers.append(room.answer(name)["data"])
        room.restart()
    assert len({answer["messageId"] for answer in answers}) == 1 and bodies(room) == [1]
    assert [answer.get("duplicate", False) for answer in answers] == [False, True, True]


def test_the_same_request_id_of_another_client_is_another_request(room: Room) -> None:
    for client in ("a", "b"):
        room.drop(publication(room, 1, client=client, requestId="same"), f"{client}.json")
    room.server.step()
    assert bodies(room) == [1, 1]


def test_equal_ids_in_one_file_are_done_each_and_once(room: Room) -> None:
    requests = [publication(room, n, requestId="same") for n in range(3)]
    for _ in range(2):
        room.drop(requests, "many.json")
        room.server.step()
    assert bodies(room) == [0, 1, 2]


def test_a_consume_asked_again_gets_the_same_message_under_the_same_lease(room: Room) -> None:
    for n in range(3):
        room.good("publish", {"queue": "jobs", "message": n})
    request = room.request("consume", {"queue": "jobs"})
    answers = []
    for _ in range(3):
        name = room.drop(request)
        room.server.step()
        answers.append(room.answer(name)["data"])
        room.restart()
    assert [answer["message"]["payload"] for answer in answers] == [0, 0, 0]
    assert len({answer["lease"]["leaseId"] for answer in answers}) == 1
    assert room.store.counts("jobs")[State.INFLIGHT] == 1


def test_a_lease_id_cannot_be_worked_out_by_another(tmp_path: Path, clock: ManualClock) -> None:
    tokens = []
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        room = Room(tmp_path / place / "ipc", OPENERS["sqlite"].open(tmp_path / place, clock), clock=clock)
        room.good("publish", {"queue": "jobs", "message": 1})
        tokens.append(room.good("consume", {"queue": "jobs"}, requestId="same")["lease"]["leaseId"])
        room.close()
    assert tokens[0] != tokens[1]
    assert (tmp_path / "a" / "ipc" / ".secret").stat().st_mode & 0o777 == 0o600


def test_what_lies_in_processing_at_the_start_is_run_again(room: Room) -> None:
    document = publication(room, 1)
    (room.root / "processing" / "left.json").write_text(json.dumps(document))
    (room.root / "processing" / "left.json").chmod(0o600)
    (room.root / "processing" / "other~0123456789abcdef.json").write_text(json.dumps(room.request("health")))
    (room.root / "processing" / "other~0123456789abcdef.json").chmod(0o600)
    room.restart()
    room.server.step()
    assert room.answer("left.json")["ok"] and room.answer("other.json")["ok"] and bodies(room) == [1]


def test_a_request_of_the_library_left_in_processing_is_not_done_twice(room: Room) -> None:
    id = "0199c1d2-77aa-7d21-81a4-b49a3e7f5c10"
    message = {"messageId": id, "timestamp": "2026-01-01T00:00:00Z", "payload": 1}
    request = room.request("store.publish", {"drafts": [{"queue": "jobs", "message": message, "givenId": False}]})
    name = room.drop(request)
    room.server.step()
    assert room.answer(name)["data"] == [{"id": id, "duplicate": False, "dead": False}]
    (room.root / "processing" / name).write_text(json.dumps(request))
    (room.root / "processing" / name).chmod(0o600)
    room.restart()
    room.server.step()
    assert room.answer(name)["data"] == [{"id": id, "duplicate": True, "dead": False}] and bodies(room) == [1]


def test_what_comes_to_lie_in_processing_is_run_again_too(room: Room, clock: ManualClock) -> None:
    path = room.root / "processing" / "stray.json"
    path.write_text(json.dumps(publication(room, 1)))
    path.chmod(0o600)
    room.server.step()
    clock.advance(10)
    room.server.step()
    room.server.step()
    assert room.answer("stray.json")["ok"] and room.files("processing") == []


def test_an_answer_that_cannot_be_written_comes_later(room: Room) -> None:
    request = publication(room, 1, client="blocked")
    (room.root / "responses" / "blocked").write_text("in the way")
    name = room.drop(request)
    room.server.step()
    assert room.files("processing") == [name] and room.server.next_due() == pytest.approx(1.0)
    (room.root / "responses" / "blocked").unlink()
    room.server.step()
    assert room.answer(name, "blocked")["ok"] and room.files("processing") == []


# Many


def test_a_flood_of_one_client_leaves_room_for_another(tmp_path: Path, clock: ManualClock) -> None:
    store = OPENERS["sqlite"].open(tmp_path, clock)
    with closing(Room(tmp_path / "ipc", store, clock=clock)) as room:
        for n in range(3 * CLAIMED_AT_ONCE):
            room.drop(publication(room, n, client="flood"), f"a{n:05d}.json")
        room.restart()
        assert room.server.step() == RUN_AT_ONCE
        late = room.drop(room.request("health", client="quiet"), "zzz.json")
        assert room.server.next_due() == 0
        room.server.step()
        assert room.answer(late, "quiet")["ok"] and len(bodies(room)) == 2 * RUN_AT_ONCE - 1
        while room.server.step():
            pass
        assert bodies(room) == [*range(3 * CLAIMED_AT_ONCE)], "each client's own are run in their order"


def test_a_client_over_its_quota_is_refused_and_others_are_not(tmp_path: Path, clock: ManualClock) -> None:
    store = OPENERS["sqlite"].open(tmp_path, clock)
    with closing(Room(tmp_path / "ipc", store, clock=clock, max_waiting_per_client=700)) as room:
        for n in range(2000):
            room.drop(publication(room, n, client="flood"), f"a{n:05d}.json")
        quiet = room.drop(room.request("health", client="quiet"), "zzz.json")
        while room.server.step():
            pass
        answers = [room.answer(f"a{n:05d}.json", "flood") for n in range(2000)]
        refused = [answer["error"]["type"] for answer in answers if not answer["ok"]]
        assert set(refused) == {"MailboxFull"} and 700 <= len(bodies(room)) == 2000 - len(refused)
        assert room.answer(quiet, "quiet")["ok"]
        assert room.good("publish", {"queue": "other", "message": 1}, client="flood")


def test_no_more_is_read_ahead_than_memory_allows(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pabal.mailbox.inbox._MAX_QUEUED_BYTES", 10_000)
    names = [room.drop(publication(room, n) | {"comment": "x" * 6000}) for n in range(6)]
    room.server.step()
    assert [name for name in names if room.answer(name)] == names[:2] and room.files("requests") == names[2:]
    while room.server.step():
        pass
    assert bodies(room) == [*range(6)]


def test_what_was_read_and_not_begun_is_given_back_at_the_end(room: Room) -> None:
    names = [room.drop(publication(room, n), f"a{n:05d}.json") for n in range(3 * RUN_AT_ONCE)]
    assert room.server.step() == RUN_AT_ONCE and room.files("requests") == []
    room.restart()
    assert room.files("requests") == names[RUN_AT_ONCE:] and room.files("processing") == []
    while room.server.step():
        pass
    assert bodies(room) == [*range(3 * RUN_AT_ONCE)]


def test_every_answer_is_observed(room: Room) -> None:
    room.good("publish", {"queue": "jobs", "message": 1})
    room.good("consume", {"queue": "jobs"})
    room.code("nonsense")
    observed = [(each.command, each.code) for each in room.answered]
    assert observed == [("publish", ""), ("consume_next", ""), ("unknown", "UNKNOWN_COMMAND")]


@pytest.mark.parametrize("deadline", [{}, {"deadlineMs": 0}])
@pytest.mark.parametrize("stamp", [{}, {"timestampMs": 0}])
def test_a_request_without_a_deadline_waits_for_the_manager_for_ever(
    room: Room, clock: ManualClock, deadline: dict[str, int], stamp: dict[str, int]
) -> None:
    document = room.request("publish", {"queue": "jobs", "message": 1}) | deadline | stamp
    name = room.drop(document)
    clock.advance(3 * 86400)
    room.restart()
    room.server.step()
    assert room.answer(name)["ok"] is True
    room.server.step()
    assert room.good("status", {"queue": "jobs"})["metrics"]["ready"] == 1
    assert room.files("dead") == [] and room.files("processing") == []


def killed(room: Room) -> None:
    """Let another server take over from one that ended in the middle of its work."""
    room.server.watch.close()
    room.server._inbox.arrivals.close()
    room.server = room._open()


def test_a_request_that_waited_long_and_was_then_interrupted_by_a_crash_is_run_once(
    room: Room, clock: ManualClock
) -> None:
    name = room.drop(room.request("publish", {"queue": "jobs", "message": 1}))
    clock.advance(86400)
    [_] = room.server._inbox.collect()  # taken; then the manager is killed
    killed(room)
    room.server.step()
    assert room.answer(name)["ok"] is True
    assert room.good("status", {"queue": "jobs"})["metrics"]["ready"] == 1


def test_what_a_crash_interrupted_long_ago_is_set_aside_since_it_may_have_been_run(
    room: Room, clock: ManualClock
) -> None:
    name = room.drop(room.request("publish", {"queue": "jobs", "message": 1}))
    [_] = room.server._inbox.collect()
    clock.advance(86400)
    killed(room)
    room.server.step()
    assert room.answer(name)["error"]["code"] == "TIMEOUT"
    assert "a crash interrupted it" in room.reason(name)


def test_an_old_request_that_is_sent_again_is_refused(room: Room, clock: ManualClock) -> None:
    document = room.request("publish", {"queue": "jobs", "message": 1})
    assert room.answer(room.drop(document)) is None
    room.server.step()
    clock.advance(301)
    (room.root / "responses/client" / f"{document['requestId']}.json").unlink()
    name = room.drop(document)
    room.server.step()
    assert room.answer(name)["error"]["code"] == "TIMEOUT" and "written again" in room.answer(name)["error"]["message"]
