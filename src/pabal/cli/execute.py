"""Runs a command on each message and settles the message by the exit status, for `pabal consume --exec`.

If the command cannot be started, the message is not at fault: it is given back unchanged.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from types import FrameType
from typing import IO

import click

from pabal import jsontext
from pabal.cli.exits import on_signals
from pabal.cli.text import clean, span
from pabal.cli.values import FOREVER
from pabal.errors import LeaseLost
from pabal.message import Message
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.queues.worker import worker
from pabal.runtime.grace import GRACE_SECONDS
from pabal.store import FailureCode, State

GRACE = 30.0  # seconds that running commands get after the first signal
_KILL_AFTER = 5.0  # seconds between SIGTERM and SIGKILL
_LOOK = 0.2  # seconds between two looks whether a command still runs
_LINE = 64 << 10
_REASON = 400
_OPERATORS = frozenset({"|", "||", "&", "&&", ";", "<", ">", ">>", "2>"})


def command_line(text: str) -> list[str]:
    """Split a command as a shell would, and make sure that it can be run."""
    try:
        argv = shlex.split(text)
    except ValueError as exc:
        raise click.UsageError(f"--exec: {exc}") from exc
    if not argv or shutil.which(argv[0]) is None:
        raise click.UsageError(f"--exec: no program {argv[0] if argv else ''!r} to run")
    written = text.split()  # here quoted words still have their quotes
    for word in argv:
        if word in _OPERATORS and word in written:
            raise click.UsageError(
                f"--exec: no shell runs this, so {word} is a mere argument: write sh -c '…', or '{word}' if you mean it"
            )
    return argv


class Execution:
    """One command over the messages of one queue."""

    def __init__(
        self,
        queue: Queue,
        argv: Sequence[str],
        url: str,
        *,
        concurrency: int,
        seconds: float | None,
        timeout: float | None = None,
    ) -> None:
        self._queue = queue
        self._argv = list(argv)
        self._timeout = timeout
        self._url = url
        self._worker = worker(queue, self._handle, concurrency=concurrency, visibility=seconds)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._abandoned = False
        self._taken = 0
        self._returned = threading.Event()
        self.signalled: int | None = None  # the signal that ended it

    def run(self, *, wait: float, count: float) -> int:
        """Work until idle for `wait` seconds, `count` messages or a signal; return how many were taken."""
        with on_signals(self._stop, signal.SIGINT, signal.SIGTERM):
            # No limit: the last commands run as long as they need, and after a signal our own timers end them.
            try:
                self._worker.run(
                    wait=None if wait == FOREVER else wait,
                    count=None if count == FOREVER else int(count),
                    grace=threading.TIMEOUT_MAX,
                )
            finally:
                self._returned.set()
        return self._taken

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._worker.stop()
        if self.signalled is not None:
            self._abandon()
            return
        self.signalled = number
        if self._running:
            os.write(2, b"pabal: finishing what runs; once more to end it and give its messages back\n")
        _later(GRACE, self._abandon)
        threading.Thread(target=self._end_without_store, args=[128 + number], daemon=True).start()

    def _end_without_store(self, status: int) -> None:
        """End the process when no command runs any more and the store does not return, as a hung server may not.

        Messages in hand come back to the queue when their leases run out.
        """
        since = time.monotonic()
        while time.monotonic() - since < GRACE_SECONDS:
            if self._returned.wait(_LOOK):
                return
            if self._running:
                since = time.monotonic()
        os.write(2, b"pabal: stopped without the store, which does not answer; nothing is lost\n")
        os._exit(status)

    def _abandon(self) -> None:
        """End the running commands, with SIGKILL if SIGTERM was sent before."""
        number = signal.SIGKILL if self._abandoned else signal.SIGTERM
        if not self._abandoned:
            self._abandoned = True
            _later(_KILL_AFTER, self._abandon)
        for process in list(self._running):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)

    def _handle(self, delivery: Delivery) -> None:
        self._taken += 1
        started = time.monotonic()
        try:
            self._settle(delivery, *self._run(delivery), span(time.monotonic() - started))
        except LeaseLost:
            self._print(delivery, "lease lost while it ran; somebody else has it now")

    def _settle(self, delivery: Delivery, status: int, last: str, took: str) -> None:
        if status == 0:
            delivery.ack()
            self._print(delivery, f"done in {took}")
        elif self._abandoned or status == _NOT_STARTED:
            delivery.release()
            self._print(delivery, f"given back: {last or 'stopped'}")
        else:
            ending = f"took longer than {self._timeout:g} s" if status == _TIMED_OUT else _ending(status)
            reason = f"{ending}: {last}" if last else ending
            code = FailureCode.HANDLER_TIMEOUT if status == _TIMED_OUT else FailureCode.HANDLER_ERROR
            delivery.fail(code, reason)
            self._print(delivery, f"failed, {reason}; {self._next_state(delivery)}")

    def _run(self, delivery: Delivery) -> tuple[int, str]:
        with TemporaryFile() as stdin:
            stdin.write(body_bytes(delivery.message))
            stdin.seek(0)
            try:
                # A process group of its own, so that Ctrl-C does not reach the command and it may finish.
                process = subprocess.Popen(
                    self._argv, stdin=stdin, stderr=subprocess.PIPE, env=self._environment(delivery), process_group=0
                )
            except OSError as exc:
                self._worker.stop()
                return _NOT_STARTED, f"cannot run {self._argv[0]}: {exc.strerror}"
        return self._follow(process)

    def _follow(self, process: subprocess.Popen[bytes]) -> tuple[int, str]:
        assert process.stderr is not None
        last: list[str] = []
        reader = threading.Thread(target=_pass_on, args=(process.stderr, last), daemon=True)
        reader.start()
        self._running.add(process)
        try:
            if self._abandoned:
                self._abandon()  # it started between the signal and here
            status = self._wait(process)
        finally:
            self._running.discard(process)
        reader.join(timeout=1.0)  # a grandchild may keep stderr open for ever
        return status, last[-1] if last else ""

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Wait until a command ends; after the timeout end it and all processes that it started."""
        with suppress(subprocess.TimeoutExpired):
            return process.wait(self._timeout)
        for number, seconds in ((signal.SIGTERM, _KILL_AFTER), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        return _TIMED_OUT

    def _environment(self, delivery: Delivery) -> dict[str, str]:
        message = delivery.message
        return {
            **os.environ,
            "PABAL_URL": self._url,
            "PABAL_QUEUE": delivery.queue,
            "PABAL_ID": message.id,
            "PABAL_TYPE": message.type,
            "PABAL_ATTEMPT": str(delivery.attempt),
        }

    def _next_state(self, delivery: Delivery) -> str:
        entry = self._queue.find(delivery.message.id)
        if entry is None or entry.state is State.DONE:
            return "dropped"
        if entry.state is State.DEAD:
            return f"dead after {delivery.attempt} attempts" if delivery.attempt > 1 else "dead"
        away = entry.due_at - time.time()
        return f"again in {span(away)}" if away > 0 else "again at once"

    def _print(self, delivery: Delivery, text: str) -> None:
        with self._lock:
            click.echo(f"{delivery.message.id} attempt {delivery.attempt}: {clean(text)}", err=True)


_NOT_STARTED, _TIMED_OUT = 1 << 16, 1 << 17


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()


def body_bytes(message: Message) -> bytes:
    """Return what a command gets on stdin: bytes as they are, any other body as JSON and a newline."""
    return message.body if isinstance(message.body, bytes) else jsontext.encode(message.body) + b"\n"


def _ending(status: int) -> str:
    if status > 0:
        return f"exit {status}"
    known = {each.value: each.name for each in signal.Signals}
    return f"killed by {known.get(-status, f'signal {-status}')}"


def _pass_on(stderr: IO[bytes], last: list[str]) -> None:
    """Copy a command's stderr to ours and keep its last line that is not empty."""
    with stderr:
        while data := stderr.readline(_LINE):
            sys.stderr.buffer.write(data)
            sys.stderr.buffer.flush()
            if text := data.decode(errors="replace").strip():
                last[:] = [text[:_REASON]]
