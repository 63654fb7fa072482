"""`pabal tail`: each message once, as it comes, and nothing is taken."""

import json
import os
import signal
import subprocess

from tests.cli.command import Pabal
from tests.cli.test_consume import fill
from tests.waiting import until


def test_the_newest_are_shown_oldest_first(any_pabal: Pabal) -> None:
    ids = fill(any_pabal, 12)
    assert [line.split()[1] for line in any_pabal.ok("tail", "jobs", "-n", "3").splitlines()] == ids[-3:]
    assert len(any_pabal.ok("tail", "jobs").splitlines()) == 10
    [found] = any_pabal("tail", "jobs", "--lines", "1", "--json").documents
    assert found["id"] == ids[-1] and found["state"] == "ready"


def test_an_empty_queue_gives_1(pabal: Pabal) -> None:
    pabal.ok("policy", "set", "jobs", "--set", "retry.limit=2")
    ran = pabal("tail", "jobs")
    assert (ran.code, ran.err) == (1, "jobs holds no messages\n")
    assert pabal("tail", "nojobs", "-f").code == 3


def test_following_shows_each_message_once_and_takes_none(any_pabal: Pabal) -> None:
    before = fill(any_pabal, 3)
    following = any_pabal.start("tail", "-f", "jobs", "-n", "1", "--json")
    assert following.stdout is not None
    seen = [json.loads(following.stdout.readline())["id"]]
    assert seen == before[-1:]
    published = [any_pabal.ok("publish", "jobs", str(n), "--priority", str(n)) for n in range(5)]
    published.append(any_pabal.ok("publish", "jobs", "1", "--delay", "1h"))
    receipt = json.loads(any_pabal.ok("consume", "jobs", "--json"))["receipt"]
    any_pabal.ok("nack", receipt, "--delay", "0")
    seen = [json.loads(following.stdout.readline())["id"] for _ in published]
    assert seen == published
    last = any_pabal.ok("publish", "jobs", "last")
    assert json.loads(following.stdout.readline())["id"] == last, "what was retried is not shown again"
    os.kill(following.pid, signal.SIGINT)
    assert following.wait(timeout=30) == 130
    assert any_pabal.counts() == {"ready": 9, "delayed": 1}


def test_following_is_woken_by_the_store(pabal: Pabal) -> None:
    fill(pabal, 5)
    following = pabal.start("tail", "-f", "jobs", "-n", "1", "--json", stderr=subprocess.DEVNULL)
    assert following.stdout is not None
    following.stdout.readline()  # it has seen what is there already
    for _ in range(3):
        id = pabal.ok("publish", "jobs", "1")
        assert json.loads(following.stdout.readline())["id"] == id


def test_a_closed_pipe_ends_it(pabal: Pabal) -> None:
    fill(pabal, 1)
    following = pabal.start("tail", "-f", "jobs")
    assert following.stdout is not None and following.stderr is not None
    following.stdout.readline()
    following.stdout.close()
    pabal.ok("publish", "jobs", "1")
    until(lambda: following.poll() is not None)
    assert following.returncode == 141
    assert following.stderr.read() == ""
