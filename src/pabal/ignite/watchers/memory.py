"""What a watcher remembers: which events became messages, where it was, since when it watches.

One file, replaced whole. An event is remembered by its key for a day beyond the last look, and an event that is older
than that is not taken for new: so forgetting never sends anything twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec
from msgspec.structs import replace

from pabal.durable import make_dirs, replace_whole, translated
from pabal.errors import StoreFailed
from pabal.ignite.watchers.contract import Event
from pabal.jsontext import Json

REMEMBERED = 86400.0  # seconds


class WatchMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a watcher. Times are seconds since the epoch."""

    initialized_at: float
    last_check: float
    processed_events: dict[str, float] = {}
    cursor: dict[str, Json] = {}

    def new(self, events: Iterable[Event]) -> list[Event]:
        """Return the events that are to be sent: not from before the beginning, not too old to tell, not sent yet."""
        oldest = max(self.initialized_at, self.last_check - REMEMBERED)
        fresh = {event.key: event for event in events if event.at >= oldest and event.key not in self.processed_events}
        return list(fresh.values())

    def after(self, events: Iterable[Event], cursor: Mapping[str, Json]) -> WatchMemory:
        """Return what is to be remembered once these events are safe."""
        sent = {event.key: event.at for event in events}
        return replace(self, processed_events=self.processed_events | sent, cursor=dict(cursor))

    def finished(self, at: float) -> WatchMemory:
        """Return what is to be remembered after a whole look that began then."""
        kept = {key: when for key, when in self.processed_events.items() if when >= at - REMEMBERED}
        return replace(self, last_check=at, processed_events=kept)


def load(path: Path, now: float) -> WatchMemory:
    """Read what a watcher remembers; one that remembers nothing begins to watch now."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=WatchMemory)
    except FileNotFoundError:
        begin = float(int(now))  # outside, time is often told in whole seconds
        return WatchMemory(initialized_at=begin, last_check=begin)
    except (OSError, msgspec.DecodeError) as exc:
        raise StoreFailed(f"{path} cannot be read ({exc}): remove it to watch from now on") from exc


def save(path: Path, memory: WatchMemory) -> None:
    """Remember durably."""
    with translated(f"writing {path}"):
        make_dirs(path.parent)
        replace_whole(path, msgspec.json.encode(memory))
