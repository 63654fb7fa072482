"""The topics of one SQLite file, which may hold queues too. Threads and processes may share it.

`<db>.bells/topic~<name>` wakes the readers after each commit that appended to the topic or changed one of its groups.
After an I/O error the call raises, and the next call opens the file again.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pabal import jsontext
from pabal.clock import Clock, SystemClock
from pabal.errors import NameTaken, StoreBusy, StoreError, StoreFailed, TopicUnknown, Uncertain
from pabal.filesystem import require_local
from pabal.ids import new_token
from pabal.names import check_name
from pabal.policy.retention import Look, trim_seen_twice
from pabal.sql.bells import Bells
from pabal.sql.connection import Conflict, Connection, check_text
from pabal.sql.handle import Handle
from pabal.sql.migrate import fact, is_current, migrate, set_fact
from pabal.sql.place import real_path, table_names
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.store import Finding
from pabal.topic_store import (
    DEFAULT_PATIENCE,
    DEFAULT_SESSION,
    NO_SETTINGS,
    Bounds,
    NewRecord,
    Position,
    Record,
    Shape,
    Share,
    check_partition,
    check_records,
    check_shape,
    check_topic,
    joined,
)
from pabal.topic_stores.sqlite import groups
from pabal.topic_stores.sqlite.check import Layout, check, mend, settings_fault
from pabal.topic_stores.sqlite.member import Place, SqliteMember
from pabal.topic_stores.sqlite.records import (
    DOCTOR,
    LAST_PARTITION,
    EncodedRecords,
    Known,
    bounds_of,
    damaged,
    first_from,
    limits_of,
    page,
    set_limits,
    surplus,
    trim,
)

T = TypeVar("T")

log = logging.getLogger("pabal")

TRIM_SECONDS = 10.0  # how often an append checks whether retention has records to remove


class _Handle(Handle):
    def write(self, work: Callable[[Transaction], T], *, durable: bool, essential: bool = False) -> T:
        """Run the work in a transaction; a row that is there already, which it just looked for, is damage."""
        try:
            return super().write(work, durable=durable, essential=essential)
        except Conflict as exc:
            raise StoreFailed(f"{self.path} is damaged ({exc}): run `{DOCTOR}`") from exc


class SqliteTopics:
    def __init__(self, path: Path, *, clock: Clock | None = None, owner: int | None = None) -> None:
        self._clock = clock or SystemClock()
        self._known: dict[str, Known] = {}
        self._trimmed: dict[str, float] = {}
        path = real_path(path)
        require_local(path.parent)
        self._bells = Bells(path.with_name(f"{path.name}.bells"))
        database = partial(
            Database,
            prepare=_prepare,
            current=_current,
            committed=self._bells.ring,
            mend=lambda tx: mend(tx.connection),
            doctor=DOCTOR,
            owner=owner,
        )
        self._db = _Handle(path, database)
        self._db.opened()  # a path that cannot be used is refused at once

    @staticmethod
    def exists(path: Path) -> bool:
        """Return whether there are topics in this file. Changes nothing."""
        return "topic_records" in table_names(path)

    # Topics

    def create(self, topic: str, shape: Shape, settings: Mapping[str, Any] = NO_SETTINGS) -> bool:
        """Make the topic with its partitions, in one transaction."""
        check_topic(topic)
        check_shape(shape)
        return self._db.write(lambda tx: create(tx, topic, shape, settings), durable=True)

    def topics(self) -> list[str]:
        """Return the name of every topic, sorted."""
        return self._db.read(
            lambda db: [
                check_text(row[0])
                for row in db.execute("select name from topics not indexed order by name collate binary")
            ]
        )

    def shape(self, topic: str) -> Shape:
        """Return the partitions and the retention of the topic."""
        known = self._find(topic)
        return Shape(known.partitions, *self._db.read(lambda db: limits_of(db, known)))

    def retain(self, topic: str, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change the retention of the topic, and remove surplus records."""
        known = self._find(topic)
        check_shape(Shape(known.partitions, max_age or 0.0, max_bytes or 0))
        self._db.write(lambda tx: set_limits(tx, known, max_age, max_bytes), durable=True)
        self.trim(topic)

    def settings(self, topic: str) -> Mapping[str, Any]:
        """Return the settings of the topic."""
        known = self._find(topic)
        return self._db.read(lambda db: settings_of(db, known))

    def configure(self, topic: str, settings: Mapping[str, Any]) -> None:
        """Replace the settings of the topic."""
        known = self._find(topic)
        self._db.write(lambda tx: configure(tx, known.id, settings), durable=True)

    # Records

    def append(self, topic: str, records: Sequence[NewRecord]) -> list[Position]:
        """Store the records in one synced commit, all or none."""
        known = self._find(topic)
        if not records:
            return []
        check_records(records)
        encoded = EncodedRecords(known, records)

        def work(tx: Transaction) -> list[Position]:
            self._db.reserve.require(tx.connection)
            tx.wakeups[known.bell] = known.id
            return encoded.append(tx, self._clock.now())

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
        """Remove surplus records, slice by slice."""
        return self._trim(self._find(topic), self._clock.now())

    def _trim(self, known: Known, at: float) -> int:
        """Remove the records that are surplus at an instant of the wall clock."""
        removed = 0
        while self._db.read(lambda db: surplus(db, known, at)):
            many = self._db.write(lambda tx: trim(tx, known, at), durable=False, essential=True)
            if not many:
                break  # another process was faster
            removed += many
        if removed:
            self._db.reserve.ballast.restore()
        return removed

    def _trim_seen_twice(self, known: Known) -> None:
        """Remove what is too much at once, and what was too old at an earlier look too."""
        self._trim(known, float("-inf"))
        key = f"look.topic.{known.id}"

        def keep(look: Look) -> None:
            self._db.write(lambda tx: set_fact(tx.connection, key, str(look)), durable=False, essential=True)

        trim_seen_twice(
            self._clock,
            sys.maxsize,
            kept=self._db.read(lambda db: fact(db, key)),
            keep=keep,
            is_due=lambda at: self._db.read(lambda db: surplus(db, known, at)),
            remove=lambda at: self._trim(known, at),
        )

    def _trim_sometimes(self, topic: Known) -> None:
        now = self._clock.boot()
        if now - self._trimmed.get(topic.name, float("-inf")) >= TRIM_SECONDS:
            self._trimmed[topic.name] = now
            try:
                self._trim_seen_twice(topic)
            except StoreError as exc:  # the records are stored: an error would make the caller append them again
                log.warning("%(topic)s could not be trimmed: %(error)s", {"topic": topic.name, "error": str(exc)})

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

    # State of the store

    def check(self, *, repair: bool) -> list[Finding]:
        """Look for damage and repair it if asked."""
        return check(self._db.opened(), repair=repair)

    def facts(self) -> Mapping[str, str]:
        """Return the place, the format, and how readers are woken."""
        watch = self._bells.watch([])
        watch.close()
        try:
            version = self._db.read(lambda db: fact(db, "schema.topics"))
        except (StoreBusy, StoreFailed):
            version = "not readable"
        return {"place": str(self._db.path), "format": f"topics schema {version}", "woken by": watch.woken_by}

    def close(self) -> None:
        """Close all files. Members that were not closed are replaced when their session is over."""
        self._db.close()
        self._bells.close()

    def _find(self, topic: str) -> Known:
        known = self._known.get(topic)
        if known is None:
            known = self._known[topic] = self._db.read(lambda db: find(db, check_topic(topic)))
        return known


def _current(connection: Connection) -> bool:
    return is_current(connection, "topics", __package__)


def _prepare(connection: Connection) -> None:
    migrate(connection, "topics", __package__)


def _own_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_]+", "-", socket.gethostname()).strip("-")
    return f"{host[:100] or 'host'}-{os.getpid()}-{new_token()[:4]}"


def find(db: Connection, topic: str) -> Known:
    """Return a topic, or raise TopicUnknown. A damaged index of names could lead to another topic: none is used."""
    rows: list[tuple[int, int, int]] = db.execute(  # type: ignore[assignment]  # what the schema says
        "select id, base, partitions from topics not indexed where name = ? collate binary", (topic,)
    ).fetchall()
    if not rows:
        raise TopicUnknown(f"no topic {topic}: make it with `pabal topic create {topic}`, or correct the name")
    [(number, base, partitions)] = rows
    if fault := Layout(db).fault(number):
        raise StoreFailed(f"the row of topic {topic} is damaged ({fault}): run `{DOCTOR}`")
    return Known(number, topic, base, partitions)


def create(tx: Transaction, topic: str, shape: Shape, settings: Mapping[str, Any]) -> bool:
    """Make a topic, or check that the existing one is as asked for. Concurrent callers wait for this transaction."""
    found = tx.run("select id, name, partitions, settings from topics not indexed where name = ?", (topic,)).fetchone()
    if found is None:
        _insert(tx, topic, shape, settings)
        return True
    number, name, partitions, text = found
    if name != topic:
        raise NameTaken(f"topic {topic!r} differs from {name!r} only in case: use one of them")
    if partitions != shape.partitions:
        raise NameTaken(f"topic {topic} is there with {partitions} partitions, not {shape.partitions}")
    carried = _settings(topic, text)
    if (wanted := joined(topic, carried, settings)) != carried:
        configure(tx, number, wanted)
    return False


def settings_of(db: Connection, topic: Known) -> Mapping[str, Any]:
    """Return the settings of a topic."""
    text: str = db.execute("select settings from topics where id = ?", (topic.id,)).get
    return _settings(topic.name, text)


def _settings(topic: str, text: str) -> dict[str, Any]:
    data = text.encode()
    if fault := settings_fault(data):
        raise StoreFailed(
            f"the settings of topic {topic} cannot be read ({fault}): run `{DOCTOR}`, which sets them aside"
        )
    found: dict[str, Any] = jsontext.decode(data)
    return found


def configure(tx: Transaction, number: int, settings: Mapping[str, Any]) -> None:
    """Replace the settings of a topic."""
    tx.run("update topics set settings = ? where id = ?", (_text(settings), number))


def _insert(tx: Transaction, topic: str, shape: Shape, settings: Mapping[str, Any]) -> None:
    base = tx.run("select coalesce(max(id), 0) + 1 from topic_partitions").get
    if not 0 < base <= LAST_PARTITION - shape.partitions:
        raise damaged("the number of the last partition", base - 1)
    tx.many("insert into topic_partitions (id) values (?)", [(base + number,) for number in range(shape.partitions)])
    tx.run(
        "insert into topics (name, base, partitions, max_age, max_bytes, settings) values (?, ?, ?, ?, ?, ?)",
        (topic, base, *shape, _text(settings)),
    )


def _text(settings: Mapping[str, Any]) -> str:
    return jsontext.encode(dict(settings)).decode()
