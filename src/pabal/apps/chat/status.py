"""The status of a chat: messages not yet stored or published, the state of the database, workers and gateways."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from pabal.apps.chat.events import BROADCAST, CLIENT, MESSAGES, PERSISTED, PERSISTOR, UUID, as_client
from pabal.apps.chat.ledger import open_ledger
from pabal.apps.chat.up import GATEWAY, WORKER, ChatFolder
from pabal.clock import Clock
from pabal.connect import TopicConnection, connect_topics
from pabal.errors import Outage, StoreMissing, TopicUnknown
from pabal.runtime.heartbeat import read_pulse
from pabal.topics.dead_records import waiting

_MANY = 1000  # rows of the outbox or of the dead-letter topic are counted up to here


class WorkerStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A worker as the topics show it: the partitions that it stores, and how many messages wait there."""

    name: str
    partitions: int
    lag: int


class GatewayStatus(msgspec.Struct, frozen=True, rename="camel"):
    """A gateway as the topics show it. `lag` counts the messages that it has not sent to its sockets yet."""

    name: str
    lag: int


class ChatStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of a chat. `to_publish` is null while the database is down."""

    database: str
    to_store: int
    to_publish: int | None
    rejected: int
    registration: str | None
    workers: list[WorkerStatus]
    gateways: list[GatewayStatus]

    @property
    def storing(self) -> bool:
        """Whether messages are stored: the database answers, and some worker has partitions."""
        return self.database == "ok" and bool(self.workers)


class LocalStatus(msgspec.Struct, frozen=True, rename="camel"):
    """The status of the processes of `pabal chat up`: `ok`, `hung` or `gone`."""

    root: str
    address: str
    pid: int | None
    gateway: str
    worker: str
    restarts: dict[str, int]


def local_status(place: ChatFolder, clock: Clock) -> LocalStatus:
    """Return the status of the chat that `pabal chat up` runs in a folder."""
    if not place.address.is_file():
        raise StoreMissing(f"no chat in {place.root}: `pabal chat up` makes one, or give --root DIR")
    states = {name: read_pulse(place.heartbeat(name), clock).state for name in (GATEWAY, WORKER)}
    return LocalStatus(
        str(place.root), place.address.read_text(), place.holder(), states[GATEWAY], states[WORKER], place.restarts()
    )


def chat_status(topics_url: str, db_url: str) -> ChatStatus:
    """Return the status that the topics and the database show."""
    with connect_topics(as_client(topics_url, "status", "cli"), create=False) as topics:
        workers, to_store = _workers(topics)
        to_publish, registration = _ledger_state(db_url)
        return ChatStatus(
            "down" if to_publish is None else "ok",
            to_store,
            to_publish,
            len(waiting(topics.topic(MESSAGES), _MANY)),
            registration,
            workers,
            _gateways(topics),
        )


def document_of(found: ChatStatus | LocalStatus) -> dict[str, Any]:
    """Return a status as a JSON document."""
    return dict(msgspec.to_builtins(found))


def _ledger_state(db_url: str) -> tuple[int | None, str | None]:
    """Return how many messages wait in the outbox, and whether users may register; None while the database is down."""
    ledger = open_ledger(db_url)
    try:
        return len(ledger.outbox(_MANY)), "open" if ledger.is_registration_open() else "closed"
    except Outage:
        return None, None
    finally:
        ledger.close()


def _workers(topics: TopicConnection) -> tuple[list[WorkerStatus], int]:
    """Return the workers that have partitions, and how many messages are not stored yet."""
    try:
        shares = topics.topic(MESSAGES).groups().get(PERSISTOR)
    except TopicUnknown as exc:
        raise StoreMissing("no chat in these topics: start a gateway or a worker, or correct --topics") from exc
    if shares is None:  # no worker has joined yet
        return [], sum(bounds.next - bounds.first for bounds in topics.topic(MESSAGES).bounds())
    owners = sorted({share.owner for share in shares if share.owner})
    mine = {owner: [share for share in shares if share.owner == owner] for owner in owners}
    found = [WorkerStatus(_name(owner), len(some), sum(s.lag for s in some)) for owner, some in mine.items()]
    return found, sum(share.lag for share in shares)


def _name(owner: str) -> str:
    """Return the name of a worker: Kafka's ids of members are the client id and a UUID."""
    return re.sub(rf"-{UUID}\Z", "", owner.removeprefix(f"{CLIENT}worker-"))


def _gateways(topics: TopicConnection) -> list[GatewayStatus]:
    """Return the gateways that live; groups of others stay for days."""
    groups = topics.topic(PERSISTED).groups()
    return [
        GatewayStatus(name.removeprefix(BROADCAST), sum(s.lag for s in shares))
        for name, shares in sorted(groups.items())
        if name.startswith(BROADCAST) and any(s.owner for s in shares)
    ]
