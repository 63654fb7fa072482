"""The monitor: messages reach their agents in order, one at a time, and every turn ends in one verdict."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pabal.apps.ignite.mail_store import TurnOutcome
from pabal.errors import InvalidConfig
from pabal.message import replace
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import TASK, everywhere

EXEC = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [/bin/sh, -c, "%s"]}
retry: {limit: 1, base: 0.05, cap: 0.1}
"""
SLEEPERS = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [sh, -c, "until [ -e $IGNITE_ROOT/go_$IGNITE_AGENT ]; do sleep 0.02; done"], count: 4}
"""
COPY = "cat > $IGNITE_ROOT/stdin; echo $IGNITE_MESSAGE_ID >> $IGNITE_ROOT/got"


@everywhere
def test_a_command_gets_the_message_and_its_exit_settles_it(lay: Lay) -> None:
    table = lay((EXEC % COPY).replace("wake: exec", "wake: exec, stdin: true"))
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
    table = lay(SLEEPERS + "limits: {parallel: 3, grace: 0}")
    for number in (1, 2, 3, 4):
        table.send([f"worker_{number}"]), table.send([f"worker_{number}"])
    table.until(lambda: len(table.monitor.busy) == 3)
    table.passes()
    held = {name: len(table.workspace.held(name)) for name in table.workspace.team.agents}
    assert sorted(held.values()) == [0, 0, 1, 1, 1]
    busy = next(name for name, count in held.items() if count)
    (table.root / f"go_{busy}").touch()
    waiting = next(name for name, count in held.items() if not count and name.startswith("worker"))
    table.until(lambda: table.workspace.held(waiting))


@everywhere
def test_silence_is_no_failed_attempt_and_the_leader_is_told_once(lay: Lay, clock: ManualClock) -> None:
    from pabal.apps.ignite.readers import beat

    table = lay(clock=clock)
    hook = table.root / "state/hooks/worker"
    [sent] = table.send()
    held = table.hand()
    for _ in range(3):
        hook.unlink(missing_ok=True)
        clock.advance(1500)
        beat(table.workspace, "worker")
        table.passes()
        assert not hook.exists()  # a beat keeps the turn alive
    for silence in range(1, 6):
        clock.advance(1801)
        table.until(hook.exists)  # woken again
        hook.unlink()
        table.hand()
        assert bool(table.workspace.mail.load("leader").ready + table.workspace.mail.load("leader").inflight) is (
            silence > 2
        )
    told = table.hand("leader")
    assert "worker looked at" in str(told.message.body) and table.workspace.mail.load("leader").ready == 0
    assert table.hand().path == held.path and table.state(sent.id) is State.INFLIGHT
    table.workspace.delivery(held).ack()  # late is better than never
    assert table.state(sent.id) is State.DONE


@everywhere
def test_an_agent_that_is_gone_after_it_was_told_keeps_its_message_in_hand(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    runner = table.monitor.runners["worker"]
    [sent] = table.send()
    held = table.hand()
    hooks = table.root / "state/hooks"
    (hooks / "worker").unlink()
    (hooks / "worker").mkdir()  # cannot be touched by a wake
    hooks.rename(table.root / "state/hooks.away")
    hooks.touch()
    clock.advance(1801)
    for rests in (1, 2, 3):
        table.until(lambda rests=rests: runner._rests == rests and runner._waking is None)  # type: ignore[misc]
        assert runner.away_reason and table.state(sent.id) is State.INFLIGHT
        clock.advance(61)
    hooks.unlink()
    (table.root / "state/hooks.away").rename(hooks)
    (hooks / "worker").rmdir()
    table.until(lambda: not runner.away_reason)
    assert table.hand().path == held.path


@everywhere
def test_a_command_that_never_ends_is_ended(lay: Lay) -> None:
    table = lay((EXEC % "sleep 1000") + "limits: {run: 0.3}")
    [sent] = table.send()
    table.until(lambda: table.state(sent.id) is State.DEAD)
    table.until(lambda: not table.monitor.busy)


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
    table.until(lambda: [fact for fact in table.workspace.memory.facts_of(sent.id) if fact.done_at])
    assert table.workspace.memory.facts_of(sent.id)[0].outcome == "done"


@everywhere
def test_what_an_agent_did_itself_is_found_by_the_names_of_files(lay: Lay) -> None:
    table = lay()
    outcomes = {}
    for verb in ("ack", "nack", "bury", "remove"):
        table.send()
        held = table.hand()
        assert table.workspace.mail.outcome(held.receipt) is TurnOutcome.HELD
        if verb == "remove":
            os.unlink(held.path)
        else:
            getattr(table.workspace.delivery(held), verb)()
        outcomes[verb] = table.workspace.mail.outcome(held.receipt)
        table.until(lambda: table.monitor.runners["worker"].turn is None or table.workspace.held("worker"))
        for again in table.workspace.held("worker"):
            table.workspace.delivery(again).ack()
        table.until(lambda: table.monitor.runners["worker"].turn is None)
    assert outcomes == {
        "ack": TurnOutcome.DONE,
        "nack": TurnOutcome.RETRY,
        "bury": TurnOutcome.DEAD,
        "remove": TurnOutcome.REMOVED,
    }


@everywhere
def test_an_answer_goes_out_if_and_only_if_its_message_is_done(lay: Lay) -> None:
    from pabal.apps.ignite import mail
    from pabal.errors import LeaseLost

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
    assert "newcomer" in table.monitor.runners


def test_a_corrected_entry_counts_for_the_message_in_hand(lay: Lay) -> None:
    command = "[sh, -c, 'while [ ! -e go ]; do sleep 0.05; done']"
    table = lay(f"agents: {{leader: {{}}, worker: {{wake: hook}}, other: {{wake: exec, command: {command}}}}}")
    [sent], [ran] = table.send(), table.send("other")
    held = table.hand()
    table.until(lambda: table.monitor.runners["other"].running)
    table.change("agents: {leader: {wake: hook}, worker: {wake: codex-hook}, other: {wake: hook}}")
    table.monitor.reload()
    told = table.root / "state/hooks/worker.told"
    table.until(lambda: told.exists() and held.receipt.token in told.read_text())  # without a second SIGHUP
    assert table.state(sent.id) is State.INFLIGHT
    assert table.monitor.runners["other"].about.wake == "exec"  # its command ends first
    (table.root.parent / "go").touch()
    table.until(lambda: table.state(ran.id, "other") is State.DONE)
    assert table.monitor.runners["other"].about.wake == "hook"
    [late] = table.send("other")
    table.hand("other")
    table.change("agents: {leader: {wake: hook}, worker: {wake: codex-hook}, other: {wake: exec, command: [echo]}}")
    table.monitor.reload()
    table.until(lambda: table.state(late.id, "other") is State.DONE)  # a command gets what nobody has looked at
    table.change("agents: {leader: {wake: hook}, other: {wake: hook}}")
    table.monitor.reload()
    table.workspace.delivery(held).ack()  # an agent that has left finishes its turn, and gets no other
    table.until(lambda: table.monitor.runners["worker"].turn is None)
    assert [runner.name for runner in table.monitor._due(float("inf"))] == ["leader", "other"]


def test_a_way_to_wake_that_nobody_knows_is_refused(lay: Lay) -> None:
    with pytest.raises(InvalidConfig, match="magic"):
        lay("agents: {leader: {wake: magic}}")


@everywhere
def test_an_idle_monitor_sleeps(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook, count: 34}}")
    table.until(lambda: (table.monitor.next_due() or 0.0) > 1.0)


def test_a_full_slot_table_does_not_keep_the_monitor_busy(lay: Lay) -> None:
    table = lay(SLEEPERS + "limits: {parallel: 1, grace: 0}")
    for number in (1, 2, 3):
        table.send(f"worker_{number}")
    table.until(lambda: table.monitor.busy)
    table.until(lambda: (table.monitor.next_due() or 0.0) > 1.0)


def test_mail_that_nobody_reads_holds_up_no_other_mail(lay: Lay) -> None:
    agents = "leader: {wake: hook}, reader: {wake: hook, count: 12}, worker: {wake: exec, command: ['true']}"
    table = lay(f"agents: {{{agents}}}\nlimits: {{parallel: 1}}")
    for number in range(1, 13):
        table.send(f"reader_{number}")
    table.until(lambda: len(table.monitor.busy) == 12)
    [urgent] = table.send("leader", priority="critical")
    [task] = table.send("worker")
    table.until(lambda: table.state(urgent.id, "leader") is State.INFLIGHT and table.state(task.id) is State.DONE)


def test_commands_that_use_up_the_limit_hold_up_no_notified_agent(lay: Lay) -> None:
    table = lay(SLEEPERS + "limits: {parallel: 1, grace: 0}")
    table.send("worker_1"), table.send("worker_2")
    table.until(lambda: table.monitor.busy)
    table.send("leader")
    table.hand("leader")
    assert [runner.running for runner in table.monitor.busy].count(True) == 1


@pytest.mark.parametrize("spoil", ["symlink", "folder", "huge", "empty"])
@everywhere
def test_what_an_agent_makes_of_its_file_holds_up_nobody_else(lay: Lay, spoil: str) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook}}\nlimits: {turn: 0.5}\nretry: {limit: 0}")
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
    table.until(lambda: table.monitor.runners["worker"].turn is None)
    [other] = table.send("leader", "user_goal", body={"goal": "go on"})
    table.until(lambda: table.state(other.id, "leader") is State.INFLIGHT or table.workspace.held("leader"))


@everywhere
def test_mail_for_an_agent_that_cannot_be_woken_waits_until_it_is_back(lay: Lay, clock: ManualClock) -> None:
    away = "agents: {leader: {wake: hook}, worker: {wake: webhook, url: 'http://127.0.0.1:9/'}}"
    table = lay(away, clock=clock)
    runner = table.monitor.runners["worker"]
    [sent] = table.send()
    for rests in range(1, 8):  # more often than a message is tried
        table.until(lambda rests=rests: runner._rests == rests and runner.turn is None)  # type: ignore[misc]
        assert table.state(sent.id) is State.READY and "does not answer" in runner.away_reason
        due = runner.due_at - clock.boot()
        assert due == min(60.0, 2.0 ** (rests - 1))
        table.passes()
        assert runner._rests == rests  # not before
        clock.advance(due)
    table.change("agents: {leader: {wake: hook}, worker: {wake: hook}}")
    table.until(lambda: runner.turn is None)
    table.monitor.reload()
    assert table.hand().message.id == sent.id
    assert table.workspace.delivery(table.hand()).attempt == 1


@everywhere
def test_mail_that_nobody_has_looked_at_is_not_tried_in_vain(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    [sent] = table.send()
    held = table.hand()
    for _ in range(5):
        os.unlink(table.root / "state/hooks/worker")
        clock.advance(1801)
        table.until((table.root / "state/hooks/worker").exists)  # woken again
        table.passes()
        assert table.hand().path == held.path and table.state(sent.id) is State.INFLIGHT
