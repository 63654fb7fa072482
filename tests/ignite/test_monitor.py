"""The monitor: messages reach their agents in order, one at a time, and every turn ends in one verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pabal.errors import InvalidConfig
from pabal.ignite.fates import Fate, fate_of
from pabal.message import replace
from pabal.store import State
from pabal.testing import ManualClock
from tests.ignite.conftest import Lay
from tests.ignite.table import TASK, everywhere

EXEC = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [/bin/sh, -c, "%s"]}
retry: {limit: 2, base: 0.05, cap: 0.1}
"""
COPY = "cat > $IGNITE_ROOT/stdin; echo $IGNITE_MESSAGE_ID >> $IGNITE_ROOT/got"


@everywhere
def test_a_command_gets_the_message_and_its_exit_settles_it(lay: Lay) -> None:
    table = lay(EXEC % COPY)
    [sent] = table.send(priority="high", thread_id="t-1", repository="o/r", issue="42")
    table.until(lambda: table.state(sent.id) is State.DONE)
    assert table.lines() == [sent.id]
    said = (table.root / "stdin").read_text()
    for part in ('"type":"task_assignment"', '"task_id":"task_001"', '"priority":"high"', '"repository":"o/r"'):
        assert part in said
    assert table.files() == []


@pytest.mark.parametrize(("status", "tries"), [(7, 2), (75, 2), (65, 1)])
@everywhere
def test_what_a_command_exits_with_decides(lay: Lay, status: int, tries: int) -> None:
    table = lay(EXEC % f"echo x >> $IGNITE_ROOT/got; exit {status}")
    [sent] = table.send()
    table.until(lambda: table.state(sent.id) is State.DEAD)
    assert len(table.lines()) == tries
    entry = table.workspace.store.find("worker", sent.id)
    assert entry is not None and entry.failure is not None and f"exit status {status}" in entry.failure.reason


def test_a_command_that_is_killed_has_failed(lay: Lay) -> None:
    table = lay(EXEC % "kill -9 $$")
    [sent] = table.send()
    table.until(lambda: table.state(sent.id) is State.DEAD)
    entry = table.workspace.store.find("worker", sent.id)
    assert entry is not None and entry.failure is not None and "killed by signal 9" in entry.failure.reason


@everywhere
def test_messages_come_by_priority_and_then_by_age(lay: Lay) -> None:
    table = lay(EXEC % "echo $IGNITE_MESSAGE_ID >> $IGNITE_ROOT/got", serve=False)
    sent = {
        name: table.send(priority=name.split("-")[0])[0].id
        for name in ("low", "normal", "high-1", "critical", "high-2")
    }
    table.serve()
    table.until(lambda: len(table.lines()) == 5)
    assert table.lines() == [sent[name] for name in ("critical", "high-1", "high-2", "normal", "low")]


@everywhere
def test_an_agent_has_one_message_at_a_time_and_agents_work_side_by_side(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook, count: 4}}\nlimits: {parallel: 3}")
    for number in (1, 2, 3, 4):
        table.send([f"worker_{number}"]), table.send([f"worker_{number}"])
    table.until(lambda: len(table.monitor.turns) == 3)
    table.passes()
    held = {name: len(table.workspace.held(name)) for name in table.workspace.team.agents}
    assert sorted(held.values()) == [0, 0, 1, 1, 1]
    busy = next(name for name, count in held.items() if count)
    table.workspace.delivery(table.workspace.held(busy)[0]).ack()
    waiting = next(name for name, count in held.items() if not count and name != "leader")
    table.until(lambda: table.workspace.held(waiting))


@everywhere
def test_silence_for_too_long_is_a_failed_attempt_and_a_beat_prevents_it(lay: Lay, clock: ManualClock) -> None:
    from pabal.ignite.beats import beat

    table = lay(clock=clock)
    [sent] = table.send()
    table.hand()
    for _ in range(3):
        clock.advance(1500)
        beat(table.workspace, "worker")
        table.passes()
        assert table.state(sent.id) is State.INFLIGHT
    clock.advance(1801)
    table.passes()
    assert table.state(sent.id) is State.DELAYED
    entry = table.workspace.store.find("worker", sent.id)
    assert entry is not None and entry.failure is not None and entry.failure.code == "HANDLER_TIMEOUT"


@everywhere
def test_a_command_that_never_ends_is_ended(lay: Lay) -> None:
    table = lay((EXEC % "sleep 1000") + "limits: {run: 0.3}")
    [sent] = table.send()
    table.until(lambda: table.state(sent.id) is State.DEAD)
    assert not table.monitor.turns


@everywhere
def test_three_facts_are_recorded_apart(lay: Lay) -> None:
    table = lay()
    [sent] = table.send()
    held = table.hand()
    table.until(lambda: any(fact.woken_at for fact in table.workspace.memory.facts_of(sent.id)))
    [fact] = table.workspace.memory.facts_of(sent.id)
    assert fact.delivered_at and fact.woken_at and not fact.read_at and not fact.done_at
    assert b"X-IGNITE-Status: delivered" in Path(held.path).read_bytes()
    os.unlink(held.path)
    table.until(lambda: table.workspace.memory.facts_of(sent.id)[0].done_at)
    assert table.workspace.memory.facts_of(sent.id)[0].outcome == "done"


@everywhere
def test_what_an_agent_did_itself_is_found_by_the_names_of_files(lay: Lay) -> None:
    table = lay()
    fates = {}
    for verb in ("ack", "nack", "bury", "remove"):
        table.send()
        held = table.hand()
        assert fate_of(table.workspace, held.receipt) is Fate.HELD
        if verb == "remove":
            os.unlink(held.path)
        else:
            getattr(table.workspace.delivery(held), verb)()
        fates[verb] = fate_of(table.workspace, held.receipt)
        table.until(lambda: table.monitor.posts["worker"].turn is None or table.workspace.held("worker"))
        for again in table.workspace.held("worker"):
            table.workspace.delivery(again).ack()
        table.until(lambda: table.monitor.posts["worker"].turn is None)
    assert fates == {"ack": Fate.DONE, "nack": Fate.RETRY, "bury": Fate.DEAD, "remove": Fate.REMOVED}


@everywhere
def test_an_answer_goes_out_if_and_only_if_its_message_is_done(lay: Lay) -> None:
    from pabal.errors import LeaseLost
    from pabal.ignite import mail

    table = lay()
    table.send()
    held = table.hand()
    answer = mail.compose(table.workspace, sender="worker", to="leader", type="user_goal", body={"goal": "g"})
    delivery = table.workspace.delivery(held)
    delivery.ack(then=answer)
    table.until(lambda: table.workspace.held("leader"))
    late = mail.compose(table.workspace, sender="worker", to="leader", type="user_goal", body={"goal": "late"})
    stale = table.workspace.delivery(held._replace(receipt=replace(held.receipt, token="0" * 16)))
    with pytest.raises(LeaseLost):
        stale.nack()
    assert table.workspace.store.find("leader", late[0].message.id) is None


def test_a_message_without_what_its_type_needs_is_buried_and_told(lay: Lay) -> None:
    table = lay(serve=False)
    message = table.send(body=TASK)[0]
    [path] = table.root.glob("queue/worker/*.mime")
    path.write_bytes(path.read_bytes().replace(b"title:", b"heading:"))
    table.serve()
    table.until(lambda: table.state(message.id) is State.DEAD)
    table.until(lambda: table.workspace.held("leader"))
    body = table.workspace.held("leader")[0].message.body
    assert isinstance(body, dict) and "title" in str(body["failure_reason"])


@everywhere
def test_a_changed_team_file_is_taken_over_and_a_wrong_one_is_not(lay: Lay) -> None:
    table = lay()
    table.change("agents: {leader: {wake: hook}, worker: {wake: hook}, newcomer: {wake: hook}}")
    table.monitor.reload()
    table.send("newcomer")
    table.hand("newcomer")
    table.change("agents: {leader: {wake: magic}}")
    table.monitor.reload()
    assert "newcomer" in table.monitor.posts


def test_a_way_to_wake_that_nobody_knows_is_refused(lay: Lay) -> None:
    with pytest.raises(InvalidConfig, match="magic"):
        lay("agents: {leader: {wake: magic}}")


@everywhere
def test_an_idle_monitor_sleeps(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook, count: 34}}")
    table.passes(3)
    due = table.monitor.next_due()
    assert due is not None and due > 1.0


def test_a_full_slot_table_does_not_keep_the_monitor_busy(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook, count: 3}}\nlimits: {parallel: 1}")
    for number in (1, 2, 3):
        table.send(f"worker_{number}")
    table.hand("worker_1")
    table.until(lambda: (table.monitor.next_due() or 0.0) > 1.0)


@pytest.mark.parametrize("spoil", ["symlink", "folder", "huge", "empty"])
@everywhere
def test_what_an_agent_makes_of_its_file_holds_up_nobody_else(lay: Lay, spoil: str) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook}}\nlimits: {turn: 0.5}\nretry: {limit: 1}")
    table.send()
    path = Path(table.hand().path)
    path.unlink()
    if spoil == "symlink":
        path.symlink_to("/etc/passwd")
    elif spoil == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, 65 << 20 if spoil == "huge" else 0)
    table.until(lambda: table.monitor.posts["worker"].turn is None)
    [other] = table.send("leader", "user_goal", body={"goal": "go on"})
    table.until(lambda: table.state(other.id, "leader") is State.INFLIGHT or table.workspace.held("leader"))
