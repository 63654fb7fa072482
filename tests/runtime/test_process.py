"""Children end with their parent, take nothing of its with them, and are ended with all that they started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pabal.errors import InvalidInput
from pabal.runtime.process import Child, Command

SLEEP = Command(argv=("/bin/sleep", "600"))


def shell(script: str, **settings: object) -> Command:
    return Command(argv=("/bin/sh", "-c", script), **settings)  # type: ignore[arg-type]  # fields of Command by name


def ended(pid: int, timeout: float = 10.0) -> bool:
    """Wait until a process that is not our child is gone or a zombie."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_it_tells_how_it_ended() -> None:
    child = Child(shell("exit 3"))
    assert child.wait(10) == 3
    child.close()


def test_asked_to_end_it_ends() -> None:
    child = Child(SLEEP)
    assert child.status() is None
    assert child.stop(10) == -signal.SIGTERM
    child.close()


def test_one_that_will_not_end_is_killed() -> None:
    child = Child(shell("trap '' TERM; echo; sleep 600"), stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    child.process.stdout.readline()
    assert child.stop(0.1) == -signal.SIGKILL
    child.process.stdout.close()
    child.close()


def test_what_it_started_is_ended_with_it() -> None:
    child = Child(shell("sleep 600 & echo $!; exit 0"), stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    grandchild = int(child.process.stdout.readline())
    assert child.wait(10) == 0
    assert ended(grandchild)
    child.process.stdout.close()
    child.close()


def test_a_killed_parent_takes_its_child_with_it(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pabal.runtime.process import Child, Command\n"
        "child = Child(Command(argv=('/bin/sleep', '600')))\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not ended(pid, 0.05)
        parent.kill()
        parent.wait()
        assert ended(pid)


def test_it_sees_no_descriptor_and_no_variable_of_its_parent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SECRET", "canary")
    (tmp_path / "secret").write_text("canary")
    with open(tmp_path / "secret") as secret:
        os.set_inheritable(secret.fileno(), True)
        child = Child(
            shell("env; ls /proc/self/fd | wc -l; pwd", cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "NAME": "kept"}),
            stdout=subprocess.PIPE,
        )
    assert child.process.stdout is not None
    with child.process.stdout as out:
        lines = out.read().decode().split()
    assert child.wait(10) == 0
    assert "NAME=kept" in lines and not any("canary" in line for line in lines)
    assert lines[-2:] == ["4", str(tmp_path)]  # three, and the one with which ls reads the folder
    child.close()


def test_limits_hold(tmp_path: Path) -> None:
    child = Child(shell("ulimit -n; ulimit -t", files=20, cpu=7), stdout=subprocess.PIPE)
    assert child.process.stdout is not None
    with child.process.stdout as out:
        assert out.read().split() == [b"20", b"7"]
    child.wait(10)
    child.close()


@pytest.mark.parametrize("settings", [{"argv": ("sleep",)}, {"argv": ()}, {"argv": ("/bin/ls",), "cwd": Path("here")}])
def test_a_command_without_absolute_paths_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInput, match="absolute"):
        Command(**settings)  # type: ignore[arg-type]  # wrong on purpose
