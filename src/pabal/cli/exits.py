"""How a command ends: the exit codes, which error gives which, and the one line that is printed for it.

A command never shows a traceback for what a user can meet, and never the body of a message in an error.
"""

from __future__ import annotations

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
from pabal.cli.text import clean
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
    NOTHING = 1  # nothing to take or show, or `doctor` found what is not mended
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
    """What the command names is not there: a store, a message."""


class ReaderGone(Exception):
    """Whoever read our output has closed it."""


class Terminated(BaseException):
    """SIGTERM came, in a command that holds something to give back."""


# The first that fits counts.
_CODES: tuple[tuple[type[BaseException], Exit], ...] = (
    (InvalidInput, Exit.INVALID),
    (click.UsageError, Exit.INVALID),
    (click.FileError, Exit.INVALID),
    (QueueUnknown, Exit.UNKNOWN),
    (TopicUnknown, Exit.UNKNOWN),
    (GroupBusy, Exit.LEASE_LOST),
    (Fenced, Exit.LEASE_LOST),
    (NotFound, Exit.UNKNOWN),
    (StoreMissing, Exit.UNKNOWN),
    (MessageUnknown, Exit.UNKNOWN),
    (LeaseLost, Exit.LEASE_LOST),
    (QueueFull, Exit.FULL),
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
    """A group whose errors end in one line on stderr and a code of the table."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError as exc:
            raise ReaderGone from exc  # click would end with 1, which means something else here
        return result

    def main(  # type: ignore[override]  # click's overloads tell two modes apart; this group has only one
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> NoReturn:
        try:
            code = super().main(args, prog_name, **{**extra, "standalone_mode": False})
        except ReaderGone:
            _leave_closed_pipe()
        except (PabalError, click.ClickException, click.Abort, OSError, KeyboardInterrupt, Terminated) as exc:
            _leave(exc)
        sys.exit(code if isinstance(code, int) else Exit.DONE)


def complain(exc: BaseException) -> Exit:
    """Print the error's one line on stderr, if it has one; return its exit code."""
    line = _line_of(exc)
    if line:
        click.echo(f"pabal: {line}", err=True)
    kind = type(exc)
    if isinstance(exc, Refused):  # the manager's word for an error of ours
        kind = getattr(errors, exc.kind, kind)
    return next(code for known, code in _CODES if issubclass(kind, known))


@contextmanager
def on_signals(handler: Handler, *numbers: signal.Signals) -> Iterator[None]:
    """Let `handler` answer these signals for a while."""
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)


def unwinding_on_sigterm() -> AbstractContextManager[None]:
    """Let SIGTERM unwind this command, so that it gives back what it holds."""

    def end(number: int, frame: FrameType | None) -> NoReturn:
        raise Terminated

    return on_signals(end, signal.SIGTERM)


def _leave(exc: BaseException) -> NoReturn:
    try:
        code = complain(exc)
    except BrokenPipeError:
        _leave_closed_pipe()
    sys.exit(code)


def _leave_closed_pipe() -> NoReturn:
    # What Python still has in its buffers goes nowhere instead of raising at exit.
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, 1)
    sys.exit(Exit.PIPE_CLOSED)


def _line_of(exc: BaseException) -> str:
    if isinstance(exc, click.UsageError):
        where = exc.ctx.command_path if exc.ctx else "pabal"
        said = re.sub(r"\s*\n\s*", " ", exc.format_message().rstrip("."))  # click lists choices on lines of their own
        return f"UsageError: {clean(said)} (see {where} --help)"
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
