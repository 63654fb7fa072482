"""What users of other agent systems reported, each as a test that it cannot happen here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.errors import QueueFull
from pabal.policy.retention import LOOK_SECONDS
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import HOOKS, TASK, everywhere, ignite

SENDER = """
import sys
from pabal.apps.ignite import mail
from pabal.apps.ignite.workspace import Workspace
with Workspace.open(sys.argv[1]) as workspace:
    for n in range(int(sys.argv[3])):
        body = {"goal": f"{sys.argv[2]}-{n}"}
        mail.send(workspace, sender="user", to=["worker", "leader"], type="user_goal", body=body)
"""


@everywhere
def test_concurrent_senders_lose_no_message(lay: Lay) -> None:
    table = lay(serve=False)
    senders = [
        subprocess.Popen([sys.executable, "-c", SENDER, str(table.root), str(number), "15"]) for number in range(4)
    ]
    assert [sender.wait(60) for sender in senders] == [0] * 4
    for agent in ("worker", "leader"):
        goals = set()
        while leases := table.workspace.store.lease(agent, 10, 60.0, consumer=agent):
            goals |= {str(lease.message.body) for lease in leases}
        assert len(goals) == 60


@everywhere
def test_a_message_read_and_then_lost_by_its_reader_comes_back(lay: Lay, clock: ManualClock) -> None:
    """Reading is no acknowledgement: the reader dies after it has read, and whoever reads next is told again."""
    table = lay(clock=clock)
    [sent] = table.send()
    held = table.hand()
    assert ignite(table.root, "read", held.message.id).returncode == 0
    table.until(lambda: [fact for fact in table.workspace.memory.facts_of(sent.id) if fact.read_at])
    table.passes()
    assert table.state(sent.id) is State.INFLIGHT
    (table.root / "state/hooks/worker").unlink()
    clock.advance(1801)
    table.until((table.root / "state/hooks/worker").exists)
    again = table.hand()
    assert (again.message.id, again.path) == (sent.id, held.path)


@everywhere
def test_mail_to_a_finished_agent_is_not_lost_in_silence(lay: Lay) -> None:
    """The agent is no longer in the team: what waits for it is buried with a reason, and the leader is told."""
    table = lay(HOOKS, serve=False)
    [sent] = table.send()
    refused = HOOKS.replace(", worker: {wake: hook}", "")
    table.change(refused)
    table.reopen()
    table.serve()
    table.until(lambda: table.workspace.held("leader"))
    body = table.workspace.held("leader")[0].message.body
    assert isinstance(body, dict) and "no agent worker" in str(body["failure_reason"])
    assert (body["task_id"], body["title"]) == (TASK["task_id"], TASK["title"])
    assert table.state(sent.id) is State.DEAD
    ran = ignite(table.root, "send", "--to", "worker", "--type", "user_goal", "--body", "goal: g")
    assert ran.returncode == 3 and b"no agent" in ran.stderr


@everywhere
def test_an_inbox_does_not_grow_without_bound(lay: Lay, clock: ManualClock) -> None:
    table = lay(HOOKS + "\nlimits: {waiting: 3}\nkeep: {done: 0.5, dead: 2}", clock=clock)
    for _ in range(3):
        table.send()
    with pytest.raises(QueueFull):
        table.send()
    for verdict in ("ack", "ack", "bury"):
        held = table.hand()
        getattr(table.workspace.delivery(held), verdict)()
        table.passes()
    load = table.workspace.mail.load("worker")
    assert (load.ready, load.inflight, load.done, load.dead) == (0, 0, 2, 1)
    assert table.workspace.mail.load("dead_letter").ready == 1
    clock.advance(86400)
    table.passes()
    clock.advance(LOOK_SECONDS)
    table.passes()
    load = table.workspace.mail.load("worker")
    assert (load.done, load.dead) == (0, 1)
    clock.advance(2 * 86400)
    table.passes()
    clock.advance(LOOK_SECONDS)
    table.passes()
    assert table.workspace.mail.load("worker").dead == 0
    assert table.workspace.mail.load("dead_letter").ready == 0


@everywhere
def test_the_same_message_is_not_shown_several_times(lay: Lay) -> None:
    """An agent that looks again and again, and a file put there twice, see one message once."""
    table = lay()
    [sent] = table.send()
    held = table.hand()
    data = Path(held.path).read_bytes()
    (table.root / "queue/worker/copy.mime").write_bytes(data)
    for _ in range(3):
        table.passes()
        assert [each.message.id for each in table.workspace.held("worker")] == [sent.id]
    os.unlink(held.path)
    table.until(lambda: table.monitor.runners["worker"].turn is None)
    table.passes(20)
    assert table.workspace.held("worker") == []


@everywhere
def test_nobody_idles_for_hours_with_mail_waiting(lay: Lay, clock: ManualClock) -> None:
    """Even where every bell is missed, a look is never further away than some seconds."""
    table = lay(clock=clock)
    table.passes()
    table.monitor._wakeups.close()  # from here on nobody hears anything
    [sent] = table.send()
    assert (table.monitor.next_due() or 0.0) <= 5.0
    clock.advance(5.1)
    table.monitor.step()
    assert table.state(sent.id) is State.INFLIGHT


def test_a_waiting_message_is_cancelled_by_removing_its_file(lay: Lay) -> None:
    """An agent is busy; what waits for it can be seen, and taken back before it is begun."""
    table = lay()
    table.send()
    held = table.hand()
    [unwanted], [wanted] = table.send(), table.send()
    first, _ = sorted(table.root.glob("queue/worker/*.mime"))
    assert unwanted.id in first.read_text()
    first.unlink()
    table.workspace.delivery(held).ack()
    table.passes()
    again = table.hand()
    assert again.message.id == wanted.id
    table.workspace.delivery(again).ack()
    table.until(lambda: not table.monitor.busy)
    table.passes(20)
    assert table.files() == []


@everywhere
def test_a_message_whose_time_is_over_is_not_given_out_and_is_told(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    table.send()
    held = table.hand()
    [late] = table.send(ttl=60)
    clock.advance(61)
    table.workspace.delivery(held).ack()
    table.until(lambda: table.state(late.id) is State.DEAD)
    body = table.hand("leader").message.body
    assert isinstance(body, dict) and "time to live" in str(body["failure_reason"])
    assert table.workspace.held("worker") == []
