"""How agents are, and processes that are kept running, so many times."""

from __future__ import annotations

import os
import re
from pathlib import Path

from pabal.apps.ignite.presence import Presences
from pabal.apps.ignite.wakes import WakeContext
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import Table, ignite


def seated(table: Table) -> Presences:
    context = WakeContext(table.root, table.root.parent, {"PATH": os.environ["PATH"]})
    return Presences(table.monitor, watch=table.watch, context=context)


def presence(table: Table, agent: str = "worker") -> str:
    found = table.workspace.memory.presences().get(agent)
    return found.presence if found is not None else ""


def test_an_agent_is_idle_busy_and_stale(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    presences = seated(table)
    presences.step()
    assert presence(table) == "idle"
    [sent] = table.send()
    table.hand()
    clock.advance(1)
    presences.step()
    found = table.workspace.memory.presences()["worker"]
    assert (found.presence, found.busy_with) == ("busy", f"task_assignment {sent.id}")
    clock.advance(700)
    presences.step()
    assert presence(table) == "away"  # it has not looked yet
    table.monitor.runners["worker"].sign()
    clock.advance(700)
    presences.step()
    assert presence(table) == "stale"
    os.unlink(table.workspace.held("worker")[0].path)
    table.until(lambda: table.monitor.runners["worker"].turn is None)
    clock.advance(1)
    presences.step()
    assert presence(table) == "idle"


def test_a_process_that_ends_is_started_again_so_many_times_and_the_leader_is_told_once(lay: Lay) -> None:
    team = (
        "agents: {leader: {wake: hook}, worker: {wake: hook, process: [/bin/sh, -c, 'echo x >> $IGNITE_ROOT/got']}}\n"
        "limits: {starts: 1}"
    )
    table = lay(team)
    presences = seated(table)

    def gone() -> bool:
        presences.step()
        return presence(table) == "gone"

    table.until(gone)
    assert len(table.lines()) == 2
    table.until(lambda: table.workspace.held("leader"))
    body = table.workspace.held("leader")[0].message.body
    assert isinstance(body, dict) and body["title"] == "agent worker is gone"
    table.passes(20)
    assert len(list(table.root.glob("queue/leader/*.mime"))) == 0
    presences.stop(0.1)


def test_a_process_lives_beside_the_team_and_ends_with_it(lay: Lay) -> None:
    team = (
        "agents: {leader: {wake: hook}, worker: {wake: hook, process: [/bin/sh, -c, "
        "'echo $$ >> $IGNITE_ROOT/got; exec sleep 1000']}}"
    )
    table = lay(team)
    presences = seated(table)

    def up() -> list[str]:
        presences.step()
        return table.lines()

    table.until(up)
    pid = int(table.lines()[0])
    assert Path(f"/proc/{pid}").exists()
    table.until(lambda: up() and presence(table) in ("starting", "idle"))
    assert table.workspace.memory.presences()["worker"].pid == pid
    presences.stop(5.0)
    assert not Path(f"/proc/{pid}").exists() and presence(table) == "gone"


def test_a_changed_team_file_changes_the_processes_that_run(lay: Lay) -> None:
    process = "process: [/bin/sh, -c, 'echo $IGNITE_AGENT $$ >> $IGNITE_ROOT/got; exec sleep 1000']"
    table = lay(f"agents: {{leader: {{}}, worker: {{{process}}}}}")
    presences = seated(table)

    def started(count: int) -> bool:
        presences.step()
        return len(table.lines()) == count

    table.until(lambda: started(1))
    table.change(f"agents: {{leader: {{}}, worker: {{}}, painter: {{{process}}}}}")
    table.monitor.reload()
    presences.reload()
    table.until(lambda: started(2))
    (first, gone), (second, there) = (line.split() for line in table.lines())
    assert (first, second) == ("worker", "painter")
    assert not Path(f"/proc/{gone}").exists() and Path(f"/proc/{there}").exists()
    table.until(lambda: started(2) and presence(table) == "idle")
    presences.stop(5.0)
    assert not Path(f"/proc/{there}").exists()


def test_status_says_who_is_away_and_how_much_waits(lay: Lay) -> None:
    from pabal.apps.ignite.health import LOCK
    from pabal.runtime.role_lock import RoleLock

    table = lay("agents: {leader: {wake: hook}, worker: {wake: webhook, url: 'http://127.0.0.1:9/'}}")
    presences = seated(table)
    for _ in range(3):
        table.send()

    def away() -> bool:
        presences.step()
        return presence(table) == "away"

    table.until(away)
    lock = RoleLock(table.root / "state" / LOCK, table.workspace.clock.now(), "served", advice="")
    try:
        out = ignite(table.root, "status").stdout.decode()
    finally:
        lock.close()
    assert re.search(r"^worker: away, 3 waiting since \d\d:\d\d$", out, re.MULTILINE), out
