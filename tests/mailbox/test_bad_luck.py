"""What nobody meant to happen to a mailbox: numbers no store can hold, folders that vanish, disks that are full."""

import errno
import os
import shutil
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pabal import durable
from pabal.errors import StoreFailed, Uncertain
from pabal.mailbox import folders as folders_module
from pabal.mailbox.folders import CLEAN_EVERY, Cleaner, Folders
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.store import MailboxStore
from pabal.store import Draft, Published
from pabal.testing import ManualClock
from tests.mailbox.room import Room


def draft(id: str = "m1", at: str = "2025-01-01T00:00:00Z", **more: Any) -> dict[str, Any]:
    return {"queue": "jobs", "message": {"messageId": id, "timestamp": at, "payload": 1}, **more}


def verdict(**failure: Any) -> dict[str, Any]:
    return {"receipt": "jobs/m1/token", "verdict": "dead", "failure": {"code": "X", **failure}}


@pytest.mark.parametrize(
    ("command", "payload"),
    [
        ("store.publish", {"drafts": [draft(terms=[300.0, 1024, 2**63])]}),
        ("store.publish", {"drafts": [draft(at="9999-12-31T23:59:59-14:00")]}),
        ("store.lease", {"queue": "jobs", "limit": 1, "seconds": 1e308}),
        ("store.lease", {"queue": "jobs", "limit": 1, "seconds": -1}),
        ("store.extend", {"receipts": ["jobs/m1/token"], "seconds": 1e308}),
        ("store.settle", {"settlements": [verdict(at=1e308)]}),
        ("store.settle", {"settlements": [verdict(attempt=2**63)]}),
        ("store.settle", {"settlements": [verdict(repeats=-1)]}),
        ("store.watch", {"queues": [f"q{number}" for number in range(101)]}),
    ],
)
def test_what_no_store_can_hold_is_refused(room: Room, command: str, payload: dict[str, Any]) -> None:
    assert room.code(command, payload) == "ERR_INVALID_REQUEST"


def test_more_queues_are_watched_than_one_request_may_name(room: Room) -> None:
    room.serve()
    with closing(MailboxStore(room.client())) as store:
        store.watch([f"q{n}" for n in range(150)]).close()
    assert len(room.files("bells")) == 150


def test_an_error_nobody_expected_of_a_shared_call_is_told_to_its_cause_only(room: Room, caplog: Any) -> None:
    publish = room.store.publish

    def overflow(drafts: Sequence[Draft]) -> list[Published]:
        if any(each.message.body == "poison" for each in drafts):
            raise OverflowError("int too big to convert")
        return publish(drafts)

    room.store.publish = overflow  # type: ignore[method-assign]  # breaks on purpose
    names = [room.drop(room.request("publish", {"queue": "jobs", "message": body})) for body in (1, 2)]
    bad = room.drop(room.request("publish", {"queue": "jobs", "message": '"poison"'}))
    room.server.step()
    assert [room.answer(name)["ok"] for name in names] == [True, True]
    assert room.answer(bad)["error"]["code"] == "INTERNAL_ERROR" and "OverflowError" in caplog.text


def test_all_who_shared_an_uncertain_commit_are_told_so(room: Room) -> None:
    calls: list[int] = []

    def break_at_commit(drafts: Sequence[Draft]) -> list[Published]:
        calls.append(len(drafts))
        if len(calls) == 1:
            raise Uncertain("the disk gave up at the commit", tuple(each.message.id for each in drafts))
        raise StoreFailed("this handle was given up")

    room.store.publish = break_at_commit  # type: ignore[method-assign]  # breaks on purpose
    requests = [room.request("publish", {"queue": "jobs", "message": 1, "messageId": f"m{n}"}) for n in range(3)]
    names = [room.drop(request) for request in requests]
    room.server.step()
    told = [room.answer(name)["error"] for name in names]
    assert [error["type"] for error in told] == ["Uncertain"] * 3 and calls == [3]
    assert [error["ids"] for error in told] == [["m0"], ["m1"], ["m2"]]


def test_who_shared_a_call_that_waited_in_vain_does_not_wait_once_more(room: Room) -> None:
    calls: list[int] = []

    def locked(drafts: Sequence[Draft]) -> list[Published]:
        calls.append(len(drafts))
        raise StoreFailed("another program kept it locked for 10 seconds")

    room.store.publish = locked  # type: ignore[method-assign]  # breaks on purpose
    names = [room.drop(room.request("publish", {"queue": "jobs", "message": 1})) for _ in range(8)]
    room.server.step()
    assert calls == [8] and {room.answer(name)["error"]["type"] for name in names} == {"StoreFailed"}


def full(*args: Any, **more: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_request_that_a_full_disk_keeps_from_being_claimed_is_taken_later(
    room: Room, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = room.drop(room.request("health"))
    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", full)
        room.server.step()
    assert room.files("requests") == [name]
    clock.advance(CLEAN_EVERY)
    room.server.step()
    room.server.step()
    assert room.answer(name)["ok"]


def test_a_bad_request_on_a_full_disk_stops_nobody(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    write_new = durable.write_new
    monkeypatch.setattr(
        folders_module, "write_new", lambda path, data: full() if path.endswith(".reason") else write_new(path, data)
    )
    bad = room.drop(b'{"clientId": "client", "clientId": "client"}', "bad.json")
    assert room.good("health")["status"] == "ok"
    assert room.files("dead") == [bad]


def test_a_draft_that_does_not_fit_takes_up_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(tmp_path)
    folders_module.write_reusing(f"{folder}/one", b"1", folder=folder, kind="request")
    folders_module.keep_for_reuse(f"{folder}/one", folder=folder, kind="request")
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        folders_module.write_reusing(f"{folder}/two", b"22", folder=folder, kind="request")
    assert os.listdir(tmp_path / folders_module.SPARE) == []


def test_a_client_may_remove_its_folder_while_it_is_cleaned(tmp_path: Path) -> None:
    folders = Folders(tmp_path / "ipc", MailboxSettings())
    folders.prepare()
    mine = Path(folders.responses, "mine")
    for looks in range(1, 8):  # at the time of each look at the clock
        mine.mkdir()
        left = iter(range(looks, -100, -1))

        def wall(left: Any = left) -> float:
            if next(left) == 1:
                shutil.rmtree(mine, ignore_errors=True)
            return time.time() + 1000

        clock = ManualClock()
        cleaner = Cleaner(folders, clock, wall)
        clock.advance(CLEAN_EVERY)
        assert cleaner.clean()
        shutil.rmtree(mine, ignore_errors=True)


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_folder_of_requests_that_was_replaced_is_noticed_and_left_alone(room: Room, how: str) -> None:
    requests = room.root / "requests"
    if how == "removed":
        shutil.rmtree(requests)
    else:
        requests.rename(room.root / "elsewhere")
    requests.mkdir(0o700)
    with pytest.raises(FileNotFoundError, match="moved or removed"):
        room.server.step()
    assert requests.is_dir() and room.files("dead") == room.files("processing") == []
