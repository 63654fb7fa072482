"""What an agent does with queues through the tools."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pabal.connect import Connection, connect
from pabal.errors import (
    InvalidInput,
    InvalidName,
    InvalidReceipt,
    LeaseLost,
    MessageUnknown,
    PabalError,
    QueueUnknown,
    StoreMissing,
    TooLarge,
)
from pabal.mcp.desk import LONGEST_BODY, REPEATED
from pabal.mcp.leases import Call
from pabal.mcp.queue_desk import QueueDesk
from pabal.mcp.tools import MOST_SHOWN
from pabal.policy.policy import Policy
from pabal.store import State
from tests.mcp.table import Agent
from tests.services.postgres import PostgresServer
from tests.waiting import until


@pytest.fixture(params=["sqlite", "file", "postgres"])
def url(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param != "postgres":
        yield f"{request.param}:{tmp_path / 'store'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    with server.schema() as schema:
        yield f"{server.url}?schema={schema}"


@pytest.fixture
def mq(url: str) -> Iterator[Connection]:
    with connect(url) as mq:
        yield mq


@pytest.fixture
def agent(url: str) -> Iterator[Agent]:
    desk = QueueDesk(url, agent="ann")
    yield Agent(desk)
    desk.close()


@pytest.fixture
def other(url: str) -> Iterator[Agent]:
    desk = QueueDesk(url, agent="bob")
    yield Agent(desk)
    desk.close()


def test_a_message_goes_from_one_agent_to_the_other_and_the_answer_back(agent: Agent, other: Agent) -> None:
    sent = agent("send", to="jobs", body={"n": 1}, type="sum", thread_id="t", reply_to="sums", dedup_key="k")
    again = agent("send", to="jobs", body={"n": 1}, dedup_key="k")
    assert again == {"ids": sent["ids"], "duplicate": True} and not sent["duplicate"]
    [message] = other("receive", queue="jobs", wait=0)["messages"]
    expected = {"id": sent["ids"][0], "from": "ann", "type": "sum", "thread_id": "t", "reply_to": "sums", "attempt": 1}
    assert expected.items() <= message.items() and message["body"] == {"n": 1}
    assert other("status")["held"] == [message["receipt"]]

    done = other("ack", receipt=message["receipt"], reply=[2])
    assert done["done"] == message["id"]
    again = other("ack", receipt=message["receipt"], reply=[2])  # nothing twice
    assert again == {"done": message["id"], "note": REPEATED}
    assert other("status")["held"] == []
    [answer] = agent("receive", queue="sums", wait=0, max=5)["messages"]
    assert (answer["from"], answer["thread_id"], answer["body"]) == ("bob", "t", [2])
    assert [answer["id"]] == done["reply_ids"]
    agent("ack", receipt=answer["receipt"])
    assert agent("receive", queue="sums", wait=0)["messages"] == []


def test_reading_is_not_acknowledging(agent: Agent, other: Agent, mq: Connection) -> None:
    agent("send", to="jobs", body=1)
    agent("receive", queue="jobs", wait=0)
    assert other("receive", queue="jobs", wait=0)["messages"] == []
    agent.desk.close()  # as when the client closes stdin
    [message] = other("receive", queue="jobs", wait=0)["messages"]
    assert message["attempt"] == 2


def test_a_cancelled_receive_gives_back_what_it_leased_whenever_it_is_cancelled(agent: Agent, mq: Connection) -> None:
    jobs = mq.queue("jobs")
    call, found = Call(), []
    waiting = threading.Thread(target=lambda: found.append(agent.serve(call, "receive", {"queue": "jobs", "wait": 50})))
    waiting.start()
    call.stop()
    waiting.join(30)
    assert not waiting.is_alive() and found[0]["messages"] == []

    agent("send", to="jobs", body=1)
    stopped = Call()
    stopped.stop()  # the message is leased although: it was there at once
    agent.serve(stopped, "receive", {"queue": "jobs", "wait": 50})
    assert jobs.counts()[State.READY] == 1
    answered = Call()
    assert agent.serve(answered, "receive", {"queue": "jobs"})["messages"]
    assert jobs.counts()[State.INFLIGHT] == 1
    answered.give_back()  # the answer was on its way when the client cancelled
    assert jobs.counts()[State.READY] == 1 and agent("status")["held"] == []


def test_failures_follow_the_policy(agent: Agent, mq: Connection) -> None:
    agent("send", to="jobs", body=1)
    [message] = agent("receive", queue="jobs")["messages"]
    assert agent("fail", receipt=message["receipt"], reason="no wood", retry_in=0)["state"] in ("ready", "delayed")
    [message] = agent("receive", queue="jobs")["messages"]
    assert message["failed_before"] == "NACKED: no wood"
    assert agent("fail", receipt=message["receipt"], reason="no fire", final=True)["state"] == "dead"
    assert agent("fail", receipt=message["receipt"], reason="no fire", final=True)["state"] == "dead"
    [dead] = agent("look", queue="jobs", state="dead")["messages"]
    assert dead["failure"] == "NACKED: no fire"


def test_extend_keeps_the_lease_short_and_renews_it(agent: Agent, mq: Connection) -> None:
    mq.queue("jobs").configure(Policy(visibility=60))
    agent("send", to="jobs", body=1)
    [message] = agent("receive", queue="jobs")["messages"]
    assert agent("extend", receipt=message["receipt"], seconds=7200) == {"id": message["id"], "seconds": 7200}
    due = mq.store.next_due("jobs")
    assert due is not None and due < 70  # if the process is killed, it comes back within a minute
    with pytest.raises(InvalidInput, match="seconds must be"):
        agent("extend", receipt=message["receipt"], seconds=-1)


def test_look_takes_nothing_and_finds_everything(agent: Agent, mq: Connection) -> None:
    for number in range(MOST_SHOWN + 2):
        agent("send", to="jobs", body={"text": f"Paint wall {number}"})
    sent = agent("send", to="letters", body="the migration")["ids"]
    assert {row["queue"]: row["ready"] for row in agent("look")["queues"]} == {"jobs": MOST_SHOWN + 2, "letters": 1}
    page = agent("look", queue="jobs")
    rest = agent("look", queue="jobs", after=page["after"])
    assert len(page["messages"]) == MOST_SHOWN and len(rest["messages"]) == 2 and "after" not in rest
    assert len({row["id"] for row in page["messages"] + rest["messages"]}) == MOST_SHOWN + 2
    assert [row["id"] for row in agent("look", search="MIGRATION")["messages"]] == sent
    assert len(agent("look", queue="jobs", search="wall 51")["messages"]) == 1
    [whole] = agent("look", id=sent[0])["messages"]
    assert (whole["body"], whole["state"]) == ("the migration", "ready")
    assert mq.queue("jobs").counts()[State.READY] == MOST_SHOWN + 2
    with pytest.raises(MessageUnknown):
        agent("look", id="nothing")
    with pytest.raises(QueueUnknown, match="did you mean jobs?"):
        agent("look", queue="jobz")


def test_a_long_body_comes_in_parts(agent: Agent) -> None:
    body = {"text": "é" * (2 * LONGEST_BODY + 10)}
    agent("send", to="jobs", body=body)
    [message] = agent("receive", queue="jobs")["messages"]
    assert "body" not in message and f"offset {LONGEST_BODY}" in message["next"]
    parts, offset = [message["body_part"]], LONGEST_BODY
    while offset < message["body_length"]:
        [more] = agent("look", queue="jobs", id=message["id"], offset=offset)["messages"]
        parts.append(more["body_part"])
        offset += len(more["body_part"])
    assert "next" not in more
    assert "".join(parts) == '{"text":"' + body["text"] + '"}'


def test_a_body_of_bytes_is_base64(agent: Agent, mq: Connection) -> None:
    mq.queue("jobs").publish(b"\x00\xff")
    [message] = agent("receive", queue="jobs")["messages"]
    assert (message["body"], message["encoding"]) == ("AP8=", "base64")


def test_a_person_answers_a_question_later(agent: Agent, other: Agent, mq: Connection) -> None:
    asked = agent("ask_human", question="Deploy?", options=["yes", "no"], wait=0)
    assert not asked["answered"] and "question_id" in asked["note"]
    [question] = mq.queue("human").lease()
    assert question.body == {"question": "Deploy?", "options": ["yes", "no"]}
    assert question.message.id == asked["question_id"]
    question.ack(then=[mq.queue(question.message.reply_to).draft("yes")])
    answered = other("ask_human", question_id=asked["question_id"], wait=0)  # any agent may go on waiting
    assert answered["answered"] and answered["answer"] == "yes"
    other.desk.close()  # it died before it used the answer
    again = agent("ask_human", question_id=asked["question_id"], wait=0)
    assert again["answer"] == "yes"
    for _ in range(2):
        agent("ack", receipt=again["receipt"])
    assert [name for name in mq.queues() if name.startswith("human.")] == []
    for text, id in (("", ""), ("?", "x")):
        with pytest.raises(InvalidInput, match="give a question, or"):
            agent("ask_human", question=text, question_id=id)


def test_what_only_looks_makes_no_store(agent: Agent, tmp_path: Path) -> None:
    assert agent("status")["note"].startswith("there is no store yet")
    with pytest.raises(StoreMissing):
        agent("look")
    assert list(tmp_path.iterdir()) == []


def test_hostile_input_is_refused_and_changes_nothing(agent: Agent, mq: Connection) -> None:
    agent("send", to="jobs", body=1)
    [message] = agent("receive", queue="jobs")["messages"]
    queue, id, token = message["receipt"].split("/")
    receipts: list[tuple[str, type[PabalError]]] = [
        ("", InvalidReceipt),
        ("x" * 100_000, InvalidReceipt),
        (f"../{id}/{token}", InvalidName),
        (f"{queue}/../{token}", InvalidName),
        (f"{queue}/{id}/{token}x", LeaseLost),
        (f"{queue}/{id}/\x00\n", InvalidReceipt),
        (f"{queue}/{id}/{'x' * 1000}", InvalidReceipt),
        (f"nowhere/{id}/{token}", LeaseLost),
    ]
    for receipt, error in receipts:
        for name, more in (("ack", {}), ("fail", {"reason": "x"}), ("extend", {"seconds": 5})):
            with pytest.raises(error):
                agent(name, receipt=receipt, **more)
    wrong: list[tuple[dict[str, Any], type[PabalError]]] = [
        ({"to": "../x", "body": 1}, InvalidName),
        ({"to": "jobs", "body": "x" * 2_000_000}, TooLarge),
        ({"to": "jobs", "body": float("nan")}, InvalidInput),
        ({"to": "jobs", "body": "\ud800"}, InvalidInput),
        ({"to": "jobs", "body": 1, "delay": -1}, InvalidInput),
        ({"to": "jobs", "body": 1, "delay": float("inf")}, InvalidInput),
        ({"to": "jobs", "body": 1, "reply_to": "a/b"}, InvalidName),
    ]
    for arguments, error in wrong:
        with pytest.raises(error):
            agent("send", **arguments)
    for name, value in (("wait", -1), ("wait", float("nan")), ("max", 0), ("max", 11)):
        with pytest.raises(InvalidInput):
            agent("receive", queue="jobs", **{name: value})
    with pytest.raises(InvalidInput, match="names no queue for a reply"):
        agent("ack", receipt=message["receipt"], reply="ok")
    with pytest.raises(InvalidInput):
        agent("look", queue="jobs", offset=-1)
    for after in ("x", "-1", "\x00", "9" * 5000):
        with suppress(PabalError):  # refused, or taken for a cursor beyond the last
            agent("look", queue="jobs", after=after)
    assert mq.queue("jobs").counts()[State.INFLIGHT] == 1 and mq.queues() == ["jobs"]
    agent("ack", receipt=message["receipt"])


def test_a_store_that_failed_is_opened_again(agent: Agent) -> None:
    agent("send", to="jobs", body=1)
    agent.desk.close()
    agent("send", to="jobs", body=2)
    assert len(agent("receive", queue="jobs", max=10)["messages"]) == 2


def test_an_empty_receive_says_why(agent: Agent, mq: Connection) -> None:
    agent("send", to="jobs", body=1, delay=3600)
    assert "there is jobs" in (note := agent("receive", queue="jogs", wait=0)["note"]) or "did you mean jobs?" in note
    assert "1 delayed" in agent("receive", queue="jobs", wait=0)["note"]
    mq.queue("jobs").pause()
    until(lambda: "paused" in agent("receive", queue="jobs", wait=0)["note"])
