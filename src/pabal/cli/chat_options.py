"""What the commands of the chat share: where topics and database are, limits, the log."""

from __future__ import annotations

import logging
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pabal.cli.values import pair, unique
from pabal.errors import ExtraMissing

if TYPE_CHECKING:
    from pabal.chat.gateway.limits import Limits

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def extra() -> Iterator[None]:
    """Import what not everybody has installed."""
    try:
        yield
    except ImportError as exc:
        raise ExtraMissing(f"the chat needs {exc.name}: pip install 'pabal[chat]'") from exc


def places_options(function: F) -> F:
    for option in (
        click.option(
            "--heartbeat",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="A file in which it counts that it is alive.",
        ),
        click.option("--name", metavar="NAME", help="Who this is among its kind. By default host and port or process."),
        click.option(
            "--db",
            required=True,
            envvar="PABAL_CHAT_DB",
            metavar="URL",
            help="The database: sqlite:PATH or postgresql://HOST/DB. Else PABAL_CHAT_DB.",
        ),
        click.option(
            "--topics",
            required=True,
            envvar="PABAL_CHAT_TOPICS",
            metavar="URL",
            help="The topics: sqlite:PATH or kafka://HOST:PORT. Else PABAL_CHAT_TOPICS.",
        ),
    ):
        function = option(function)
    return function


limit_option = click.option(
    "--limit",
    "limits",
    type=pair,
    multiple=True,
    metavar="NAME=N",
    help="Another limit than the usual, such as sends=50; may be repeated.",
)


def own_name(number: int) -> str:
    host = re.sub(r"[^A-Za-z0-9_]+", "-", socket.gethostname()).strip("-")
    return f"{host[:100] or 'host'}-{number}"


def limits_of(given: tuple[tuple[str, str], ...]) -> Limits:
    from pabal.chat.gateway.limits import with_limits

    found = unique(given, "--limit")
    for name, text in found.items():
        if not re.fullmatch(r"[0-9]{1,12}", text):
            raise click.UsageError(f"--limit {name} is a whole number; found {text!r:.40}")
    return with_limits({name: int(text) for name, text in found.items()})


def log_to_stderr() -> None:
    """Let what the library logs be seen: this is a service."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    for name in ("pabal", "uvicorn"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(logging.WARNING)
