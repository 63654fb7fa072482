"""The loop sleeps until woken or due, finishes what it began, and looks hung when it hangs."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from pabal.clock import SystemClock
from pabal.runtime.heartbeat import Heartbeat, read_pulse
from pabal.runtime.service import LONGEST_SLEEP, Service
from pabal.runtime.wake import FdWatch
from pabal.testing import ManualClock
from tests.waiting import until


class Counting:
    """A task that counts its steps and stops the service after some."""

    def __init__(self, due: float | None = None, most: int = 1) -> None:
        self.due = due
        self.steps = 0
        self.most = most
        self.service: Service | None = None

    def step(self) -> None:
        self.steps += 1
        if self.steps >= self.most and self.service is not None:
            self.service.stop()

    def next_due(self) -> float | None:
        return self.due


class Sleeper:
    """A watch that writes down how long it was asked to sleep, and does not."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    def wait(self, timeout: float) -> bool:
        self.slept.append(timeout)
        return False

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass


def served(task: Counting, watch: Sleeper, heartbeat: Heartbeat | None = None) -> None:
    service = Service(watch, task, heartbeat=heartbeat)
    task.service = service
    service.run()


def test_it_sleeps_until_the_next_thing_is_due() -> None:
    watch = Sleeper()
    served(Counting(due=0.25, most=3), watch)
    assert watch.slept == [0.25, 0.25]


def test_with_nothing_due_it_still_comes_round_for_its_heartbeat() -> None:
    watch = Sleeper()
    served(Counting(due=None, most=2), watch)
    assert watch.slept == [LONGEST_SLEEP]


def test_what_is_overdue_is_done_without_sleep() -> None:
    watch = Sleeper()
    served(Counting(due=-3.0, most=2), watch)
    assert watch.slept == [0.0]


def test_it_is_woken_from_its_sleep_by_another_thread() -> None:
    watch = FdWatch()
    task = Counting(due=None, most=10**9)
    service = Service(watch, task)
    threading.Timer(0.05, service.stop).start()
    began = time.monotonic()
    service.run()
    assert time.monotonic() - began < LONGEST_SLEEP / 2
    assert task.steps == 1
    watch.close()


def test_a_signal_is_answered_between_two_passes_and_sigterm_ends_it() -> None:
    watch = FdWatch()
    told: list[str] = []

    class Raising(Counting):
        def step(self) -> None:
            super().step()
            number = signal.SIGHUP if self.steps == 1 else signal.SIGTERM
            os.kill(os.getpid(), number)
            time.sleep(0)  # the handler runs here, inside the step
            told.append(f"step {self.steps}")

    service = Service(watch, Raising(most=10))
    before = signal.getsignal(signal.SIGHUP)
    with service.on_signals({signal.SIGHUP: lambda: told.append("reload")}):
        service.run()
    assert told == ["step 1", "reload", "step 2"]
    assert signal.getsignal(signal.SIGHUP) == before
    watch.close()


def test_a_loop_that_finishes_passes_is_well(tmp_path: Path) -> None:
    clock = ManualClock()
    heartbeat = Heartbeat(tmp_path / "beat", "manager", clock)
    heartbeat.passed()
    clock.advance(3)
    pulse = read_pulse(tmp_path / "beat", clock)
    assert (pulse.state, pulse.silent) == ("ok", 3.0)
    assert pulse.beat is not None and pulse.beat.pid == os.getpid() and pulse.beat.passes == 1


def test_a_loop_that_finishes_none_looks_hung_though_its_process_lives(tmp_path: Path) -> None:
    clock = ManualClock()
    heartbeat = Heartbeat(tmp_path / "beat", "manager", clock)
    heartbeat.passed()
    clock.advance(31)
    assert read_pulse(tmp_path / "beat", clock).state == "hung"
    heartbeat.passed()
    assert read_pulse(tmp_path / "beat", clock).state == "ok"


def test_a_process_that_was_stopped_hangs_at_once(tmp_path: Path) -> None:
    script = "import sys; from pathlib import Path; from pabal.clock import SystemClock\n"
    script += "from pabal.runtime.heartbeat import Heartbeat\n"
    script += "Heartbeat(Path(sys.argv[1]), 'manager', SystemClock()).passed(); print(1, flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", script, str(tmp_path / "beat")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"1\n"
        assert read_pulse(tmp_path / "beat", SystemClock()).state == "ok"
        os.kill(process.pid, signal.SIGSTOP)
        until(lambda: read_pulse(tmp_path / "beat", SystemClock()).state == "hung")
        os.kill(process.pid, signal.SIGCONT)
        until(lambda: read_pulse(tmp_path / "beat", SystemClock()).state == "ok")


def test_beats_are_written_at_most_once_a_second(tmp_path: Path) -> None:
    clock = ManualClock()
    heartbeat = Heartbeat(tmp_path / "beat", "manager", clock)
    heartbeat.passed()
    before = (tmp_path / "beat").stat().st_ino
    heartbeat.passed()
    assert (tmp_path / "beat").stat().st_ino == before


def test_a_loop_of_another_boot_or_a_dead_process_is_gone(tmp_path: Path) -> None:
    clock = ManualClock()
    Heartbeat(tmp_path / "beat", "manager", clock).passed()
    clock.reboot()
    assert read_pulse(tmp_path / "beat", clock).state == "gone"
    assert read_pulse(tmp_path / "nowhere", clock).state == "gone"
    child = os.fork()
    if child == 0:
        Heartbeat(tmp_path / "theirs", "manager", SystemClock()).passed()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_pulse(tmp_path / "theirs", SystemClock()).state == "gone"


def test_a_loop_that_ends_on_purpose_takes_its_heartbeat_away(tmp_path: Path) -> None:
    clock = ManualClock()
    served(Counting(most=1), Sleeper(), Heartbeat(tmp_path / "beat", "manager", clock))
    assert not (tmp_path / "beat").exists()
