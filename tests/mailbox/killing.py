"""A manager's process that is killed at a system call of its choice while it handles what lies in its mailbox."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pabal.clock import SystemClock
from pabal.store import State
from tests.crash.harness import _CALL, CALLS, Point, _attach, scratch
from tests.mailbox.room import Room
from tests.openers import OPENERS

_PR_SET_PTRACER, _ANY = 0x59616D61, ctypes.c_ulong(-1)
States = dict[str, dict[str, int]]


class Scene(NamedTuple):
    """What lies in the store and in the mailbox, and what there should be in the store once all is answered."""

    before: Callable[[Room], list[Any]]  # returns the requests, each a document or an array of them
    after: States


@contextmanager
def opened(store: str, place: Path) -> Iterator[Room]:
    room = Room(place / "ipc", OPENERS[store].open(place, SystemClock()))
    try:
        yield room
    finally:
        room.close()


def prepare(scene: Scene, store: str, place: Path) -> None:
    """Build the scene once; it is copied for every kill."""
    with opened(store, place) as room:
        requests = scene.before(room)
    (place / "requests.json").write_text(json.dumps(requests))
    for number, request in enumerate(requests):
        path = place / "ipc" / "requests" / f"{number:02d}.json"
        path.write_text(json.dumps(request))
        path.chmod(0o600)


def serve(store: str, place: Path, *strace: str, from_start: bool = False) -> int:
    """Let a child handle what lies there, under strace; return how it ended."""
    ready, tell = os.pipe()
    wait, go = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(store, place, tell, wait, from_start)
    assert os.read(ready, 1) == b"r", "the child did not start"
    tracer = _attach(str(pid), strace) if strace else None
    os.write(go, b"g")
    _, status = os.waitpid(pid, 0)
    if tracer is not None:
        tracer.communicate(timeout=10)
    for fd in (ready, tell, wait, go):
        os.close(fd)
    return os.waitstatus_to_exitcode(status)


def _work(store: str, place: Path, tell: int, wait: int, from_start: bool) -> None:
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANY, 0, 0, 0)
        room = None if from_start else Room(place / "ipc", OPENERS[store].open(place, SystemClock()))
        os.write(tell, b"r")
        os.read(wait, 1)
        room = room or Room(place / "ipc", OPENERS[store].open(place, SystemClock()))
        while room.server.step():
            pass
        os._exit(0)
    except BaseException as exc:
        (place / "wrong").write_text(f"{type(exc).__name__}: {exc}")
        os._exit(3)


def points(store: str, template: Path, *, from_start: bool = False) -> list[Point]:
    """Handle everything undisturbed and return each call that can be cut."""
    with scratch() as folder:
        place, trace = Path(folder, "place"), Path(folder, "trace")
        shutil.copytree(template, place)
        rules = ("-o", str(trace), "-e", f"trace={','.join(CALLS)}")
        assert serve(store, place, *rules, from_start=from_start) == 0, (place / "wrong").read_text()
        lines = trace.read_text(errors="replace").splitlines()
    seen: Counter[str] = Counter()
    found = []
    for line in lines:
        if match := _CALL.match(line):
            seen[match[1]] += 1
            found.append(Point(match[1], seen[match[1]], line[:160]))
    return found


def kill(store: str, place: Path, point: Point, *, from_start: bool = False) -> None:
    """Handle what lies there until this call, and no further."""
    rule = f"inject={point.call}:signal=SIGKILL:when={point.number}"
    status = serve(store, place, "-o", "/dev/null", "-e", f"trace={point.call}", "-e", rule, from_start=from_start)
    # A start after a kill finds files that the traced one made, so it may not come to this call.
    assert status == -9 or point.number > 1 or (from_start and status == 0), f"ended with {status} before {point.told}"


def judge(scene: Scene, store: str, place: Path) -> None:
    """Assert that the next manager answers everything, and that all was done once; then also when asked again."""
    requests = json.loads((place / "requests.json").read_text())
    with opened(store, place) as room:
        for again in (False, True):
            if again:
                # Only of a request that its client will not ask again may it say that the ids are new.
                text = json.dumps(requests).replace('"givenId": false', '"givenId": true')
                for number, request in enumerate(json.loads(text)):
                    room.drop(request, f"{number:02d}.json")
            while room.server.step():
                pass
            for number, request in enumerate(requests):
                client = (request[0] if isinstance(request, list) else request)["clientId"]
                answers = room.answer(f"{number:02d}.json", client)
                assert answers, f"no answer to {request}"
                for answer in answers if isinstance(answers, list) else [answers]:
                    assert answer["ok"], answer
            assert states(room) == scene.after
            _check_leases(room, requests)
            assert room.files("processing") == room.files("requests") == room.files("dead") == []


def states(room: Room) -> States:
    return {
        queue: {str(state): many for state, many in room.store.counts(queue).items() if many}
        for queue in room.store.queues()
    }


def _check_leases(room: Room, requests: list[Any]) -> None:
    """Assert that whoever was told of a lease holds it."""
    for number, request in enumerate(requests):
        if not isinstance(request, list) and request["command"] == "consume":
            told = room.answer(f"{number:02d}.json", request["clientId"])["data"]
            entry = room.store.find(request["payload"]["queue"], told["message"]["messageId"])
            assert entry and entry.state is State.INFLIGHT and entry.token == told["lease"]["leaseId"]
