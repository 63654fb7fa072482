"""The list of topics: how one is made, found, and given the document that it carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pabal import jsontext
from pabal.errors import NameTaken, TopicUnknown
from pabal.sql.connection import Connection
from pabal.sql.writer import Transaction
from pabal.topic import Shape
from pabal.topic_limits import joined
from pabal.topics.sqlite.rows import Known


def find(db: Connection, topic: str) -> Known:
    """Return what never changes of a topic."""
    rows: list[tuple[int, int, int]] = db.execute(  # type: ignore[assignment]  # what the schema says
        "select id, base, partitions from topics where name = ?1 and name = ?1 collate binary", (topic,)
    ).fetchall()
    if not rows:
        raise TopicUnknown(f"no topic {topic}: make it with `pabal topic create {topic}`, or correct the name")
    [(number, base, partitions)] = rows
    return Known(number, topic, base, partitions)


def create(tx: Transaction, topic: str, shape: Shape, settings: Mapping[str, Any]) -> bool:
    """Make a topic, or see that it is as asked for: who comes at the same time waits for this transaction."""
    found = tx.run("select id, name, partitions, settings from topics where name = ?", (topic,)).fetchone()
    if found is None:
        _insert(tx, topic, shape, settings)
        return True
    number, name, partitions, text = found
    if name != topic:
        raise NameTaken(f"topic {topic!r} differs from {name!r} only in case: use one of them")
    if partitions != shape.partitions:
        raise NameTaken(f"topic {topic} is there with {partitions} partitions, not {shape.partitions}")
    carried = jsontext.decode(text.encode())
    if (wanted := joined(topic, carried, settings)) != carried:
        configure(tx, number, wanted)
    return False


def settings_of(db: Connection, topic: Known) -> Mapping[str, Any]:
    """Return the document that a topic carries."""
    text: str = db.execute("select settings from topics where id = ?", (topic.id,)).get
    found: Mapping[str, Any] = jsontext.decode(text.encode())
    return found


def configure(tx: Transaction, number: int, settings: Mapping[str, Any]) -> None:
    """Let a topic carry another document."""
    tx.run("update topics set settings = ? where id = ?", (_text(settings), number))


def _insert(tx: Transaction, topic: str, shape: Shape, settings: Mapping[str, Any]) -> None:
    base = tx.run("select coalesce(max(id), 0) + 1 from topic_partitions").get
    tx.many("insert into topic_partitions (id) values (?)", [(base + number,) for number in range(shape.partitions)])
    tx.run(
        "insert into topics (name, base, partitions, max_age, max_bytes, settings) values (?, ?, ?, ?, ?, ?)",
        (topic, base, *shape, _text(settings)),
    )


def _text(settings: Mapping[str, Any]) -> str:
    return jsontext.encode(dict(settings)).decode()
