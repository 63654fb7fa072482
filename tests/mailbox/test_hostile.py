"""What a bad client can put into a mailbox: each gets its error, and the others notice nothing."""

import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pabal.clock import SystemClock
from pabal.store import State
from tests.mailbox.room import Room
from tests.openers import OPENERS

Plant = Callable[[Room, Path], object]


def whole(room: Room, **more: Any) -> bytes:
    return json.dumps(room.request("publish", {"queue": "jobs", "message": 1}, **more)).encode()


def symlink(room: Room, path: Path) -> None:
    target = room.root.parent / "target.json"
    target.write_bytes(whole(room))
    target.chmod(0o600)
    path.symlink_to(target)


def dangling(room: Room, path: Path) -> None:
    path.symlink_to("/nowhere")


def device(room: Room, path: Path) -> None:
    path.symlink_to("/dev/zero")


def fifo(room: Room, path: Path) -> None:
    os.mkfifo(path, 0o600)


def unix_socket(room: Room, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        os.chdir(path.parent)
        bound.bind(path.name)


def directory(room: Room, path: Path) -> None:
    path.mkdir()
    (path / "inside.json").write_bytes(whole(room))


def hard_link(room: Room, path: Path) -> None:
    other = room.root.parent / "other.json"
    other.write_bytes(whole(room))
    other.chmod(0o600)
    os.link(other, path)


def group_writable(room: Room, path: Path) -> None:
    path.write_bytes(whole(room))
    path.chmod(0o660)


def world_writable(room: Room, path: Path) -> None:
    path.write_bytes(whole(room))
    path.chmod(0o602)


def unreadable(room: Room, path: Path) -> None:
    path.write_bytes(whole(room))
    os.chown(path, 65534, 65534)


def sparse(room: Room, path: Path) -> None:
    with open(path, "wb") as file:
        file.truncate(1 << 40)
    path.chmod(0o600)


def one_byte_over(room: Room, path: Path) -> None:
    path.write_bytes(whole(room).ljust(room.settings.max_bytes + 1))
    path.chmod(0o600)


@pytest.mark.parametrize(
    ("plant", "error"),
    [
        (symlink, "NotARegularFile"),
        (dangling, "NotARegularFile"),
        (device, "NotARegularFile"),
        (fifo, "NotARegularFile"),
        (unix_socket, "NotARegularFile"),
        (directory, "NotARegularFile"),
        (hard_link, "LinkedFile"),
        (group_writable, "UnsafeMode"),
        (world_writable, "UnsafeMode"),
        (sparse, "TooLarge"),
        (one_byte_over, "TooLarge"),
        pytest.param(unreadable, "WrongOwner", marks=pytest.mark.root),
    ],
    ids=lambda value: value.__name__ if callable(value) else value,
)
def test_what_is_no_request_file_is_dead_with_its_reason(
    room: Room, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, error: str
) -> None:
    if plant is unreadable and os.geteuid() != 0:
        pytest.skip("needs root to give a file away")
    monkeypatch.chdir(tmp_path)
    plant(room, room.root / "requests" / "bad.json")
    other = room.drop(room.request("health", client="other"))
    room.server._inbox.arrivals.rescan()
    room.server.step()
    assert room.answer(other, "other")["ok"]
    assert room.reason("bad.json").startswith(error)
    assert room.store.queues() == [] and room.files("requests") == room.files("processing") == []


def test_a_request_of_exactly_the_limit_is_taken(room: Room) -> None:
    room.drop(whole(room).ljust(room.settings.max_bytes), "big.json")
    room.server.step()
    assert room.answer("big.json")["ok"]


def test_a_file_that_grows_while_it_is_read_is_given_up(tmp_path: Path) -> None:
    room = Room(tmp_path / "ipc", OPENERS["sqlite"].open(tmp_path, SystemClock()), max_bytes=1 << 16)
    path = room.root / "requests" / "grow.json"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    stop = threading.Event()

    def grow() -> None:
        while not stop.is_set():
            os.write(fd, b" " * 512)

    thread = threading.Thread(target=grow)
    thread.start()
    try:
        for _ in range(1000):
            room.server._inbox.arrivals.rescan()
            room.server.step()
            assert room.good("health", client="other")
            if "grow.json" in room.files("dead"):
                break
    finally:
        stop.set()
        thread.join()
        os.close(fd)
    assert room.reason("grow.json").startswith("TooLarge")
    room.close()


@pytest.mark.parametrize("client", ["../other", "..", "/etc", "a/b", ".", "other\x00"])
def test_a_client_name_leads_nowhere_else(room: Room, client: str) -> None:
    room.good("health", client="other")
    before = sorted(str(path) for path in room.root.parent.rglob("*"))
    room.drop(room.request("publish", {"queue": "jobs", "message": 1}, client=client), "bad.json")
    room.server.step()
    assert room.reason("bad.json").startswith("InvalidName")
    after = [str(path) for path in room.root.parent.rglob("*") if "/dead/" not in str(path)]
    assert sorted(after) == before and room.store.queues() == []


@pytest.mark.parametrize("queue", ["../x", "/etc/x", "a/b", ".", "", "a\nb", "a' or 1=1 --"])
def test_a_queue_name_leads_nowhere_else(room: Room, queue: str) -> None:
    for command in ("publish", "consume", "status", "pause", "list_dlq", "purge_dlq", "archive_dlq"):
        payload = {"queue": queue, **({"message": 1} if command == "publish" else {})}
        assert room.code(command, payload) == "ERR_INVALID_REQUEST"
    for command in ("store.counts", "store.settings", "store.next_due"):
        assert room.code(command, {"queue": queue}) == "ERR_INVALID_REQUEST"
    assert room.store.queues() == []


def test_deep_and_forged_documents_are_refused_at_once(room: Room) -> None:
    deep = b'{"clientId":"client","requestId":"deep","command":"publish","payload":' + b"[" * 100_000 + b"]" * 100_000
    name = room.drop(deep + b"}", "deep.json")
    other = room.drop(room.request("health", client="other"))
    room.server.step()
    assert room.answer(name)["error"]["type"] == "TooDeep" and room.answer(other, "other")["ok"]


def test_a_forged_receipt_of_the_library_is_lost_and_changes_nothing(room: Room) -> None:
    found = room.good("publish", {"queue": "jobs", "message": 1})
    room.good("consume", {"queue": "jobs"})
    forged = [f"jobs/{found['messageId']}/0123456789abcdef", "jobs/nobody/0123456789abcdef"]
    settlements = [{"receipt": receipt, "verdict": "done"} for receipt in forged]
    assert room.good("store.settle", {"settlements": settlements}) == ["lost", "lost"]
    assert room.good("store.extend", {"receipts": forged, "seconds": 60}) == ["lost", "lost"]
    assert room.code("store.settle", {"settlements": [{"receipt": "../x/y", "verdict": "done"}]})
    assert room.store.counts("jobs")[State.INFLIGHT] == 1


@pytest.mark.parametrize("deadline", [-1, 10**300, 1e300, "soon", True])
def test_an_absurd_deadline_is_refused(room: Room, deadline: Any) -> None:
    answer = room.ask("publish", {"queue": "jobs", "message": 1}, deadlineMs=deadline)
    if answer is None:  # an integer of 300 digits: no number at all
        return
    assert answer["error"]["type"] in {"InvalidDeadline", "NumberOutOfRange"} and room.store.queues() == []


def test_tens_of_thousands_of_files_delay_nobody(room: Room) -> None:
    folder = room.root / "requests"
    for n in range(20_000):
        os.close(os.open(folder / f"a{n:06d}.json", os.O_CREAT | os.O_WRONLY, 0o600))  # empty: not JSON, yet
    for n in range(3000):
        os.close(os.open(folder / f"b{n:06d}.json.tmp", os.O_CREAT | os.O_WRONLY, 0o600))
    late = room.drop(room.request("health", client="quiet"), "zzz.json")
    for _ in range(60):
        room.server.step()
        if room.answer(late, "quiet"):
            break
    else:
        pytest.fail("a flood starved another client")
    assert room.answer(late, "quiet")["ok"]


@pytest.mark.parametrize("name", ["jobs", "../x", "a" * 250])
def test_a_watch_makes_no_files_elsewhere(room: Room, name: str) -> None:
    answer = room.ask("store.watch", {"queues": [name]})
    assert answer["ok"] is (name == "jobs")
    assert set(os.listdir(room.root / "bells")) <= {"jobs"}


def test_random_bytes_never_stop_the_server(room: Room) -> None:
    import random

    chance = random.Random(7)
    whole_one = whole(room)
    for n in range(300):
        data = bytearray(whole_one)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        room.drop(bytes(data[: chance.randrange(len(data) + 1)]), f"fuzz{n:03d}.json")
    for _ in range(5):
        room.server.step()
        room.clock.advance(3)  # type: ignore[attr-defined]  # moved by hand
    assert room.files("requests") == room.files("processing") == []
    assert room.good("health", client="other")
