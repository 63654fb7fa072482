"""The twelve weaknesses of the system that this one follows, each as a test that it is gone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pabal.apps.ignite import mail
from pabal.codecs.mime.fields import edited, read_head
from pabal.errors import InvalidName, PabalError
from pabal.policy.retention import LOOK_SECONDS
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import TASK, everywhere, ignite
from tests.apps.ignite.test_intake import GOAL, ID, told


@everywhere
def test_1_retries_are_limited_and_rest_in_between_whatever_the_headers_say(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    [sent] = table.send()
    rests = []
    for attempt in (1, 2, 3, 4):
        held = table.hand()
        assert held.attempt == attempt
        path = Path(held.path)
        path.write_bytes(edited(path.read_bytes(), {"X-IGNITE-Retry-Count": "0"}))  # a lie, which nobody reads
        table.workspace.delivery(held).nack()
        table.passes()
        if attempt < 4:
            due = table.workspace.store.next_due("worker")
            rests.append(due or 0.0)
            clock.advance(301)
    assert table.state(sent.id) is State.DEAD
    assert all(0 <= rest <= 20 for rest in rests)


@everywhere
def test_2_an_escalation_names_task_title_assignee_and_reason(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook}}\nretry: {limit: 0}")
    table.send()
    table.workspace.delivery(table.hand()).nack(reason="the paint is dry")
    held = table.hand("leader")
    body = held.message.body
    assert isinstance(body, dict)
    assert (body["task_id"], body["title"], body["original_assignee"]) == (TASK["task_id"], TASK["title"], "worker")
    assert "the paint is dry" in str(body["failure_reason"])
    [letter] = table.workspace.queue("dead_letter").entries(State.READY)
    assert letter.message is not None
    text = table.workspace.layout.codec.encode(letter.message, queue="dead_letter").decode()
    assert "paint the fence" in text and "X-IGNITE-Priority: critical" in text and "To: leader" in text


@everywhere
def test_3_a_long_turn_is_not_delivered_twice(lay: Lay, clock: ManualClock) -> None:
    from pabal.apps.ignite.readers import beat

    table = lay(clock=clock)
    [sent] = table.send()
    held = table.hand()
    for _ in range(20):  # five hours, a sign of life now and then
        clock.advance(900)
        beat(table.workspace, "worker")
        table.passes()
    [still] = table.workspace.held("worker")
    assert (still.path, still.attempt) == (held.path, 1) and os.path.exists(held.path)
    table.workspace.delivery(still).ack()
    assert table.state(sent.id) is State.DONE


@everywhere
def test_4_a_restart_loses_nothing_that_is_older_than_it(lay: Lay) -> None:
    table = lay(serve=False)
    path = table.root / "queue/worker/old.mime"
    path.write_bytes(GOAL)
    os.utime(path, (1, 1))
    straight = table.root / "queue/worker/processed/older.mime"
    straight.write_bytes(GOAL.replace(b"abcdef", b"fedcba"))
    os.utime(straight, (1, 1))
    table.serve()
    ids = set()
    for _ in range(2):
        held = table.hand()
        ids.add(held.message.id)
        os.unlink(held.path)
    assert ids == {ID, ID.replace("abcdef", "fedcba")}


def test_5_priority_counts_and_the_name_of_the_type_does_not(lay: Lay) -> None:
    table = lay(serve=False)
    table.send(type="architecture_request", body={"goal": "why"}, priority="low")
    [urgent] = table.send(priority="critical")
    table.serve()
    assert table.hand().message.id == urgent.id


def test_6_no_reader_ever_sees_half_a_file_and_a_touch_changes_no_timer(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    [sent] = table.send()
    path = Path(table.hand().path)
    seen = path.stat().st_ino
    table.workspace.delivery(table.workspace.held("worker")[0]).nack(delay=1000)
    assert not path.exists() and table.state(sent.id) is State.DELAYED
    [waiting] = table.root.glob("queue/worker/*.mime")
    assert waiting.stat().st_ino != seen and read_head(waiting.read_bytes()).get("X-IGNITE-Status") == "retrying"
    os.utime(waiting)
    clock.advance(1001)
    table.passes()
    assert table.state(sent.id) is State.INFLIGHT


def test_7_a_line_break_in_a_header_is_refused_and_a_body_is_yaml_however_it_is_spelt(lay: Lay) -> None:
    table = lay()
    with pytest.raises(PabalError):
        mail.send(table.workspace, sender="user\nBcc: x", to="worker", type="user_goal", body={"goal": "g"})
    with pytest.raises(PabalError):
        table.send(repository="o/r\nX-IGNITE-Priority: critical")
    tricky = 'a: "b\n- c: *x # \x07 ${IFS}'
    [sent] = table.send(type="user_goal", body={"goal": tricky})
    assert table.hand().message.body == {"goal": tricky}
    assert table.state(sent.id) is State.INFLIGHT


@everywhere
def test_8_told_is_not_done_and_every_recipient_has_a_copy_and_old_mail_goes(lay: Lay, clock: ManualClock) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook, count: 3}}", clock=clock)
    sent = table.send(["worker_1", "worker-2"], cc="worker_3", thread_id="t-9", in_reply_to="m-0")
    assert len(sent) == len({each.id for each in sent}) == 3
    for number in (1, 2, 3):
        held = table.hand(f"worker_{number}")
        text = Path(held.path).read_text()
        assert "To: worker_1, worker_2\nCc: worker_3\n" in text
        assert "In-Reply-To: <m-0@ignite.local>" in text and "X-IGNITE-Thread-ID: t-9" in text
        assert table.state(held.message.id, f"worker_{number}") is State.INFLIGHT
        table.workspace.delivery(held).ack()
    clock.advance(3 * 86400)
    table.passes()
    clock.advance(LOOK_SECONDS)
    table.passes()
    assert [table.workspace.mail.load(f"worker_{number}").done for number in (1, 2, 3)] == [0, 0, 0]


def test_9_missing_headers_unknown_types_and_unknown_queues_are_told(lay: Lay) -> None:
    table = lay(serve=False)
    nobody = table.root / "queue/nobody"
    nobody.mkdir()
    for path, data in (
        (table.root / "queue/worker/a.mime", GOAL.replace(b"From: user\n", b"").replace(b"abcdef", b"a")),
        (table.root / "queue/worker/b.mime", GOAL.replace(b"user_goal", b"no_type").replace(b"abcdef", b"b")),
        (nobody / "c.mime", GOAL),
    ):
        path.write_bytes(data)
        os.utime(path, (1, 1))
    table.serve()
    table.until(lambda: table.workspace.held("leader"))
    reasons = " ".join(told(table) + told(table))
    assert "From is missing" in reasons and "no_type" in reasons and "no agent nobody" in reasons


def test_10_counters_begin_anew_after_success_and_no_lock_survives_its_holder(lay: Lay) -> None:
    from tests.apps.ignite.table import Served

    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook}}\nretry: {limit: 1, base: 0, cap: 0}")
    [sent] = table.send()
    for _ in range(2):
        table.workspace.delivery(table.hand()).nack()
        table.until(lambda: table.monitor.runners["worker"].turn is None or table.workspace.held("worker"))
    table.until(lambda: table.state(sent.id) is State.DEAD)
    assert table.workspace.queue("worker").revive([sent.id]) == [sent.id]
    assert table.hand().attempt == 1
    table.monitor.close()
    table._monitor = None
    served = Served(table.root)
    served.kill()
    served.start()
    assert served.stop() == 0


def test_11_the_example_that_writes_into_processed_is_delivered(lay: Lay, tmp_path: Path) -> None:
    table = lay("agents: {leader: {wake: hook}}")
    import subprocess

    from tests.apps.ignite.table import COMMAND

    subprocess.run(
        [*COMMAND, "mime", "build", "--from", "user", "--to", "leader", "--type", "user_goal", "--priority", "high"]
        + ["--body", 'goal: "READMEファイルを作成する"', "-o", f"{table.root}/queue/leader/processed/user_goal_1.mime"],
        check=True,
        timeout=60,
    )
    assert table.hand("leader").message.body == {"goal": "READMEファイルを作成する"}


def test_12_status_never_contradicts_the_folder_and_critical_is_a_priority(lay: Lay) -> None:
    table = lay()
    [sent] = table.send(priority="critical")
    [path] = table.root.glob("queue/worker/*.mime")
    path.write_bytes(edited(path.read_bytes(), {"X-IGNITE-Status": "completed"}))  # what some agent wrote
    held = table.hand()
    assert read_head(Path(held.path).read_bytes()).get("X-IGNITE-Status") == "delivered"
    table.workspace.delivery(held).ack()
    [done] = table.root.glob("state/queues/worker/done/*.mime")
    assert re.search(rb"X-IGNITE-Status: completed", done.read_bytes()) and held.message.priority == 9
    assert table.state(sent.id) is State.DONE


def test_the_lines_of_the_seed_that_count_and_find_files_work(lay: Lay) -> None:
    import subprocess

    table = lay()
    table.send(), table.send(type="user_goal", body={"goal": "g"})
    table.hand()
    lines = f"cd {table.root}; find queue -name '*.mime' | wc -l; find queue -name 'task_assignment_*.mime' | wc -l"
    ran = subprocess.run(["sh", "-c", lines], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["2", "1"]
    assert ignite(table.root, "status").returncode == 0
    with pytest.raises(InvalidName):
        table.workspace.queue("../x")
