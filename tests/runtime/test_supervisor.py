"""Children are kept running, with growing pauses while they fail."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.runtime.process import Command
from pabal.runtime.supervisor import FIRST_PAUSE, LONGEST_PAUSE, STEADY, Supervisor
from pabal.runtime.wake import FdWatch
from pabal.testing import ManualClock
from tests.waiting import wait_until_caught

SLEEP = Command(argv=("/bin/sleep", "600"))
FALSE = Command(argv=("/bin/false",))


@pytest.fixture
def watch() -> Iterator[FdWatch]:
    found = FdWatch()
    yield found
    found.close()


def wait_for_end(supervisor: Supervisor, watch: FdWatch) -> None:
    """Step until the only child has ended."""
    while supervisor.states()[0].pid is not None:
        watch.wait(5)
        supervisor.step()


def test_a_child_that_is_killed_is_started_again_and_its_end_wakes_the_loop(watch: FdWatch) -> None:
    clock = ManualClock()
    supervisor = Supervisor({"worker": SLEEP}, clock=clock, watch=watch)
    supervisor.step()
    [before] = supervisor.states()
    assert before.pid is not None and supervisor.next_due() is None
    os.kill(before.pid, signal.SIGKILL)
    began = time.monotonic()
    assert watch.wait(30) and time.monotonic() - began < 10
    supervisor.step()
    [down] = supervisor.states()
    assert (down.pid, down.status, down.restarts) == (None, -signal.SIGKILL, 1)
    assert supervisor.next_due() == FIRST_PAUSE
    clock.advance(FIRST_PAUSE)
    supervisor.step()
    [after] = supervisor.states()
    assert after.pid not in (None, before.pid)
    supervisor.stop()
    assert supervisor.states()[0].status == -signal.SIGTERM


def test_pauses_grow_while_it_fails_and_end_somewhere(watch: FdWatch) -> None:
    clock = ManualClock()
    supervisor = Supervisor({"broken": FALSE}, clock=clock, watch=watch)
    pauses = []
    for _ in range(9):
        supervisor.step()
        wait_for_end(supervisor, watch)
        due = supervisor.next_due()
        assert due is not None
        pauses.append(due)
        clock.advance(due)
    assert pauses[:3] == [0.5, 1.0, 2.0] and pauses[-1] == LONGEST_PAUSE


def test_one_that_ran_well_for_a_while_is_started_again_soon(watch: FdWatch) -> None:
    clock = ManualClock()
    supervisor = Supervisor({"worker": SLEEP}, clock=clock, watch=watch)
    for _ in range(3):
        supervisor.step()
        clock.advance(STEADY)
        pid = supervisor.states()[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_for_end(supervisor, watch)
        assert supervisor.next_due() == FIRST_PAUSE
        clock.advance(FIRST_PAUSE)


def test_a_program_that_is_not_there_is_tried_again_later(watch: FdWatch) -> None:
    clock = ManualClock()
    supervisor = Supervisor({"typo": Command(argv=("/bin/no-such-program",))}, clock=clock, watch=watch)
    supervisor.step()
    assert supervisor.states()[0].pid is None and supervisor.next_due() == FIRST_PAUSE


def test_all_are_stopped_at_once(watch: FdWatch) -> None:
    stubborn = Command(argv=("/bin/sh", "-c", "trap '' TERM; while true; do sleep 600; done"))
    clock = ManualClock()
    supervisor = Supervisor(dict.fromkeys("abc", stubborn), clock=clock, watch=watch)
    supervisor.step()
    for state in supervisor.states():
        wait_until_caught(state.pid, signal.SIGTERM)
    supervisor.stop(0.1)
    assert [state.pid for state in supervisor.states()] == [None] * 3


def test_restart_does_not_wait(watch: FdWatch) -> None:
    clock = ManualClock()
    supervisor = Supervisor({"worker": SLEEP}, clock=clock, watch=watch)
    supervisor.step()
    before = supervisor.states()[0].pid
    supervisor.restart("worker")
    supervisor.step()
    assert supervisor.states()[0].pid not in (None, before)
    supervisor.stop()


def test_one_that_fails_too_often_in_a_row_is_given_up_unless_it_is_forgiven(watch: FdWatch) -> None:
    clock = ManualClock()
    supervisor = Supervisor({"broken": FALSE}, clock=clock, watch=watch, most=1)
    for _ in range(2):
        supervisor.step()
        wait_for_end(supervisor, watch)
        clock.advance(LONGEST_PAUSE)
    supervisor.step()
    [given_up] = supervisor.states()
    assert (given_up.pid, given_up.due, given_up.restarts) == (None, None, 2)
    assert supervisor.next_due() is None
    supervisor.forgive("broken")
    supervisor.step()
    assert supervisor.states()[0].pid is not None
    supervisor.stop()


def test_the_output_of_each_child_is_appended_to_its_file(watch: FdWatch, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("before\n")
    commands = {name: Command(argv=("/bin/sh", "-c", f"echo {name}; echo error >&2; exit 1")) for name in "ab"}
    supervisor = Supervisor(commands, clock=ManualClock(), watch=watch, output=lambda name: tmp_path / name)
    supervisor.step()
    while any(state.pid is not None for state in supervisor.states()):
        watch.wait(5)
        supervisor.step()
    assert (tmp_path / "a").read_text() == "before\na\nerror\n"
    assert (tmp_path / "b").read_text() == "b\nerror\n"


def test_a_child_whose_output_cannot_be_written_is_tried_again_later(watch: FdWatch, tmp_path: Path) -> None:
    supervisor = Supervisor({"a": SLEEP}, clock=ManualClock(), watch=watch, output=lambda name: tmp_path / "no" / name)
    supervisor.step()
    assert supervisor.next_due() == FIRST_PAUSE and supervisor.states()[0].pid is None
