"""Who may do what in the folders: of one user for all, and of a user for each client."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.errors import StoreRefused
from pabal.mailbox.client import Mailbox
from pabal.mailbox.folders import Folders
from pabal.mailbox.settings import MailboxSettings
from tests.mailbox.room import Room
from tests.mailbox.users import ALICE, BOB, CLIENTS, GROUP, MANAGER, STRANGER, as_user, managed


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_of_one_user_everything_is_its_own(room: Room) -> None:
    room.good("publish", {"queue": "jobs", "message": 1})
    room.good("store.watch", {"queues": ["jobs"]})
    for folder in ("", "requests", "processing", "responses", "responses/client", "dead", "bells", "archive"):
        assert mode(room.root / folder) == 0o700, folder
    for path in [*room.root.rglob("*.json"), room.root / ".secret", room.root / "bells" / "jobs"]:
        assert mode(path) == 0o600, path


def test_a_place_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(StoreRefused, match="everybody"):
        Folders(tmp_path / "open" / "deep" / "ipc", MailboxSettings()).prepare()
    (tmp_path / "open").chmod(0o1777)
    Folders(tmp_path / "open" / "deep" / "ipc", MailboxSettings()).prepare()


def test_a_root_that_everybody_can_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ipc").mkdir()
    (tmp_path / "ipc").chmod(0o777)
    with pytest.raises(StoreRefused, match="everybody"):
        Folders(tmp_path / "ipc", MailboxSettings()).prepare()


def test_users_of_their_own_need_a_group(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="group"):
        Folders(tmp_path / "ipc", MailboxSettings(clients={"a": 1})).prepare()


# From here on, other users


@pytest.fixture(scope="module")
def ipc() -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root to be other users")
    with managed() as root:
        yield root


def ask(root: Path, client: str, command: str, payload: Any = None) -> Any:
    return Mailbox(root, client, timeout=10.0).ask(command, payload)


def submit(root: Path, name: str, document: Any) -> None:
    fd = os.open(root / "requests" / f"{name}.tmp", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    os.write(fd, json.dumps(document).encode())
    os.fchown(fd, -1, os.getegid())
    os.fchmod(fd, 0o640)
    os.close(fd)
    os.rename(root / "requests" / f"{name}.tmp", root / "requests" / name)


def request(client: str, command: str = "health", **payload: Any) -> dict[str, Any]:
    return {"requestId": f"{client}-{time.time_ns()}", "clientId": client, "command": command, "payload": payload}


def wait_for(path: Path) -> Any:
    end = time.monotonic() + 10
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not come"
        time.sleep(0.005)
    return json.loads(path.read_bytes())


@pytest.mark.root
def test_modes_and_owners_are_as_written(ipc: Path) -> None:
    expected = {
        "": (MANAGER, GROUP, 0o710),
        "requests": (MANAGER, GROUP, 0o3730),
        "processing": (MANAGER, MANAGER, 0o700),
        "dead": (MANAGER, MANAGER, 0o700),
        "archive": (MANAGER, MANAGER, 0o700),
        "responses": (MANAGER, GROUP, 0o710),
        "responses/alice": (MANAGER, ALICE, 0o2750),
        "responses/bob": (MANAGER, BOB, 0o2750),
        "bells": (MANAGER, GROUP, 0o2750),
        ".secret": (MANAGER, MANAGER, 0o600),
    }
    for name, owned in expected.items():
        about = (ipc / name).stat()
        assert (about.st_uid, about.st_gid, mode(ipc / name)) == owned, name


@pytest.mark.root
def test_clients_of_their_own_users_are_served(ipc: Path) -> None:
    def publish() -> Any:
        return ask(ipc, "alice", "publish", {"queue": "shared", "message": {"from": "alice"}})

    assert as_user(ALICE, publish)["messageId"]
    found = as_user(BOB, lambda: ask(ipc, "bob", "consume", {"queue": "shared", "waitMs": 5000}))
    assert found["message"]["payload"] == {"from": "alice"} and found["message"]["sender"] == "alice"


@pytest.mark.root
def test_the_library_works_between_users(ipc: Path) -> None:
    def consume() -> Any:
        with pabal.connect(f"mailbox:{ipc}", consumer="bob") as mq:
            for delivery in mq.queue("lib").consume(wait=10):
                with delivery:
                    return delivery.message.body

    def publish() -> Any:
        with pabal.connect(f"mailbox:{ipc}", consumer="alice") as mq:
            return mq.queue("lib").publish([1, 2]).id

    assert as_user(ALICE, publish)
    assert as_user(BOB, consume) == [1, 2]


@pytest.mark.root
def test_a_client_cannot_see_or_touch_what_is_anothers(ipc: Path) -> None:
    def pry() -> list[str]:
        refused = []
        attempts: dict[str, Callable[[], object]] = {
            "list requests": lambda: os.listdir(ipc / "requests"),
            "list responses": lambda: os.listdir(ipc / "responses"),
            "list another's answers": lambda: os.listdir(ipc / "responses" / "alice"),
            "read another's answer": lambda: open(ipc / "responses" / "alice" / "kept.json").close(),
            "write an answer": lambda: open(ipc / "responses" / "bob" / "x.json", "w").close(),
            "list processing": lambda: os.listdir(ipc / "processing"),
            "list dead": lambda: os.listdir(ipc / "dead"),
            "read the secret": lambda: open(ipc / ".secret").close(),
            "ring a bell": lambda: open(ipc / "bells" / "x", "w").close(),
            "remove another's request": lambda: os.unlink(ipc / "requests" / "alice.tmp"),
            "rename another's request": lambda: os.rename(ipc / "requests" / "alice.tmp", ipc / "requests" / "z.json"),
            "read another's request": lambda: open(ipc / "requests" / "alice.tmp").close(),
            "read the store": lambda: open(ipc.parent / "pabal.db").close(),
        }
        for what, attempt in attempts.items():
            try:
                attempt()
            except PermissionError:
                refused.append(what)
        return [what for what in attempts if what not in refused]

    def leave() -> None:
        os.close(os.open(ipc / "requests" / "alice.tmp", os.O_CREAT | os.O_WRONLY, 0o600))
        submit(ipc, "kept.json", request("alice"))

    as_user(ALICE, leave)
    assert wait_for(ipc / "responses" / "alice" / "kept.json")["ok"]
    assert as_user(BOB, pry) == []
    os.unlink(ipc / "requests" / "alice.tmp")


@pytest.mark.root
def test_a_stranger_cannot_even_enter(ipc: Path) -> None:
    def enter() -> str:
        try:
            submit(ipc, "stranger.json", request("alice"))
        except PermissionError:
            return "refused"
        return "let in"

    assert as_user(STRANGER, enter) == "refused"


@pytest.mark.root
def test_a_forged_client_is_answered_by_its_own_name(ipc: Path) -> None:
    as_user(BOB, lambda: submit(ipc, "forged.json", request("alice", "publish", queue="forged", message=1)))
    answer = wait_for(ipc / "responses" / "bob" / "forged.json")
    assert answer["error"]["type"] == "SenderMismatch"
    assert not (ipc / "responses" / "alice" / "forged.json").exists()
    assert "forged" not in as_user(ALICE, lambda: ask(ipc, "alice", "queues"))["queues"]


@pytest.mark.root
def test_a_forged_sender_is_refused(ipc: Path) -> None:
    document = request("bob", "publish", queue="forged", message=1, sender="alice")
    as_user(BOB, lambda: submit(ipc, "sender.json", document))
    assert wait_for(ipc / "responses" / "bob" / "sender.json")["error"]["type"] == "SenderMismatch"
    message = {"messageId": "m", "timestamp": "2026-01-01T00:00:00Z", "payload": 1, "sender": "alice"}
    drafts = request("bob", "store.publish", drafts=[{"queue": "forged", "message": message}])
    as_user(BOB, lambda: submit(ipc, "drafts.json", drafts))
    assert wait_for(ipc / "responses" / "bob" / "drafts.json")["error"]["type"] == "SenderMismatch"


@pytest.mark.root
@pytest.mark.parametrize(
    "what", ["symlink", "fifo", "folder", "full-folder", "sparse", "private", "writable", "hard-link"]
)
def test_what_a_client_plants_stops_nobody(ipc: Path, what: str) -> None:
    path = ipc / "requests" / f"{what}.tmp"

    def plant() -> None:
        if what == "symlink":
            os.symlink(ipc / ".secret", path)
        if what == "fifo":
            os.mkfifo(path, 0o644)
        if what in ("folder", "full-folder"):
            os.mkdir(path, 0o700)
            if what == "full-folder":
                (path / "x").write_text("x")
        if what == "sparse":
            with open(path, "wb") as file:
                file.truncate(1 << 40)
                os.fchown(file.fileno(), -1, BOB)
                os.fchmod(file.fileno(), 0o640)
        if what == "private":
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
        if what == "writable":
            path.write_text(json.dumps(request("bob")))
            path.chmod(0o666)
        if what == "hard-link":
            mine = ipc / "requests" / "mine.tmp"
            mine.write_text(json.dumps(request("bob")))
            os.link(mine, path)
        os.rename(path, path.with_suffix(".json"))

    as_user(BOB, plant)
    assert as_user(ALICE, lambda: ask(ipc, "alice", "health"))["status"] == "ok"
    errors = {
        "symlink": "NotARegularFile",
        "fifo": "NotARegularFile",
        "sparse": "TooLarge",
        "private": "UnsafeFile",
        "writable": "UnsafeMode",
    }
    if what in errors:
        assert wait_for(ipc / "responses" / "bob" / f"{what}.json")["error"]["type"] == errors[what]
    assert as_user(ALICE, lambda: ask(ipc, "alice", "health"))["status"] == "ok"


def test_the_clients_of_these_tests_are_apart() -> None:
    assert len({*CLIENTS.values(), MANAGER, STRANGER}) == 4
