"""The watcher contract: a watcher looks at something outside and yields what is new, step by step.

A watcher stores nothing and sends nothing. The loop makes the events of a step safe, then remembers the cursor of that
step, and only then asks the watcher for the next step. Two things follow:

- A watcher that is killed looks again at everything that was not made safe.
- The code after a `yield` runs only when the events of that step are safe. A watcher that must acknowledge events
  outside, such as marking notifications as read, does it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from pabal.jsontext import Json

E = TypeVar("E")


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happened outside, as a team's watchers report it: it becomes a message of this type.

    `key` identifies the event, `at` is when it happened, in seconds since the epoch.
    """

    key: str
    type: str
    body: dict[str, Any]
    at: float
    to: str = ""  # the recipient; by default the one that the watcher's settings name
    priority: str = "normal"
    thread_id: str = ""
    repository: str = ""
    issue: str = ""


class Found(NamedTuple, Generic[E]):
    """One step of a look: new events, the cursor to continue from, and items that could not be understood."""

    events: tuple[E, ...]
    cursor: Mapping[str, Json]
    problems: tuple[str, ...] = ()


class Look(NamedTuple):
    """The input of one look: the time, when it began to watch, when its last look ended, and its cursor."""

    now: float
    since: float
    last: float
    cursor: Mapping[str, Json]


class Watcher(Protocol[E]):
    """Looks at one thing outside."""

    def poll(self, look: Look) -> Iterable[Found[E] | None]:
        """Look once. `None` means that the watcher waits, so that the loop sleeps until something wakes it.

        Raise WatchFailed if looking is not possible now; the steps that were yielded before still count.
        """
        ...
