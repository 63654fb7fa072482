"""Every kind of subject by name, and what each promises to keep."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from managed import Client, Managed
from ours import Leasing, Ours
from peers import HUEY_DELAY, HUEY_MAX_DELAY, LITEQUEUE_POLL, Huey, LiteQueue, PersistQueue
from postgres import OursOnPostgres, RawPostgres
from raw import RawFiles, RawSqlite
from redis_streams import RedisStreams
from subject import Server, Subject
from topics import KafkaTopic, RawKafka, RawLog, SqliteTopic

_RAW: dict[str, Callable[[Path], Subject]] = {
    "raw FULL": partial(RawSqlite, synchronous="full"),
    "raw NORMAL": partial(RawSqlite, synchronous="normal"),
    "raw files": RawFiles,
    "raw psycopg": RawPostgres,
    "sqlite topic": SqliteTopic,
    "raw log": RawLog,
    "kafka topic": KafkaTopic,
    "raw kafka": RawKafka,
}
_QUEUES: dict[str, Callable[[Path], Server]] = {
    "sqlite": partial(Ours, scheme="sqlite"),
    "sqlite durable_acks": partial(Ours, scheme="sqlite", durable_acks=True),
    "sqlite bytes": partial(Ours, scheme="sqlite", raw=True),
    "files": partial(Ours, scheme="file"),
    "hybrid": partial(Ours, scheme="hybrid"),
    "hybrid bytes": partial(Ours, scheme="hybrid", raw=True),
    "sqlite leasing": partial(Leasing, scheme="sqlite"),
    "files leasing": partial(Leasing, scheme="file"),
    "hybrid leasing": partial(Leasing, scheme="hybrid"),
    "mailbox": Managed,
    "postgres": OursOnPostgres,
    "litequeue": LiteQueue,
    "litequeue FULL": partial(LiteQueue, full=True),
    "persist-queue": PersistQueue,
    "persist-queue threads": partial(PersistQueue, threads=True),
    "huey": Huey,
    "redis": RedisStreams,
}
STORES = ("sqlite", "files", "hybrid")
PEERS = ("litequeue", "litequeue FULL", "persist-queue", "huey")
UNSYNCED = ("litequeue",)  # a power cut takes what they have answered for; no rival where the row is about syncing


def open_subject(kind: str, place: Path) -> Subject:
    """Open a subject of this kind in its own directory, which is made if need be."""
    place.mkdir(parents=True, exist_ok=True)
    return _RAW[kind](place) if kind in _RAW else _QUEUES[kind](place)


def open_client(kind: str, place: Path) -> Subject:
    """Open what another process has opened there already."""
    return Client(place) if kind == "mailbox" else open_subject(kind, place)


def open_server(kind: str, place: Path) -> Server:
    """Open a queue that can wait; the raw limits cannot."""
    place.mkdir(parents=True, exist_ok=True)
    return _QUEUES[kind](place)


class Promise(NamedTuple):
    """What is left of an answered publish after each kind of accident, and how a consumer learns of it."""

    kill: str
    power: str
    consumer: str
    waits: str


PROMISES: Mapping[str, Promise] = {
    "Pabal": Promise(
        "kept",
        "kept; the last leases and plain acks may be undone, which brings a message back",
        "comes back when its lease ends; a late ack of the old holder is refused",
        "woken by inotify, looks once a second beneath",
    ),
    "litequeue": Promise(
        "kept",
        "the last publishes may be lost (NORMAL)",
        "stays locked until somebody lists and retries it by hand",
        f"has none; here a look every {LITEQUEUE_POLL * 1000:g} ms",
    ),
    "litequeue FULL": Promise("kept", "kept", "as litequeue", "as litequeue"),
    "persist-queue": Promise(
        "kept",
        "kept (SQLite's default, FULL)",
        "stays taken until the queue is opened anew, which takes from living consumers too; select and update are two"
        " steps, so two processes can get one message",
        "within a process at once; from another, a look every 10 s",
    ),
    "huey": Promise(
        "kept",
        "kept (SQLite's default, FULL)",
        "lost: taking deletes it",
        f"looks every {HUEY_DELAY:g} s, backing off to {HUEY_MAX_DELAY:g} s",
    ),
}
