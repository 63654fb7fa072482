"""What an agent of a team does with its mail through the tools."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mcp import Client
from pabal.apps.ignite.questions import Questions
from pabal.apps.ignite.readers import is_awaited
from pabal.errors import (
    InvalidInput,
    InvalidReceipt,
    LeaseLost,
    MessageUnknown,
    QueueUnknown,
    StoreMissing,
    ValidationFailed,
)
from pabal.mcp.desk import LONGEST_BODY
from pabal.mcp.leases import Call
from pabal.mcp.mail_desk import MailDesk
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import HOOKS, TASK, Served, Table, everywhere, soon
from tests.mcp.stdio import ERAS, call, server, with_client
from tests.mcp.table import Agent
from tests.waiting import until

At = Callable[..., Agent]


@pytest.fixture
def at() -> Iterator[At]:
    """Return what sits an agent of a team down at its desk."""
    desks: list[MailDesk] = []

    def at(table: Table, name: str = "worker") -> Agent:
        desks.append(MailDesk(table.root, name, clock=table.workspace.clock))
        return Agent(desks[-1])

    yield at
    for desk in desks:
        desk.close()


@everywhere
def test_mail_goes_from_one_agent_to_the_other_and_the_answer_back(lay: Lay, at: At, clock: ManualClock) -> None:
    table = lay(clock=clock)
    leader, worker = at(table, "leader"), at(table)
    sent = leader("send", to="worker", body="Paint the fence", subject="Fence", dedup_key="k")
    assert leader("send", to="worker", body="Paint the fence", subject="Fence", dedup_key="k") == {
        "ids": sent["ids"],
        "duplicate": True,
    }
    table.hand("worker")
    [message] = worker("receive", wait=0)["messages"]
    assert (message["id"], message["from"], message["body"]) == (sent["ids"][0], "leader", {"text": "Paint the fence"})
    assert Path(message["path"]).exists()
    assert worker("receive", wait=0)["messages"][0]["receipt"] == message["receipt"]  # the same until it is settled
    assert worker("status")["held"] == [message["receipt"]]

    done = worker("ack", receipt=message["receipt"], reply="It is green")
    again = worker("ack", receipt=message["receipt"], reply="It is green")
    assert again["done"] == message["id"] and "only the first ack" in again["note"]
    table.hand("leader")
    [answer] = leader("receive", wait=0)["messages"]
    assert [answer["id"]] == done["reply_ids"] and answer["body"] == {"text": "It is green"}
    assert (answer["thread_id"], answer["in_reply_to"], answer["subject"]) == (
        message["id"],
        message["id"],
        "Re: Fence",
    )
    leader("ack", receipt=answer["receipt"])
    thread = leader("look", thread=message["id"])["messages"]
    assert [row["subject"] for row in thread] == ["Fence", "Re: Fence"]
    assert {row["state"] for row in thread} == {"done"}
    assert [row["id"] for row in leader("look", search="green")["messages"]] == done["reply_ids"]
    assert leader("look", id=message["id"])["messages"][0]["body"] == {"text": "Paint the fence"}


@everywhere
def test_an_agent_that_dies_after_reading_loses_nothing(lay: Lay, at: At, clock: ManualClock) -> None:
    table = lay(clock=clock)
    table.send()
    table.hand()
    first = at(table)
    [message] = first("receive", wait=0)["messages"]
    first.desk.close()
    [again] = at(table)("receive", wait=0)["messages"]
    assert again["receipt"] == message["receipt"]  # still in hand: the next one goes on
    worker = at(table)
    worker("fail", receipt=message["receipt"], reason="no paint", retry_in=0)
    table.until(lambda: [held for held in table.workspace.held("worker") if str(held.receipt) != message["receipt"]])
    with pytest.raises(LeaseLost):
        worker("ack", receipt=message["receipt"])


@everywhere
def test_failures_and_signs_of_life(lay: Lay, at: At, clock: ManualClock) -> None:
    table = lay(clock=clock)
    worker = at(table)
    [sent] = table.send()
    table.hand()
    [message] = worker("receive", wait=0)["messages"]
    clock.advance(1700)
    worker("status")  # each call is a sign of life
    table.passes()
    clock.advance(1700)
    table.passes()
    assert table.state(sent.id) is State.INFLIGHT
    worker("extend", receipt=message["receipt"], seconds=3600)
    assert worker("fail", receipt=message["receipt"], reason="no paint", final=True)["state"] == "dead"
    assert worker("fail", receipt=message["receipt"], reason="no paint", final=True)["state"] == "dead"
    with pytest.raises(LeaseLost):
        worker("extend", receipt=message["receipt"], seconds=60)


def test_a_reply_with_fields_is_checked_before_anything_is_settled(lay: Lay, at: At) -> None:
    table = lay()
    worker = at(table)
    [sent] = table.send(sender="leader")
    table.hand()
    [message] = worker("receive", wait=0)["messages"]
    with pytest.raises(ValidationFailed, match="title"):
        worker("ack", receipt=message["receipt"], type="task_completed", reply={"task_id": "task_001"})
    assert table.state(sent.id) is State.INFLIGHT
    worker(
        "ack",
        receipt=message["receipt"],
        type="task_completed",
        reply="{task_id: task_001, title: paint, status: success}",  # YAML text of the fields
    )
    assert table.state(sent.id) is State.DONE
    table.send(sender="system")
    table.hand()
    [message] = worker("receive", wait=0)["messages"]
    with pytest.raises(InvalidInput, match="system sent .* gets no mail.* end it without an answer"):
        worker("ack", receipt=message["receipt"], reply="done")


def test_the_person_answers_a_question_in_time_or_later(lay: Lay, at: At) -> None:
    table = lay()
    worker = at(table)
    asked = worker("ask_human", question="Deploy?", options=["yes", "no"], wait=0)
    assert not asked["answered"]
    Questions(table.workspace).answer(asked["question_id"], "2", responder="user")
    answered = worker("ask_human", question_id=asked["question_id"], wait=30)
    assert (answered["answer"], answered["by"]) == ("no", "user")
    table.hand()  # nobody waited when the answer came, so it came as mail too
    assert worker("receive", wait=0)["messages"][0]["type"] == "answer"

    call, found = Call(), []
    waiting = threading.Thread(
        target=lambda: found.append(worker.serve(call, "ask_human", {"question": "Now?", "wait": 50}))
    )
    waiting.start()
    until(lambda: Questions(table.workspace).open("user"))
    call.stop()
    waiting.join(30)
    assert not found[0]["answered"]
    with pytest.raises(MessageUnknown):
        worker("ask_human", question_id="none", wait=0)
    with pytest.raises(InvalidInput, match="a question of worker"):
        at(table, "leader")("ask_human", question_id=asked["question_id"], wait=0)


@pytest.mark.parametrize("late", [False, True])
def test_the_answer_of_a_cancelled_question_arrives_as_mail(lay: Lay, at: At, late: bool) -> None:
    table = lay()
    worker, questions, call = at(table), Questions(table.workspace), Call()
    id = worker("ask_human", question="Deploy?", wait=0)["question_id"]
    with questions._waiting(id):
        questions.answer(id, "yes", responder="user")
    if not late:
        call.stop()
    worker.serve(call, "ask_human", {"question_id": id, "wait": 0})
    call.give_back()  # a cancellation that crossed the answer
    questions.sweep()
    table.hand()
    assert worker("receive", wait=0)["messages"][0]["body"]["text"] == "yes"


def test_mail_is_received_only_once_the_monitor_has_delivered_it(lay: Lay, at: At) -> None:
    """A session that works has no command in its background, and its pane may be gone: then its reader is woken."""
    table = lay("agents: {leader: {wake: hook}, worker: {wake: claude-hook}, other: {wake: tmux, pane: nowhere}}")

    def received(name: str, come: Callable[[], object]) -> tuple[Agent, Any]:
        agent, found = at(table, name), []
        waiting = threading.Thread(target=lambda: found.append(agent("receive", wait=50)))
        waiting.start()
        until(lambda: is_awaited(table.root, name, own=True))
        come()
        table.until(lambda: not waiting.is_alive())
        return agent, found[0]["messages"][0]

    for name in ("worker", "other"):
        agent, message = received(name, partial(table.send, name))
        assert agent("ack", receipt=message["receipt"]) == {"done": message["id"]}
    # A file with several recipients is replaced by copies: the one that was dropped is nobody's.
    [first] = table.send("leader", type="user_goal", body={"goal": "g"})
    text = Path(table.hand("leader").path).read_text()
    text = text.replace("To: leader", "To: worker, other").replace(first.id, "by-hand")
    agent, message = received("worker", lambda: (table.root / "queue/worker/any.mime").write_text(text))
    assert agent("ack", receipt=message["receipt"]) == {"done": "by-hand-1"}


def test_a_workspace_that_failed_is_closed_for_its_own_calls_only(lay: Lay, at: At) -> None:
    table = lay()
    desk = at(table).desk
    assert isinstance(desk, MailDesk)
    first, _ = desk._open()
    desk._forget(first)
    second, _ = desk._open()
    desk._forget(first)  # by a call that still used the first one
    assert desk._open()[0] is second and second.store.find("worker", "none") is None


def test_a_line_with_control_characters_is_answered(lay: Lay, at: At) -> None:
    table = lay()
    worker = at(table)
    worker("send", to="worker", body="col1\tcol2\x1b[1m\nrest")
    table.hand()
    [message] = worker("receive", wait=0)["messages"]
    [again] = worker("ack", receipt=message["receipt"], reply="ok")["reply_ids"]
    table.hand()
    [answer] = worker("receive", wait=0)["messages"]
    assert answer["subject"] == "Re: col1 col2 [1m"
    worker("send", to="worker", body="x", reply_to=again)
    assert [row["subject"] for row in worker("look")["messages"]] == ["Re: col1 col2 [1m"] * 2  # never Re: Re:


def test_an_agent_answers_a_question_of_another_with_its_ack(lay: Lay, at: At) -> None:
    table = lay()
    worker, questions = at(table), Questions(table.workspace)
    asked = questions.ask(asker="leader", to="worker", text="Which colour?")
    table.hand()
    [message] = worker("receive", wait=0)["messages"]
    worker("ack", receipt=message["receipt"], reply="green")
    assert questions.find(asked.id).answer == "green"
    assert table.state(asked.id) in (State.DONE, None)


def test_a_busy_agent_sees_that_critical_mail_waits(lay: Lay, at: At) -> None:
    table = lay()
    worker, leader = at(table), at(table, "leader")
    table.send()
    table.hand()
    [message] = worker("receive", wait=0)["messages"]
    leader("send", to="worker", body="Stop!", priority="critical")
    [row] = worker("extend", receipt=message["receipt"], seconds=60)["critical_mail_waits"]
    assert (row["from"], row["subject"]) == ("leader", "Stop!")
    inbox = worker("look")["messages"]
    assert [row["state"] for row in inbox] == ["in hand", "waiting"]
    assert "receipt" not in leader("look", agent="worker")["messages"][0]


def test_a_receive_waits_for_mail_and_can_be_cancelled(lay: Lay, at: At) -> None:
    table = lay()
    worker, found = at(table), []
    waiting = threading.Thread(target=lambda: found.append(worker("receive", wait=50)))
    waiting.start()
    table.send()
    table.until(lambda: not waiting.is_alive())
    assert found[0]["messages"]
    worker("ack", receipt=found[0]["messages"][0]["receipt"])
    call = Call()
    waiting = threading.Thread(target=lambda: worker.serve(call, "receive", {"wait": 50}))
    waiting.start()
    call.stop()
    waiting.join(30)
    assert not waiting.is_alive()


@everywhere
def test_mail_that_only_a_cancelled_call_received_is_given_out_again(lay: Lay, at: At) -> None:
    table = lay()
    worker, found, call = at(table), [], Call()
    waiting = threading.Thread(target=lambda: found.append(worker.serve(call, "receive", {"wait": 50})))
    waiting.start()
    until(lambda: is_awaited(table.root, "worker", own=True))
    [sent] = table.send()
    table.until(lambda: not waiting.is_alive())
    [first] = found[0]["messages"]
    call.give_back()  # the cancellation crossed the answer
    table.until(lambda: [held for held in table.workspace.held("worker") if str(held.receipt) != first["receipt"]])
    table.hand()  # woken in the usual way: nobody reads
    [again] = worker("receive", wait=0)["messages"]
    assert (again["id"], again["attempt"]) == (sent.id, 2)
    assert table.workspace.delivery(table.workspace.held("worker")[0]).attempt == 1  # which is not counted
    second = Call()
    worker.serve(second, "receive", {"wait": 0})
    second.give_back()  # a call that repeats what the agent has in hand takes nothing from it
    second.took(partial(worker.desk._give_back, table.workspace, table.workspace.held("worker")))  # type: ignore[attr-defined]  # of a mail desk
    second.give_back()  # nor does one that had waited for it, once another call has returned it
    assert worker("ack", receipt=again["receipt"]) == {"done": sent.id}


def test_hostile_input_is_refused(lay: Lay, at: At, tmp_path: Path) -> None:
    table = lay()
    worker = at(table)
    table.send()
    held = table.hand()
    for receipt in ("", "x/y", f"leader/{held.message.id}/{held.receipt.token}"):
        with pytest.raises(InvalidReceipt):
            worker("ack", receipt=receipt)
    with pytest.raises(LeaseLost):
        worker("ack", receipt=f"worker/{held.message.id}/other")
    with pytest.raises(QueueUnknown, match="did you mean leader?"):
        worker("send", to="leadr", body="x")
    with pytest.raises(InvalidInput):
        worker("send", to="leader", body={"no": "text"})
    with pytest.raises(InvalidInput):
        worker("send", to="leader", body="a: [", type="user_goal")
    with pytest.raises(InvalidInput):
        worker("look", id=held.message.id, offset=-1)
    with pytest.raises(QueueUnknown):
        at(table, "nobody")("status")
    with pytest.raises(StoreMissing):
        Agent(MailDesk(tmp_path / "nowhere", "worker"))("status")
    assert worker("status")["held"] == [str(held.receipt)]


def test_a_long_body_comes_in_parts_and_has_a_path(lay: Lay, at: At) -> None:
    table = lay()
    worker = at(table)
    table.send(body={**TASK, "description": "é" * (LONGEST_BODY + 5)})
    table.hand()
    [message] = worker("receive", wait=0)["messages"]
    assert "body" not in message and Path(message["path"]).stat().st_size > LONGEST_BODY
    [rest] = worker("look", id=message["id"], offset=LONGEST_BODY)["messages"]
    assert len(message["body_part"]) + len(rest["body_part"]) == message["body_length"]


def test_a_team_that_is_not_served_or_changes_is_noticed(lay: Lay, at: At) -> None:
    table = lay(serve=False)
    worker = at(table)
    assert "ask a person to start `pabal ignite up" in worker("receive", wait=0)["note"]
    assert worker("status")["note"] == worker("receive", wait=0)["note"]
    table.change(HOOKS.replace("worker:", "painter: {wake: hook}, worker:"))
    assert "painter" in [row["agent"] for row in worker("status")["team"]]
    table.change("agents: [")
    assert "team.yaml" in worker("status")["mistake"]
    table.change(HOOKS)
    assert "mistake" not in worker("status")


@pytest.mark.parametrize("era", ERAS)
def test_the_official_client_gets_mail_of_a_real_team(lay: Lay, era: str, tmp_path: Path) -> None:
    table = lay(serve=False)
    served = Served(table.root)
    parameters = server(folder=tmp_path, env={"IGNITE_ROOT": str(table.root), "IGNITE_AGENT": "worker"})

    async def work(client: Client) -> None:
        [message] = (await call(client, "receive", wait=40))["messages"]
        assert message["body"]["title"] == TASK["title"]
        await call(client, "ack", receipt=message["receipt"], reply="done")
        assert (await call(client, "status"))["agent"] == "worker"

    try:
        [sent] = table.send()
        with_client(parameters, era, work)
        assert soon(lambda: table.state(sent.id) is State.DONE)
        [reply] = table.workspace.queue("user").browse(State.READY)
        assert reply.message is not None and reply.message.body == {"text": "done"}
    finally:
        served.stop()
