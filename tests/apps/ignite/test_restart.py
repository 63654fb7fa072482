"""Whoever is killed, everything is where it was: the folders say it all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pabal.apps.ignite.dead_letters import dead_letters_of
from pabal.apps.ignite.service import TeamService
from pabal.errors import AlreadyRunning
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import Place, Served, Table, everywhere, ignite, soon

SLOW = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [/bin/sh, -c, "echo $$ >> $IGNITE_ROOT/got; exec sleep 1000"]}
"""


@everywhere
def test_a_turn_goes_on_under_the_next_monitor(lay: Lay) -> None:
    table = lay()
    [sent] = table.send()
    before = table.hand()
    table.until(lambda: table.workspace.memory.facts_of(sent.id))
    table.crash()
    table.serve()
    table.passes()
    [runner] = table.monitor.busy
    assert runner.turn is not None and runner.turn.path == before.path and runner._waking is None
    os.unlink(before.path)
    table.until(lambda: not table.monitor.busy)


@everywhere
def test_an_agent_that_was_never_told_is_told_by_the_next_monitor(lay: Lay) -> None:
    table = lay(serve=False)
    table.send()
    [lease] = table.workspace.store.lease("worker", 1, 86400.0, consumer="worker")
    table.serve()
    assert table.hand().receipt == lease.receipt
    assert (table.root / "state/hooks/worker").exists()


@everywhere
def test_that_an_agent_has_looked_is_known_to_the_next_monitor(lay: Lay, clock: ManualClock) -> None:
    from pabal.apps.ignite.readers import beat

    table = lay(clock=clock)
    table.send()
    table.hand()
    clock.advance(1)
    table.passes()  # its facts are written
    for looked in (False, True):
        if looked:
            beat(table.workspace, "worker")
            at = clock.now()
            os.utime(table.root / "state/beats/worker", (at, at))
        clock.advance(600)
        table.crash()
        table.serve()
        runner = table.monitor.runners["worker"]
        assert runner.looked is looked and clock.boot() - runner.sign_at == pytest.approx(600 if looked else 601)


@everywhere
def test_memory_may_be_deleted_at_any_time(lay: Lay) -> None:
    table = lay()
    [sent] = table.send()
    held = table.hand()
    table.crash()
    for path in table.root.glob("state/memory.db*"):
        path.unlink()
    table.serve()
    table.passes()
    os.unlink(held.path)
    table.until(lambda: not table.monitor.busy)
    assert table.state(sent.id) in (None, State.DONE) and table.files() == []


@everywhere
def test_after_a_reboot_what_was_in_hand_is_tried_again(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    [sent] = table.send()
    table.hand()
    table.crash()
    clock.reboot()
    table.serve()
    clock.advance(400)
    table.until(lambda: table.workspace.held("worker"))
    entry = table.workspace.store.find("worker", sent.id)
    assert entry is not None and entry.attempt >= 1


@everywhere
def test_a_killed_monitor_takes_its_commands_with_it_and_the_next_runs_them_again(tmp_path: Path, kind: Place) -> None:
    table = Table(tmp_path, kind.team(SLOW), serve=False)
    served = Served(table.root)
    try:
        [sent] = table.send()
        assert soon(lambda: len(table.lines()) == 1)
        served.kill()
        first = int(table.lines()[0])
        assert soon(lambda: not Path(f"/proc/{first}").exists() or "Z" in Path(f"/proc/{first}/stat").read_text())
        served.start()
        assert soon(lambda: len(table.lines()) == 2)
        entry = table.workspace.store.find("worker", sent.id)
        assert entry is not None and (entry.state, entry.attempt) == (State.INFLIGHT, 2)
        assert entry.failure is not None and "the monitor ended" in entry.failure.reason
    finally:
        served.kill()
        table.close()


@everywhere
def test_down_gives_back_what_runs_after_the_grace(tmp_path: Path, kind: Place) -> None:
    table = Table(tmp_path, kind.team(SLOW + "limits: {grace: 0.2}"), serve=False)
    served = Served(table.root)
    try:
        [sent] = table.send()
        assert soon(lambda: len(table.lines()) == 1)
        assert served.stop() == 0
        assert table.state(sent.id) is State.READY
        assert not (table.root / "state/heartbeat.json").exists()
    finally:
        served.kill()
        table.close()


@everywhere
def test_what_was_given_back_was_no_attempt(lay: Lay) -> None:
    team = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [/bin/sh, -c, "cd $IGNITE_ROOT; echo x >> got; test -e go || sleep 1000; false"]}
limits: {grace: 0}
retry: {limit: 1, base: 0.01}
"""
    table = lay(team)
    [sent] = table.send()
    for times in (1, 2, 3):
        table.until(lambda times=times: len(table.lines()) == times)  # type: ignore[misc]  # of this round
        table.monitor.stop()
        assert table.state(sent.id) is State.READY
        table.crash()
        table.serve()
    (table.root / "go").touch()
    table.until(lambda: table.monitor.busy)
    table.monitor.stop()
    before = len(table.lines())
    table.until(lambda: table.state(sent.id) is State.DEAD)
    assert len(table.lines()) - before == 2
    assert "exit status 1" in [letter.reason for letter in dead_letters_of(table.workspace, "worker")][0]


def test_a_command_that_ends_within_the_grace_is_done(tmp_path: Path) -> None:
    team = SLOW.replace("sleep 1000", "sleep 0.5")
    table = Table(tmp_path, team, serve=False)
    served = Served(table.root)
    try:
        [sent] = table.send()
        assert soon(lambda: len(table.lines()) == 1)
        assert served.stop() == 0
        assert table.state(sent.id) is State.DONE
    finally:
        served.kill()
        table.close()


def test_one_monitor_serves_a_workspace_and_the_second_says_who(tmp_path: Path, lay: Lay) -> None:
    table = lay(serve=False)
    served = Served(table.root)
    try:
        assert served.process is not None
        with pytest.raises(AlreadyRunning, match=f"pid {served.process.pid}"):
            TeamService(table.root, folder=tmp_path, variables={})
        ran = ignite(table.root, "up")
        assert ran.returncode == 6 and b"is served already" in ran.stderr
    finally:
        served.stop()
