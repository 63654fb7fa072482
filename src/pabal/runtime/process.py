"""Child processes that cannot outlive their parent and inherit nothing that is not named.

A child has a process group of its own, so that the processes it started end with it. The kernel kills it when the
thread that started it ends. It inherits only the three descriptors that it is given and the variables that are named.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TypeAlias

from pabal.errors import InvalidInput

Stream: TypeAlias = int | IO[bytes] | None

GRACE = 10.0  # seconds between SIGTERM and SIGKILL
_PR_SET_PDEATHSIG = 1
_LIMITS = {"cpu": resource.RLIMIT_CPU, "memory": resource.RLIMIT_AS, "files": resource.RLIMIT_NOFILE}


@dataclass(frozen=True, kw_only=True)
class Command:
    """What to run. It comes from the operator's configuration, never from a message."""

    argv: tuple[str, ...]
    cwd: Path = Path("/")
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: int = 0  # seconds of processor time; 0: no limit, here and below
    memory: int = 0  # bytes of address space
    files: int = 0  # open descriptors

    def __post_init__(self) -> None:
        if not self.argv or not self.argv[0].startswith("/"):
            raise InvalidInput(f"a command begins with an absolute path; found {self.argv[:1]!r:.80}")
        if not self.cwd.is_absolute():
            raise InvalidInput(f"a command runs in an absolute folder; found {str(self.cwd)!r:.80}")


class Child:
    """A running command. Start it in a thread that outlives it: the kernel kills the child when the thread ends."""

    def __init__(
        self,
        command: Command,
        *,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] = subprocess.Popen(
            command.argv,
            cwd=command.cwd,
            env=dict(command.env),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            close_fds=True,
            process_group=0,
            preexec_fn=_preparation(command),
        )
        try:
            self.fd = os.pidfd_open(self.pid)  # readable when the child has ended
        except OSError:
            self._reap()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    def status(self) -> int | None:
        """Return its exit status, a signal as a negative number; None while it runs."""
        return self.wait(0.0)

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end; None if it still runs after `timeout` seconds. The rest of its group is killed."""
        if self.process.returncode is None:
            ended = select.poll()
            ended.register(self.fd, select.POLLIN)
            if not ended.poll(None if timeout is None else max(0, -(-timeout * 1000 // 1))):
                return None
        return self._reap()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the child and the processes that it started."""
        if self.process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def stop(self, grace: float = GRACE) -> int:
        """Send SIGTERM, wait for `grace` seconds, then kill the whole group."""
        self.signal(signal.SIGTERM)
        status = self.wait(grace)
        return self._reap() if status is None else status

    def kill(self) -> int:
        """Kill the whole group at once, if it still runs; return the exit status."""
        return self._reap()

    def close(self) -> None:
        """Close the descriptor of an ended child."""
        os.close(self.fd)

    def _reap(self) -> int:
        # In this order: once the child is reaped, another group may get its number.
        self.signal(signal.SIGKILL)
        return self.process.wait()


def _preparation(command: Command) -> Callable[[], None]:
    """Return the function that runs in the child between fork and exec. It must not allocate, so all is made here."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent, kill, death = os.getpid(), ctypes.c_ulong(signal.SIGKILL), ctypes.c_int(_PR_SET_PDEATHSIG)
    limits = [(number, most) for name, number in _LIMITS.items() if (most := getattr(command, name))]

    def prepare() -> None:
        prctl(death, kill)
        if os.getppid() != parent:  # the parent died in between: nobody would ever end this child
            os._exit(1)
        for number, most in limits:
            resource.setrlimit(number, (most, most))

    return prepare
