"""Which store and which topics a command works on, and the options that commands share.

`--url` and `--topics` may stand before or after the command's name; the later one counts, then PABAL_URL and
PABAL_TOPICS, then the default.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import click

from pabal.connect import Connection, TopicConnection, connect, connect_topics
from pabal.errors import PabalError, QueueUnknown, StoreDamaged, TopicUnknown
from pabal.names import check_name, did_you_mean, no_queue
from pabal.queues.queue import Queue
from pabal.topic_store import check_topic
from pabal.topics.topic import Topic

DEFAULT_URL = "sqlite:.pabal/pabal.db"
TOPICS_VARIABLE = "PABAL_TOPICS"
_URL = "pabal.url"
_TOPICS = "pabal.topics"

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def option_anywhere(key: str, *names: str, **more: Any) -> Callable[[F], F]:
    """Make an option that may stand before or after the name of a command. Its value is kept under `key`."""

    def remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
        if value is not None:
            ctx.meta[key] = value

    return click.option(*names, expose_value=False, callback=remember, **more)


def command_with(option: Callable[[F], F]) -> Callable[[str], Callable[[F], click.Command]]:
    """Return a decorator that makes a command with this option."""

    def command(name: str) -> Callable[[F], click.Command]:
        def make(function: F) -> click.Command:
            made: click.Command = click.command(name)(option(function))
            return made

        return make

    return command


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


def own_argv(*arguments: str) -> tuple[str, ...]:
    """Return the argument vector that runs `pabal` with these arguments, in the same Python."""
    return (sys.executable, "-c", "from pabal.cli.main import main; main()", *arguments)


def write_sections(formatter: click.HelpFormatter, sections: Mapping[str, Sequence[click.Command]], width: int) -> None:
    """Write the commands of a group into its help, by section."""
    for title, commands in sections.items():
        with formatter.section(title):
            formatter.write_dl([(command.name or "", command.get_short_help_str(width)) for command in commands])


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
    "--queue", metavar="QUEUE", callback=_checked, shell_complete=_complete, help="Search only this queue."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document per line.")


def current_url(ctx: click.Context | None = None) -> str:
    url: str = (ctx or click.get_current_context()).meta.get(_URL, DEFAULT_URL)
    return url


@contextmanager
def opened(
    *, create: bool = False, damaged: bool = False, consumer: str = "", ctx: click.Context | None = None
) -> Iterator[Connection]:
    """Open the store of this command. A missing store is created only if `create` is set.

    With `damaged`, open a database too whose tables cannot be read.
    """
    open = partial(connect, current_url(ctx), consumer=consumer)
    with _opened(open, create, damaged) as mq:
        yield mq


def _opened(open: Callable[..., T], create: bool, damaged: bool) -> T:
    try:
        return open(create=create)
    except StoreDamaged:
        if not damaged:
            raise
        return open(create=True)  # makes nothing where there is something


def known(mq: Connection, name: str) -> Queue:
    """Return a queue that exists; raise QueueUnknown otherwise."""
    require_known(mq, [name])
    return mq.queue(name)


def require_known(mq: Connection, queues: Iterable[str]) -> None:
    """Raise QueueUnknown if one of these queues does not exist."""
    names = dict.fromkeys(mq.queues())
    for name in queues:
        if name not in names:
            raise QueueUnknown(no_queue(name, [*names]))


def topics_option(*, envvar: str | None = None, otherwise: str = DEFAULT_URL) -> Callable[[F], F]:
    return option_anywhere(
        _TOPICS,
        "--topics",
        metavar="URL",
        envvar=envvar,
        help="Where topics are: sqlite:PATH or kafka://HOST:PORT. Else PABAL_TOPICS, else " + otherwise + ".",
    )


def _checked_topic(ctx: click.Context, param: click.Parameter, value: str) -> str:
    return check_topic(value)


def _complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with opened_topics(ctx=ctx) as topics:
            return [name for name in topics.topics() if name.startswith(incomplete)]
    except PabalError:
        return []


topic_argument = click.argument("name", metavar="NAME", callback=_checked_topic, shell_complete=_complete_topic)


def current_topics(ctx: click.Context | None = None) -> str | None:
    """Return the URL of the topics, if one was given."""
    url: str | None = (ctx or click.get_current_context()).meta.get(_TOPICS)
    return url


@contextmanager
def opened_topics(
    *, create: bool = False, damaged: bool = False, ctx: click.Context | None = None
) -> Iterator[TopicConnection]:
    """Open the topics of this command, as `opened` does the queues."""
    with _opened(partial(connect_topics, current_topics(ctx) or DEFAULT_URL), create, damaged) as topics:
        yield topics


def known_topic(topics: TopicConnection, name: str) -> Topic:
    """Return a topic that exists; raise TopicUnknown otherwise."""
    names = topics.topics()
    if name in names:
        return topics.topic(name)
    if hint := did_you_mean(name, names):
        raise TopicUnknown(f"no topic {name}; {hint}")
    raise TopicUnknown(f"no topic {name}: make it with `pabal topic create {name}`")
