"""What only Kafka can be asked: other clients understand us, and a server that is gone is told plainly and in time."""

import json
import random
import socket
import string
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import closing
from itertools import repeat
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from pabal.connect import connect_topics
from pabal.errors import InvalidInput, InvalidUrl, NameTaken, StoreFailed, Uncertain
from pabal.ids import new_token
from pabal.testing.topic_place import commit, joined, take
from pabal.topic_store import NewRecord, Shape
from pabal.topic_stores.kafka import KafkaSettings, KafkaTopics
from pabal.topic_stores.kafka.reader import SETTINGS_TOPIC, proposal_key
from pabal.topic_stores.partition import partition_of
from tests.services.kafka import KafkaServer, running


@pytest.fixture
def name() -> str:
    return f"topic-{new_token()}"


def test_kcat_reads_what_we_append(kafka: KafkaServer, name: str) -> None:
    with connect_topics(kafka.url) as topics:
        topics.topic(name).create(1)
        topics.topic(name).append_many([{"n": 1}, "two"], key="k1", headers={"trace": "t"})
    printed = kafka.kcat("-C", "-t", name, "-o", "beginning", "-e", "-q", "-J")
    found = [json.loads(line) for line in printed.splitlines()]
    assert [(r["key"], r["payload"], r["offset"]) for r in found] == [("k1", '{"n":1}', 0), ("k1", '"two"', 1)]
    assert found[0]["headers"] == ["trace", "t"]


def test_we_read_what_kcat_appends(kafka: KafkaServer, name: str) -> None:
    with connect_topics(kafka.url) as topics:
        topic = topics.topic(name)
        topic.create(3)
        kafka.kcat("-P", "-t", name, "-K", ":", "-H", "h=1", stdin='room-1:{"n": 1}\nroom-1:plain words\n')
        with joined(topic.topics, name) as member:
            found = take(member, 2)
            commit(member, found)
        assert [(r.key, topic.body_of(r), dict(r.headers)) for r in found] == [
            ("room-1", {"n": 1}, {"h": "1"}),
            ("room-1", b"plain words", {"h": "1"}),
        ]


def test_a_topic_that_brokers_have_not_heard_of_yet_is_waited_for(
    kafka: KafkaServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = f"none-{new_token()}"
    looks = []

    def look_late(admin: AdminClient, topic: str, timeout: float) -> Any:
        looks.append(topic)
        if len(looks) > 2:
            return look(admin, topic, timeout=timeout)
        found = look(admin, missing, timeout=timeout)
        found.topics[topic] = found.topics.pop(missing)
        return found

    with connect_topics(kafka.url) as topics, connect_topics(kafka.url) as others:
        topics.topic(name).create(2)  # the controller knows it from here on
        look = AdminClient.list_topics
        monkeypatch.setattr(AdminClient, "list_topics", look_late)
        assert not others.topic(name).create(2)
        assert len(looks) > 2


def test_a_topic_waits_for_brokers_and_not_for_ever(
    kafka: KafkaServer, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The controller makes none before the first sign of life of its brokers."""
    text = "Unable to replicate the partition 1 time(s): All brokers are currently fenced."
    fenced: list[Future[None]] = [Future(), Future()]
    for future in fenced:
        future.set_exception(KafkaException(KafkaError(KafkaError.INVALID_REPLICATION_FACTOR, text)))
    create = AdminClient.create_topics
    answers: Iterator[Future[None]] = iter(fenced)

    def create_later(admin: AdminClient, wanted: list[Any], **limits: float) -> Any:
        future = next(answers, None)
        return create(admin, wanted, **limits) if future is None else {name: future}

    monkeypatch.setattr(AdminClient, "create_topics", create_later)
    with connect_topics(kafka.url) as topics:
        assert topics.topic(name).create(1)
    answers = repeat(fenced[0])
    hasty = KafkaTopics(KafkaSettings(kafka.servers, timeout=0.5))
    with pytest.raises(StoreFailed, match="does not answer.*fenced"):
        hasty.create(f"{name}-2", Shape(1))
    hasty.close()


def test_who_proposes_a_schema_a_moment_after_another_changes_nothing(kafka: KafkaServer, name: str) -> None:
    first, second = {"type": "string"}, {"type": "object"}
    with connect_topics(kafka.url) as topics, connect_topics(kafka.url) as others:
        topics.topic(name).create(1, schema=first)
        # As if the other had looked before the first was there, and proposed after.
        late = NewRecord(json.dumps({"schema": second}).encode(), proposal_key(name))
        others.driver.append(SETTINGS_TOPIC, [late])
        assert topics.topic(name).schema == others.topic(name).schema == first
        with pytest.raises(NameTaken, match="another schema"):
            others.topic(name).create(1, schema=second)


def test_both_drivers_put_a_key_into_the_same_partition(kafka: KafkaServer, name: str) -> None:
    chance = random.Random(7)
    keys = ["".join(chance.choices(string.printable + "äß파발", k=chance.randrange(1, 40))) for _ in range(300)]
    topics = KafkaTopics(KafkaSettings(kafka.servers))
    topics.create(name, Shape(13))
    positions = topics.append(name, [NewRecord(b"", key) for key in keys])
    topics.close()
    assert [position.partition for position in positions] == [partition_of(key, 13) for key in keys]


def test_a_server_that_does_not_answer_is_told_in_time() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and never listens
        topics = KafkaTopics(KafkaSettings(f"127.0.0.1:{nobody.getsockname()[1]}", timeout=1.0))
        start = time.monotonic()
        for call in (
            lambda: topics.bounds("x"),
            lambda: topics.create("x", Shape(1)),
            lambda: topics.topics(),
            lambda: topics.append("x", [NewRecord(b"x")]),
        ):
            with pytest.raises(StoreFailed, match="does not answer"):
                call()
        topics._partitions["x"] = 1  # as in a process that knew the topic before the server went
        with pytest.raises(Uncertain, match="does not answer.*twice"):
            topics.append("x", [NewRecord(b"x")])
        member = topics.join("x", "g")
        assert member.read(10, 0.5) == []  # whoever reads waits for it to come back
        member.close()
        topics.close()
        assert time.monotonic() - start < 20.0


def test_settings_come_from_the_url_and_a_file(tmp_path: Path, kafka: KafkaServer, name: str) -> None:
    (tmp_path / "client.properties").write_text("# ours\nclient.id = tester\n")
    with connect_topics(
        f"{kafka.url}?timeout=15&replication=1&min_insync=1&config={tmp_path}/client.properties"
    ) as found:
        found.topic(name).create(1)
        found.topic(name).append("x")
        assert "1, 1 in sync" in found.driver.facts()["replication"]


def test_more_replicas_than_brokers_are_refused(kafka: KafkaServer, name: str) -> None:
    with connect_topics(f"{kafka.url}?replication=3") as topics, pytest.raises(InvalidInput, match="eplication factor"):
        topics.topic(name).create(1)


@pytest.mark.parametrize("query", ["timeout=soon", "replication=0", "replicas=3", "timeout=99999"])
def test_a_wrong_option_is_named(query: str) -> None:
    with pytest.raises(InvalidUrl, match=query.partition("=")[0]):
        connect_topics(f"kafka://127.0.0.1:1?{query}")


def test_a_config_file_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("nonsense\n")
    for path in ("bad", "absent"):
        with pytest.raises(InvalidInput, match=path):
            connect_topics(f"kafka://127.0.0.1:1?config={tmp_path / path}")


def test_without_the_client_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from pabal.errors import ExtraMissing

    for module in [name for name in sys.modules if name.startswith(("pabal.topic_stores.kafka", "confluent_kafka"))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ExtraMissing, match=r"its extra .kafka"):
        connect_topics("kafka://127.0.0.1:1")


@pytest.mark.parametrize("session", [0.0001, 0.05, 7200.0])
def test_a_session_that_kafka_does_not_have_is_refused_not_waited_for(
    kafka: KafkaServer, name: str, session: float
) -> None:
    with connect_topics(kafka.url) as topics:
        topics.topic(name).create(1)
        with pytest.raises(InvalidInput, match="session"):
            with closing(topics.driver.join(name, "readers", session=session)) as member:
                member.read(1, 15.0)


def test_a_setting_that_the_client_does_not_know_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("no.such.setting=1\n")
    with pytest.raises(InvalidInput, match=r"no\.such\.setting"):
        connect_topics(f"kafka://127.0.0.1:1?config={tmp_path / 'config'}")


@pytest.mark.parametrize("gone", ["hung", "killed"])
def test_a_member_ends_in_time_while_its_brokers_are_hung_or_gone(gone: str, name: str) -> None:
    with running() as server:
        topics = KafkaTopics(KafkaSettings(server.servers, timeout=2.0))
        topics.create(name, Shape(1))
        topics.append(name, [NewRecord(b"1", key="k"), NewRecord(b"2", key="k")])
        member = topics.join(name, "readers", session=6.0)
        record, _ = take(member, 2)
        member.commit({record.partition: record.offset + 1})
        server.hang() if gone == "hung" else server.kill()
        told: list[Exception] = []

        def leave() -> None:
            try:
                member.commit({record.partition: record.offset + 2})
            except Exception as exc:
                told.append(exc)
            member.close()
            topics.close()

        leaving = Thread(target=leave, daemon=True)
        leaving.start()
        leaving.join(60)
        assert not leaving.is_alive()
        (error,) = told
        assert isinstance(error, StoreFailed)
