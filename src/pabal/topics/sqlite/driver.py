"""The topics of one SQLite file, which may hold queues as well. Threads and processes may share it.

`<db>.bells/topic~<name>` is rung after each commit that appended to the topic or changed one of its groups. After an
I/O error the call under way says so, and the next one opens the file anew.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pabal.clock import Clock, SystemClock
from pabal.errors import StoreError, Uncertain
from pabal.ids import new_token
from pabal.names import check_name
from pabal.sql.connection import Connection, table_names
from pabal.sql.handle import Handle
from pabal.sql.migrate import fact, migrate
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.stores.place import require_local
from pabal.stores.sqlite.bells import Bells
from pabal.topic import (
    DEFAULT_PATIENCE,
    DEFAULT_SESSION,
    NO_SETTINGS,
    Bounds,
    NewRecord,
    Position,
    Record,
    Shape,
    Share,
)
from pabal.topic_limits import check_partition, check_records, check_shape, check_topic
from pabal.topics.sqlite import catalog, groups, retention
from pabal.topics.sqlite.appending import Sheaf
from pabal.topics.sqlite.member import Place, SqliteMember
from pabal.topics.sqlite.rows import Known, bounds_of, first_from, page

log = logging.getLogger("pabal")

TRIM_SECONDS = 10.0  # how often who appends looks whether retention has something to remove


class SqliteTopics:
    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: dict[str, Known] = {}
        self._trimmed: dict[str, float] = {}
        path = Path(os.path.abspath(path))
        require_local(path.parent)
        self._db = Handle(path, partial(Database, prepare=_prepare, committed=self._ring))
        self._db.opened()  # a place that cannot be used is told at once
        self._bells = Bells(path.with_name(f"{path.name}.bells"))

    @staticmethod
    def exists(path: Path) -> bool:
        """Say whether there are topics in this file, touching nothing."""
        return "topic_records" in table_names(path)

    # Topics

    def create(self, topic: str, shape: Shape, settings: Mapping[str, Any] = NO_SETTINGS) -> bool:
        """Make the topic with its partitions, in one transaction."""
        check_topic(topic)
        check_shape(shape)
        return self._db.write(lambda tx: catalog.create(tx, topic, shape, settings), durable=True)

    def topics(self) -> list[str]:
        """Name every topic, sorted."""
        return self._db.read(
            lambda db: [row[0] for row in db.execute("select name from topics order by name collate binary")]
        )

    def shape(self, topic: str) -> Shape:
        """Return the topic's partitions and what it keeps."""
        known = self._find(topic)
        return Shape(known.partitions, *self._db.read(lambda db: retention.limits_of(db, known)))

    def retain(self, topic: str, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change what the topic keeps, and remove what is too much by that."""
        known = self._find(topic)
        check_shape(Shape(known.partitions, max_age or 0.0, max_bytes or 0))
        self._db.write(lambda tx: retention.set_limits(tx, known, max_age, max_bytes), durable=True)
        self.trim(topic)

    def settings(self, topic: str) -> Mapping[str, Any]:
        """Return what the topic carries."""
        known = self._find(topic)
        return self._db.read(lambda db: catalog.settings_of(db, known))

    def configure(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Let the topic carry these settings and no others."""
        known = self._find(topic)
        self._db.write(lambda tx: catalog.configure(tx, known.id, settings), durable=True)

    # Records

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Position]:
        """Store the records in one synced commit, all or none."""
        known = self._find(topic)
        if not records:
            return []
        check_records(records)
        sheaf = Sheaf(known, records)

        def work(tx: Transaction) -> list[Position]:
            self._db.room.require(tx.connection)
            tx.rings[known.bell] = known.id
            return sheaf.append(tx, self._clock.now())

        try:
            positions = self._db.write(work, durable=True)
        except Uncertain as exc:
            raise Uncertain(f"{exc}; appending again may store {len(records)} records twice") from exc.__cause__
        self._trim_sometimes(known)
        return positions

    def read(self, topic: str, partition: int, offset: int, limit: int) -> list[Record]:
        """Return records of one partition."""
        known = self._find(topic)
        check_partition(topic, partition, known.partitions)
        return self._db.read(lambda db: page(db, known, partition, max(0, offset), limit))

    def bounds(self, topic: str) -> list[Bounds]:
        """Return the bounds of every partition."""
        known = self._find(topic)
        return self._db.read(lambda db: bounds_of(db, known))

    def offsets_at(self, topic: str, at: float) -> list[int]:
        """Return for every partition the first offset from that instant on."""
        known = self._find(topic)
        return self._db.read(
            lambda db: [
                first_from(db, known.base + number, first, end, at)
                for number, (first, end) in enumerate(bounds_of(db, known))
            ]
        )

    def trim(self, topic: str) -> int:
        """Remove what retention allows, slice by slice."""
        known, removed = self._find(topic), 0
        while self._db.read(lambda db: retention.anything(db, known, self._clock.now())):
            removed += self._db.write(
                lambda tx: retention.trim(tx, known, self._clock.now()), durable=False, essential=True
            )
        if removed:
            self._db.room.ballast.restore()
        return removed

    def _trim_sometimes(self, topic: Known) -> None:
        now = self._clock.boot()
        if now - self._trimmed.get(topic.name, float("-inf")) >= TRIM_SECONDS:
            self._trimmed[topic.name] = now
            try:
                self.trim(topic.name)
            except StoreError as exc:  # the records are safe: who were told otherwise would append them again
                log.warning("%s could not be trimmed: %s", topic.name, exc)

    # Groups

    def join(
        self, topic: str, group: str, *, session: float = DEFAULT_SESSION, patience: float = DEFAULT_PATIENCE
    ) -> SqliteMember:
        """Become a member of the group."""
        known = self._find(topic)
        place = Place(self._db, self._bells, self._clock)
        return SqliteMember(
            place, known, check_name(group, "group"), name=_own_name(), session=session, patience=patience
        )

    def groups(self, topic: str) -> dict[str, list[Share]]:
        """Return every group with its shares."""
        known = self._find(topic)
        return self._db.read(lambda db: groups.shares(db, known, self._clock))

    def reset(self, topic: str, group: str, offsets: Mapping[int, int]) -> None:
        """Let the group go on from these offsets."""
        known = self._find(topic)
        check_name(group, "group")
        for partition in offsets:
            check_partition(topic, partition, known.partitions)
        self._db.write(lambda tx: groups.reset(tx, known, group, offsets, self._clock), durable=True, essential=True)

    # The rest

    def facts(self) -> Mapping[str, str]:
        """Say where it is and what wakes its readers."""
        watch = self._bells.watch([])
        watch.close()
        version = self._db.read(lambda db: fact(db, "schema.topics"))
        return {"place": str(self._db.path), "format": f"topics schema {version}", "woken by": watch.woken_by}

    def close(self) -> None:
        """Release files and handles. Members that were not closed are replaced when their session is over."""
        self._db.close()
        self._bells.close()

    def _find(self, topic: str) -> Known:
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = self._db.read(lambda db: catalog.find(db, check_topic(topic)))
        return known

    def _ring(self, rings: dict[str, int]) -> None:
        self._bells.ring(rings)


def _prepare(connection: Connection) -> None:
    migrate(connection, "topics", __package__)


def _own_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_]+", "-", socket.gethostname()).strip("-")
    return f"{host[:100] or 'host'}-{os.getpid()}-{new_token()[:4]}"
