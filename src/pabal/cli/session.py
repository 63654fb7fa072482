"""Which store a command works on, and the options that every command shares.

`--url` is taken before or after the command's name; the later one counts, then PABAL_URL, then the default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches

import click

from pabal.cli.anywhere import F, command_with, option_anywhere
from pabal.connect import Connection, connect
from pabal.errors import PabalError, QueueUnknown
from pabal.names import check_name
from pabal.queue import Queue

DEFAULT_URL = "sqlite:.pabal/pabal.db"
_URL = "pabal.url"


def url_option(*, envvar: str | None = None) -> Callable[[F], F]:
    return option_anywhere(
        _URL,
        "--url",
        metavar="URL",
        envvar=envvar,
        help="The store: sqlite:PATH, file:DIR, hybrid:DIR or postgresql://HOST/DB. Else PABAL_URL, else "
        + DEFAULT_URL
        + ".",
    )


def help_if_alone(ctx: click.Context) -> None:
    """Print the help of a group that was named without one of its commands."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _checked(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    return value if value is None else check_name(value)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with opened(ctx=ctx) as mq:
            return [name for name in mq.queues() if name.startswith(incomplete)]
    except PabalError:
        return []


command = command_with(url_option())


queue_argument = click.argument("queue", metavar="QUEUE", callback=_checked, shell_complete=_complete)
some_queue_argument = click.argument(
    "queue", metavar="[QUEUE]", required=False, callback=_checked, shell_complete=_complete
)
queue_option = click.option(
    "--queue", metavar="QUEUE", callback=_checked, shell_complete=_complete, help="Look in this queue only."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line.")


def current_url(ctx: click.Context | None = None) -> str:
    url: str = (ctx or click.get_current_context()).meta.get(_URL, DEFAULT_URL)
    return url


@contextmanager
def opened(*, create: bool = False, consumer: str = "", ctx: click.Context | None = None) -> Iterator[Connection]:
    """Open the store of this command. One that is not there is made only if asked for, never by looking."""
    with connect(current_url(ctx), consumer=consumer, create=create) as mq:
        yield mq


def known(mq: Connection, name: str) -> Queue:
    """Return a queue that is there."""
    names = mq.queues()
    if name in names:
        return mq.queue(name)
    raise QueueUnknown(no_queue(name, names))


def no_queue(name: str, names: Sequence[str]) -> str:
    """Say that a queue is not there, and which one may be meant."""
    near = get_close_matches(name, names, n=1)
    if near:
        return f"no queue {name}; did you mean {near[0]}?"
    listed = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"no queue {name}; there are {listed}" if names else f"no queue {name}; the store is empty"
