"""The topic contract on every driver."""

from pathlib import Path

import apsw
import pytest

from pabal.testing import TopicSuite
from pabal.testing.topic_place import Damage, Reopen
from pabal.topic_stores.kafka import KafkaSettings, KafkaTopics
from pabal.topic_stores.sqlite import SqliteTopics
from tests.openers import flipped
from tests.services.kafka import KafkaServer


class TestSqliteTopics(TopicSuite):
    @pytest.fixture
    def reopen(self, tmp_path: Path) -> Reopen:
        return lambda: SqliteTopics(tmp_path / "topics.db")

    @pytest.fixture
    def damage(self, tmp_path: Path) -> Damage:
        def flip(topic: str, partition: int, offset: int) -> None:
            connection = apsw.Connection(str(tmp_path / "topics.db"))
            base = connection.execute("select base from topics where name = ?", (topic,)).get
            id = (base + partition << 40) + offset
            data = connection.execute("select value from topic_records where id = ?", (id,)).get
            connection.execute("update topic_records set value = ? where id = ?", (flipped(data), id))
            connection.close()

        return flip


class TestKafkaTopics(TopicSuite):
    @pytest.fixture
    def reopen(self, kafka: KafkaServer) -> Reopen:
        return lambda: KafkaTopics(KafkaSettings(kafka.servers, timeout=20.0))
