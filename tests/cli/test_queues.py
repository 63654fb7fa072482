"""`pabal status`, `queues`, `peek`, `show`: nothing is changed by looking."""

import json
import os
import time
from contextlib import closing
from pathlib import Path

import pytest

from pabal.policy.policy import Policy, RetryPolicy
from pabal.sql.connection import connect
from tests.cli.command import Pabal
from tests.cli.test_consume import fill

STATES = ["ready", "delayed", "inflight", "dead", "done", "corrupt"]


@pytest.fixture
def busy(any_pabal: Pabal) -> Pabal:
    """A queue with one message in every state that a command can bring about."""
    for id in ("done", "dead", "inflight", "ready"):
        any_pabal.ok("publish", "jobs", f'{{"is": "{id}"}}', "--id", id)
    any_pabal.ok("publish", "jobs", "1", "--id", "delayed", "--delay", "1h")
    any_pabal.ok("consume", "jobs", "--ack")
    receipt = json.loads(any_pabal.ok("consume", "jobs", "--json"))["receipt"]
    any_pabal.ok("nack", receipt, "--bury", "--reason", "hopeless")
    any_pabal.ok("consume", "jobs")
    return any_pabal


def test_status_counts_by_state(busy: Pabal) -> None:
    busy.ok("publish", "other", "1")
    busy.ok("pause", "other")
    lines = busy.ok("status").splitlines()
    assert lines[0].split() == ["QUEUE", *(state.upper() for state in STATES), "OLDEST"]
    assert lines[1].split()[:7] == ["jobs", "1", "1", "1", "1", "1", "·"]
    assert lines[2].split()[:2] == ["other", "1"] and lines[2].endswith("paused")
    assert len(busy.ok("status", "jobs").splitlines()) == len(lines) - 1
    [document, _] = busy("status", "--json").documents
    assert list(document) == ["queue", *STATES, "oldest_ready_seconds", "paused", "fault", "store"]
    assert document["oldest_ready_seconds"] >= 0 and document["paused"] is False
    assert document["store"]


def test_looking_changes_nothing(busy: Pabal) -> None:
    before = busy("peek", "jobs", *(f"--state={state}" for state in STATES), "--json").out
    for args in (["status"], ["queues"], ["peek", "jobs"], ["show", "ready"], ["tail", "jobs"], ["list-dlq", "jobs"]):
        busy.ok(*args)
    busy.ok("reprocess", "jobs", "--all", "--dry-run")
    assert busy("peek", "jobs", *(f"--state={state}" for state in STATES), "--json").out == before


def test_queues_are_named(any_pabal: Pabal) -> None:
    for name in ("b", "a.b"):
        any_pabal.ok("publish", name, "1")
    assert any_pabal.ok("queues") == "a.b\nb"
    assert any_pabal("queues", "--json").documents == [{"queue": "a.b"}, {"queue": "b"}]


def test_peek_shows_what_waits_and_what_is_asked_for(busy: Pabal) -> None:
    rows = [line.split()[:2] for line in busy.ok("peek", "jobs").splitlines()[1:]]
    assert rows == [["ready", "ready"], ["delayed", "delayed"], ["inflight", "inflight"]]
    dead = busy.ok("peek", "jobs", "--state", "dead")
    assert "NACKED: hopeless" in dead
    ran = busy("peek", "jobs", "--state", "corrupt")
    assert (ran.code, ran.err) == (0, "nothing corrupt in jobs\n")


def test_peek_is_bounded_and_in_order(pabal: Pabal) -> None:
    ids = fill(pabal, 250)
    assert [found["id"] for found in pabal("peek", "jobs", "--json", "--limit", "230").documents] == ids[:230]
    assert len(pabal.ok("peek", "jobs").splitlines()) == 21


def test_show_finds_a_message_wherever_it_is(busy: Pabal) -> None:
    for state in STATES[:5]:
        assert json.loads(busy.ok("show", state, "--json"))["state"] == state
    page = busy.ok("show", "dead", "--queue", "jobs")
    assert "hopeless" in page and '"is": "dead"' in page
    ran = busy("show", "nobody")
    assert (ran.code, ran.err) == (3, "pabal: NotFound: no message nobody in any queue\n")
    assert busy("show", "dead", "--queue", "other").code == 3
    assert busy("show", "../x").code == 2


def test_show_has_every_attempt(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1", "--id", "m1")
    with pabal.connect() as mq:
        mq.queue("jobs").configure(Policy(retry=RetryPolicy(limit=3, initial=0)))
        for reason in ("first", "둘째", "third"):
            mq.queue("jobs").lease()[0].nack(reason=reason)
    found = json.loads(pabal.ok("show", "m1", "--json"))["failure"]
    assert [each["reason"] for each in found["before"]] == ["first", "둘째"] and found["attempt"] == 3
    lines = [line for line in pabal.ok("show", "m1").splitlines() if "reason" in line]
    assert [line.split()[0] for line in lines] == ["failure", "before", "before"]
    assert "third" in lines[0] and "둘째" in lines[1] and "first" in lines[2] and '"before"' not in lines[0]


def test_a_message_cannot_move_the_cursor(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "--text", "--type", "\u202ex", "--id", "one", stdin="\x1b[2J\x9b31m\u2028\n")
    for args in (["peek", "jobs"], ["show", "one"], ["tail", "jobs"], ["consume", "jobs"]):
        for options in ([], ["--json"]):
            if args[0] != "consume" or not options:
                assert pabal.ok(*args, *options).replace("\n", "").isprintable(), args


def test_what_could_not_be_read_is_shown_as_it_was_found(tmp_path: Path) -> None:
    pabal = Pabal(f"file:{tmp_path / 'spool'}", tmp_path)
    pabal.ok("publish", "jobs", "1")
    broken = tmp_path / "spool" / "jobs" / "ready" / "broken.json"
    broken.write_text("{not json")
    os.utime(broken, (time.time() - 10, time.time() - 10))
    pabal.ok("consume", "jobs", "--count", "0", "--ack")
    [found] = pabal("peek", "jobs", "--state", "corrupt", "--json").documents
    assert found["data"] == "e25vdCBqc29u"
    assert found["body"] is None and found["failure"]["reason"]
    assert "9 bytes" in pabal.ok("peek", "jobs", "--state", "corrupt")


def test_a_list_shows_the_beginning_of_a_long_body(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "--bytes", "--id", "raw", stdin=b"\xef" * 500_000)
    pabal.ok("publish", "jobs", "--text", "--id", "text", stdin="x" * 500_000)
    for command in ("peek", "tail"):
        lines = [line for line in pabal.ok(command, "jobs").splitlines() if "raw" in line or "text" in line]
        assert len(lines) == 2 and all(len(line) < 300 and line.endswith("…") for line in lines)
        assert sum(len(document["body"]) for document in pabal(command, "jobs", "--json").documents) > 1_000_000


def test_consumers_shows_who_holds_what(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    any_pabal.ok("publish", "jobs", "2")
    assert any_pabal("consumers").err == "no consumers in the last hour\n"
    ran = any_pabal.run("consume", "jobs", "--consumer", "worker-7")
    assert ran.code == 0
    pid = any_pabal.start("consume", "jobs", "--json")
    pid.communicate(timeout=30)
    found = {each["consumer"]: each for each in any_pabal("consumers", "--json").documents}
    own = next(name for name in found if name != "worker-7")
    assert own.endswith(f"-{pid.pid}") and found[own]["pid"] == pid.pid and found[own]["host"]
    assert [(held["queue"], held["messages"]) for held in found["worker-7"]["holds"]] == [("jobs", 1)]
    assert found[own]["since"] <= found[own]["seen"] and found[own]["holds"][0]["since"] >= found[own]["since"]
    lines = any_pabal.ok("consumers", "jobs").splitlines()
    assert lines[0].split() == ["CONSUMER", "HOST", "PID", "SEEN", "HOLDS", "SINCE", "QUEUE"] and len(lines) == 3
    metrics = any_pabal.ok("metrics")
    assert "\npabal_consumers 2\n" in metrics and f'pabal_consumer_messages{{consumer="{own}"' in metrics
    [document] = [
        each for each in json.loads(any_pabal.ok("metrics", "--json"))["consumers"] if each["consumer"] == own
    ]
    assert document["holds"]["jobs"]["messages"] == 1 and document["holds"]["jobs"]["seconds"] >= 0
    any_pabal.ok("publish", "other", "1")
    assert any_pabal("consumers", "other").err == "nobody holds messages of other\n"
    assert any_pabal("consumers", "nothing").code == 3
    before = sorted(str(path) for path in any_pabal.place.rglob("*"))
    any_pabal.ok("consumers")
    assert sorted(str(path) for path in any_pabal.place.rglob("*")) == before


def test_a_holder_that_is_in_no_register_is_shown_as_not_known(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    any_pabal.ok("consume", "jobs")
    for register in any_pabal.place.rglob("*consumers"):
        for file in register.iterdir():
            file.write_text("damaged")
    [document] = any_pabal("consumers", "--json").documents
    assert document["consumer"] is None and document["holds"][0]["messages"] == 1
    assert "(not known)" in any_pabal.ok("consumers")


def test_a_queue_is_created_and_deleted(any_pabal: Pabal) -> None:
    assert any_pabal("delete-queue", "jobs").code == 3
    assert any_pabal.ok("create-queue", "jobs") == "created jobs"
    assert any_pabal.ok("create-queue", "jobs") == "jobs is there already" and any_pabal.ok("queues") == "jobs"
    fill(any_pabal, 3)
    any_pabal.ok("consume", "jobs")
    refused = any_pabal("delete-queue", "jobs")
    assert refused.code == 2 and "jobs has messages (2 ready, 1 inflight)" in refused.err
    assert any_pabal.counts() == {"ready": 2, "inflight": 1}
    assert any_pabal("delete-queue", "jobs", "--force", "--json").documents == [
        {"queue": "jobs", "deleted": True, "removed": 3}
    ]
    assert any_pabal.ok("queues") == "" and any_pabal("delete-queue", "jobs").code == 3
    assert any_pabal("doctor").code == 0
    any_pabal.ok("publish", "jobs", "1")
    assert any_pabal.ok("queues") == "jobs"


# Damage to one message or queue


def _harm(pabal: Pabal, statement: str) -> None:
    with closing(connect(pabal.place / "store.db")) as connection:
        connection.execute(statement).fetchall()


@pytest.mark.parametrize("value", ["'x'", "x'41'", "1e15", "-1e300", "9e999"])
def test_a_damaged_time_of_one_message_ends_no_command(pabal: Pabal, value: str) -> None:
    pabal.ok("publish", "jobs", "1", "--id", "a")
    pabal.ok("publish", "other", "2", "--id", "b")
    _harm(pabal, f"update messages set due_at = {value} where id = 'a'")
    for args in (
        ["peek", "jobs"],
        ["status"],
        ["metrics"],
        ["show", "a"],
        ["tail", "jobs"],
        ["tail", "jobs", "--json"],
    ):
        pabal.ok(*args)
    assert "other" in pabal.ok("status")


@pytest.mark.parametrize("name", ["j/bs", "", "..", "j bs"])
def test_a_queue_with_a_damaged_name_ends_no_command(pabal: Pabal, name: str) -> None:
    pabal.ok("publish", "jobs", "1")
    pabal.ok("publish", "empty", "1")
    pabal.ok("consume", "empty", "--ack")
    pabal.ok("purge", "empty", "--state", "done", "--yes")
    pabal.ok("publish", "other", "2")
    for queue in ("jobs", "empty"):
        _harm(
            pabal, f"update queues set name = '{name}' || substr(name, 1, {queue == 'empty':d}) where name = '{queue}'"
        )
        for args in (["status"], ["metrics"], ["queues"], ["check"]):
            assert "other" in pabal.ok(*args) or args == ["check"]


@pytest.mark.parametrize("at", [1e300, -1e300, 1e15])
def test_a_damaged_time_of_a_failure_ends_no_command(tmp_path: Path, at: float) -> None:
    pabal = Pabal(f"file:{tmp_path / 'spool'}", tmp_path)
    pabal.ok("publish", "jobs", "1", "--id", "a")
    receipt = pabal("consume", "jobs", "--json").documents[0]["receipt"]
    pabal.ok("nack", receipt, "--reason", "no", "--bury")
    [why] = (tmp_path / "spool/jobs/dead").glob("*.why")
    why.write_text(json.dumps({"code": "X", "reason": "y", "at": at}))
    for args in ("list-dlq jobs", "list-dlq jobs --json", "show a", "show a --json", "status"):
        pabal.ok(*args.split())
