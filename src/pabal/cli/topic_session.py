"""Which topics a command works on: `--topics` before or after its name, then PABAL_TOPICS, then the default."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches

import click

from pabal.appending import Topic
from pabal.cli.anywhere import F, option_anywhere
from pabal.cli.session import DEFAULT_URL
from pabal.connect_topics import TopicConnection, connect_topics
from pabal.errors import PabalError, TopicUnknown
from pabal.topic_limits import check_topic

_TOPICS = "pabal.topics"


def topics_option(*, envvar: str | None = None) -> Callable[[F], F]:
    return option_anywhere(
        _TOPICS,
        "--topics",
        metavar="URL",
        envvar=envvar,
        help="Where topics are: sqlite:PATH or kafka://HOST:PORT. Else PABAL_TOPICS, else " + DEFAULT_URL + ".",
    )


def _checked(ctx: click.Context, param: click.Parameter, value: str) -> str:
    return check_topic(value)


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    try:
        with opened_topics(ctx=ctx) as topics:
            return [name for name in topics.topics() if name.startswith(incomplete)]
    except PabalError:
        return []


topic_argument = click.argument("name", metavar="NAME", callback=_checked, shell_complete=_complete)


@contextmanager
def opened_topics(*, create: bool = False, ctx: click.Context | None = None) -> Iterator[TopicConnection]:
    """Open the topics of this command. A file that is not there is made only if asked for."""
    url: str = (ctx or click.get_current_context()).meta.get(_TOPICS, DEFAULT_URL)
    with connect_topics(url, create=create) as topics:
        yield topics


def known_topic(topics: TopicConnection, name: str) -> Topic:
    """Return a topic that is there."""
    names = topics.topics()
    if name in names:
        return topics.topic(name)
    near = get_close_matches(name, names, n=1)
    if near:
        raise TopicUnknown(f"no topic {name}; did you mean {near[0]}?")
    raise TopicUnknown(f"no topic {name}: make it with `pabal topic create {name}`")
