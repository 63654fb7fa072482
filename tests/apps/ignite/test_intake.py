"""Mail that came another way is delivered, or set aside with its reason and told, once."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import Table, everywhere, ignite

GOAL = b"""MIME-Version: 1.0
Message-ID: <1770263544.12345.abcdef@ignite.local>
From: user
To: worker
Date: Tue, 10 Feb 2026 12:00:00 +0900
X-IGNITE-Type: user_goal
X-IGNITE-Priority: high
Content-Type: text/x-yaml; charset=utf-8
Content-Transfer-Encoding: 8bit

goal: "a README"
"""
ID = "1770263544.12345.abcdef"


def _is_gone(path: bytes) -> bool:
    return not os.path.lexists(path)


def _tries_again(table: Table, agent: str) -> bool:
    return [held.attempt for held in table.workspace.held(agent)] == [2]


def told(table: Table) -> list[str]:
    """Return the reasons that the leader was told, taking each message from its hands."""
    reasons = []
    table.passes(20)
    while table.workspace.held("leader"):
        held = table.hand("leader")
        assert isinstance(held.message.body, dict)
        reasons.append(str(held.message.body["failure_reason"]))
        table.workspace.delivery(held).ack()
        table.passes(20)
    return reasons


@everywhere
def test_a_file_moved_in_by_a_shell_is_delivered_whatever_its_name(lay: Lay) -> None:
    table = lay()
    (table.root / "draft").write_bytes(GOAL)
    os.rename(table.root / "draft", table.root / "queue/worker/some odd name")
    assert table.hand().message.id == ID


@everywhere
def test_a_file_dropped_straight_into_processed_is_delivered_too(lay: Lay) -> None:
    table = lay()
    (table.root / "queue/worker/processed/user_goal_1738315200123456.mime").write_bytes(GOAL)
    held = table.hand()
    assert held.message.id == ID and "~a1~l" in held.path


@everywhere
def test_a_half_written_file_in_processed_is_left_to_its_writer(lay: Lay) -> None:
    table = lay()
    path = table.root / "queue/worker/processed/goal.mime"
    path.write_bytes(GOAL[:100])
    table.passes()
    assert path.exists()
    path.write_bytes(GOAL)
    assert table.hand().message.id == ID


@everywhere
def test_what_is_no_message_is_set_aside_and_told_once(lay: Lay) -> None:
    table = lay()
    path = table.root / "queue/worker/junk.mime"
    path.write_text("junk")
    os.utime(path, (1, 1))
    table.until(lambda: table.workspace.held("leader"))
    assert len(told(table)) == 1
    table.crash()
    table.serve()
    table.passes(20)
    assert told(table) == []
    ran = ignite(table.root, "dlq")
    assert b"junk" in ran.stdout and b"NotMime" in ran.stdout


@everywhere
def test_a_missing_header_and_an_unknown_type_are_told_with_their_names(lay: Lay) -> None:
    table = lay()
    for name, data in (
        ("a.mime", GOAL.replace(b"X-IGNITE-Priority: high\n", b"")),
        ("b.mime", GOAL.replace(b"user_goal", b"user_wish").replace(b"abcdef", b"b")),
    ):
        path = table.root / "queue/worker" / name
        path.write_bytes(data)
        os.utime(path, (1, 1))
    table.until(lambda: table.workspace.held("leader"))
    reasons = " ".join(told(table) + told(table))
    assert "X-IGNITE-Priority is missing" in reasons and "user_wish" in reasons


@everywhere
def test_mail_for_nobody_is_buried_and_told(lay: Lay) -> None:
    table = lay(serve=False)
    folder = table.root / "queue/architetc"
    folder.mkdir()
    (folder / "goal.mime").write_bytes(GOAL)
    table.serve()
    table.until(lambda: table.workspace.held("leader"))
    [reason] = told(table)
    assert "no agent architetc" in reason
    entry = table.workspace.store.find("architetc", ID)
    assert entry is not None and entry.state is State.DEAD


@everywhere
def test_the_old_form_is_converted(lay: Lay) -> None:
    table = lay()
    text = 'type: user_goal\nfrom: user\nto: worker\npriority: high\npayload:\n  goal: "old"\n'
    (table.root / "queue/worker/user_goal_1.yaml").write_text(text)
    held = table.hand()
    assert held.message.body == {"goal": "old"} and held.message.priority == 6
    assert not list(table.root.glob("queue/**/*.yaml"))


def test_an_old_form_that_cannot_be_converted_is_set_aside(lay: Lay) -> None:
    table = lay(serve=False)
    path = table.root / "queue/worker/thing.yaml"
    path.write_text("just: text\n")
    os.utime(path, (1, 1))
    table.serve()
    table.until(lambda: table.workspace.held("leader"))
    assert "type, from, payload" in told(table)[0]
    assert (table.root / "state/queues/worker/corrupt/thing.yaml").exists()


def test_hostile_names_and_sizes_each_have_their_error(tmp_path: Path, lay: Lay) -> None:
    table = lay()
    for arguments, said in (
        (("--to", "../x", "--type", "user_goal", "--body", "goal: g"), b"no agent"),
        (("--to", "worker", "--type", "user_goal", "--body", "goal: g", "--thread-id", "a\nBcc: x"), b"InvalidText"),
        (("--to", "worker", "--type", "user_goal", "--body", "goal: ["), b"NotYaml"),
        (("--to", "worker", "--type", "user_goal", "--body", "goal: &a [*a]"), b"AliasNotAllowed"),
        (("--to", "worker", "--type", "user_goal", "--body", "goal: !!python/object x"), b"UnsafeTag"),
        (("--to", "worker", "--type", "user_gaol", "--body", "goal: g"), b"did you mean user_goal"),
        (("--to", "worker", "--type", "user_goal", "--body", "gaol: g"), b"goal"),
        (("--to", "worker", "--from", "stranger", "--type", "user_goal", "--body", "goal: g"), b"no agent"),
    ):
        ran = ignite(table.root, "send", *arguments)
        assert ran.returncode in (2, 3) and said in ran.stderr and b"Traceback" not in ran.stderr, (arguments, ran)
    assert table.files() == []
    big = table.root / "queue/worker/big.mime"
    with open(big, "wb") as file:
        file.write(GOAL)
        file.truncate(100 << 20)
    many = table.root / "queue/worker/many.mime"
    many.write_bytes(b"".join(b"X-%d: y\n" % n for n in range(20_000)) + GOAL)
    for path in (big, many):
        os.utime(path, (1, 1))
    table.until(lambda: table.workspace.held("leader"))
    reasons = " ".join(told(table) + told(table))
    assert "TooLarge" in reasons and "TooManyHeaders" in reasons


@everywhere
def test_what_an_agent_who_left_had_in_hand_is_buried_and_told(lay: Lay) -> None:
    table = lay()
    [sent] = table.send()
    table.hand()
    table.change("agents: {leader: {wake: hook}}")
    table.crash()
    table.serve()
    table.until(lambda: table.workspace.held("leader"))
    assert "no agent worker" in told(table)[0] and table.state(sent.id) is State.DEAD


def test_a_file_in_hand_that_was_spoilt_is_set_aside_by_the_next_monitor(lay: Lay) -> None:
    table = lay()
    table.send()
    Path(table.hand().path).write_text("spoilt")
    table.crash()
    table.serve()
    table.until(lambda: table.workspace.held("leader"))
    assert "NotMime" in told(table)[0] and table.workspace.held("worker") == []


@everywhere
def test_the_leader_is_told_however_full_its_queue_is(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook}}\nlimits: {waiting: 1}", serve=False)
    table.send("leader")
    path = table.root / "queue/worker/junk.mime"
    path.write_text("junk")
    os.utime(path, (1, 1))
    table.serve()
    table.until(lambda: sum(table.workspace.store.counts("leader").values()) == 2)


@everywhere
def test_a_name_that_is_used_again_is_another_message(lay: Lay) -> None:
    table = lay()
    path = table.root / "queue/worker/message.mime"
    for mark in (b"one", b"two", b"three"):
        path.write_bytes(GOAL.replace(b"abcdef", mark))
        held = table.hand()
        assert held.message.id.endswith(mark.decode())
        if mark == b"two":
            table.workspace.delivery(held).ack()
        else:
            os.unlink(held.path)
        table.until(lambda: table.monitor.runners["worker"].turn is None)
    assert table.files() == []


@everywhere
def test_a_name_that_is_used_again_while_the_first_is_in_hand_waits_its_turn(lay: Lay) -> None:
    table = lay()
    path = table.root / "queue/worker/message.mime"
    path.write_bytes(GOAL.replace(b"abcdef", b"one"))
    first = table.hand()
    path.write_bytes(GOAL.replace(b"abcdef", b"two"))
    table.monitor.runners["worker"].queue.sweep()  # looks at what waits, as happens every now and then
    table.workspace.delivery(first).ack()
    table.until(lambda: [held.message.id[-3:] for held in table.workspace.held("worker")] == ["two"])


@everywhere
def test_files_with_names_that_are_long_or_no_text_are_delivered_or_set_aside(lay: Lay) -> None:
    table = lay()
    names = [b"\xff\xfe", "\N{GRINNING FACE}".encode() * 62, "\N{EURO SIGN}".encode() * 83, b"x" * 250, b"a~b", b"a-b"]
    folder = os.fsencode(table.root / "queue/worker")
    for number, name in enumerate([*names, *names]):
        place = folder + b"/processed" if number >= len(names) else folder
        table.root.joinpath("draft").write_bytes(GOAL.replace(b"abcdef", b"n%d" % number))
        os.rename(table.root / "draft", place + b"/" + name[:250] + b".mime")
    for name in names:
        for number in (1, 2):  # the second has the same name as the first, which was set aside
            path = folder + b"/" + name[:248] + b".yaml"
            with open(path, "wb") as file:
                file.write(b"not: %d\n" % number)
            os.utime(path, (1, 1))
            table.until(partial(_is_gone, path))
    seen = set()
    for _ in range(2 * len(names)):
        table.until(lambda: any(held.message.id not in seen for held in table.workspace.held("worker")))
        held = table.hand()
        seen.add(held.message.id)
        table.workspace.delivery(held).ack()
    assert len(seen) == 2 * len(names)
    aside = [name for name in os.listdir(table.root / "state/queues/worker/corrupt") if not name.endswith(".why")]
    assert len(aside) == len(told(table)) == 2 * len(names)
    table.until(lambda: table.files() == [])


@everywhere
def test_a_file_for_several_agents_reaches_each_of_them_once(lay: Lay) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook}, helper: {wake: hook, count: 2}}")
    several = GOAL.replace(b"To: worker\n", b"To: worker, helper-1, nobody\nCc: helper_2\nX-Pabal-Dedup-Key: k\n")
    (table.root / "draft").write_bytes(several)
    os.rename(table.root / "draft", table.root / "queue/worker/user_goal_1738315200123456.mime")
    ids = set()
    for agent in ("worker", "helper_1", "helper_2"):
        held = table.hand(agent)
        ids.add(held.message.id)
        text = Path(held.path).read_text()
        assert "To: worker, helper-1, nobody\nCc: helper_2\n" in text and f"Delivered-To: {agent}\n" in text
        assert held.message.body == {"goal": "a README"} and held.message.priority == 6
        table.workspace.delivery(held).nack(delay=0)  # a copy that is tried again is not copied again
        table.until(partial(_tries_again, table, agent))
    assert len(ids) == 3
    table.crash()
    table.serve()
    assert ["no agent nobody" in reason for reason in told(table)] == [True]
    for agent in ("worker", "helper_1", "helper_2"):
        table.workspace.delivery(table.hand(agent)).ack()
    table.passes(20)
    assert not any(table.workspace.held(agent) for agent in table.workspace.team.agents)


@everywhere
def test_a_message_that_was_sent_to_several_agents_is_not_copied_again(lay: Lay, clock: ManualClock) -> None:
    table = lay("agents: {leader: {wake: hook}, worker: {wake: hook}}", clock=clock, serve=False)
    table.send(["worker", "leader"])
    clock.advance(86400)  # ids are not remembered that long
    table.serve()
    for agent in ("worker", "leader"):
        table.workspace.delivery(table.hand(agent)).ack()
    table.passes(20)
    assert not table.workspace.held("worker") and not table.workspace.held("leader")


def test_the_old_form_reaches_several_agents_too(lay: Lay) -> None:
    table = lay()
    text = "type: user_goal\nfrom: user\nto: [worker, leader, nobody]\npriority: high\npayload: {goal: old}\n"
    (table.root / "queue/worker/user_goal_1.yaml").write_text(text)
    assert table.hand().message.body == {"goal": "old"}
    table.until(lambda: sum(table.workspace.store.counts("leader").values()) == 2)
    bodies = []
    for _ in range(2):
        held = table.hand("leader")
        bodies.append(str(held.message.body))
        table.workspace.delivery(held).ack()
        table.passes(10)
    assert any("no agent nobody" in body for body in bodies) and "{'goal': 'old'}" in bodies
