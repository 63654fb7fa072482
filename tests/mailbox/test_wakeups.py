"""Requests that wait for a message: however many there are, each is woken, and none keeps the manager busy."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pabal.clock import SystemClock
from pabal.mailbox.wakeups import GROUPS
from pabal.testing import ManualClock
from tests.mailbox.room import Room
from tests.openers import OPENERS


def park(room: Room, queue: str, wait: int = 20_000) -> str:
    return room.drop(room.request("consume", {"queue": queue, "waitMs": wait}))


def instances() -> int:
    """Count the inotify instances of this process: a user has few of them."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return links.count("anon_inode:inotify")


def payload(room: Room, name: str) -> Any:
    answer = room.answer(name)
    return answer and answer["data"]["message"] and answer["data"]["message"]["payload"]


@pytest.mark.parametrize("store", OPENERS)
def test_hundreds_who_wait_are_woken_by_few_watches(store: str, tmp_path: Path) -> None:
    room = Room(tmp_path / "ipc", OPENERS[store].open(tmp_path, SystemClock()))
    many = 10 * GROUPS
    names = [park(room, f"q{n}") for n in range(many)]
    before = instances()
    while len(room.files("requests")) or room.server.next_due() == 0:
        room.server.step()
    assert instances() - before <= GROUPS + 1, "the file store has one of its own"
    for n in reversed(range(many)):
        room.connection.queue(f"q{n}").publish(n)
    end = time.monotonic() + 10
    while [payload(room, name) for name in names] != [*range(many)]:
        assert time.monotonic() < end, "half of what they may wait"
        room.server.step()
    room.close()


def test_who_cannot_be_woken_looks_once_a_second(
    room: Room, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pabal.watch.SharedInotify.join", lambda self, watch: -1)  # none to be had
    name = park(room, "jobs")
    room.server.step()
    room.connection.queue("jobs").publish(1)
    due = room.server.next_due()
    assert due is not None and due <= 1.0
    clock.advance(1.0)
    room.server.step()
    assert payload(room, name) == 1


def test_who_waits_longest_unheard_is_not_forgotten(
    room: Room, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pabal.mailbox.wakeups.MAX_WATCHED_QUEUES", 2)
    names = [park(room, f"q{n}") for n in range(4)]
    room.server.step()
    for n in range(4):
        room.connection.queue(f"q{n}").publish(n)
    room.server.step()
    clock.advance(1.0)
    room.server.step()
    assert [payload(room, name) for name in names] == [0, 1, 2, 3]


@pytest.mark.parametrize("store", OPENERS)
def test_what_is_due_in_a_paused_queue_keeps_nobody_busy(store: str, tmp_path: Path, clock: ManualClock) -> None:
    room = Room(tmp_path / "ipc", OPENERS[store].open(tmp_path, clock), clock=clock)
    room.good("publish", {"queue": "jobs", "message": 1, "delayMs": 100})
    room.good("pause", {"queue": "jobs"})
    name = park(room, "jobs")
    clock.advance(1.0)
    for _ in range(3):
        room.server.step()
        due = room.server.next_due()
        assert due is not None and due > 0.05
    room.good("resume", {"queue": "jobs"})
    clock.advance(1.0)
    room.server.step()
    assert payload(room, name) == 1
    room.close()


def test_bells_are_as_many_as_can_be_rung(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pabal.mailbox.wakeups.MAX_WAKEUP_FILES", 3)
    for n in range(10):
        room.good("store.watch", {"queues": [f"q{n}"]})
    room.good("store.watch", {"queues": ["q7", "q1"]})
    assert sorted(os.listdir(room.root / "bells")) == ["q1", "q7", "q9"]
