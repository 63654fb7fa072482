"""Topics as their users call them, and the bare loops beside them: inserts and selects, or a Kafka client alone.

The bare SQLite loop, in WAL mode with `synchronous` FULL: begin immediate; a hundred inserts of (id, at, key, value);
commit. Reading: select the next hundred by id. The bare Kafka loop: an idempotent producer with acks of all replicas, a
hundred produces with a callback, flush; a consumer that asks for a hundred, looks for an error in each and takes its
partition, offset, time, key, value and headers, as ours does.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

import pabal
from subject import BODY

_VALUE = BODY.encode()
_KEY = "bench"
_AHEAD = 20_000  # records appended at once, so that a reader is measured and not the server's waiting for more
_SERVERS = "kafka.servers"


class SqliteTopic:
    """A topic with one partition, and one member of one group."""

    def __init__(self, place: Path) -> None:
        self._open(pabal.connect_topics(f"sqlite:{place / 'topics.db'}"))

    def _open(self, connection: pabal.TopicConnection) -> None:
        self._connection = connection
        self._topic = connection.topic(f"bench-{time.time_ns()}")
        self._topic.create(1)
        self._member = connection.driver.join(self._topic.name, "bench")
        self._ahead = 0

    def publish(self) -> None:
        self._topic.append(BODY, key=_KEY)

    def publish_many(self, count: int) -> None:
        self._topic.append_many([BODY] * count, key=_KEY)

    def take(self) -> None:
        self.take_many(1)

    def take_many(self, count: int) -> None:
        while count > 0:
            found = self._member.read(count, 5.0)
            assert found
            count -= len(found)

    def fill(self, count: int) -> None:
        while count > 0:
            self.publish_many(min(count, 1000))
            count -= 1000

    def close(self) -> None:
        self._member.close()
        self._connection.close()


class RawLog:
    """The bare inserts and selects."""

    def __init__(self, place: Path) -> None:
        self._db = apsw.Connection(str(place / "raw.db"))
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", "full")
        self._db.execute("create table log (id integer primary key, at real, key text, value blob)")
        self._reader = apsw.Connection(str(place / "raw.db"))
        self._at = 0

    def publish(self) -> None:
        self.publish_many(1)

    def publish_many(self, count: int) -> None:
        now = time.time()
        self._db.execute("begin immediate")
        self._db.executemany(
            "insert into log (at, key, value) values (?, ?, ?)", ((now, _KEY, _VALUE) for _ in range(count))
        )
        self._db.execute("commit")

    def take(self) -> None:
        self.take_many(1)

    def take_many(self, count: int) -> None:
        found = self._reader.execute(
            "select id, at, key, value from log where id > ? order by id limit ?", (self._at, count)
        ).fetchall()
        self._at = int(found[-1][0])  # type: ignore[arg-type]  # an id

    fill = publish_many

    def close(self) -> None:
        self._reader.close()
        self._db.close()


class KafkaTopic(SqliteTopic):
    """The same on a Kafka server."""

    def __init__(self, place: Path) -> None:
        self._open(pabal.connect_topics(f"kafka://{_servers(place)}"))

    def fill(self, count: int) -> None:
        self._ahead -= count
        if self._ahead < 0:
            for _ in range(_AHEAD // 1000):
                self.publish_many(1000)
            self._ahead += _AHEAD


class RawKafka:
    """The bare client."""

    def __init__(self, place: Path) -> None:
        from confluent_kafka import Consumer, Producer, TopicPartition

        servers = _servers(place)
        with pabal.connect_topics(f"kafka://{servers}") as topics:
            self._topic = f"raw-{time.time_ns()}"
            topics.topic(self._topic).create(1)
        common: dict[str, Any] = {"bootstrap.servers": servers}
        self._producer = Producer(common | {"enable.idempotence": True, "acks": "all", "linger.ms": 1})
        self._consumer = Consumer(common | {"group.id": "raw", "auto.offset.reset": "earliest"})
        self._consumer.assign([TopicPartition(self._topic, 0, 0)])
        self._answered = self._ahead = 0

    def _note(self, error: object, message: object) -> None:
        assert error is None
        self._answered += 1

    def publish(self) -> None:
        self.publish_many(1)

    def publish_many(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(self._topic, _VALUE, _KEY, on_delivery=self._note)
        self._producer.flush()

    def take(self) -> None:
        self.take_many(1)

    def take_many(self, count: int) -> None:
        while count > 0:
            found = self._consumer.consume(count, 5.0)
            for message in found:
                assert message.error() is None
                message.partition(), message.offset(), message.timestamp()
                message.key(), message.value(), message.headers()
            count -= len(found)

    def fill(self, count: int) -> None:
        self._ahead -= count
        if self._ahead < 0:
            for _ in range(_AHEAD // 1000):
                self.publish_many(1000)
            self._ahead += _AHEAD

    def close(self) -> None:
        self._consumer.close()


@contextmanager
def kafka_server(place: Path) -> Iterator[str]:
    """Run a server for the subjects under this place; say what is missing where none can be had."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from tests.services.kafka import missing, running

    if reason := missing():
        yield f"needs {reason}"
        return
    with running() as server:
        (place / _SERVERS).write_text(server.servers)
        yield ""


def _servers(place: Path) -> str:
    return (place.parent / _SERVERS).read_text()
