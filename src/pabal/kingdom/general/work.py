"""One task in hand, from its workspace to what its soldier said. Each `yield` gives way until something happens."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import suppress
from typing import TypeAlias

from pabal.errors import InvalidInput
from pabal.kingdom.documents import SoldierResult, Task
from pabal.kingdom.general.prompt import write_prompt
from pabal.kingdom.general.results import Unreadable, failed, read_raw
from pabal.kingdom.general.soldier import Soldier
from pabal.kingdom.general.waiting import Waiting
from pabal.kingdom.general.workspace import Workspace
from pabal.kingdom.home import Home
from pabal.kingdom.manifests import Manifest
from pabal.runtime.process import Child, Command
from pabal.runtime.wake import FdWatch

GIT_SECONDS = 600.0
LINGER = 10.0  # seconds that a soldier may go on after its result
UNREADABLE_SECONDS = 60.0

Work: TypeAlias = Generator[None, None, SoldierResult]


def work(home: Home, manifest: Manifest, task: Task, watch: FdWatch) -> Work:
    """Have a task done; return what is to be said of it. Closed early, it ends what it started."""
    try:
        workspace = Workspace(home, manifest, task)
        for command in workspace.commands():
            if (mistake := (yield from _run(home, command, watch))) is not None:
                return failed(task, mistake)
        folder = workspace.finish()
        soldier = Soldier(home, manifest, task, folder, write_prompt(home, manifest, task))
    except (InvalidInput, OSError) as exc:
        return failed(task, f"the soldier could not be started: {exc}")
    home.journal.note("soldier.spawned", manifest.name, task=task.id, soldier=soldier.id, pid=soldier.child.pid)
    watch.add(soldier.child.fd)
    try:
        said = yield from _wait(home, manifest, task, soldier, watch)
    finally:
        _forget(watch, soldier.child)
        soldier.close()
    return said


def _forget(watch: FdWatch, child: Child) -> None:
    with suppress(KeyError):  # it was seen to end already
        watch.remove(child.fd)


def _run(home: Home, command: Command, watch: FdWatch) -> Generator[None, None, str | None]:
    """Run a program of ours; return what went wrong."""
    child = Child(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watch.add(child.fd)
    end = home.clock.boot() + GIT_SECONDS
    try:
        while (status := child.status()) is None and home.clock.boot() < end:
            yield
        status = child.stop(0.0) if status is None else status
        assert child.process.stderr is not None
        told = child.process.stderr.read(4000).decode(errors="replace").strip()
        return None if status == 0 else f"git {command.argv[-1]!r:.80} ended with {status}: {told[-1500:]}"
    finally:
        _forget(watch, child)
        child.stop(0.0)
        if child.process.stderr is not None:
            child.process.stderr.close()
        child.close()


def _wait(home: Home, manifest: Manifest, task: Task, soldier: Soldier, watch: FdWatch) -> Work:
    waiting = Waiting(home.clock.boot(), manifest.timeout_seconds)
    note, facts = home.journal.note, {"task": task.id, "soldier": soldier.id}
    given: float | None = None  # when its result was first seen
    while (status := soldier.child.status()) is None:
        if given is None and _is_there(soldier, task):
            given = home.clock.boot()
        if given is not None and home.clock.boot() - given > LINGER:
            break
        if given is None and waiting.is_over(home.clock.boot(), home.clock.now() - soldier.last_sign()):
            note("soldier.timeout", manifest.name, **facts)
            return failed(task, _with_words(f"no result after {manifest.timeout_seconds:g} s", soldier))
        yield
    _forget(watch, soldier.child)
    said = yield from _read(home, task, soldier)
    if said is not None:
        note("soldier.completed", manifest.name, **facts, status=said.status)
        return said
    note("soldier.killed", manifest.name, **facts, exit=status)
    if status == 0:
        return failed(task, _with_words("the soldier ended without a result", soldier))
    how = f"signal {-status}" if status is not None and status < 0 else f"exit {status}"
    return failed(task, _with_words(f"the soldier died ({how}) without a result", soldier), status="killed")


def _is_there(soldier: Soldier, task: Task) -> bool:
    try:
        return read_raw(soldier.files, task) is not None
    except Unreadable:
        return False


def _read(home: Home, task: Task, soldier: Soldier) -> Generator[None, None, SoldierResult | None]:
    """Read the result; one that is no JSON is tried again, for whoever writes it may not be done."""
    end = home.clock.boot() + UNREADABLE_SECONDS
    while True:
        try:
            return read_raw(soldier.files, task)
        except Unreadable as exc:
            if home.clock.boot() >= end:
                return failed(task, f"the result cannot be read: {exc}")
        yield


def _with_words(reason: str, soldier: Soldier) -> str:
    words = soldier.last_words()
    return f"{reason}; it said: {words}" if words else reason
