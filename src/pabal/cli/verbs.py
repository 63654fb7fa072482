"""The verbs that the command line has twice: `pabal VERB` on a store, and `pabal mq VERB` through a mailbox.

Each verb is one row of a table (`Verb`) in the module of its group, with both forms side by side. This module has what
the rows share: the options that mean the same in both forms, and the request of a `pabal mq` verb from its options to
its answer.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from pabal.cli import values
from pabal.cli.session import json_option, option_anywhere
from pabal.cli.text import ago, clean, json_text, table
from pabal.connect import connect, parse_url
from pabal.errors import Refused
from pabal.names import no_queue

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACES = (Path("ipc"), Path(".pabal/ipc"))
TIMEOUT = 30_000  # milliseconds
_KEY = "pabal.mq."
_CREATES = ("publish", "create_queue")  # commands that make a missing store

Document = dict[str, Any]


class Verb(NamedTuple):
    """A verb in its two forms; None where it has only one."""

    pabal: click.Command | None = None
    mq: click.Command | None = None


# Options and output that are the same in both forms.

target_option = click.option("--target", default="", metavar="NAME", help="Only the consumer of this name may take it.")
reason_option = click.option("--reason", default="", metavar="TEXT", help="Why, kept with the message.")
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def check_may_ask(verb: str) -> None:
    """Raise UsageError if no terminal can confirm a removal."""
    if not sys.stdin.isatty():
        raise click.UsageError(f"{verb} removes messages for good: give --yes")


def paused_line(queue: str, paused: bool) -> str:
    return f"{queue} is {'paused' if paused else 'running'}"


def extended_line(message: str, seconds: float) -> str:
    return f"extended {message} by {seconds:g}s from now"


def count_cells(counts: Mapping[str, int], states: Sequence[str]) -> list[str]:
    """Return the counts of these states for a table, with a dot for zero."""
    return [str(counts[state] or "·") for state in states]


class DeadLetter(NamedTuple):
    """A dead message as both forms of `list-dlq` show it."""

    key: str
    attempt: int
    at: float  # 0: unknown
    code: str
    reason: str


def dead_letter_lines(head: str, found: Sequence[DeadLetter]) -> list[str]:
    rows = [
        [clean(each.key), str(each.attempt), ago(each.at) if each.at else "", clean(each.code), clean(each.reason)]
        for each in found
    ]
    return table((head, "TRIES", "WHEN", "CODE", "REASON"), rows, right=" r")


# The form of `pabal mq`.

key_needed = click.option("--message-key", required=True, metavar="KEY", help="Which message: msg:<queue>:<id>.")
queue_needed = click.option("--queue", required=True, metavar="QUEUE", help="Which queue.")


class Answerer(Protocol):
    """Answers requests: the manager of a mailbox, or a store used directly."""

    def ask(self, command: str, payload: Mapping[str, Any] | None = None, *, timeout: float = ...) -> Any: ...

    def ask_many(
        self, command: str, payloads: Sequence[Mapping[str, Any]], *, timeout: float = ...
    ) -> list[Any | Refused]: ...


def _given(name: str, default: Any = None) -> Any:
    return click.get_current_context().meta.get(f"{_KEY}{name}", default)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that may stand before or after the verb; the later one counts."""
    options = (
        option_anywhere(
            _KEY + "ipc_root",
            "--ipc-root",
            type=click.Path(file_okay=False, readable=False, path_type=Path),  # clients may not list it
            metavar="DIR",
            help="The mailbox. By default ./ipc if it is there, else .pabal/ipc.",
        ),
        option_anywhere(
            _KEY + "timeout",
            "--timeout",
            type=values.answer_timeout,
            metavar="MS",
            help=f"How long to wait for an answer: milliseconds, or like 30s. By default {TIMEOUT}.",
        ),
        option_anywhere(
            _KEY + "client_id",
            "--client-id",
            metavar="NAME",
            help="The name of this client. By default a name made from the process id.",
        ),
        option_anywhere(
            _KEY + "direct",
            "--url",
            "direct",
            metavar="URL",
            help="Ask this store itself, without a manager.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def mq_verb(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a verb of `pabal mq`, with the shared options and `--json`."""

    def make(function: Callable[..., Any]) -> click.Command:
        made: click.Command = click.command(name)(function)
        made.params += click.command()(shared_options(json_option(lambda: None))).params  # below its own in the help
        return made

    return make


def mq_request(
    name: str, command: str, line: Callable[[Document, Document], str]
) -> Callable[[Callable[..., Document]], click.Command]:
    """Make a verb of `pabal mq` that sends one request and prints one line.

    The function returns the payload of the request from the options; `line` gets the answer and the options.
    """

    def make(payload_of: Callable[..., Document]) -> click.Command:
        @wraps(payload_of)
        def run(as_json: bool, **options: Any) -> None:
            data = ask(command, payload_of(**options))
            click.echo(json_text(data) if as_json else line(data, options))

        return mq_verb(name)(run)

    return make


def client_id() -> str:
    """Return the name of this client."""
    name: str = _given("client_id", f"mq-{os.getpid()}")
    return name


def answer_timeout() -> float:
    """Return the seconds that an answer may take."""
    milliseconds: int = _given("timeout", TIMEOUT)
    return milliseconds / 1000


@contextmanager
def _answerer(*, create: bool) -> Iterator[Answerer]:
    """Open the mailbox or the store that the options name. A missing store is created only if `create` is set."""
    url = _given("direct")
    if url is not None:
        from pabal.mailbox.direct import DirectMailbox

        place = parse_url(url)[1]
        with connect(url, create=create) as mq:
            yield DirectMailbox(mq, client_id(), archive=place.with_name(f"{place.name}.archive"))
        return
    from pabal.mailbox.client import Mailbox

    root = mailbox_root()
    with closing(Mailbox(root, client_id(), timeout=answer_timeout())) as mailbox:
        if _unserved(root):
            click.echo(
                f"no manager serves {root}: waiting {answer_timeout():g} s for `pabal up` to start one", err=True
            )
        yield mailbox


def _unserved(root: Path) -> bool:
    """Return whether the manager is gone, by the text of its lock: trying the lock could keep one from starting."""
    try:
        found = re.match(r"pid (\d+)", (root / ".lock").read_text())
        if found is not None:
            os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # another user's: unknown
    return found is None  # the manager emptied the file when it ended


def mailbox_root() -> Path:
    """Return the mailbox that the options name, or the usual one."""
    given: Path | None = _given("ipc_root")
    return given if given is not None else next((path for path in PLACES if path.is_dir()), PLACES[-1])


def ask(command: str, payload: Mapping[str, Any] | None = None) -> Any:
    """Send one request and return the data of the answer."""
    with _answerer(create=command in _CREATES) as mailbox:
        return mailbox.ask(command, payload or {}, timeout=answer_timeout())


def ask_many(command: str, payloads: Sequence[Mapping[str, Any]]) -> list[Any | Refused]:
    """Send requests of one kind together; return the data or the refusal of each."""
    with _answerer(create=command in _CREATES) as mailbox:
        return mailbox.ask_many(command, payloads, timeout=answer_timeout())


def missing(queue: str) -> str:
    """Return an error text with the queue that may be meant if this queue is not there; empty if it is."""
    names = ask("queues")["queues"]
    return "" if queue in names else no_queue(queue, names)
