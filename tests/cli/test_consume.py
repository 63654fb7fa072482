"""`pabal consume`: what is printed, what is held, what comes back."""

import json
import os
import signal
import subprocess
import time

from tests.cli.command import Pabal
from tests.waiting import wait_until_caught

KEYS = (
    "queue id receipt attempt failure body body_encoding type version sender target attributes headers priority group "
    "dedup_key unique thread_id trace_id reply_to created_at expires_at"
).split()


def fill(pabal: Pabal, count: int, queue: str = "jobs") -> list[str]:
    with pabal.connect() as mq:
        return [found.id for found in mq.queue(queue).publish_many([{"n": n} for n in range(count)])]


def test_it_prints_message_and_receipt_for_people(any_pabal: Pabal) -> None:
    id = any_pabal.ok("publish", "jobs", '{"temp": 36.5}', "--type", "reading")
    lines = dict(line.split(None, 1) for line in any_pabal.ok("consume", "jobs").splitlines())
    assert lines["id"] == id
    assert lines["receipt"].startswith(f"jobs/{id}/")
    assert (lines["attempt"], lines["type"], lines["body"]) == ("1", "reading", '{"temp":36.5}')
    assert any_pabal.counts() == {"inflight": 1}


def test_json_has_the_documented_keys(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", '{"temp": 36.5}')
    [document] = pabal("consume", "jobs", "--json").documents
    assert list(document) == KEYS
    assert document["failure"] is None and document["created_at"].endswith("Z")


def test_the_failure_before_is_told(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    receipt = json.loads(pabal.ok("consume", "jobs", "--json"))["receipt"]
    pabal.ok("nack", receipt, "--delay", "0", "--reason", "no\x1b[2Jsuch file")
    shown = pabal.ok("consume", "jobs")
    assert r"before   NACKED: no\x1b[2Jsuch file" in shown


def test_count_and_ack(any_pabal: Pabal) -> None:
    ids = fill(any_pabal, 5)
    ran = any_pabal("consume", "jobs", "--count", "3", "--ack", "--json")
    assert [document["id"] for document in ran.documents] == ids[:3]
    assert any_pabal.counts() == {"done": 3, "ready": 2}
    assert len(any_pabal("consume", "jobs", "--count", "0", "--ack", "--json").documents) == 2
    assert any_pabal("consume", "jobs", "--ack").code == 1


def test_more_than_one_batch_comes_in_order(pabal: Pabal) -> None:
    ids = fill(pabal, 250)
    ran = pabal("consume", "jobs", "--count", "0", "--ack", "--json")
    assert [document["id"] for document in ran.documents] == ids


def test_several_messages_are_set_apart_by_a_blank_line(pabal: Pabal) -> None:
    fill(pabal, 2)
    assert pabal.ok("consume", "jobs", "--count", "2").count("\n\nid ") == 1


def test_nothing_gives_1_and_says_why(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1", "--delay", "1h")
    ran = pabal("consume", "jobs")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "nothing to take from jobs: 0 ready, 1 delayed, 0 inflight; next in 1h\n"
    pabal.ok("pause", "jobs")
    assert pabal("consume", "jobs").err == "jobs is paused; pabal resume jobs, unless it was moved to another store\n"


def test_an_unknown_queue_gives_3_unless_it_is_waited_for(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    ran = pabal("consume", "job")
    assert (ran.code, ran.err) == (3, "pabal: QueueUnknown: no queue job; did you mean jobs?\n")
    assert pabal("consume", "job", "--wait", "0.05").code == 1


def test_waiting_is_ended_by_a_publish_in_another_process(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "other", "1")
    waiting = any_pabal.start("consume", "jobs", "--wait", "60", "--json", "--ack")
    time.sleep(0.5)
    id = any_pabal.ok("publish", "jobs", "1")
    out, _ = waiting.communicate(timeout=30)
    assert waiting.returncode == 0
    assert json.loads(out)["id"] == id


def test_a_consumer_may_start_before_there_is_a_store(pabal: Pabal) -> None:
    waiting = pabal.start("consume", "jobs", "--wait", "forever", "--json")
    time.sleep(0.5)
    id = pabal.ok("publish", "jobs", "1")
    out, _ = waiting.communicate(timeout=30)
    assert json.loads(out)["id"] == id


def test_a_lease_that_runs_out_brings_the_message_back(any_pabal: Pabal) -> None:
    any_pabal.ok("policy", "set", "jobs", "--set", "retry.initialDelaySec=0")
    any_pabal.ok("publish", "jobs", "1")
    any_pabal.ok("consume", "jobs", "--lease", "0.2")
    [document] = any_pabal("consume", "jobs", "--wait", "10", "--json").documents
    assert (document["attempt"], document["failure"]["code"]) == (2, "LEASE_EXPIRED")


def test_a_message_addressed_to_somebody_is_theirs_alone(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1", "--target", "ann")
    assert any_pabal("consume", "jobs").code == 1
    assert any_pabal("consume", "jobs", "--consumer", "bob").code == 1
    assert any_pabal("consume", "jobs", "--consumer", "ann").code == 0


def test_two_consumers_at_once_share_the_messages(any_pabal: Pabal) -> None:
    ids = fill(any_pabal, 400)
    args = ("consume", "jobs", "--count", "0", "--ack", "--json", "--wait", "0.5")
    consumers = [any_pabal.start(*args, stderr=subprocess.DEVNULL) for _ in range(2)]
    taken = [json.loads(line)["id"] for each in consumers for line in each.communicate(timeout=60)[0].splitlines()]
    assert sorted(taken) == sorted(ids)
    assert any_pabal.counts() == {"done": 400}


def test_a_pipe_closed_early_loses_nothing_and_shows_no_traceback(pabal: Pabal) -> None:
    fill(pabal, 1000)
    process = pabal.start("consume", "jobs", "--count", "0", "--ack", "--json", "--wait", "0")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=30) == 141
    assert process.stderr.read() == ""
    counts = pabal.counts()
    assert "inflight" not in counts, "what could not be printed is given back"
    assert counts["ready"] + counts.get("done", 0) == 1000


def test_a_full_device_is_an_error_and_the_message_comes_back(pabal: Pabal) -> None:
    fill(pabal, 1)
    with open("/dev/full", "w") as full:
        ran = pabal.run("consume", "jobs", "--ack", stdout=full)
    assert ran.code == 6
    assert ran.err.startswith("pabal: OSError: ") and ran.err.count("\n") == 1
    assert pabal.counts() == {"ready": 1}


def test_ctrl_c_and_sigterm_end_a_wait_quietly(pabal: Pabal) -> None:
    pabal.ok("publish", "other", "1")
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        waiting = pabal.start("consume", "jobs", "--wait", "forever")
        wait_until_caught(waiting.pid, signal.SIGTERM)
        os.kill(waiting.pid, number)
        _, err = waiting.communicate(timeout=30)
        assert waiting.returncode == code
        assert err.strip() == ""


def test_options_that_make_no_sense_together_are_refused(pabal: Pabal) -> None:
    for args in (
        ["--concurrency", "2"],
        ["--exec", "true", "--ack"],
        ["--exec", "true", "--json"],
        ["--exec", "no-such-program-anywhere"],
        ["--exec", "'"],
        ["--exec", ""],
        ["--exec", "true", "--concurrency", "0"],
        ["--lease", "0"],
        ["--count", "-1"],
        ["--wait", "soon"],
    ):
        ran = pabal("consume", "jobs", *args)
        assert ran.code == 2 and "UsageError" in ran.err, args
    assert pabal("consume", "jobs", "--consumer", "a b", "--wait", "0.01").code == 2
