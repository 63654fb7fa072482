"""The rows of the table that are ratios: what is compared with what, and what is aimed for."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from contest import Contender, Pair, Work
from kinds import PEERS, STORES
from scale import Scale
from subject import BATCH

BACKLOG_AIM = 1 / 1.5  # a message may cost half as much again


class Row(NamedTuple):
    """One line of the table. `peers` are the same comparison for each peer that has one.

    `synced`: a message must be on the disk when the call returns, so peers that do not sync are shown and not counted.
    """

    title: str
    pair: Pair
    aim: float | None = None
    peers: Mapping[str, Pair] = {}
    synced: bool = False


class Section(NamedTuple):
    """Rows that are measured in the same rounds; `apart`: each kind in rounds of its own, to bound the disk used."""

    rows: list[Row]
    apart: bool = False
    kafka: bool = False  # needs a Kafka server


def sections(scale: Scale) -> list[Section]:
    return [
        Section([_to_raw("sqlite", Work.PUBLISH, "raw FULL", 0.88)]),
        Section(
            [
                _to_raw("sqlite", Work.TAKE, "raw NORMAL", 0.65),
                _to_raw("sqlite durable_acks", Work.TAKE, "raw FULL", 0.85),
            ]
        ),
        Section([_to_raw("sqlite", Work.PUBLISH_MANY, "raw FULL", 0.55)]),
        Section(
            [
                _to_raw("sqlite", Work.TAKE_MANY, "raw FULL", 0.85),
                _to_raw("sqlite", Work.TAKE_MANY, "raw NORMAL", None),
            ]
        ),
        Section(
            [
                _as_users("sqlite bytes", Work.PUBLISH, 0.80),
                _as_users("hybrid bytes", Work.PUBLISH, 0.25),
                *_servers(Work.PUBLISH),
            ]
        ),
        *(
            Section([_as_users("sqlite bytes", work, aim), *_servers(work)])
            for work, aim in ((Work.PUBLISH_MANY, 0.6), (Work.TAKE, 4.5), (Work.TAKE_MANY, 0.8))
        ),
        Section([_to_consume(work, aim) for work, aim in _WORKERS.items()]),
        *(Section([_postgres(work)]) for work in (Work.PUBLISH, Work.TAKE, Work.PUBLISH_MANY, Work.TAKE_MANY)),
        Section([_together(Work.PUBLISH_THREADS, scale, 3.0)]),
        Section([_together(Work.PUBLISH_PROCESSES, scale, None)]),
        Section([_files(kind, Work.PUBLISH, 0.80) for kind in ("files", "hybrid")]),
        Section([_files_batch(kind) for kind in ("files", "hybrid")]),
        Section([_files(kind, Work.TAKE, 0.5) for kind in ("files", "hybrid")]),
        Section(
            [_backlog(kind, work, scale.large, scale.small, BACKLOG_AIM) for kind in STORES for work in _ONE_BY_ONE],
            apart=True,
        ),
        Section(
            [
                _mailbox(Work.PUBLISH, scale, "raw FULL", None),
                _mailbox(Work.PUBLISH_PROCESSES, scale, "raw FULL", 0.4),
            ]
        ),
        Section([_mailbox(Work.PUBLISH_THOUSAND, scale, "sqlite", 0.5)]),
        Section([_topic("sqlite topic", "raw log", Work.PUBLISH_MANY, 0.6)]),
        Section([_topic("sqlite topic", "raw log", Work.TAKE_MANY, 0.5)]),
        Section([_topic("kafka topic", "raw kafka", Work.PUBLISH_MANY, 0.7)], kafka=True),
        Section([_topic("kafka topic", "raw kafka", Work.TAKE_MANY, 0.7)], kafka=True),
        Section([_backlog("sqlite", Work.TAKE, scale.huge, scale.small, 0.8)], apart=True),
    ]


_ONE_BY_ONE = (Work.PUBLISH, Work.TAKE)
_WORKERS: dict[Work, float | None] = {
    Work.PREFETCH: 2.0,
    Work.WORKER_1: None,
    Work.WORKER_8: 2.5,
    Work.WORKER_32: None,
}


_SERVERS = {
    "raw psycopg": "a bare psycopg loop (SKIP LOCKED)",
    "redis": "Redis Streams (appendfsync always)",
}


def _to_raw(kind: str, work: Work, raw: str, aim: float | None) -> Row:
    base = Contender(raw, work)
    peers = {peer: Pair(Contender(peer, work), base) for peer in PEERS}
    synced = work is Work.PUBLISH or kind == "sqlite durable_acks"
    return Row(f"{kind}: {work.value}, to {raw}", Pair(Contender(kind, work), base), aim, peers, synced)


def _as_users(kind: str, work: Work, aim: float) -> Row:
    """Bodies of bytes; leases and acks to a base that syncs each of them, which the contender does not have to."""
    return _to_raw(kind, work, "raw FULL", aim)._replace(title=f"as users call it: {kind}, {work.value}, to raw FULL")


def _servers(work: Work) -> Iterator[Row]:
    """What a server on the same machine does with the same durability."""
    for kind, name in _SERVERS.items():
        pair = Pair(Contender(kind, work), Contender("raw FULL", work))
        yield Row(f"as users call it: {name} for comparison, {work.value}, to raw FULL", pair)


def _to_consume(work: Work, aim: float | None) -> Row:
    pair = Pair(Contender("sqlite bytes", work), Contender("sqlite bytes", Work.CONSUME))
    return Row(f"as users call it: sqlite bytes, {work.value}, to consume one at a time", pair, aim)


def _postgres(work: Work) -> Row:
    pair = Pair(Contender("postgres", work), Contender("raw psycopg", work))
    return Row(f"postgres: {work.value}, to a bare psycopg loop", pair, 0.8)


def _together(work: Work, scale: Scale, aim: float | None) -> Row:
    def pair(kind: str) -> Pair:
        return Pair(Contender(kind, work), Contender(kind, Work.PUBLISH))

    threads = work is Work.PUBLISH_THREADS
    peers = {peer: pair("persist-queue threads" if threads and peer == "persist-queue" else peer) for peer in PEERS}
    return Row(f"sqlite: {_told(work, scale)}, to one", pair("sqlite"), aim, peers, synced=True)


def _mailbox(work: Work, scale: Scale, base: str, aim: float | None) -> Row:
    alike = work if base == "sqlite" else Work.PUBLISH
    to = "the library on the same store" if base == "sqlite" else base
    pair = Pair(Contender("mailbox", work), Contender(base, alike))
    return Row(f"mailbox: {_told(work, scale)}, to {to}", pair, aim)


def _told(work: Work, scale: Scale) -> str:
    return f"{scale.processes} {work.value}" if work is Work.PUBLISH_PROCESSES else work.value


def _topic(kind: str, raw: str, work: Work, aim: float) -> Row:
    verb = "append" if work is Work.PUBLISH_MANY else "read"
    base = "a bare client" if raw == "raw kafka" else f"bare {'inserts' if verb == 'append' else 'selects'}"
    title = f"{kind}: {verb} {BATCH} per call, to {base}"
    return Row(title, Pair(Contender(kind, work), Contender(raw, work)), aim)


def _files(kind: str, work: Work, aim: float) -> Row:
    raw = "a raw file publish" if work is Work.PUBLISH else "a raw rename + unlink"
    pair = Pair(Contender(kind, work), Contender("raw files", work))
    return Row(f"{kind}: {work.value}, to {raw}", pair, aim if kind == "files" else None)


def _files_batch(kind: str) -> Row:
    pair = Pair(Contender(kind, Work.PUBLISH_MANY), Contender(kind, Work.PUBLISH))
    return Row(f"{kind}: {Work.PUBLISH_MANY.value}, to {Work.PUBLISH.value}", pair, 2.5 if kind == "files" else None)


def _backlog(kind: str, work: Work, size: int, base: int, aim: float) -> Row:
    def pair(of: str) -> Pair:
        return Pair(Contender(of, work, size), Contender(of, work, base))

    peers = {peer: pair(peer) for peer in PEERS} if kind == "sqlite" else {}
    title = f"{kind}: {work.value} at a backlog of {size:,}, to {base:,}"
    return Row(title, pair(kind), aim, peers, synced=work is Work.PUBLISH)
