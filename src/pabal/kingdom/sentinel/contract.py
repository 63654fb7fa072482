"""What a watcher is: fetch, parse, and what is to be done once the events are safe.

`fetch` gives way by `yield`: each pass of the sentinel asks for one page at most, so one slow watcher holds up nobody.
The state that `parse` returns is remembered only after the events of its page are in the queue.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from pabal.jsontext import Json
from pabal.kingdom.documents import Event

State: TypeAlias = Mapping[str, Json]


class Page(NamedTuple):
    """A part of what there is to see; `facts` are what else was learned from it."""

    items: list[Any]
    facts: State = {}


class Parsed(NamedTuple):
    """The events of a page, what is remembered after them, and what could not be understood."""

    events: list[Event]
    state: State
    problems: tuple[str, ...] = ()


class Watcher(Protocol):
    """Looks at one thing outside."""

    @property
    def interval(self) -> float:
        """Return the seconds between two looks."""
        ...

    def fetch(self, state: State, now: float) -> Iterator[Page | None]:
        """Go through what there is to see, page by page; None gives way. Raise WatchFailed if that cannot be done."""
        ...

    def parse(self, page: Page, state: State) -> Parsed:
        """Turn a page into events."""
        ...

    def post_emit(self, events: list[Event]) -> Iterator[None]:
        """Do outside what follows from the events of a whole look, once they are safe; each `yield` gives way."""
        ...
