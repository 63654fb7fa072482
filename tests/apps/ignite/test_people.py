"""The person: an inbox that never expires, questions, notices, and one list of what waits."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pabal.apps.ignite import inbox, people
from pabal.apps.ignite.conversation import put_away, reply, say
from pabal.apps.ignite.people import Desk, Notices, needs_of
from pabal.apps.ignite.questions import Questions
from pabal.apps.ignite.service import Isolated
from pabal.apps.kingdom.envoy.questions import Question as Asking
from pabal.apps.kingdom.envoy.questions import Questions as Asked
from pabal.apps.kingdom.home import Home
from pabal.cli import needs_you
from pabal.errors import QueueFull, StoreFailed, TooLarge
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import COMMAND, HOOKS, Table, everywhere, ignite, soon
from tests.apps.ignite.test_wakes import needs_tmux


@everywhere
def test_mail_for_the_person_waits_for_ever(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    [sent] = table.send("user", sender="worker", type="user_goal", body={"goal": "g"}, ttl=3600)
    copies = table.send(["leader", "user"], sender="worker", type="user_goal", body={"goal": "all"})
    for _ in range(4):
        table.passes()
        clock.advance(20 * 86400)
    table.passes()
    assert table.state(sent.id, "user") is State.READY
    assert table.state(copies[1].id, "user") is State.READY
    assert not table.workspace.held("user") and not list(table.root.glob("queue/dead_letter/*.mime"))


@everywhere
def test_a_file_for_the_person_and_an_agent_reaches_both(lay: Lay) -> None:
    table = lay()
    told = Told(table)
    [one] = table.send("leader", type="user_goal", body={"goal": "g"})
    held = table.hand("leader")
    text = Path(held.path).read_text().replace("To: leader", "To: worker, user").replace(one.id, "by-hand")
    (table.root / "queue/worker/any.mime").write_text(text)
    table.until(lambda: [item.id for item in inbox.inbox(table.workspace, "user")] == ["by-hand-2"])
    assert table.hand("worker").message.id == "by-hand-1"
    (table.root / "queue/user/any.mime").write_text(text.replace("by-hand", "other"))
    old = "{type: user_goal, from: leader, to: user, payload: {goal: old}}"
    (table.root / "queue/user/old.yaml").write_text(old)

    def came() -> bool:
        told.desk.step()
        found = {item.id for item in inbox.inbox(table.workspace, "user")}
        return len(found) == 3 and {"by-hand-2", "other-1"} < found

    table.until(came, timeout=60)
    assert "other-2" in {item.id for item in inbox.inbox(table.workspace, "worker")}
    told.desk.close()
    assert ignite(table.root, "send", "--to", "usr", "--type", "user_goal", "--body", "goal: g").returncode == 3


class Told:
    """A desk whose notices are kept."""

    def __init__(self, table: Table) -> None:
        self.lines: list[str] = []
        escalate = table.monitor.intake.escalate
        self.desk = Desk(table.workspace, watch=table.watch, tell=self.lines.append, escalate=escalate)

    def step(self) -> list[str]:
        """Return what the person was told in one pass."""
        before = len(self.lines)
        self.desk.step()
        return self.lines[before:]


@everywhere
def test_the_person_is_notified_once_of_each_question_and_message(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    workspace = table.workspace
    told = Told(table)
    assert told.step() == []
    [sent] = say(workspace, sender="worker", to="user", text="done\nreally", urgent=True)
    say(workspace, sender="leader", to="user", text="second")
    assert told.step() == ["worker: done and 1 more; pabal needs-you"]
    Questions(workspace).ask(asker="leader", to="user", text="Go on?", id="q", confirm=True)
    assert told.step() == ["leader: Go on?; pabal needs-you"]
    needs = needs_of(workspace)
    assert [(need.kind, need.sender, need.text, need.urgent) for need in needs] == [
        ("mail", "worker", "done", True),
        ("question", "leader", "Go on?", False),
        ("mail", "leader", "second", False),
    ]
    assert needs[0].answer == f"pabal ignite read {sent.id}" and needs[1].options == ("yes", "no")
    assert len(inbox.search(workspace, "really")) == 1
    told.desk.close()
    again = Told(table)  # a monitor that starts again repeats nothing
    clock.advance(60)
    assert again.step() == []
    reply(workspace, "q", "yes")
    put_away(workspace, sent.id)
    assert [need.text for need in needs_of(workspace)] == ["second"]
    assert [item.state for item in inbox.search(workspace, "really")] == ["done"]
    again.desk.close()


def test_an_answer_that_nobody_took_is_sent_by_the_monitor(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    questions = Questions(table.workspace)
    questions.ask(asker="leader", to="user", text="Go on?", id="q")
    questions.ask(asker="leader", to="user", text="When?", id="late", ttl=10)
    told = Told(table)
    with questions._waiting("q"):
        questions.answer("q", "yes", responder="user")
        told.step()
        assert inbox.inbox(table.workspace, "leader") == []
    clock.advance(31)
    told.step()
    assert {item.in_reply_to for item in inbox.inbox(table.workspace, "leader")} == {"q", "late"}
    told.desk.close()


FULL = "agents: {leader: {wake: hook}, worker: {wake: hook}}\nlimits: {waiting: 1, bytes: 4096}"


def test_mail_that_cannot_be_passed_on_ends_no_team(lay: Lay) -> None:
    table = lay(FULL)
    questions = Questions(table.workspace)
    for asker in ("leader", "worker"):
        questions.ask(asker=asker, to="user", text="Go on? " + "x" * 2000, id=f"of-{asker}")
    with questions._waiting("of-worker"):
        questions.answer("of-worker", "yes", responder="user")
    table.send("leader")
    table.hand("leader")
    table.send("leader")  # its queue is full, and its answer must arrive all the same
    questions.answer("of-leader", "yes", responder="user")
    assert [item.type for item in inbox.inbox(table.workspace, "leader")] == [
        "task_assignment",
        "answer",
        "task_assignment",
    ]
    with pytest.raises(TooLarge, match="limits.bytes"):
        questions.ask(asker="leader", to="worker", text="x" * 5000, id="large")
    assert not questions.has("large")  # nothing was asked
    questions.ask(asker="leader", to="user", text="How?", id="how")
    with pytest.raises(TooLarge, match="limits.bytes"):
        questions.answer("how", "x" * 5000, responder="user")
    assert questions.find("how").state == "open"
    table.change("agents: {worker: {wake: hook}}\nleader: worker\nlimits: {waiting: 1, bytes: 4096}")
    table.workspace.reload()
    questions.sweep()
    assert questions.all(closed=False)[0].id == "how"  # what the ones who left have asked is not sent
    assert [item.body["text"] for item in inbox.inbox(table.workspace, "worker")] == ["yes"]  # type: ignore[index,call-overload]  # a mapping


def test_a_dropped_file_that_cannot_be_copied_or_names_a_stranger_ends_no_team(lay: Lay) -> None:
    table = lay()
    told = Told(table)
    [one] = table.send("worker", type="user_goal", body={"goal": "g"})
    text = Path(table.hand("worker").path).read_text().replace("To: worker", "To: user, worker, stranger")
    (table.root / "queue/user/any.mime").write_text(text.replace(one.id, "i" * 127))

    def came() -> bool:
        told.step()
        return len(inbox.inbox(table.workspace, "worker")) == 2

    table.until(came, timeout=60)
    assert [item.type for item in inbox.inbox(table.workspace, "user")] == ["user_goal"]
    [escalation] = inbox.inbox(table.workspace, "leader")
    assert "no agent stranger" in str(escalation.body)
    told.desk.close()


def test_a_list_that_is_full_says_so_and_shows_the_urgent_first(
    lay: Lay, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(people, "MOST", 5)
    table = lay(clock=clock)
    for number in range(8):
        say(table.workspace, sender="worker", to="user", text=f"mail {number}")
    [last] = say(table.workspace, sender="worker", to="user", text="stop", urgent=True)
    needs = needs_of(table.workspace)
    assert [need.text for need in needs] == ["stop", *(f"mail {number}" for number in range(4))]
    assert people.count_more(table.workspace, needs) == 4
    told = Told(table)
    assert told.step() == ["worker: stop and 4 more; pabal needs-you"]
    put_away(table.workspace, last.id)
    clock.advance(31)
    assert told.step() == ["worker: mail 4; pabal needs-you"]
    told.desk.close()
    assert b"8 for you" in ignite(table.root, "status").stdout


def test_a_task_whose_error_is_none_of_the_store_goes_on(clock: ManualClock) -> None:
    class Failing:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def step(self) -> None:
            raise self.error

        def next_due(self) -> float:
            return 0.0

    task = Isolated(Failing(QueueFull("full")), clock)
    task.step()
    assert task.next_due() == 1.0
    with pytest.raises(StoreFailed):
        Isolated(Failing(StoreFailed("gone")), clock).step()


@needs_tmux
def test_a_notice_shows_in_tmux_and_runs_nothing(lay: Lay, tmp_path: Path) -> None:
    """Real clients of a real server, in a pane of another one; notify-send is a stand-in that notes its arguments."""
    desktop = tmp_path / "bin/notify-send"
    desktop.parent.mkdir()
    desktop.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/desktop\n')
    desktop.chmod(0o755)
    inner, outer = (["tmux", "-S", str(tmp_path / name)] for name in ("inner", "outer"))
    variables = {"PATH": f"{desktop.parent}:{os.environ['PATH']}", "HOME": str(tmp_path), "LANG": "C.UTF-8"}
    run = {"env": {**variables, "TERM": "xterm"}, "check": True, "timeout": 30, "capture_output": True, "text": True}
    try:
        subprocess.run([*inner, "-u", "new-session", "-d", "-x", "200", "-y", "10", "cat"], **run)  # type: ignore[call-overload]  # as one set of settings
        attach = f"TMUX= {' '.join(inner)} -u attach"
        subprocess.run([*outer, "-u", "new-session", "-d", "-x", "200", "-y", "12", attach], **run)  # type: ignore[call-overload]  # likewise
        table = lay(f"agents: {{leader: {{wake: tmux, socket: {tmp_path / 'inner'}}}}}", serve=False)
        notices = Notices(table.workspace, variables)

        def screen() -> str:
            shown = subprocess.run([*outer, "-u", "capture-pane", "-p"], **run)  # type: ignore[call-overload]  # likewise
            return str(shown.stdout)

        def clients() -> str:
            return str(subprocess.run([*inner, "list-clients"], **{**run, "check": False}).stdout)  # type: ignore[call-overload]  # likewise

        assert soon(lambda: clients().strip())
        notices.show(f"leader: <b>배포</b> #(touch {tmp_path}/run) #{{pid}} %H\x1b[2J\nend")
        assert soon(lambda: "leader: <b>배포</b> ＃(touch" in screen())
        assert "＃{pid} ％H" in screen() and not (tmp_path / "run").exists()
        assert (tmp_path / "desktop").read_text().splitlines()[-1].startswith("leader: &lt;b&gt;배포")
    finally:
        for server in (outer, inner):
            subprocess.run([*server, "kill-server"], **{**run, "check": False})  # type: ignore[call-overload]  # likewise


def test_a_person_sees_what_all_applications_need(tmp_path: Path) -> None:
    root, home = tmp_path / ".ignite", tmp_path / "kingdom"
    root.mkdir()
    (root / "team.yaml").write_text(HOOKS)

    def pabal(*arguments: str, code: int = 0, folder: str = ".") -> str:
        command = [*COMMAND, *arguments]
        done = subprocess.run(command, cwd=tmp_path / folder, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    (root / "team.yaml").rename(tmp_path / "team.yaml")
    assert "no team and no kingdom" in pabal("needs-you", code=3)
    (tmp_path / "team.yaml").rename(root / "team.yaml")
    pabal("ignite", "init")
    assert pabal("needs-you", code=1) == ""
    pabal("ignite", "say", "user", "the build is\nred", "--from", "worker")
    pabal(
        "ignite", "ask", "user", "Which?", "--option", "a", "--option", "b", "--from", "leader", "--wait", "0", code=1
    )
    with Home.make(home) as kingdom:
        Asked(kingdom).ask(Asking(task_id="task-1", text="Merge?", kind="confirm", asked_at="2026-01-01T00:00:00Z"))
    shown = pabal("needs-you", "--home", str(home))
    assert shown.index("Merge?") < shown.index("Which?") < shown.index("the build is")
    assert "pabal kingdom answer task-1 TEXT" in shown and "      2. b\n" in shown
    found = [json.loads(line) for line in pabal("needs-you", "--home", str(home), "--json").splitlines()]
    assert [(each["source"], each["kind"]) for each in found] == [
        ("kingdom", "question"),
        ("ignite", "question"),
        ("ignite", "mail"),
    ]
    assert "no workspace at nowhere" in pabal("needs-you", "--root", "nowhere", code=3)
    assert "pabal ignite reply --root .ignite " in pabal("needs-you", "--root", ".ignite")
    (tmp_path / "src/deep").mkdir(parents=True)
    (root / "state/team.yaml").write_text(HOOKS)
    (root / "team.yaml").write_text("agents: [")
    for folder in ("src/deep", "."):  # from any folder of the project, and with a mistake in the team file
        shown = pabal("needs-you", folder=folder)
        assert "Which?" in shown and "the team is taken as it was served" in shown


def test_the_bell_rings_for_the_first_thing_too(lay: Lay, monkeypatch: pytest.MonkeyPatch) -> None:
    table = lay(serve=False)
    out: list[str] = []

    def sleep(seconds: float) -> None:
        if len(out) > 3:
            raise KeyboardInterrupt
        if not out:  # nothing waited at first
            say(table.workspace, sender="worker", to="user", text="red")
        out.append("")

    monkeypatch.setattr("pabal.cli.needs_you.time.sleep", sleep)
    monkeypatch.setattr("pabal.cli.needs_you.sys.stdout.isatty", lambda: True)
    monkeypatch.setattr("pabal.cli.needs_you.click.echo", lambda text, **more: out.append(text))
    with pytest.raises(KeyboardInterrupt):
        needs_you.needs_you.callback(  # type: ignore[misc]
            roots=(str(table.root),), homes=(), asks=False, watch=True, as_json=False
        )
    assert [text for text in out if text][0].startswith("MAIL  worker") and "\a" in out
