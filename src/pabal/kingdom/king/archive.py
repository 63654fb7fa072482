"""Where events lie when all is over: `queue/events/completed/`, or the queue `events.completed` of another store.

An archive move is outside the states of the queue and may be repeated: it is made after the result was acknowledged,
and made good at start for every event whose result was.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from pabal import durable, jsontext
from pabal.errors import InvalidInput
from pabal.kingdom.codec import KingdomCodec
from pabal.kingdom.home import Home
from pabal.kingdom.layout import COMPLETED, EVENTS, RESULTS
from pabal.message import Message
from pabal.store import Entry, State

COMPLETED_QUEUE = "events.completed"


class Archive:
    """Moves events that are over. `reasons` says for each id why nothing came of it, or nothing."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._move = self._by_file if home.on_files else self._by_queue

    def complete(self, reasons: Mapping[str, str]) -> None:
        """Archive these events; those that are not among the dispatched are left alone."""
        if reasons:
            self._move(reasons)

    def catch_up(self) -> int:
        """Archive what should be already: events that were discarded, and those whose result was acknowledged."""
        over = {
            entry.id: entry.failure.reason if entry.failure else ""
            for entry in self._home.queue(EVENTS).entries(State.DONE)
        }
        waiting = {id for id, reason in over.items() if not reason}
        if waiting:
            ended = {_event_of(entry) for entry in self._home.queue(RESULTS).entries(State.DONE)}
            over = {id: reason for id, reason in over.items() if reason or id in ended}
        self.complete(over)
        return len(over)

    def _by_file(self, reasons: Mapping[str, str]) -> None:
        home = self._home.root
        source, target = home / "queue/events/dispatched", home / COMPLETED
        found: dict[str, bytes] = {}
        for name in os.listdir(source):
            id = name.partition("~")[0].removesuffix(".json")
            if id in reasons and not name.endswith(".why"):
                found[id] = (source / name).read_bytes()
        for entry in self._done(reasons.keys() - found.keys()):  # whoever moved it in gave it another name
            if entry.message is not None:
                found[entry.id] = KingdomCodec().encode(entry.message)
        for id, data in found.items():
            durable.replace_whole(target / f"{id}.json", _ended(data, reasons[id]))
        self._forget(found)

    def _by_queue(self, reasons: Mapping[str, str]) -> None:
        found = self._done(reasons)
        messages = [_completed(entry.message, reasons[entry.id]) for entry in found if entry.message]
        if messages:
            self._home.queue(COMPLETED_QUEUE).publish_many(messages)
            self._forget([entry.id for entry in found])

    def _done(self, ids: Iterable[str]) -> list[Entry]:
        entries = (self._home.queue(EVENTS).find(id) for id in ids)
        return [entry for entry in entries if entry is not None and entry.state is State.DONE]

    def _forget(self, ids: Collection[str]) -> None:
        """Let the store forget events: what it remembers of an id goes with the message."""
        if ids:
            self._home.store.purge(EVENTS, State.DONE, ids=list(ids), limit=len(ids))


def _event_of(entry: Entry) -> str:
    body: Any = entry.message.body if entry.message else {}
    return str(body.get("event_id", "")) if isinstance(body, dict) else ""


def _ended(data: bytes, reason: str) -> bytes:
    try:
        return jsontext.pretty({**jsontext.read(data), "status": "completed", **({"reason": reason} if reason else {})})
    except (InvalidInput, TypeError):
        return data  # whatever became of it, it is over


def _completed(message: Message, reason: str) -> Message:
    document = jsontext.decode(_ended(KingdomCodec().encode(message), reason))
    return Message(id=message.id, type=message.type, body=document, created_at=message.created_at)
