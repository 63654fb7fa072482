"""Whoever is killed, everything is where it was: the folders say it all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pabal.errors import ManagerRunning
from pabal.ignite.serving import Serving
from pabal.store import State
from pabal.testing import ManualClock
from tests.ignite.conftest import Lay
from tests.ignite.table import Served, Table, ignite, soon

SLOW = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [/bin/sh, -c, "echo $$ >> $IGNITE_ROOT/got; sleep 1000"]}
"""


def test_a_turn_goes_on_under_the_next_monitor(lay: Lay) -> None:
    table = lay()
    [sent] = table.send()
    before = table.hand()
    table.until(lambda: table.workspace.memory.facts_of(sent.id))
    table.crash()
    table.serve()
    table.passes()
    [post] = table.monitor.turns
    assert post.turn is not None and post.turn.path == before.path and post._waking is None
    os.unlink(before.path)
    table.until(lambda: not table.monitor.turns)


def test_an_agent_that_was_never_told_is_told_by_the_next_monitor(lay: Lay) -> None:
    table = lay(serve=False)
    table.send()
    [lease] = table.workspace.store.lease("worker", 1, 86400.0, consumer="worker")
    table.serve()
    assert table.hand().receipt == lease.receipt
    assert (table.root / "state/hooks/worker").exists()


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
    table.until(lambda: not table.monitor.turns)
    assert table.state(sent.id) is None and table.files() == []


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


def test_a_killed_monitor_takes_its_commands_with_it_and_the_next_runs_them_again(tmp_path: Path) -> None:
    table = Table(tmp_path, SLOW, serve=False)
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


def test_down_gives_back_what_runs_after_the_grace(tmp_path: Path) -> None:
    table = Table(tmp_path, SLOW + "limits: {grace: 0.2}", serve=False)
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
        with pytest.raises(ManagerRunning, match=f"pid {served.process.pid}"):
            Serving(table.root, folder=tmp_path, variables={})
        ran = ignite(table.root, "up")
        assert ran.returncode == 6 and b"is served already" in ran.stderr
    finally:
        served.stop()
