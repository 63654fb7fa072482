"""The protocol of the original: who may be named, ids, counts of retries, statuses, sizes."""

from __future__ import annotations

import json
import logging
import re
import subprocess
from pathlib import Path

import pytest

from pabal.apps.ignite.health import write_health
from pabal.codecs.mime.codec import MimeCodec
from pabal.codecs.mime.fields import read_head
from pabal.errors import TooLarge
from pabal.names import ascii_name, check_name, shown_name
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import COMMAND, TASK, Table, everywhere, ignite
from tests.apps.ignite.test_intake import GOAL

ID = re.compile(r"\d+\.\d+\.[0-9a-f]{15,}(-\d+)?").fullmatch


@everywhere
def test_a_person_may_lead_the_team(lay: Lay) -> None:
    table = lay("agents: {worker: {}}\nleader: user\nretry: {limit: 0}")
    [sent] = table.send()
    table.workspace.delivery(table.hand()).nack(reason="no")
    table.until(lambda: table.state(sent.id) is State.DEAD)
    assert table.workspace.mail.load("user").ready == 1
    for name in ("queue_monitor", "system"):
        assert ignite(table.root, "send", "--to", name, "--type", "user_goal", "--body", "goal: x").returncode == 3


@everywhere
def test_agents_have_names_in_any_script(lay: Lay) -> None:
    table = lay("agents: {リーダー: {}, müller: {count: 2}, बढ़ई: {}}\nleader: リーダー")
    for name in ("リーダー", "müller_1", "बढ़ई"):
        queue = table.workspace.team.name_of(name)
        assert check_name(queue).isascii() and shown_name(queue) == name
    [sent] = table.send("müller-1", sender="リーダー")
    held = table.hand(ascii_name("müller_1"))
    text = Path(held.path).read_text()
    assert "\nFrom: リーダー\n" in text and "\nTo: müller_1\n" in text and held.message.id == sent.id
    out = ignite(table.root, "status").stdout.decode()
    assert "リーダー" in out and "müller_1" in out and "xn__" not in out
    assert ignite(table.root, "inbox", "müller_1").stdout.decode().startswith("müller_1: ")
    # As another program writes it: without encoded words, for several.
    dropped = GOAL.replace(b"To: worker", "To: müller_2,बढ़ई".encode()).replace(b"abcdef", b"abc0")
    (table.root / "queue" / ascii_name("müller_2") / "a.mime").write_bytes(dropped)
    assert table.hand(ascii_name("müller_2")).message.sender and table.hand(ascii_name("बढ़ई"))


def test_other_names_stay_what_they_are() -> None:
    for name in ("worker", "xn__", "xn__a", "xn__ß", "a b", "ü-1", "é" * 41):
        assert shown_name(ascii_name(name)) == name
    assert ascii_name("e\u0301") == ascii_name("é")


def test_a_long_list_of_recipients_is_read_back() -> None:
    names = ", ".join(f"ignitian_{number:05}" for number in range(200))
    data = GOAL.replace(b"To: worker", f"To: {names}".encode())
    message = MimeCodec().decode(data)
    assert MimeCodec().decode(MimeCodec().encode(message)) == message


@everywhere
def test_recipients_are_listed_with_commas_too(lay: Lay, tmp_path: Path) -> None:
    table = lay()
    out = ignite(table.root, "send", "--to", "leader, worker", "--type", "user_goal", "--body", "goal: x").stdout
    assert len(out.split()) == 2
    build = ["--from", "user", "--to", "leader, worker", "--type", "user_goal", "--body", "goal: y"]
    subprocess.run([*COMMAND, "mime", "build", *build, "-o", str(tmp_path / "one.mime")], check=True, timeout=60)
    assert (tmp_path / "one.mime").read_bytes().endswith(b"\n\ngoal: y\n")
    assert read_head((tmp_path / "one.mime").read_bytes()).get("To") == "leader, worker"


def test_a_final_newline_changes_no_body(tmp_path: Path) -> None:
    for body, ends in (("a: |\n  x", b"\n  x"), ("a: b", b"a: b\n"), ("", b"8bit\n\n")):
        build = ["--from", "user", "--to", "leader", "--type", "user_goal", "--body", body]
        ran = subprocess.run([*COMMAND, "mime", "build", *build], check=True, timeout=60, capture_output=True)
        assert ran.stdout.endswith(ends)


@everywhere
def test_ids_have_one_form(lay: Lay) -> None:
    table = lay("agents: {leader: {}, worker: {}}\nretry: {limit: 0}")
    table.send(["leader", "worker"], "user_goal", body={"goal": "x"})
    (table.root / "queue/leader/old.yaml").write_text("{type: user_goal, from: user, payload: {goal: old}}")
    (table.root / "queue/leader/bad.mime").write_text("no message")
    table.monitor.intake.escalate("key", "title", "worker", "reason")
    table.workspace.delivery(table.hand()).nack(reason="no")
    seen = set()
    for _ in range(4):
        held = table.hand("leader")
        seen.add(held.message.type)
        assert ID(held.message.id), held.message
        table.workspace.delivery(held).ack()
        table.until(lambda: table.monitor.runners["leader"].turn is None or table.workspace.held("leader"))
    assert seen == {"user_goal", "escalation"}


@everywhere
def test_a_message_is_tried_again_three_times(lay: Lay, clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    table = lay(clock=clock)
    [sent] = table.send()
    for retries in range(4):
        held = table.hand()
        assert read_head(Path(held.path).read_bytes()).get("X-IGNITE-Retry-Count") == (
            str(retries) if retries else None
        )
        table.monitor.runners["worker"]._fail("HANDLER_ERROR", "red")  # type: ignore[arg-type]  # as its text
        clock.advance(301)
    assert table.state(sent.id) is State.DEAD
    assert [record.levelno for record in caplog.records if "turn ended" in record.message][-1] == logging.WARNING
    body = table.hand("leader").message.body
    assert isinstance(body, dict) and (body["retry_count"], body["max_retries"]) == (3, 3)
    [letter] = table.workspace.queue("dead_letter").entries(State.READY)
    assert letter.message is not None and isinstance(letter.message.body, dict)
    assert letter.message.body["failure_info"]["max_retries"] == 3


def _health(table: Table) -> dict[str, int]:
    write_health(table.workspace)
    health = json.loads((table.root / "state/task_health.json").read_text())
    [queue] = [each for each in health["queues"] if each["name"] == "worker"]
    return {name: count for name, count in queue.items() if count and name != "name"}


def _statuses(table: Table) -> list[str]:
    files = table.root.glob("queue/worker/**/*.mime")
    return sorted(read_head(path.read_bytes()).get("X-IGNITE-Status") or "queued" for path in files)


def test_the_status_of_files_and_the_health_file_agree(lay: Lay, clock: ManualClock) -> None:
    table = lay("agents: {leader: {}, worker: {wake: webhook, url: 'http://127.0.0.1:9/'}}", clock=clock)
    table.send()
    table.until(lambda: table.monitor.runners["worker"]._rests == 1)  # it was given back: that is no retry
    assert (_health(table), _statuses(table)) == ({"pending": 1}, ["queued"])
    table.change("agents: {leader: {}, worker: {}}")
    table.monitor.reload()
    clock.advance(61)
    held = table.hand()
    table.send(delay=100)
    table.send()
    assert (_health(table), _statuses(table)) == ({"pending": 2, "delivered": 1}, ["delivered", "queued", "queued"])
    table.workspace.delivery(held).fail("NACKED", "no", delay=1000.0)
    table.until(lambda: len(table.workspace.held("worker")) == 1)
    table.hand()
    expected = {"pending": 1, "delivered": 1, "retrying": 1}
    assert (_health(table), _statuses(table)) == (expected, ["delivered", "queued", "retrying"])


@everywhere
def test_a_dropped_file_obeys_the_limit_of_the_team(lay: Lay) -> None:
    table = lay("agents: {leader: {}, worker: {}}\nlimits: {bytes: 2000}")
    (table.root / "draft").write_bytes(GOAL.rstrip() + b"\ncontext: " + b"x" * 2000 + b"\n")
    (table.root / "draft").rename(table.root / "queue/worker/large.mime")
    held = table.hand("leader")
    assert "limits.bytes" in str(held.message.body) and not table.workspace.held("worker")
    fits = {**TASK, "instructions": "x" * 1500}
    table.send(body=fits)
    assert table.hand().message.body == fits  # the headers of its delivery count for nothing
    with pytest.raises(TooLarge, match=r"limits\.bytes in team\.yaml"):
        table.send(body={**TASK, "instructions": "x" * 2000})
