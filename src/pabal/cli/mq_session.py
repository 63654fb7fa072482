"""Whom `pabal mq` asks: the manager of a mailbox, or a store itself; and the options that all its verbs share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from pabal.cli.anywhere import option_anywhere
from pabal.cli.session import json_option, no_queue
from pabal.connect import connect, parse_url

if TYPE_CHECKING:
    from collections.abc import Mapping

PLACES = (Path("ipc"), Path(".pabal/ipc"))
TIMEOUT = 30_000  # milliseconds
_KEY = "pabal.mq."

Document = dict[str, Any]

queue_needed = click.option("--queue", required=True, metavar="QUEUE", help="Which queue.")


class Asked(Protocol):
    """Who answers."""

    def ask(self, command: str, payload: Mapping[str, Any] | None = None, *, timeout: float = ...) -> Any: ...


def _said(name: str, default: Any = None) -> Any:
    return click.get_current_context().meta.get(f"{_KEY}{name}", default)


def shared_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that may stand before or after the verb; the later one counts."""
    options = (
        option_anywhere(
            _KEY + "ipc_root",
            "--ipc-root",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="The mailbox. By default ./ipc if it is there, else .pabal/ipc.",
        ),
        option_anywhere(
            _KEY + "timeout",
            "--timeout",
            type=click.IntRange(min=1),
            metavar="MS",
            help=f"How long to wait for an answer, in milliseconds. By default {TIMEOUT}.",
        ),
        option_anywhere(
            _KEY + "client_id",
            "--client-id",
            metavar="NAME",
            help="Who asks. By default a name made from the process id.",
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


def verb(name: str) -> Callable[[Callable[..., Any]], click.Command]:
    """Make a verb that takes the shared options and `--json`."""

    def make(function: Callable[..., Any]) -> click.Command:
        made: click.Command = click.command(name)(function)
        made.params += click.command()(shared_options(json_option(lambda: None))).params  # below its own in the help
        return made

    return make


def client_id() -> str:
    """Return who asks."""
    name: str = _said("client_id", f"mq-{os.getpid()}")
    return name


def timeout() -> float:
    """Return the seconds that an answer may take."""
    milliseconds: int = _said("timeout", TIMEOUT)
    return milliseconds / 1000


@contextmanager
def asked() -> Iterator[Asked]:
    """Open what the options name."""
    url = _said("direct")
    if url is not None:
        from pabal.mailbox.direct import DirectMailbox

        place = parse_url(url)[1]
        with connect(url) as mq:
            yield DirectMailbox(mq, client_id(), archive=place.with_name(f"{place.name}.archive"))
        return
    from pabal.mailbox.client import Mailbox

    root = mailbox_root()
    with closing(Mailbox(root, client_id(), timeout=timeout())) as mailbox:
        if _unserved(root):
            click.echo(f"no manager serves {root}: waiting {timeout():g} s for `pabal up` to start one", err=True)
        yield mailbox


def _unserved(root: Path) -> bool:
    """Say whether the manager is gone, by what its lock says: trying the lock could keep one from starting."""
    try:
        found = re.match(r"pid (\d+)", (root / ".lock").read_text())
        if found is not None:
            os.kill(int(found[1]), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # not ours to know
    return found is None  # it emptied the file when it ended


def mailbox_root() -> Path:
    """Return the mailbox that is meant."""
    given: Path | None = _said("ipc_root")
    return given if given is not None else next((path for path in PLACES if path.is_dir()), PLACES[-1])


def ask(command: str, payload: Mapping[str, Any] | None = None) -> Any:
    """Ask one thing and return the data of the answer."""
    with asked() as mailbox:
        return mailbox.ask(command, payload or {}, timeout=timeout())


def missing(queue: str) -> str:
    """Say that a queue is not there, and which one may be meant; empty if it is there."""
    names = ask("queues")["queues"]
    return "" if queue in names else no_queue(queue, names)
