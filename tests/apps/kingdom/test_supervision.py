"""Who watches the chamberlain, and what becomes of configuration that changes while the kingdom is up."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pabal.apps.kingdom import supervision
from pabal.apps.kingdom.status import report
from pabal.apps.kingdom.supervision import Kingdom
from pabal.clock import SystemClock
from pabal.errors import InvalidConfig
from pabal.runtime.heartbeat import read_pulse
from pabal.runtime.role_lock import holder
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch
from tests.apps.kingdom.realm import PABAL, Realm, eventually


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Realm]:
    with closing(Realm(tmp_path / "home", "", SystemClock())) as found:
        yield found


@pytest.fixture
def kingdom(files: Realm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kingdom]:
    """A kingdom of a chamberlain alone, held up by this process, which takes him to hang after three seconds."""
    monkeypatch.setattr(supervision, "PATIENCE", 3.0)
    files.system(roles=["chamberlain"], stop_seconds=1)
    (files.root / "config/chamberlain.yaml").write_text("interval_seconds: 0.2\n")
    with closing(FdWatch()) as watch:
        log = files.root / "logs/system.log"
        supervisor = Supervisor({}, clock=files.clock, watch=watch, output=lambda name: log)
        root = str(files.root)
        yield Kingdom(files.home, lambda role: (*PABAL, "kingdom", "role", role, "--home", root), supervisor)
        supervisor.stop(5)


def awaited(files: Realm, kingdom: Kingdom, *, other_than: int = 0) -> int:
    """Hold the kingdom up until a chamberlain has finished a pass; return his process."""
    pids: list[int] = []

    def is_there() -> bool:
        kingdom.step()
        pulse = read_pulse(files.root / "state/chamberlain/heartbeat", files.clock)
        pids.append(pulse.beat.pid if pulse.beat and pulse.state == "ok" else other_than)
        return pids[-1] != other_than

    eventually(is_there, lambda: files.log)
    return pids[-1]


def test_a_chamberlain_who_hangs_is_killed_and_started_again(files: Realm, kingdom: Kingdom) -> None:
    first = awaited(files, kingdom)
    os.kill(first, signal.SIGSTOP)  # SIGTERM alone would not end him
    assert awaited(files, kingdom, other_than=first) > 0
    first_restart, *_ = files.journal("recovery.session_restarted")
    assert first_restart == {"role": "chamberlain", "reason": "hung"}
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)


def test_a_chamberlain_who_hangs_before_his_first_pass_is_started_again(files: Realm, kingdom: Kingdom) -> None:
    kingdom.step()
    [first] = [state.pid for state in kingdom._supervisor.states()]
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    assert awaited(files, kingdom) != first


def test_king_yaml_is_followed_and_a_mistake_in_it_leaves_things_as_they_were(realm: Realm) -> None:
    realm.general()
    realm.king(concurrency={"max_soldiers": 1})
    king = realm.dispatcher()
    for number in range(4):
        realm.event(f"evt-{number}")
    king.step()
    assert len(realm.tasks()) == 1
    (realm.root / "config/king.yaml").write_text(json.dumps({"concurrency": {"max_soldiers": 2}}))
    king.step()
    assert len(realm.tasks()) == 2
    (realm.root / "config/king.yaml").write_text(json.dumps({"concurrency": {"max_soldiers": "all"}}))
    king.step()
    king.step()
    assert len(realm.tasks()) == 2
    [told] = realm.journal("system.warning")
    assert "max_soldiers" in told["problem"]
    assert any("king.yaml" in problem and "max_soldiers" in problem for problem in report(realm.home).problems)
    with pytest.raises(InvalidConfig, match="max_soldiers"):
        realm.open()
    (realm.root / "config/king.yaml").write_text("")
    king.step()
    assert len(realm.tasks()) == 3 and report(realm.home).problems == []


def test_status_says_which_role_does_not_know_its_configuration_yet(files: Realm) -> None:
    files.system(roles=["envoy"])
    (files.root / "config/envoy.yaml").write_text("interval_seconds: 1\n")
    envoy = files.start("role", "envoy")
    beat = files.root / "state/envoy/heartbeat"
    eventually(beat.exists, lambda: files.log)
    assert report(files.home).problems == []
    (files.root / "draft").write_text("interval_seconds: 2\n")
    os.utime(files.root / "draft", (0, 0))
    (files.root / "draft").rename(files.root / "config/envoy.yaml")
    (files.root / "config/system.yaml").write_text('{"roles": ["envoy"], "lease_seconds": 5}')
    pid = holder(files.root / "state/envoy/lock")
    assert report(files.home).problems == [
        f"config/envoy.yaml changed after envoy began: `kill {pid}`, and it begins again with that",
        "config/system.yaml changed after envoy began: `pabal kingdom down`, then `up`",
    ]
    (files.root / "config/envoy.yaml").write_text("interval_seconds: 0\n")
    [problem, _] = report(files.home).problems
    assert "interval_seconds must be at least 0.1" in problem and "envoy cannot begin with it" in problem
    envoy.terminate()
    assert envoy.wait(30) == 0
