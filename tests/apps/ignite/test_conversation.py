"""Plain messages, replies, questions, threads and search."""

from __future__ import annotations

import subprocess
import unicodedata
from pathlib import Path

import pytest

from pabal.apps.ignite import inbox, mail
from pabal.apps.ignite.conversation import put_away, reply, say
from pabal.apps.ignite.questions import Questions
from pabal.apps.ignite.team import read_team
from pabal.errors import (
    InvalidConfig,
    InvalidInput,
    MessageUnknown,
    NameTaken,
    QueueUnknown,
    TooLarge,
    ValidationFailed,
)
from pabal.store import FailureCode, State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import COMMAND, HOOKS, Table, everywhere, soon


@everywhere
def test_a_conversation_is_a_thread_and_is_found_by_its_words(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    workspace = table.workspace
    [sent] = say(workspace, sender="user", to="worker", text="Which schema?\nThe migration is tonight.", subject="plan")
    assert [item.subject for item in inbox.search(workspace, "migration", sender="user")] == ["plan"]  # while it waits
    held = table.hand()
    assert held.message.type == "message" and held.message.headers["Subject"] == "plan"
    clock.advance(1)
    answer = reply(workspace, held.path, "the second one")
    table.passes()
    assert table.state(sent.id) in (State.DONE, None) and not workspace.held("worker")  # done with the reply
    clock.advance(1)
    reply(workspace, answer, "good")  # the person answers; the mail leaves the inbox
    assert inbox.inbox(workspace, "user") == []
    table.hand()
    for id in (sent.id, answer):
        found = inbox.thread(workspace, id)
        assert [(item.sender, item.to, item.subject) for item in found] == [
            ("user", ("worker",), "plan"),
            ("worker", ("user",), "Re: plan"),
            ("user", ("worker",), "Re: plan"),
        ]
        assert [item.state for item in found] == ["done", "done", "in hand"]
        assert found[1].in_reply_to == sent.id
    for _ in range(3):
        clock.advance(86400)  # the queues forget what is done; the archive does not
        table.passes()
    assert [item.id for item in inbox.search(workspace, "migra SCHEMA", to="worker", type="message")] == [sent.id]
    assert inbox.search(workspace, "migration", sender="leader") == []
    assert inbox.search(workspace, "migration", since=clock.now() - 60) == []
    for _ in range(3):
        clock.advance(365 * 86400)
        table.passes()
    assert inbox.search(workspace, "migration") == []


def test_a_reply_reaches_its_reader_with_the_end_of_the_turn_or_not_at_all(lay: Lay) -> None:
    table = lay()
    workspace = table.workspace
    say(workspace, sender="leader", to="worker", text="one")
    held = table.hand()
    reply(workspace, held.message.id, "I have begun", keep=True)
    assert workspace.held("worker")[0].message.id == held.message.id
    table.send("worker", sender="system", type="system_init", body={})
    Path(held.path).unlink()
    table.until(lambda: workspace.held("worker") and workspace.held("worker")[0].message.type == "system_init")
    with pytest.raises(InvalidInput, match="system sent .* and gets no mail"):
        reply(workspace, workspace.held("worker")[0].message.id, "thanks")
    with pytest.raises(MessageUnknown):
        reply(workspace, "nothing", "x")
    with pytest.raises(QueueUnknown, match="did you mean worker"):
        say(workspace, sender="user", to="workr", text="x")
    with pytest.raises(ValidationFailed, match="text"):
        say(workspace, sender="user", to="worker", text="")
    with pytest.raises(MessageUnknown, match="no agent holds"):
        put_away(workspace, "nothing")
    again = [say(workspace, sender="user", to="worker", text="once", id="once") for _ in range(2)]
    assert [each.duplicate for [each] in again] == [False, True]


def test_a_copy_for_several_is_one_message_in_the_history(lay: Lay) -> None:
    table = lay()
    copies = say(table.workspace, sender="user", to="leader, worker,user", text="to all of you")
    table.hand("leader")
    held = table.hand("worker")
    assert held.message.id == copies[1].id
    [found] = inbox.search(table.workspace, '"all of you"')
    assert found.to == ("leader", "worker", "user") and found.origin == copies[0].id
    reply(table.workspace, held.message.id, "heard")
    assert len(inbox.thread(table.workspace, copies[1].id)) == 2
    assert [item.subject for item in inbox.thread(table.workspace, copies[0].id)][1] == "Re: to all of you"


@pytest.mark.parametrize(
    ("text", "finds", "misses"),
    [
        ("Die Migration läuft", ["migration", "MIGRA", '"die migration"', "läuft"], ["gration", '"migration die"']),
        (
            "데이터베이스 마이그레이션을 배포했다",
            ["데이터", "이그레", "배포", "배", "다", "베이스 배포"],
            ["배치", "다배"],
        ),
        ("データベースの移行はﾃｽﾄ後", ["移行", "データベース", "テスト", "行", "後"], ["行移", "試験"]),
        ("v2배포 완료", ["v2", "v2배포", "배포", "완료"], ["v3"]),
        ("task_001 in src/api.py", ["task_001", "api.py", "001"], ["002"]),
        (unicodedata.normalize("NFD", "한글 파일"), ["한글", "파일"], ["글한"]),
        ("Straße Ünïcode \U0001e922\U0001e923 𠮷野家", ["STRASSE", "ünï", "\U0001e922", "𠮷野", "家"], ["unicode"]),
    ],
)
def test_words_of_any_script_are_found(lay: Lay, text: str, finds: list[str], misses: list[str]) -> None:
    table = lay()
    say(table.workspace, sender="user", to="worker", text=text, subject="s")
    for _ in range(2):  # while it waits, and from the archive
        for words in finds:
            assert len(inbox.search(table.workspace, words)) == 1, words
        for words in misses:
            assert inbox.search(table.workspace, words) == [], words
        Path(table.hand().path).unlink()
        table.until(lambda: not table.workspace.held("worker"))
        if not inbox.inbox(table.workspace, "worker"):
            break
    with pytest.raises(InvalidInput, match="at least one word"):
        inbox.search(table.workspace, " ++ ")


@everywhere
def test_a_busy_agent_sees_that_a_critical_message_waits(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    workspace = table.workspace
    say(workspace, sender="user", to="worker", text="work")
    table.hand()
    say(workspace, sender="user", to="worker", text="later")
    [stop] = say(workspace, sender="leader", to="worker", text="stop: main is red", urgent=True)
    mail.send(workspace, sender="user", to="worker", type="message", body={"text": "tomorrow"}, delay=86400)
    table.passes()
    shown = [(item.state, item.sender, item.subject) for item in inbox.inbox(workspace, "worker")]
    assert shown == [
        ("in hand", "user", "work"),
        ("waiting", "leader", "stop: main is red"),
        ("waiting", "user", "later"),
        ("delayed", "user", "tomorrow"),
    ]
    assert [item.id for item in inbox.urgent(workspace, "worker")] == [stop.id]
    assert inbox.find(workspace, stop.id).state == "waiting"


def test_views_make_nothing(lay: Lay) -> None:
    table = lay(serve=False)
    say(table.workspace, sender="user", to="worker", text="hello")
    before = sorted(table.root.rglob("*"))
    inbox.search(table.workspace, "hello")
    inbox.inbox(table.workspace, "worker")
    Questions(table.workspace).open()
    assert sorted(table.root.rglob("*")) == before


OWN = """
agents: {leader: {wake: hook}, worker: {wake: hook}}
types:
  deploy_request:
  bug: {schema: {type: object, required: [title], properties: {title: {type: string}}}}
  perf: {schema: perf.json}
"""


def test_a_team_has_types_of_its_own(lay: Lay, tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    (tmp_path / "team/perf.json").write_text('{"type": "object", "required": ["p99"]}')
    table = lay(OWN)
    table.send("worker", type="deploy_request", body="now")
    assert table.hand().message.body == "now"
    table.send("leader", type="bug", body={"title": "x"})
    assert table.hand("leader").message.type == "bug"
    with pytest.raises(ValidationFailed, match="perf: .*p99"):
        table.send("worker", type="perf", body={})
    with pytest.raises(InvalidInput, match="did you mean deploy_request"):
        table.send("worker", type="deploy_reqest", body={})
    path = tmp_path / "team.yaml"
    path.write_text(
        f"{HOOKS}\ntypes: {{user_goal: , Bad: , one: {{schema: nothing.json}}, two: {{schema: {{type: 5}}}}}}"
    )
    with pytest.raises(InvalidConfig) as wrong:
        read_team(path)
    for name in ("types.user_goal", "types.Bad", "types.one.schema", "types.two.schema"):
        assert name in str(wrong.value)


# Questions


def asking(table: Table, *more: str) -> subprocess.Popen[str]:
    """Start the real command, which waits for the answer."""
    command = [*COMMAND, "ignite", "--root", str(table.root), "ask", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_a_waiting_process_gets_the_answer_and_a_dead_one_gets_it_as_mail(lay: Lay) -> None:
    table = lay()
    questions = Questions(table.workspace)
    first = asking(
        table, "worker", "REST or gRPC?", "--option", "REST", "--option", "gRPC", "--from", "leader", "--id", "q1"
    )
    held = table.hand()
    assert held.message.type == "question" and held.message.id == "q1"
    with pytest.raises(InvalidInput, match="1 REST, 2 gRPC"):
        reply(table.workspace, "q1", "SOAP")
    assert soon(lambda: questions._is_awaited("q1"))
    reply(table.workspace, "q1", "2")
    assert first.communicate(timeout=60)[0] == "gRPC\n" and first.returncode == 0
    table.until(lambda: not table.workspace.held("worker"))  # the question is done with its answer
    with pytest.raises(NameTaken, match="by worker: 'gRPC'"):
        reply(table.workspace, "q1", "REST")
    second = asking(table, "user", "Delete?", "--confirm", "--from", "worker", "--id", "q2")
    assert soon(lambda: questions.has("q2") and questions._is_awaited("q2"))
    second.kill()
    second.communicate(timeout=60)
    assert [question.id for question in questions.open("user")] == ["q2"]
    reply(table.workspace, "q2", "y")
    answer = table.hand()
    assert answer.message.type == "answer" and answer.message.body == {
        "question": "Delete?",
        "text": "yes",
        "expired": False,
    }
    joined = asking(table, "user", "Delete?", "--confirm", "--from", "worker", "--id", "q2")
    assert joined.communicate(timeout=60)[0] == "yes\n"
    assert inbox.inbox(table.workspace, "leader") == []  # the first asker waited: it gets no mail


def test_a_waiter_that_dies_between_the_answer_and_its_reading_loses_nothing(lay: Lay) -> None:
    table = lay()
    questions = Questions(table.workspace)
    questions.ask(asker="leader", to="user", text="Go on?", id="q")
    with questions._waiting("q"):
        questions.answer("q", "yes", responder="user")
        assert inbox.inbox(table.workspace, "leader") == []
    questions.sweep()
    questions.sweep()
    assert [item.body for item in inbox.inbox(table.workspace, "leader")] == [
        {"question": "Go on?", "text": "yes", "expired": False}
    ]


def test_a_question_is_asked_once_expires_and_is_forgotten(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    questions = Questions(table.workspace)
    for _ in range(2):  # after a crash between the record and the mail it is asked again
        assert questions.ask(asker="leader", to="worker", text="When?", id="q", ttl=60).state == "open"
    assert len(inbox.inbox(table.workspace, "worker")) == 1
    for asker, to, text in (("leader", "worker", "Where?"), ("leader", "user", "When?"), ("user", "worker", "When?")):
        with pytest.raises(NameTaken, match="another question, of leader: 'When"):
            questions.ask(asker=asker, to=to, text=text, id="q")
    with pytest.raises(InvalidInput, match="give one of both"):
        questions.ask(asker="leader", to="user", text="x", options=["a"], confirm=True)
    with pytest.raises(QueueUnknown):
        questions.ask(asker="system", to="user", text="x")
    assert questions.wait("q", 0.0).state == "open"
    clock.advance(61)
    assert questions.open() == []
    assert questions.wait("q", 10.0).state == "expired"
    with pytest.raises(NameTaken, match="expired"):
        questions.answer("q", "now", responder="worker")
    assert inbox.inbox(table.workspace, "leader")[0].body == {"question": "When?", "text": "", "expired": True}
    (table.root / "state/questions/damaged.json").write_text("{")
    assert [each.id for each in questions.all()] == ["q"]
    assert questions.all(closed=False) == [] and questions.has("q")
    questions.forget(clock.now() - 100)
    assert questions.has("q")
    clock.advance(100)
    questions.forget(clock.now() - 50)
    assert questions.all() == [] and not list((table.root / "state/questions").glob(".q*"))


def test_an_answer_from_elsewhere_takes_the_question_from_its_agent(lay: Lay) -> None:
    table = lay(serve=False)
    questions = Questions(table.workspace)
    questions.ask(asker="leader", to="worker", text="When?", id="q")
    with pytest.raises(InvalidInput, match="a question to worker, and leader cannot answer it"):
        reply(table.workspace, "q", "never mind", sender="leader")
    assert questions.find("q").state == "open"
    reply(table.workspace, "q", "never mind", sender="user")
    assert inbox.inbox(table.workspace, "worker") == []
    assert questions.find("q").responder == "user"
    questions.ask(asker="worker", to="user", text="Drop all?", id="drop")
    with pytest.raises(InvalidInput, match="worker cannot answer"):
        reply(table.workspace, "drop", "yes", sender="worker")


def test_a_question_that_failed_once_does_not_come_again_after_its_answer(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    questions = Questions(table.workspace)
    questions.ask(asker="leader", to="worker", text="When?", id="q")
    held = table.hand()
    table.workspace.delivery(held).fail(FailureCode.NACKED, "not now", delay=60.0)
    table.passes()
    reply(table.workspace, "q", "now", sender="user")
    assert inbox.inbox(table.workspace, "worker") == []


def test_answers_to_questions_with_long_ids_are_apart(lay: Lay) -> None:
    table = lay(serve=False)
    questions = Questions(table.workspace)
    for end in ("1", "2"):
        id = "q" * 127 + end
        questions.ask(asker="leader", to="user", text="?", id=id)
        questions.answer(id, end, responder="user")
    assert len(inbox.inbox(table.workspace, "leader")) == 2


def test_a_path_means_the_copy_of_its_agent(lay: Lay, tmp_path: Path) -> None:
    table = lay()
    workspace = table.workspace
    say(workspace, sender="user", to="leader,worker", text="do it")
    of_leader, of_worker = table.hand("leader"), table.hand("worker")
    stem = Path(of_worker.path).name.partition("~")[0]
    with pytest.raises(InvalidInput, match="several agents hold .*leader, worker; give the path"):
        reply(workspace, stem, "ready")
    reply(workspace, of_worker.path, "worker is ready")
    assert [item.sender for item in inbox.inbox(workspace, "user")] == ["worker"]
    assert not workspace.held("worker") and workspace.held("leader")[0].path == of_leader.path
    # Copies with one id, as programs drop them: whose it is, the folder or the name of the agent says.
    text = Path(of_leader.path).read_text().replace("To: leader, worker\n", "To: leader\n")
    text = "".join(line for line in text.splitlines(True) if not line.startswith("Delivered-To"))
    for name in ("leader", "worker"):
        (table.root / f"queue/{name}/same.mime").write_text(text.replace(of_leader.message.id, "same"))
    workspace.delivery(of_leader).ack()
    table.hand("worker")
    table.until(lambda: [held.message.id for held in workspace.held("leader")] == ["same"])
    reply(workspace, "same", "of the worker", sender="worker")
    assert [len(workspace.held(name)) for name in ("leader", "worker")] == [1, 0]
    assert [item.sender for item in inbox.inbox(workspace, "user")] == ["worker", "worker"]


def test_a_text_that_is_too_large_names_the_limit_of_the_team(lay: Lay) -> None:
    table = lay(f"{HOOKS}\nlimits: {{bytes: 2000}}")
    workspace = table.workspace
    say(workspace, sender="user", to="worker", text="one")
    held = table.hand()
    for send in (
        lambda: say(workspace, sender="user", to="worker", text="x" * 3000),
        lambda: reply(workspace, held.path, "x" * 3000),
        lambda: reply(workspace, held.path, "x" * 3000, keep=True),
    ):
        with pytest.raises(TooLarge, match="limits.bytes"):
            send()
    assert workspace.held("worker")
