"""Where the mail lies in a database, agents still have files in hand; whoever is killed, both agree in the end."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from pabal.apps.ignite.database_mail import DatabaseMail
from pabal.apps.ignite.team import MONITOR
from pabal.apps.ignite.workspace import Workspace
from pabal.errors import InvalidConfig, LeaseLost
from pabal.message import Message
from pabal.store import Done, Draft, Settlement, State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import COMMAND, Place, Served, Table, ignite
from tests.apps.ignite.test_intake import GOAL, ID, told

databases = pytest.mark.parametrize("kind", ["sqlite", "postgres"], indirect=True)
sqlite = pytest.mark.parametrize("kind", ["sqlite"], indirect=True)


def given(table: Table) -> list[str]:
    return os.listdir(table.root / "state/queues/worker/given")


@databases
def test_a_paper_that_was_removed_while_nobody_served_is_done(lay: Lay) -> None:
    table = lay()
    [sent] = table.send()
    held = table.hand()
    table.crash()
    os.unlink(held.path)
    assert table.state(sent.id) is State.INFLIGHT
    table.serve()
    assert table.state(sent.id) is State.DONE and given(table) == [] and table.files() == []


@databases
def test_a_verdict_after_the_paper_was_removed_comes_too_late(lay: Lay) -> None:
    table = lay()
    [sent] = table.send()
    held = table.hand()
    os.unlink(held.path)
    with pytest.raises(LeaseLost):
        table.workspace.delivery(held).bury("too late")
    assert table.state(sent.id) is State.DONE


@sqlite
def test_a_paper_whose_message_was_settled_is_taken_away_by_the_next_monitor(lay: Lay) -> None:
    """Whoever settled it was killed before it could remove the paper."""
    table = lay()
    table.send()
    held = table.hand()
    assert isinstance(table.workspace.mail, DatabaseMail)
    table.workspace.mail._database.settle([Settlement(held.receipt, Done())])
    table.crash()
    assert os.path.exists(held.path)
    table.serve()
    assert table.files() == [] and given(table) == [] and not table.monitor.busy


@sqlite
@pytest.mark.parametrize("spoil", ["text", "folder"])
def test_a_paper_that_was_spoilt_is_given_anew(lay: Lay, spoil: str) -> None:
    table = lay()
    [sent] = table.send()
    path = Path(table.hand().path)
    path.unlink()
    if spoil == "folder":
        path.mkdir()
    else:
        path.write_text("spoilt")
    table.crash()
    table.serve()
    again = table.hand()
    assert again.message.id == sent.id and again.path != str(path)


@sqlite
def test_after_a_reboot_a_paper_that_is_gone_says_nothing(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    [sent] = table.send()
    held = table.hand()
    table.crash()
    os.unlink(held.path)  # as a power cut may do
    clock.reboot()
    table.serve()
    clock.advance(400)
    table.until(lambda: table.workspace.held("worker"))
    assert table.state(sent.id) is State.INFLIGHT


@databases
def test_a_message_that_cannot_be_a_file_is_buried_and_told(lay: Lay) -> None:
    table = lay()
    body = {"goal": "g", "raw": "\x00"}
    message = Message(id="m1", body=body, type="user_goal", sender="two\nlines", created_at=1.0)
    table.workspace.store.publish([Draft("worker", message)])
    table.until(lambda: table.state("m1") is State.DEAD)
    [reason] = told(table)
    assert "cannot be written as a file" in reason


@databases
def test_one_workspace_serves_a_store_and_the_other_is_told_which(lay: Lay, kind: Place, tmp_path: Path) -> None:
    table = lay()
    url = kind.queues if kind.server is not None else f"sqlite:{table.root}/state/mail.db"
    (tmp_path / "elsewhere").mkdir()
    other = Table(tmp_path / "elsewhere", Place(url).team("agents: {leader: {}, worker: {}}"), serve=False)
    [sent] = other.send()  # to send is for everybody
    assert table.hand().message.id == sent.id
    with pytest.raises(InvalidConfig, match=str(table.root)):
        other.serve()
    table.workspace.queue(MONITOR).purge(State.READY)
    other.serve()
    other.close()


@databases
def test_a_file_that_was_taken_before_a_kill_is_sent_once(lay: Lay) -> None:
    table = lay()
    (table.root / "queue/worker/goal.mime").write_bytes(GOAL)
    held = table.hand()
    table.workspace.delivery(held).ack()
    table.crash()
    (table.root / "state/queues/worker/taken/1~goal.mime").write_bytes(GOAL)  # published, and not yet removed
    (table.root / "state/queues/worker/taken/2~goal.mime").write_bytes(GOAL.replace(b"abcdef", b"b"))  # not yet
    table.serve()
    assert table.hand().message.id == ID.replace("abcdef", "b")
    assert os.listdir(table.root / "state/queues/worker/taken") == []
    assert table.workspace.store.counts("worker")[State.READY] == 0


@databases
def test_a_team_that_moves_into_a_database_takes_its_mail_along(tmp_path: Path, kind: Place) -> None:
    table = Table(tmp_path)
    ids = {table.send()[0].id for _ in range(3)}
    table.hand()
    table.workspace.delivery(table.hand()).nack(delay=3600)  # one is in hand, one to be tried again, one waits
    table.hand()
    (table.root / "team.yaml").write_text(kind.team("agents: {leader: {}, worker: {}}"))
    table.crash()
    table.workspace.prepare()
    table.serve()
    found = set()
    for _ in range(3):
        held = table.hand()
        found.add(held.message.id)
        table.workspace.delivery(held).ack()
        table.passes()
    assert found == ids and table.files() == []
    table.close()


@databases
def test_every_command_works_where_the_mail_lies_in_a_database(tmp_path: Path, kind: Place) -> None:
    root = tmp_path / "team"
    root.mkdir()
    (root / "team.yaml").write_text(kind.team("agents: {leader: {}, worker: {}}"))

    def run(*arguments: str, code: int = 0) -> str:
        ran = ignite(root, *arguments)
        assert ran.returncode == code, ran
        return ran.stdout.decode()

    run("init")
    served = Served(root)
    try:
        id = run("send", "--to", "worker", "--type", "user_goal", "--body", "goal: fly").strip()
        path = run("inbox", "worker", "--wait", "20").strip()
        assert run("read", "--body", path) == "goal: fly\n"
        answer = ["--from", "worker", "--to", "leader", "--type", "user_goal", "--body", "goal: land"]
        subprocess.run([*COMMAND, "mime", "build", *answer, "-o", f"{tmp_path}/answer.mime"], check=True)
        assert run("done", path, "--then", f"{tmp_path}/answer.mime") == f"done {id}\n" and not os.path.exists(path)
        path = run("inbox", "leader", "--wait", "20").strip()
        assert "goal: land" in run("read", path) and "leader" in run("status")
        run("fail", path, "--bury", "--reason", "no wind")
        dead = json.loads(run("dlq", "--json"))
        assert (dead["queue"], dead["reason"]) == ("leader", "no wind")
        assert json.loads(run("status", "--json"))["deadLetters"] == 1
        assert run("replay", dead["id"]).strip() == dead["id"]
        assert json.loads(run("status", "--json"))["deadLetters"] == 0 and run("dlq", code=1) == ""
        assert run("inbox", "leader", "--wait", "20")
        (root / "queue/worker/by_hand.mime").write_bytes((tmp_path / "answer.mime").read_bytes())
        assert run("inbox", "worker", "--wait", "20")
    finally:
        served.stop()


def test_where_the_mail_lies_does_not_change_while_a_team_is_served(lay: Lay) -> None:
    table = lay()
    (table.root / "team.yaml").write_text("agents: {leader: {}, worker: {}, third: {}}\nqueues: sqlite:mail.db")
    table.monitor.reload()
    assert "third" not in table.monitor.runners
    table.reopen()
    assert isinstance(table.workspace.mail, DatabaseMail) and (table.root / "mail.db").exists()


def test_a_place_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "team.yaml").write_text("agents: {leader: {}}\nqueues: mailbox:///tmp")
    with pytest.raises(InvalidConfig, match=r"queues: sqlite:PATH or postgresql"):
        Workspace.open(tmp_path)
