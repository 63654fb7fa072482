"""How a command ends: the exit codes, the code of each error, and the one line that is printed for it.

A command shows no traceback for an error that a user can cause, and never the body of a message in an error.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from types import FrameType
from typing import Any, NoReturn

import click

from pabal import errors
from pabal.cli.text import clean, json_text
from pabal.errors import (
    ExtraMissing,
    Fenced,
    GroupBusy,
    InvalidConfig,
    InvalidInput,
    LeaseLost,
    MailboxFull,
    MessageUnknown,
    PabalError,
    QueueFull,
    QueueNotEmpty,
    QueueUnknown,
    Refused,
    StoreError,
    StoreFull,
    StoreMissing,
    TopicUnknown,
    Uncertain,
)

Handler = Callable[[int, FrameType | None], None]


class Exit(IntEnum):
    DONE = 0
    NOTHING = 1  # nothing to take or show, or `doctor` found something that is not repaired
    INVALID = 2
    UNKNOWN = 3
    LEASE_LOST = 4
    FULL = 5
    STORE = 6
    EXTRA = 7
    INTERRUPTED = 130
    PIPE_CLOSED = 141
    TERMINATED = 143


class NotFound(PabalError):
    """The store or message that the command names does not exist."""


class ReaderGone(Exception):
    """The reader of the output has closed it."""


class Terminated(BaseException):
    """SIGTERM came, in a command that holds leases to give back."""


# The first match counts.
_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (InvalidInput, Exit.INVALID),
    (click.ClickException, Exit.INVALID),
    (QueueUnknown, Exit.UNKNOWN),
    (TopicUnknown, Exit.UNKNOWN),
    (GroupBusy, Exit.LEASE_LOST),
    (Fenced, Exit.LEASE_LOST),
    (NotFound, Exit.UNKNOWN),
    (StoreMissing, Exit.UNKNOWN),
    (MessageUnknown, Exit.UNKNOWN),
    (LeaseLost, Exit.LEASE_LOST),
    (QueueFull, Exit.FULL),
    (QueueNotEmpty, Exit.INVALID),
    (MailboxFull, Exit.FULL),
    (StoreFull, Exit.FULL),
    (ExtraMissing, Exit.EXTRA),
    (StoreError, Exit.STORE),
    (PabalError, Exit.STORE),
    (OSError, Exit.STORE),
    (click.Abort, Exit.INTERRUPTED),
    (KeyboardInterrupt, Exit.INTERRUPTED),
    (Terminated, Exit.TERMINATED),
)


class Reported(click.Group):
    """A group whose errors become one line on stderr and an exit code of the table."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as exc:
            raise ReaderGone from exc  # click would end with 1, which means something else here
        return result

    def main(  # type: ignore[override]  # click's overloads distinguish two modes; this group has only one
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        _mend_streams()
        # The commands print what happens themselves; the library's log lines would repeat it.
        logging.getLogger("pabal").addHandler(logging.NullHandler())
        try:
            code = super().main(args, prog_name, **{**extra, "standalone_mode": False})
        except ReaderGone:
            _leave_closed_pipe()
        except (PabalError, click.ClickException, click.Abort, OSError, KeyboardInterrupt, Terminated) as exc:
            _leave(exc, as_json="--json" in (sys.argv[1:] if args is None else args))
        sys.exit(code if isinstance(code, int) else Exit.DONE)


def _mend_streams() -> None:
    """Open the null device for each closed standard stream, before a store's file takes its descriptor."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    sys.stdin = sys.stdin or open(os.devnull)
    sys.stdout = sys.stdout or open(os.devnull, "w")
    sys.stderr = sys.stderr or open(os.devnull, "w")


def complain(exc: BaseException, *, as_json: bool = False) -> Exit:
    """Print the error on stderr, as one line or as one JSON document, if it has a text; return its exit code."""
    line, code = _line_of(exc), _code_of(exc)
    if line and as_json:
        name, _, message = line.partition(": ")
        click.echo(json_text({"error": {"code": name, "message": message, "exit": int(code)}}), err=True)
    elif line:
        click.echo(f"pabal: {line}", err=True)
    return code


def _code_of(exc: BaseException) -> Exit:
    kind = type(exc)
    if isinstance(exc, Refused):  # an error that the manager reported
        kind = getattr(errors, exc.kind, kind)
    return next(code for known, code in _CODES if issubclass(kind, known))


def end_with_nothing(reason: str = "") -> NoReturn:
    """End the command with code 1: there was nothing to take or show."""
    if reason:
        click.echo(reason, err=True)
    click.get_current_context().exit(Exit.NOTHING)


@contextmanager
def on_signals(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals with `handler` inside the block."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def unwinding_on_sigterm() -> AbstractContextManager[None]:
    """Make SIGTERM unwind this command, so that it gives back its leases."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    return on_signals(end, signal.SIGTERM)


def _leave(exc: BaseException, *, as_json: bool) -> NoReturn:
    try:
        code = complain(exc, as_json=as_json)
    except BrokenPipeError:
        _leave_closed_pipe()
    sys.exit(code)


def _leave_closed_pipe() -> NoReturn:
    # What Python still has in its buffers is discarded instead of raising at exit.
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    sys.exit(Exit.PIPE_CLOSED)


def _line_of(exc: BaseException) -> str:
    if isinstance(exc, click.UsageError):
        where = exc.ctx.command_path if exc.ctx else "pabal"
        # click lists choices on lines of their own
        message = re.sub(r"\s*\n\s*", " ", exc.format_message().rstrip("."))
        return f"UsageError: {clean(message)} (see {where} --help)"
    if isinstance(exc, click.ClickException):
        return f"{type(exc).__name__}: {clean(exc.format_message())}"
    if isinstance(exc, Uncertain) and exc.ids:
        return f"{exc.code}: {clean(str(exc))}; repeat with --id {' or '.join(exc.ids[:3])}"
    if isinstance(exc, InvalidConfig):
        return f"{exc.code}: " + "\n".join(clean(line) for line in str(exc).split("\n"))  # a line for each mistake
    if isinstance(exc, PabalError):
        return f"{exc.code}: {clean(str(exc))}"
    if isinstance(exc, OSError):
        return f"{type(exc).__name__}: {clean(str(exc))}"
    return ""
