"""`pabal list-dlq`, `reprocess`, `purge`: what is dead is listed, revived, removed."""

import json
import os
import pty
import subprocess

import pytest

from pabal.policy.policy import Policy
from tests.cli.command import COMMAND, Pabal
from tests.cli.test_consume import fill

REASONS = ["no such file", "no such file", "disk on fire"]


@pytest.fixture
def dead(any_pabal: Pabal) -> Pabal:
    for number, reason in enumerate(REASONS):
        any_pabal.ok("publish", "jobs", str(number), "--id", f"m{number}")
        receipt = json.loads(any_pabal.ok("consume", "jobs", "--json"))["receipt"]
        any_pabal.ok("nack", receipt, "--bury", "--reason", reason)
    return any_pabal


def test_the_dead_are_listed_and_counted_by_reason(dead: Pabal) -> None:
    lines = dead.ok("list-dlq", "jobs").splitlines()
    assert lines[0].split() == ["ID", "TRIES", "WHEN", "CODE", "REASON"]
    assert sorted(line.split()[0] for line in lines[1:4]) == ["m0", "m1", "m2"]
    assert all("NACKED" in line and " ago" in line for line in lines[1:4])
    assert [line.strip() for line in lines[-3:]] == ["3 dead", "2  NACKED: no such file", "1  NACKED: disk on fire"]


def test_a_limited_list_still_counts_all(dead: Pabal) -> None:
    lines = dead.ok("list-dlq", "jobs", "--limit", "1").splitlines()
    assert lines[3] == "3 dead, 1 shown"
    assert len(dead("list-dlq", "jobs", "--limit", "2", "--json").documents) == 2


def test_none_dead_gives_1(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    assert (pabal("list-dlq", "jobs").code, pabal("list-dlq", "jobs", "--json").code) == (0, 0)
    assert pabal("reprocess", "jobs", "--all").code == 1
    assert pabal("list-dlq", "nojobs").code == 3


def test_one_is_reprocessed_with_its_attempts_counted_anew(dead: Pabal) -> None:
    assert dead.ok("reprocess", "jobs", "m1") == "m1"
    assert dead.counts() == {"dead": 2, "ready": 1}
    assert json.loads(dead.ok("consume", "jobs", "--json"))["attempt"] == 1


@pytest.mark.parametrize(("reason", "ids"), [("nacked", "m0 m1 m2"), ("Such File", "m0 m1"), ("fire", "m2")])
def test_they_are_chosen_by_code_or_by_words_of_the_reason(dead: Pabal, reason: str, ids: str) -> None:
    assert sorted(dead.ok("reprocess", "jobs", "--reason", reason).split()) == ids.split()
    assert dead.counts()["ready"] == len(ids.split())


def test_a_dry_run_only_lists(dead: Pabal) -> None:
    ran = dead("reprocess", "jobs", "--all", "--dry-run", "--json")
    assert sorted(found["id"] for found in ran.documents) == ["m0", "m1", "m2"]
    assert not any(found["reprocessed"] for found in ran.documents)
    assert dead.counts() == {"dead": 3}
    assert dead("reprocess", "jobs", "--reason", "nobody").code == 1


def test_all_are_reprocessed_in_slices(pabal: Pabal) -> None:
    fill(pabal, 250)
    with pabal.connect() as mq:
        for delivery in mq.queue("jobs").lease(250):
            delivery.bury("gone")
    assert len(pabal.ok("reprocess", "jobs", "--all").splitlines()) == 250
    assert pabal.counts() == {"ready": 250}


def test_what_is_not_dead_cannot_be_reprocessed(dead: Pabal) -> None:
    dead.ok("publish", "jobs", "1", "--id", "alive")
    ran = dead("reprocess", "jobs", "m1", "alive")
    assert (ran.code, ran.err) == (3, "pabal: NotFound: no dead message alive in jobs: it is ready\n")
    assert dead("reprocess", "jobs", "nobody").code == 3
    assert dead.counts() == {"dead": 3, "ready": 1}


def test_reprocess_wants_exactly_one_choice(pabal: Pabal) -> None:
    for args in ([], ["m1", "--all"], ["--all", "--reason", "x"]):
        ran = pabal("reprocess", "jobs", *args)
        assert (ran.code, ran.err.split(":")[1]) == (2, " UsageError")


def test_purge_removes_for_good(dead: Pabal) -> None:
    assert dead.ok("purge", "jobs", "--state", "dead", "--older-than", "7d", "--yes") == "removed 0 dead from jobs"
    assert dead.ok("purge", "jobs", "--state", "dead", "--yes") == "removed 3 dead from jobs"
    assert dead.counts() == {}


def test_purge_asks_first(pabal: Pabal) -> None:
    fill(pabal, 2)
    ran = pabal.run("purge", "jobs", "--state", "ready")
    assert (ran.code, ran.err.split(":")[1]) == (2, " UsageError")
    for answer, left in ((b"n\n", {"ready": 2}), (b"y\n", {})):
        leader, follower = pty.openpty()
        try:
            os.write(leader, answer)
            done = subprocess.run(
                [*COMMAND, "purge", "jobs", "--state", "ready"],
                stdin=follower,
                capture_output=True,
                env=pabal.env,
                timeout=30,
            )
        finally:
            os.close(leader)
            os.close(follower)
        assert b"Remove all 2 ready messages of jobs?" in done.stdout
        assert pabal.counts() == left


def test_purge_without_a_state_lists_them_on_one_line(pabal: Pabal) -> None:
    assert "Choose from: ready, delayed, dead, done, corrupt (see" in pabal("purge", "jobs").err


def test_what_is_in_flight_is_never_purged(pabal: Pabal) -> None:
    assert pabal("purge", "jobs", "--state", "inflight", "--yes").code == 2
    assert pabal("purge", "jobs", "--yes").code == 2


def _editor(pabal: Pabal, monkeypatch: pytest.MonkeyPatch, script: str, program: str = "sed -i") -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", f"{program} {script}")
    monkeypatch.setenv("TMPDIR", str(pabal.place))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_a_dead_message_is_edited_and_published_again(any_pabal: Pabal, monkeypatch: pytest.MonkeyPatch) -> None:
    pabal = any_pabal
    pabal.ok("publish", "jobs", '{"n": "wrong"}', "--id", "m1", "--dedup-key", "k")
    with pabal.connect() as mq:
        for delivery in mq.queue("jobs").lease():
            delivery.bury("bad")
    _editor(pabal, monkeypatch, "s/nothing/else/")
    assert pabal.ok("edit-dlq", "jobs", "m1") == "not changed: nothing done"
    _editor(pabal, monkeypatch, "s/}/]/")
    ran = pabal("edit-dlq", "jobs", "m1")
    assert ran.code == 2 and "your text is kept in" in ran.err
    assert pabal.counts() == {"dead": 1}
    _editor(pabal, monkeypatch, "s/wrong/right/")
    (done,) = pabal("edit-dlq", "jobs", "m1", "--json").documents
    assert done["edited"].startswith("m1-")
    assert pabal.counts() == {"ready": 1}
    (found,) = pabal("peek", "jobs", "--json").documents
    assert found["body"] == {"n": "right"} and found["id"] == done["edited"]
    assert pabal("edit-dlq", "jobs", "m1").code == 3


def test_an_editor_that_fails_is_named_and_nothing_is_changed(pabal: Pabal, monkeypatch: pytest.MonkeyPatch) -> None:
    pabal.ok("publish", "jobs", '{"n": "wrong"}', "--id", "m1")
    with pabal.connect() as mq:
        for delivery in mq.queue("jobs").lease():
            delivery.bury("bad")
        mq.queue("jobs").publish("another")
        mq.queue("jobs").configure(Policy(max_waiting=1))
    for program in ("false", "/no/such/editor"):
        _editor(pabal, monkeypatch, "", program)
        ran = pabal("edit-dlq", "jobs", "m1")
        assert ran.code == 2 and program in ran.err and "Nothing was changed" in ran.err, ran
    _editor(pabal, monkeypatch, "", "rm")
    assert pabal.ok("edit-dlq", "jobs", "m1") == "not changed: nothing done"
    assert list(pabal.place.glob("pabal-*")) == []
    writes = pabal.place / "writes"
    writes.write_text("#!/bin/sh\necho half a text > $1; exit 1\n")
    writes.chmod(0o700)
    _editor(pabal, monkeypatch, "", str(writes))
    ran = pabal("edit-dlq", "jobs", "m1")
    assert ran.code == 2 and "your text is kept in" in ran.err
    _editor(pabal, monkeypatch, "s/wrong/right/")
    ran = pabal("edit-dlq", "jobs", "m1")
    assert ran.code == 5 and "your text is kept in" in ran.err and "QueueFull" in ran.err, ran
    assert pabal.counts() == {"ready": 1, "dead": 1} and len(list(pabal.place.glob("pabal-*"))) == 2


def test_they_go_to_another_queue_with_their_ids_and_at_a_rate(dead: Pabal) -> None:
    assert dead("reprocess", "jobs", "--all", "--to", "nowhere").code == 3
    with dead.connect() as mq:
        mq.queue("slow").create()
    assert dead("reprocess", "jobs", "--all", "--to", "slow", "--dry-run").err == "3 would be ready again in slow\n"
    ran = dead("reprocess", "jobs", "--reason", "Such File", "--to", "slow", "--rate", "1000", "--json")
    assert sorted((found["queue"], found["id"]) for found in ran.documents) == [("slow", "m0"), ("slow", "m1")]
    assert dead.counts() == {"dead": 1}
    with dead.connect() as mq:
        mq.queue("slow").publish("another", id="m2")
        ran = dead("reprocess", "jobs", "m2", "--to", "slow")
        assert ran.code == 1 and "m2 stays dead: slow has or had another message of this id" in ran.err
        assert sorted(delivery.message.id for delivery in mq.queue("slow").lease(9)) == ["m0", "m1", "m2"]
