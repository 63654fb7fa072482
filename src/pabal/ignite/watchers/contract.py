"""The watcher contract: look for what is new, say under which key it is known, say where to go on.

A watcher keeps nothing and sends nothing. It yields what it found in steps; after each step the events are made
messages, and only when those are safe is the step's cursor remembered. So a watcher that is killed looks again at what
was not sent, and what was sent already is known by its key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from pabal.jsontext import Json


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something that happened, known by its key, at an instant of its own; it becomes a message of this type."""

    key: str
    type: str
    body: dict[str, Any]
    at: float
    to: str = ""  # else whom the watcher's settings name
    priority: str = "normal"
    thread_id: str = ""
    repository: str = ""
    issue: str = ""


class Found(NamedTuple):
    """A step: what happened, and where to go on once that is safe."""

    events: tuple[Event, ...]
    cursor: Mapping[str, Json]


class Look(NamedTuple):
    """What a watcher is told: the time, since when it watches, when it last finished looking, where it was."""

    now: float
    since: float
    last: float
    cursor: Mapping[str, Json]


class Watcher(Protocol):
    """Something that can look."""

    def poll(self, look: Look) -> Iterable[Found]:
        """Look once. Raise WatchFailed if that is not possible now; what was yielded before counts."""
        ...
