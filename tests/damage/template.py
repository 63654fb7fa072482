"""A store with something in every state, which is damaged copy by copy.

Each body says its own key, so that a wrong body, a lost message and one that came twice can be told apart.
"""

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from zlib import crc32

import pabal
from pabal.policy.policy import Policy, RetryPolicy

QUEUES = ("jobs", "groups", "steps")
_HOUR = 3600.0


class Kind(NamedTuple):
    """A store: its URL below a place, its files, and whether it is a database."""

    url: Callable[[Path], str]
    sqlite: str = ""  # the database, below the place


KINDS = {
    "files": Kind(lambda place: f"file:{place / 'store'}"),
    "sqlite": Kind(lambda place: f"sqlite:{place / 'pabal.db'}", "pabal.db"),
    "hybrid": Kind(lambda place: f"hybrid:{place / 'store'}", "store/pabal.db"),
}


def body_of(key: str) -> dict[str, str]:
    return {"key": key, "check": hashlib.sha256(key.encode()).hexdigest()[:16], "pad": key * 20}


def key_of(body: Any) -> str | None:
    """Return the key of a body that is whole, else None."""
    key = body.get("key") if isinstance(body, dict) else None
    return key if isinstance(key, str) and body == body_of(key) else None


def queue_of(key: str) -> str:
    """Return the queue in which a key is; '' for one that is in every queue."""
    if key.startswith("new"):
        return ""
    if key.startswith(("input", "output")):
        return "steps"
    return "groups" if key.startswith(("a-", "b-", "own-a-", "own-b-", "same-")) else "jobs"


@contextmanager
def store_at(kind: str, place: Path, *, closed: bool) -> Iterator[pabal.Connection]:
    """Yield a store to fill; then its files are at `place`.

    If it is not to be `closed`, its files are those that a killed process leaves: a database keeps its WAL.
    """
    live = place.with_name(f"{place.name}.live")
    live.mkdir()
    connection = pabal.connect(KINDS[kind].url(live))
    yield connection
    if closed:
        connection.close()
    shutil.copytree(live, place, symlinks=True, ignore=shutil.ignore_patterns("*-shm"))
    if not closed:
        connection.close()
    shutil.rmtree(live)


def make(kind: str, place: Path, *, closed: bool = True) -> set[str]:
    """Make the store; return the keys of all messages that must be found in it in some state with their body."""
    with store_at(kind, place, closed=closed) as connection:
        # Before the settlement that is left unfinished, which the next look of this process would finish.
        connection.schedule("hourly", queue="jobs", body=body_of("new-hour"), every=_HOUR)
        return _fill(connection, kind)


def _fill(connection: pabal.Connection, kind: str) -> set[str]:
    jobs, groups, steps = map(connection.queue, QUEUES)
    jobs.configure(Policy(retry=RetryPolicy(limit=4)))
    keys: set[str] = set()

    def put(queue: Any, key: str, **options: Any) -> str:
        keys.add(key)
        return str(queue.publish(body_of(key), **options).id)

    for number in range(3):
        put(jobs, f"done-{number}", id=f"done-{number}")
    for delivery in jobs.lease(3):
        delivery.ack()
    keys.clear()  # their tombstones have no body
    for number in range(3):
        put(jobs, f"dead-{number}", id=f"dead-{number}")
    for delivery in jobs.lease(3):
        delivery.bury("it cannot be done")
    put(jobs, "held-0", priority=9)
    put(jobs, "held-1", priority=9, id="held-1")
    held = jobs.lease(2, visibility=_HOUR)
    put(jobs, "one-of-its-kind", unique="kind")
    put(jobs, "again-0", priority=9)
    [again] = jobs.lease(1)
    again.nack(delay=0.0, reason="not yet")
    for number in range(6):
        put(jobs, f"plain-{number}")
        put(jobs, f"own-{number}", id=f"own-{number}")
        put(jobs, f"key-{number}", dedup_key=f"key-{number}")
    for number in range(3):
        put(jobs, f"later-{number}", delay=_HOUR)
        for group in ("a", "b"):
            put(groups, f"{group}-{number}", group=group)
            put(groups, f"own-{group}-{number}", group=group, id=f"own-{group}-{number}")
        put(groups, f"same-{number}", id=f"own-{number}", dedup_key=f"key-{number}")  # as in the queue of jobs
    _commit_unfinished(steps, kind, keys)
    assert len(held) == 2 and len(keys) == 45, sorted(keys)
    return keys


def _commit_unfinished(steps: Any, kind: str, keys: set[str]) -> None:
    """Leave a settlement with follow-ups that is committed and not finished, where the store has such a thing."""
    steps.publish(body_of("input"), id="input")
    [delivery] = steps.lease(1)
    keys |= {"output-0", "output-1"}
    then = [steps.draft(body_of(f"output-{number}"), id=f"output-{number}") for number in range(2)]
    if kind == "files":
        with patch("pabal.stores.files.settle.complete", side_effect=_Killed), suppress(_Killed):
            delivery.ack(then=then)
    else:
        delivery.ack(then=then)


class _Killed(BaseException):
    pass


def readable_keys(path: Path) -> set[str] | None:
    """Return the keys that SQLite itself finds in the rows without using an index; None if it cannot read them all."""
    found: set[str] = set()
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            connection.text_factory = bytes
            for document, crc in connection.execute("select document, crc from messages not indexed"):
                data = document if isinstance(document, bytes) else b""
                try:
                    if data.endswith(b".json"):
                        data = (path.parent / "bodies" / os.fsdecode(data)).read_bytes()
                    if crc32(data) != crc:
                        continue  # its body may be whole, but another part of the message is damaged
                    key = key_of(json.loads(data).get("payload"))
                except (OSError, ValueError):
                    continue
                if key:
                    found.add(key)
    except (sqlite3.Error, UnicodeDecodeError):  # the text of an error may be damaged too
        return None
    return found
