"""How a chat is: what is still to be stored and published, whether the database answers, which gateways read."""

from __future__ import annotations

from typing import Any

import msgspec

from pabal.chat.events import BROADCAST, MESSAGES, PERSISTED, PERSISTOR
from pabal.chat.ledger import open_ledger
from pabal.chat.up import GATEWAY, WORKER, Place
from pabal.clock import Clock
from pabal.connect_topics import TopicConnection, connect_topics
from pabal.dead_records import waiting
from pabal.errors import Outage, StoreMissing, TopicUnknown
from pabal.runtime.heartbeat import read_pulse

_MANY = 1000  # rows of the outbox or of the dlq that are counted


class GatewayLook(msgspec.Struct, frozen=True, rename="camel"):
    """A gateway as the topics show it. `lag` are messages that it has not told its sockets yet."""

    name: str
    live: bool
    lag: int


class ChatLook(msgspec.Struct, frozen=True, rename="camel"):
    """How a chat is. `to_publish` is null while the database is down."""

    database: str
    to_store: int
    to_publish: int | None
    rejected: int
    gateways: list[GatewayLook]


class UpLook(msgspec.Struct, frozen=True, rename="camel"):
    """How the processes of `pabal chat up` are: `ok`, `hung` or `gone`."""

    root: str
    address: str
    pid: int | None
    gateway: str
    worker: str


def look_up(place: Place, clock: Clock) -> UpLook:
    """Look at what `pabal chat up` runs in a folder."""
    if not place.address.is_file():
        raise StoreMissing(f"no chat in {place.root}: `pabal chat up` makes one, or give --root DIR")
    states = {name: read_pulse(place.heartbeat(name), clock).state for name in (GATEWAY, WORKER)}
    return UpLook(str(place.root), place.address.read_text(), place.holder(), states[GATEWAY], states[WORKER])


def look(topics_url: str, db_url: str) -> ChatLook:
    """Look at topics and database."""
    with connect_topics(topics_url, create=False) as topics:
        to_publish = _to_publish(db_url)
        return ChatLook(
            "down" if to_publish is None else "ok",
            _lag(topics, MESSAGES, PERSISTOR),
            to_publish,
            len(waiting(topics.topic(MESSAGES), _MANY)),
            _gateways(topics),
        )


def document_of(found: ChatLook | UpLook) -> dict[str, Any]:
    """Return what was seen as JSON has it."""
    return dict(msgspec.to_builtins(found))


def _to_publish(db_url: str) -> int | None:
    ledger = open_ledger(db_url)
    try:
        return len(ledger.outbox(_MANY))
    except Outage:
        return None
    finally:
        ledger.close()


def _lag(topics: TopicConnection, topic: str, group: str) -> int:
    try:
        shares = topics.topic(topic).groups().get(group)
    except TopicUnknown as exc:
        raise StoreMissing("no chat in these topics: start a gateway or a worker, or correct --topics") from exc
    if shares is None:  # no worker has been there yet
        return sum(bounds.next - bounds.first for bounds in topics.topic(topic).bounds())
    return sum(share.lag for share in shares)


def _gateways(topics: TopicConnection) -> list[GatewayLook]:
    groups = topics.topic(PERSISTED).groups()
    return [
        GatewayLook(name.removeprefix(BROADCAST), any(s.owner for s in shares), sum(s.lag for s in shares))
        for name, shares in sorted(groups.items())
        if name.startswith(BROADCAST)
    ]
