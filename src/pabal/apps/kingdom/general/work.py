"""The work on one task, from its workspace to the result of its soldier. Each `yield` waits until something happens."""

from __future__ import annotations

import subprocess
from collections.abc import Generator
from contextlib import suppress
from typing import TypeAlias

from pabal.apps.kingdom.documents import SoldierResult, Task
from pabal.apps.kingdom.general.prompt import write_prompt
from pabal.apps.kingdom.general.results import Unreadable, failed, read_raw
from pabal.apps.kingdom.general.soldier import Soldier
from pabal.apps.kingdom.general.workspace import Workspace
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.manifests import Manifest
from pabal.errors import InvalidInput
from pabal.runtime.process import Child, Command
from pabal.runtime.wake import FdWatch

GIT_SECONDS = 600.0
_GIT_GRACE = 2.0  # seconds in which a git that is stopped removes its locks
LINGER = 10.0  # seconds that a soldier may run after its result
RECENT_SIGN = 30.0  # seconds
EXTENSION = 60.0  # seconds

Work: TypeAlias = Generator[None, None, SoldierResult]


def work_on(
    home: Home, workspace: Workspace, manifest: Manifest, task: Task, watch: FdWatch, soldiers: list[Soldier]
) -> Work:
    """Work on a task; return its result. Its soldier is added to `soldiers`.

    If the generator is closed early, it stops its processes.
    """
    try:
        while not workspace.begin():
            yield  # another task of this repository runs its git commands
        try:
            for command in workspace.commands():
                if (mistake := (yield from _run(home, command, watch))) is not None:
                    return failed(task, mistake)
        finally:
            workspace.prepared()
        workspace.plug_in()
        soldier = Soldier(home, manifest, task, workspace.folder, write_prompt(home, manifest, task))
    except (InvalidInput, OSError) as exc:
        return failed(task, f"the soldier could not be started: {exc}")
    home.journal.note("soldier.spawned", manifest.name, task=task.id, soldier=soldier.id, pid=soldier.child.pid)
    soldiers.append(soldier)
    watch.add(soldier.child.fd)
    try:
        result = yield from _wait(home, manifest, task, soldier, watch)
    finally:
        _forget(watch, soldier.child)
        soldier.close(home.config.stop_seconds / 6)
    return result


def _forget(watch: FdWatch, child: Child) -> None:
    with suppress(KeyError):  # its end was handled before
        watch.remove(child.fd)


def _run(home: Home, command: Command, watch: FdWatch) -> Generator[None, None, str | None]:
    """Run a git command; return its error, or None."""
    child = Child(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    watch.add(child.fd)
    end = home.clock.boot() + GIT_SECONDS
    try:
        while (status := child.status()) is None and home.clock.boot() < end:
            yield
        status = child.stop(_GIT_GRACE) if status is None else status
        assert child.process.stderr is not None
        errors = child.process.stderr.read(4000).decode(errors="replace").strip()
        return None if status == 0 else f"git {command.argv[-1]!r:.80} ended with {status}: {errors[-1500:]}"
    finally:
        _forget(watch, child)
        child.stop(_GIT_GRACE)
        if child.process.stderr is not None:
            child.process.stderr.close()
        child.close()


def _wait(home: Home, manifest: Manifest, task: Task, soldier: Soldier, watch: FdWatch) -> Work:
    deadline = SoldierDeadline(home.clock.boot(), manifest.timeout_seconds)
    note, facts = home.journal.note, {"task": task.id, "soldier": soldier.id}
    given: float | None = None  # when its result appeared
    while (status := soldier.child.status()) is None:
        if given is None and _is_there(soldier, task):
            given = home.clock.boot()
        if given is not None and home.clock.boot() - given > LINGER:
            break
        if given is None and deadline.is_over(home.clock.boot(), home.clock.now() - soldier.last_sign()):
            note("soldier.timeout", manifest.name, **facts)
            return failed(task, _with_errors(f"no result after {manifest.timeout_seconds:g} s", soldier))
        yield
    _forget(watch, soldier.child)
    try:
        # The soldier and all that it started have ended: nobody writes the file any more.
        result = read_raw(soldier.files, task)
    except Unreadable as exc:
        note("soldier.completed", manifest.name, **facts, status="failed")
        return failed(task, _with_errors(str(exc), soldier))
    if result is not None:
        note("soldier.completed", manifest.name, **facts, status=result.status)
        return result
    note("soldier.killed", manifest.name, **facts, exit=status)
    if status == 0:
        return failed(task, _with_errors("the soldier ended without a result", soldier))
    how = f"signal {-status}" if status is not None and status < 0 else f"exit {status}"
    return failed(task, _with_errors(f"the soldier died ({how}) without a result", soldier), status="killed")


def _is_there(soldier: Soldier, task: Task) -> bool:
    try:
        return read_raw(soldier.files, task) is not None
    except Unreadable:
        return False


def _with_errors(reason: str, soldier: Soldier) -> str:
    errors = soldier.last_errors()
    return f"{reason}; its last output: {errors}" if errors else reason


class SoldierDeadline:
    """When a general gives up on a soldier: after its timeout, later while it shows signs of life, at most twice that.

    All instants are readings of one clock.
    """

    def __init__(self, started: float, timeout: float) -> None:
        self._deadline = started + timeout
        self._last = started + 2 * timeout

    def is_over(self, now: float, silent: float) -> bool:
        """Return whether to give up; `silent` are the seconds since the last sign of life."""
        if now < self._deadline:
            return False
        if silent <= RECENT_SIGN and self._deadline < self._last:
            self._deadline = min(now + EXTENSION, self._last)
            return now >= self._deadline
        return True
