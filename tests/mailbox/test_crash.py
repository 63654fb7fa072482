"""kill -9 of the manager at every system call of its work: every request is answered, and done once."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.crash.conftest import need
from tests.crash.harness import SOAK, scratch
from tests.mailbox.killing import Scene, judge, kill, points, prepare
from tests.mailbox.room import Room
from tests.openers import OPENERS

SAMPLE = 12  # calls cut in an ordinary run; all of them in a soak


def publications(room: Room) -> list[Any]:
    room.connection.queue("jobs").publish(0)  # so that what is cut is the work, and not the making of folders
    message = {"messageId": "0199c1d2-77aa-7d21-81a4-b49a3e7f5c10", "timestamp": "2026-01-01T00:00:00Z", "payload": 5}
    return [
        room.request("publish", {"queue": "jobs", "message": 1}, client="a"),
        [room.request("publish", {"queue": "jobs", "message": n}, client="b") for n in (2, 3)],
        room.request("publish", {"queue": "other", "message": 4, "deduplicationKey": "k"}, client="c"),
        room.request(
            "store.publish", {"drafts": [{"queue": "jobs", "message": message, "givenId": False}]}, client="d"
        ),
    ]


def consumptions(room: Room) -> list[Any]:
    for n in range(4):
        room.connection.queue("jobs").publish(n)
    return [room.request("consume", {"queue": "jobs"}, client=client) for client in ("a", "b")]


def settlements(room: Room) -> list[Any]:
    queue = room.connection.queue("jobs")
    for n in range(5):
        queue.publish(n)
    leases = queue.lease(limit=4, visibility=600)
    held = [{"messageKey": f"msg:jobs:{each.receipt.id}", "leaseId": each.receipt.token} for each in leases]
    return [
        room.request("ack", held[0], client="a"),
        room.request("nack", {**held[1], "reason": "x"}, client="b"),
        room.request("nack", {**held[2], "requeue": True, "delayMs": 600_000}, client="c"),
        room.request("extend_lease", {**held[3], "visibilityTimeoutSec": 700}, client="d"),
    ]


SCENES = {
    "publish": Scene(publications, {"jobs": {"ready": 5}, "other": {"ready": 1}}),
    "consume": Scene(consumptions, {"jobs": {"ready": 2, "inflight": 2}}),
    "settle": Scene(settlements, {"jobs": {"ready": 1, "done": 1, "dead": 1, "delayed": 1, "inflight": 1}}),
}


def chosen(found: list[Any], name: str) -> list[Any]:
    return found if SOAK else random.Random(name).sample(found, min(SAMPLE, len(found)))


@pytest.mark.parametrize("store", OPENERS)
@pytest.mark.parametrize("name", SCENES)
def test_a_kill_at_any_call_loses_and_doubles_nothing(name: str, store: str) -> None:
    need("strace", shutil.which("strace") is not None)
    scene = SCENES[name]
    with scratch() as folder:
        template = Path(folder, "template")
        template.mkdir()
        prepare(scene, store, template)
        found = points(store, template)
        assert len(found) > 20
        for number, point in enumerate(chosen(found, name)):
            place = Path(folder, str(number))
            shutil.copytree(template, place)
            kill(store, place, point)
            try:
                judge(scene, store, place)
            except AssertionError as exc:
                raise AssertionError(f"killed at {point.told}") from exc
            shutil.rmtree(place)


@pytest.mark.parametrize("store", OPENERS)
def test_a_second_kill_while_the_next_manager_starts_is_no_worse(store: str) -> None:
    need("strace", shutil.which("strace") is not None)
    scene, chance = SCENES["publish"], random.Random(store)
    with scratch() as folder:
        template = Path(folder, "template")
        template.mkdir()
        prepare(scene, store, template)
        first, second = points(store, template), points(store, template, from_start=True)
        for number in range(60 if SOAK else 6):
            place = Path(folder, str(number))
            shutil.copytree(template, place)
            kill(store, place, chance.choice(first))
            kill(store, place, chance.choice(second), from_start=True)
            judge(scene, store, place)
            shutil.rmtree(place)


def test_the_judge_finds_what_was_done_twice(tmp_path: Path) -> None:
    scene = SCENES["publish"]
    prepare(scene, "sqlite", tmp_path)
    shutil.copy(tmp_path / "ipc" / "requests" / "00.json", tmp_path / "ipc" / "requests" / "99.json")
    text = (tmp_path / "ipc" / "requests" / "99.json").read_text()
    (tmp_path / "ipc" / "requests" / "99.json").write_text(text.replace('"requestId": "', '"requestId": "again-'))
    os.chmod(tmp_path / "ipc" / "requests" / "99.json", 0o600)
    with pytest.raises(AssertionError):
        judge(scene, "sqlite", tmp_path)
