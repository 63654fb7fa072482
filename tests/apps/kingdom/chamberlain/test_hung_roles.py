"""Roles that hang or are gone, and soldiers without a general: with real processes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.apps.kingdom.chamberlain import settings
from pabal.apps.kingdom.chamberlain.hung_roles import RoleCheck, end_orphans
from pabal.apps.kingdom.sessions import Session, Sessions
from pabal.clock import SystemClock
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.resources import start_ticks
from pabal.runtime.role_lock import holder
from tests.apps.kingdom.realm import Realm, eventually


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Realm]:
    found = Realm(tmp_path / "home", "", SystemClock())
    yield found
    found.close()


def beats(realm: Realm, role: str) -> bool:
    return read_pulse(realm.root / "state" / role / "heartbeat", SystemClock()).state == "ok"


def test_a_role_that_hangs_is_told_to_end_and_then_killed_and_started_again(files: Realm) -> None:
    files.system(roles=["king"])
    up = files.start("up")
    eventually(lambda: beats(files, "king"), lambda: files.log)
    pid = holder(files.root / "state/king/lock")
    assert pid is not None
    roles = RoleCheck(files.home, settings.Roles(patience_seconds=7.0, grace_seconds=0.2))
    os.kill(pid, signal.SIGSTOP)
    found: set[str] = set()

    def replaced() -> bool:
        found.update(alert.state for alert in roles.check())
        return holder(files.root / "state/king/lock") not in (pid, None) and beats(files, "king")

    eventually(replaced, lambda: files.log)
    assert found == {"hung"}
    assert files.journal("recovery.session_restarted") == [{"role": "king", "pid": pid}]
    assert files.journal("recovery.session_killed")
    eventually(lambda: roles.check() == [] and not roles.busy)
    up.terminate()
    assert up.wait(60) == 0


def test_a_role_that_nobody_starts_again_is_told(files: Realm) -> None:
    files.system(roles=["king"])
    roles = RoleCheck(files.home, settings.Roles(patience_seconds=0.2))
    assert roles.check() == []
    eventually(lambda: [alert.state for alert in roles.check()] == ["gone"])


def test_no_stranger_is_ended_for_a_role(files: Realm) -> None:
    """The heartbeat of a dead role names a process that is somebody else by now."""
    files.system(roles=["king"])
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    beat = f'{{"name":"king","pid":{stranger.pid},"bootId":"{SystemClock().boot_id}","started":1,"last":1,"passes":1}}'
    (files.root / "state/king/heartbeat").write_text(beat)
    roles = RoleCheck(files.home, settings.Roles(patience_seconds=0.1, grace_seconds=0.0))
    for _ in range(3):
        assert [alert.state for alert in roles.check()] == ["hung"]
    assert stranger.poll() is None
    stranger.kill()
    stranger.wait()


def test_soldiers_without_a_general_are_ended_and_others_left_alone(files: Realm) -> None:
    soldier = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
    ticks = start_ticks(soldier.pid)
    assert ticks is not None
    sessions = Sessions(files.root)

    def register(general: str) -> None:
        sessions.add(
            Session(
                id="s-1", task_id="t", general=general, pid=soldier.pid, ticks=ticks, started_at="2026-01-01T00:00:00Z"
            )
        )

    files.general("gen-pr")
    role = files.start("role", "gen-pr")
    eventually(lambda: beats(files, "gen-pr"), lambda: files.log)
    register("gen-pr")
    assert end_orphans(files.home) == 0 and soldier.poll() is None
    sessions.remove("s-1")
    register("gen-gone")
    assert end_orphans(files.home) == 1 and soldier.wait(10) == -signal.SIGKILL
    assert sessions.all() == []
    role.terminate()
    assert role.wait(30) == 0
