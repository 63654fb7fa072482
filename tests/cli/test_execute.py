"""`pabal consume --exec`: a command per message, settled by its exit status."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pabal.cli.exits import Exit
from tests.cli.command import Pabal
from tests.cli.test_consume import fill
from tests.waiting import until, wait_until_caught


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Make a command line that runs some Python."""

    def make(code: str) -> str:
        path = tmp_path / "command.py"
        path.write_text(code)
        return shlex.join([sys.executable, "-S", "-E", str(path)])

    return make


def test_the_command_gets_the_body_and_its_exit_status_settles(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", '{"temp": 36.5}')
    any_pabal.ok("publish", "jobs", "--bytes", stdin=b"\xff\x00raw")
    ran = any_pabal.run("consume", "jobs", "--exec", "od -An -c", "--wait", "0")
    assert ran.code == 0
    assert '"temp"'.replace('"', "").replace("temp", "t   e   m   p") in ran.out
    assert "377" in ran.out and r"\0" in ran.out
    assert ran.err.count("attempt 1: done in") == 2
    assert any_pabal.counts() == {"done": 2}


def test_the_environment_says_what_it_is(pabal: Pabal, script: Callable[[str], str]) -> None:
    pabal.ok("publish", "jobs", "1", "--id", "one", "--type", "reading")
    line = script("import os; print(*(os.environ['PABAL_' + n] for n in ('ID', 'QUEUE', 'TYPE', 'ATTEMPT', 'URL')))")
    ran = pabal.run("consume", "jobs", "--exec", line, "--count", "1")
    assert ran.out.split() == ["one", "jobs", "reading", "1", pabal.url]


def test_a_failure_is_judged_by_the_policy_with_the_last_line_of_stderr(
    any_pabal: Pabal, script: Callable[[str], str]
) -> None:
    any_pabal.ok("policy", "set", "jobs", "--set", "retry.limit=2", "--set", "retry.initialDelaySec=0.1")
    any_pabal.ok("publish", "jobs", "1", "--id", "one")
    line = script("import sys; print('first', file=sys.stderr); print('disk on fire\\n', file=sys.stderr); sys.exit(3)")
    ran = any_pabal.run("consume", "jobs", "--exec", line, "--count", "2")
    assert ran.code == 0
    assert "one attempt 1: failed, exit 3: disk on fire; again in 0.1s" in ran.err
    assert "one attempt 2: failed, exit 3: disk on fire; dead after 2 attempts" in ran.err
    assert ran.err.count("first\n") == 2, "the command's own stderr is passed on"
    [dead] = any_pabal("list-dlq", "jobs", "--json").documents
    assert (dead["failure"]["code"], dead["failure"]["reason"]) == (
        "RETRY_LIMIT",
        "attempt 2 of 2: HANDLER_ERROR: exit 3: disk on fire",
    )


def test_a_command_killed_by_a_signal_is_a_failure(pabal: Pabal, script: Callable[[str], str]) -> None:
    pabal.ok("publish", "jobs", "1", "--id", "one")
    pabal.run("consume", "jobs", "--exec", script("import os; os.kill(os.getpid(), 9)"), "--count", "1")
    [found] = pabal("peek", "jobs", "--json").documents
    assert found["failure"]["reason"] == "killed by SIGKILL"


def test_hostile_stderr_cannot_reach_the_failure_unescaped(pabal: Pabal, script: Callable[[str], str]) -> None:
    pabal.ok("publish", "jobs", "1")
    line = script("import sys; sys.stderr.buffer.write(b'\\x1b[2J\\xff' + b'x' * 5000); sys.exit(1)")
    pabal.run("consume", "jobs", "--exec", line, "--count", "1")
    [found] = pabal("peek", "jobs", "--json").documents
    assert len(found["failure"]["reason"]) < 500
    assert pabal.ok("peek", "jobs").replace("\n", "").isprintable()


def test_nothing_to_do_gives_1_and_a_drained_queue_0(pabal: Pabal) -> None:
    fill(pabal, 3)
    assert pabal.run("consume", "jobs", "--exec", "true", "--wait", "0").code == 0
    ran = pabal.run("consume", "jobs", "--exec", "true", "--wait", "0")
    assert ran.code == 1 and ran.err == "nothing to take from jobs: 0 ready, 0 delayed, 0 inflight\n"
    assert pabal.run("consume", "nojobs", "--exec", "true", "--wait", "0").code == 3


def test_count_bounds_it(pabal: Pabal) -> None:
    fill(pabal, 5)
    assert pabal.run("consume", "jobs", "--exec", "true", "--count", "2", "--concurrency", "4").code == 0
    assert pabal.counts() == {"done": 2, "ready": 3}


def test_concurrency_runs_several_at_a_time(pabal: Pabal, script: Callable[[str], str], tmp_path: Path) -> None:
    fill(pabal, 3)
    meet = script(
        f"import os, time, pathlib; p = pathlib.Path({str(tmp_path)!r}, 'here'); p.mkdir(exist_ok=True)\n"
        "(p / os.environ['PABAL_ID']).touch(); end = time.time() + 10\n"
        "while len(list(p.iterdir())) < 3 and time.time() < end: time.sleep(0.01)\n"
        "raise SystemExit(len(list(p.iterdir())) < 3)"
    )
    assert pabal.run("consume", "jobs", "--exec", meet, "--count", "3", "--concurrency", "3").code == 0
    assert pabal.counts() == {"done": 3}


def test_the_lease_is_renewed_while_the_command_runs(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    running = any_pabal.start("consume", "jobs", "--exec", "sleep 1.5", "--lease", "0.5", "--count", "1")
    until(lambda: any_pabal.counts() == {"inflight": 1})
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        assert any_pabal("consume", "jobs").code == 1
    assert running.wait(timeout=30) == 0
    assert any_pabal.counts() == {"done": 1}


def test_a_lease_lost_while_the_command_runs_is_told(any_pabal: Pabal) -> None:
    any_pabal.ok("policy", "set", "jobs", "--set", "retry.initialDelaySec=0")
    any_pabal.ok("publish", "jobs", "1", "--id", "one")
    running = any_pabal.start("consume", "jobs", "--exec", "sleep 1", "--lease", "0.6", "--count", "1")
    until(lambda: any_pabal.counts() == {"inflight": 1})
    os.kill(running.pid, signal.SIGSTOP)
    try:
        [taken] = any_pabal("consume", "jobs", "--wait", "20", "--json").documents
    finally:
        os.kill(running.pid, signal.SIGCONT)
    _, err = running.communicate(timeout=30)
    assert "one attempt 1: lease lost" in err
    assert any_pabal.counts() == {"inflight": 1}
    assert any_pabal("ack", taken["receipt"]).code == 0


def test_kill_9_of_the_consumer_brings_the_message_back(any_pabal: Pabal) -> None:
    any_pabal.ok("policy", "set", "jobs", "--set", "retry.initialDelaySec=0")
    any_pabal.ok("publish", "jobs", "1", "--id", "one")
    running = any_pabal.start("consume", "jobs", "--exec", "sleep 3", "--lease", "1", "--count", "1")
    until(lambda: any_pabal.counts() == {"inflight": 1})
    running.kill()
    running.wait()
    assert any_pabal("consume", "jobs").code == 1, "it is still leased to the one that was killed"
    [document] = any_pabal("consume", "jobs", "--wait", "20", "--json").documents
    assert (document["id"], document["attempt"]) == ("one", 2)
    assert document["failure"]["code"] == "LEASE_EXPIRED"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_lets_the_command_finish(pabal: Pabal, number: int) -> None:
    fill(pabal, 2)
    running = pabal.start("consume", "jobs", "--exec", "sleep 1")
    until(lambda: pabal.counts().get("inflight") == 1)
    time.sleep(0.2)
    os.kill(running.pid, number)
    out, err = running.communicate(timeout=30)
    assert running.returncode == 128 + number
    assert "finishing what runs" in err
    assert pabal.counts() == {"done": 1, "ready": 1}


def test_a_second_signal_gives_the_message_back_unharmed(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    running = pabal.start("consume", "jobs", "--exec", "sleep 60")
    until(lambda: pabal.counts() == {"inflight": 1})
    time.sleep(0.2)
    os.kill(running.pid, signal.SIGINT)
    time.sleep(0.2)
    os.kill(running.pid, signal.SIGINT)
    _, err = running.communicate(timeout=30)
    assert running.returncode == Exit.INTERRUPTED and "given back" in err
    assert pabal.counts() == {"ready": 1}
    assert pabal("consume", "jobs", "--json").documents[0]["attempt"] == 2, "what was given back counts"


def test_a_command_deaf_to_sigterm_is_killed_by_a_third_signal(pabal: Pabal, script: Callable[[str], str]) -> None:
    pabal.ok("publish", "jobs", "1")
    line = script(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(99)"
    )
    running = pabal.start("consume", "jobs", "--exec", line)
    assert running.stdout is not None
    running.stdout.readline()
    for _ in range(3):
        os.kill(running.pid, signal.SIGTERM)
        time.sleep(0.2)
    _, err = running.communicate(timeout=4)
    assert "given back" in err
    assert pabal.counts() == {"ready": 1}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_idle_consumer_stops_at_once(pabal: Pabal, number: int) -> None:
    running = pabal.start("consume", "jobs", "--exec", "true")
    wait_until_caught(running.pid, signal.SIGTERM)
    started = time.monotonic()
    os.kill(running.pid, number)
    assert running.wait(timeout=30) == 128 + number
    assert time.monotonic() - started < 5


def test_a_command_that_reads_nothing_is_fine_with_a_large_body(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "--text", stdin="x" * 500_000)
    assert pabal.run("consume", "jobs", "--exec", "true", "--count", "1").code == 0
    assert pabal.counts() == {"done": 1}


def test_a_child_that_lives_on_does_not_hold_the_message(pabal: Pabal, script: Callable[[str], str]) -> None:
    pabal.ok("publish", "jobs", "1")
    line = script("import subprocess; subprocess.Popen(['sleep', '20'], stdin=subprocess.DEVNULL)")
    started = time.monotonic()
    running = pabal.start("consume", "jobs", "--exec", line, "--count", "1", stdout=-3, stderr=-3)
    assert running.wait(timeout=15) == 0
    assert time.monotonic() - started < 12


def test_no_shell_sees_the_message(pabal: Pabal, tmp_path: Path) -> None:
    pabal.ok("publish", "jobs", "--text", stdin="$(touch pwned); `touch pwned`")
    ran = pabal.run("consume", "jobs", "--exec", "echo $(touch pwned) `touch pwned`; cat", "--count", "1")
    assert ran.out == "$(touch pwned) `touch pwned`; cat\n"
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize("line", ["grep a | wc", "cat > out", "cat < in", "true && true", "true ; true"])
def test_what_only_a_shell_understands_is_refused(pabal: Pabal, line: str) -> None:
    ran = pabal("consume", "jobs", "--exec", line, "--wait", "0")
    assert ran.code == Exit.INVALID and "sh -c '…'" in ran.err


@pytest.mark.parametrize("line", ["sh -c 'cat | wc -c; true'", "expr 1 '<' 2", r"find . -maxdepth 0 -exec true {} \;"])
def test_what_is_quoted_is_an_argument(pabal: Pabal, line: str) -> None:
    pabal.ok("publish", "jobs", "1")
    assert pabal.run("consume", "jobs", "--exec", line, "--wait", "0").code == 0
    assert pabal.counts() == {"done": 1}


def test_a_command_that_takes_too_long_is_ended_and_its_message_failed(
    pabal: Pabal, script: Callable[[str], str]
) -> None:
    pabal.ok("publish", "jobs", "1", "--id", "one")
    line = script("import sys, time; print('still at it', file=sys.stderr, flush=True); time.sleep(600)")
    ran = pabal.run("consume", "jobs", "--exec", line, "--count", "1", "--timeout", "0.5")
    assert ran.code == 0
    assert "one attempt 1: failed, took longer than 0.5 s: still at it; again in 1.0s" in ran.err
    [found] = pabal("peek", "jobs", "--json").documents
    assert found["failure"]["code"] == "HANDLER_TIMEOUT"


def test_a_timeout_needs_a_command(pabal: Pabal) -> None:
    ran = pabal("consume", "jobs", "--timeout", "5")
    assert ran.code == 2 and "--timeout needs --exec" in ran.err
