"""Topics over HTTP: figures, records, dead records; compared with the command line."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.connect import TopicConnection, connect_topics
from pabal.gateway.signature import new_key, write_keys
from pabal.ids import new_token
from pabal.topic_store import NewRecord
from pabal.topics.attempts import Received
from pabal.topics.consumer import consumer
from pabal.topics.topic import Topic
from tests.cli.command import Pabal
from tests.gateway.conftest import Running, gateway
from tests.gateway.http_client import Client, Failed


@pytest.fixture(scope="module")
def api(served: Running) -> Client:
    return Client(served)


@pytest.fixture
def topics(place: Path) -> Iterator[TopicConnection]:
    with connect_topics(f"sqlite:{place}/jobs.db") as found:
        yield found


@pytest.fixture
def events(topics: TopicConnection, request: pytest.FixtureRequest) -> Topic:
    topic = topics.topic(request.node.name[-60:].strip("_"))
    topic.create(2)
    return topic


def refuse(received: Received) -> None:
    raise ValueError(f"cannot {received.body}")


def let_die(topic: Topic, count: int) -> None:
    consumer(topic, "billing", refuse, retry=pabal.RetryPolicy(limit=1)).run(count=count, wait=30.0)


def values(page: dict[str, Any]) -> list[Any]:
    return [record["body"] for record in page["records"]]


def test_topics_are_shown_as_the_command_line_shows_them(
    api: Client, place: Path, topics: TopicConnection, events: Topic
) -> None:
    events.append({"text": "한국어와 日本語"}, key="방-1", headers={"tenant": "青"}, partition=0)
    events.append(b"\x00\xff", partition=1)
    let_die(events, 1)
    member = topics.driver.join(events.name, "archive", session=600.0)
    member.read(10, 5.0)
    command = Pabal(f"sqlite:{place}/jobs.db", place)
    here = ("--json", "--topics", f"sqlite:{place}/jobs.db")
    listed = {row["topic"]: row for row in api("list_topics")["topics"]}
    assert {row["topic"]: row for row in command("topic", "list", *here).documents} == listed
    assert listed[events.name]["dead"] == 1 and listed[events.name]["records"] == 2
    shown = api("show_topic", topic=events.name)
    shares = [
        {"topic": events.name, "group": group["group"], **share}
        for group in shown["groups"]
        for share in group["shares"]
    ]
    assert command("topic", "groups", events.name, *here).documents == shares
    archive = next(group for group in shown["groups"] if group["group"] == "archive")
    assert (archive["lag"], archive["members"]) == (2, [member.name])
    assert shown["partitions"] == [
        {"partition": 0, "first": 0, "next": 1},
        {"partition": 1, "first": 0, "next": 1},
    ]
    records = api("list_records", topic=events.name)["records"]
    for printed, record in zip(command("topic", "tail", events.name, *here).documents, records, strict=True):
        assert printed.items() <= record.items()
    dead = api("list_dead_records", topic=events.name)["records"]
    [printed] = command("topic", "dlq", events.name, *here).documents
    assert printed.items() <= dead[0].items() and dead[0]["dead"]["code"] == "HANDLER_ERROR"
    member.close()


def test_records_come_from_an_offset_a_time_or_the_end_and_page_by_cursor(api: Client, events: Topic) -> None:
    for number in range(30):
        events.append(number, partition=number % 2)
    first = api("list_records", topic=events.name, limit=20)
    assert len(values(first)) == 20 and first["previous"] is None
    second = api("list_records", topic=events.name, limit=20, after=first["next"])
    assert sorted(values(first) + values(second)) == list(range(30)) and second["next"] is None
    newest = api("list_records", topic=events.name, newest=True, limit=4)
    assert len(values(newest)) == 4 and newest["next"] is None
    older = api("list_records", topic=events.name, before=newest["previous"], limit=1000)
    assert sorted(values(older) + values(newest)) == list(range(30)) and older["previous"] is None
    back = api("list_records", topic=events.name, after=older["next"], limit=1000)
    assert values(back) == values(newest)
    assert values(api("list_records", topic=events.name, partition=1, offset=13)) == [27, 29]
    at = datetime.fromtimestamp(events.read(0, 14, 1)[0].at + 3600, UTC).isoformat()
    assert values(api("list_records", topic=events.name, at=at)) == []
    assert len(values(api("list_records", topic=events.name, at="1990-01-01T00:00:00Z"))) == 30
    [one] = [api("show_record", topic=events.name, partition=1, offset=13)]
    assert (one["body"], one["body_bytes"]) == (27, 2)


@pytest.mark.parametrize(
    "query",
    [{"partition": 2}, {"offset": -1}, {"after": "x"}, {"after": "7.0"}, {"offset": 1, "newest": True}, {"at": "soon"}],
)
def test_what_cannot_be_read_is_refused(api: Client, topics: TopicConnection, query: dict[str, Any]) -> None:
    topics.topic("refusals").create(2)
    with pytest.raises(Failed) as refused:
        api("list_records", topic="refusals", **query)
    assert refused.value.status == 400
    for partition, offset, status in (("x", "0", 400), ("0", "99", 404), ("9", "0", 404)):
        with pytest.raises(Failed) as refused:
            api("show_record", topic="refusals", partition=partition, offset=offset)
        assert refused.value.status == status
    with pytest.raises(Failed) as refused:
        api("show_topic", topic="nowhere")
    assert (refused.value.status, refused.value.error["code"]) == (404, "TopicUnknown")


def test_large_hostile_and_foreign_records_are_shown_as_data(api: Client, events: Topic) -> None:
    hostile = "<script>alert(1)</script>\u202e"
    events.append("x" * 900_000, partition=0)
    events.append({hostile: hostile}, key=hostile, headers={hostile: hostile}, partition=0)
    events.topics.append(events.name, [NewRecord(b"\xff not json", "\udcff", {"h": "\udcfd"}, 0)])
    large, odd, foreign = api("list_records", topic=events.name)["records"]
    assert large["body"] is None and large["body_bytes"] == 900_002 and len(large["body_text"]) == 2000
    assert (odd["key"], odd["headers"], odd["body"]) == (hostile, {hostile: hostile}, {hostile: hostile})
    assert foreign["body"] == b64encode(b"\xff not json").decode() and foreign["key"] == "\ufffd"
    assert len(api("show_record", topic=events.name, partition=0, offset=0)["body"]) == 900_000


def test_dead_records_are_counted_then_replayed_and_those_that_die_later_are_left(api: Client, events: Topic) -> None:
    for number in range(130):
        events.append(number, partition=number % 2)
    let_die(events, 130)
    counted = api("replay_dead_records", topic=events.name, body={"dry_run": True})
    assert (counted["replayed"], counted["left"]) == (0, 130)
    seen = 0
    after: str | None = ""
    while after is not None:
        page = api("list_dead_records", topic=events.name, limit=50, after=after)
        seen, after = seen + len(page["records"]), page["next"]
    assert seen == 130
    events.append("later", partition=0)
    let_die(events, 1)
    replayed, left = [], counted["left"]
    while left:
        answer = api("replay_dead_records", topic=events.name, body={"until": counted["until"]})
        replayed.append(answer["replayed"])
        left = answer["left"]
    assert replayed == [100, 30]
    assert [each["body"] for each in api("list_dead_records", topic=events.name)["records"]] == ["later"]
    assert sum(end - first for first, end in events.bounds()) == 261
    assert api("replay_dead_records", topic=events.name, body={})["left"] == 0


def test_topics_of_another_place_appear_when_they_are_made(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/events.db"
    with gateway(f"file:{tmp_path}/queues", tmp_path / "log", "--topics", url) as running:
        client = Client(running)
        assert client("list_topics") == {"topics": []}
        assert not (tmp_path / "events.db").exists()
        with connect_topics(url) as topics:
            topics.topic("late").create(1)
        assert [each["topic"] for each in client("list_topics")["topics"]] == ["late"]
    with gateway(f"file:{tmp_path}/queues", tmp_path / "log") as running:  # no topics belong to this store
        client = Client(running)
        assert client("list_topics") == {"topics": []}
        with pytest.raises(Failed) as refused:
            client("show_topic", topic="late")
        assert refused.value.status == 404 and "--topics" in refused.value.error["message"]


def test_topics_on_kafka_are_shown_and_replayed(kafka: Any, tmp_path: Path) -> None:
    name = f"events-{new_token()}"
    with connect_topics(kafka.url) as topics:
        topic = topics.topic(name)
        topic.create(2)
        topic.append_many([NewRecord(str(number).encode(), partition=number % 2) for number in range(6)])
        consumer(topic, "billing", refuse, retry=pabal.RetryPolicy(limit=1), session=6.0).run(count=6, wait=30.0)
    with gateway(f"file:{tmp_path}/queues", tmp_path / "log", "--topics", kafka.url) as running:
        client = Client(running)
        [row] = [each for each in client("list_topics")["topics"] if each["topic"] == name]
        assert (row["partitions"], row["records"], row["dead"]) == (2, 6, 6)
        assert sorted(values(client("list_records", topic=name))) == list(range(6))
        assert len(values(client("list_records", topic=name, newest=True, limit=4))) == 4
        assert len(client("list_dead_records", topic=name)["records"]) == 6
        counted = client("replay_dead_records", topic=name, body={"dry_run": True})
        done = client("replay_dead_records", topic=name, body={"until": counted["until"]})
        assert (counted["left"], done["replayed"], done["left"]) == (6, 6, 0)
        assert len(values(client("list_records", topic=name))) == 12


def test_a_queue_store_without_topics_stays_without(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/jobs.db"
    with pabal.connect(url) as mq:
        mq.queue("jobs").publish(1)
    with gateway(url, tmp_path / "log") as running:
        assert Client(running)("list_topics") == {"topics": []}
    ran = Pabal(url, tmp_path)("topic", "list", "--topics", url)
    assert ran.code != 0 and "no topics in" in ran.err


def test_keys_see_their_topics_and_replay_needs_a_right(tmp_path: Path) -> None:
    looker, manager = new_key("eye", ["orders-*"], ["look"]), new_key("", ["orders-*"], ["look", "manage"])
    write_keys(tmp_path / "keys", [looker, manager])
    url = f"sqlite:{tmp_path}/jobs.db"
    with connect_topics(url) as topics:
        for name in ("orders-1", "secret"):
            topics.topic(name).create(1)
    with gateway(url, tmp_path / "log", "--keys", str(tmp_path / "keys")) as running:
        looks = Client(running, key=looker.access_key, secret=looker.secret)
        manages = Client(running, key=manager.access_key, secret=manager.secret)
        assert [each["topic"] for each in looks("list_topics")["topics"]] == ["orders-1"]
        assert manages("replay_dead_records", topic="orders-1", body={})["left"] == 0
        asked: list[tuple[Client, str, dict[str, Any]]] = [
            (looks, "replay_dead_records", {"topic": "orders-1", "body": {}}),
            (looks, "show_topic", {"topic": "secret"}),
            (looks, "list_records", {"topic": "secret"}),
            (looks, "list_dead_records", {"topic": "secret"}),
            (manages, "replay_dead_records", {"topic": "secret", "body": {}}),
        ]
        for client, call, given in asked:
            with pytest.raises(Failed) as refused:
                client(call, **given)
            assert (refused.value.status, refused.value.error["code"]) == (403, "NotAllowed")
        with pytest.raises(Failed) as refused:
            looks("show_topic", topic="orders-9")
        assert refused.value.status == 404 and url not in str(refused.value.error)
