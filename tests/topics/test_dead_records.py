"""Dead records in places that somebody else made, or that nobody can vouch for."""

from contextlib import closing
from threading import Timer

import apsw
import pytest

from pabal.connect import TopicConnection
from pabal.errors import InvalidName
from pabal.policy.policy import RetryPolicy
from pabal.topics.attempts import Received
from pabal.topics.consumer import consumer
from pabal.topics.dead_records import dead_of, dlq_of, replay, waiting
from pabal.topics.topic import Topic

ONCE = RetryPolicy(limit=1)


def refuse(received: Received) -> None:
    raise ValueError("no")


def test_a_dlq_with_fewer_partitions_blocks_none_and_replays_to_where_a_record_was(topic: Topic) -> None:
    topic.create(3)
    dlq_of(topic).create(1)
    topic.append("bad", partition=2)
    done = consumer(topic, "workers", refuse, retry=ONCE, session=2.0)
    done.run(count=1, wait=20.0)
    assert done.dead == 1
    [dead] = waiting(topic, 10)
    assert (dead.partition, dead_of(dead).reason) == (0, "ValueError: no")
    assert replay(topic) == 1
    assert [bounds.next for bounds in topic.bounds()] == [0, 0, 2]


def test_a_dead_record_of_no_group_is_replayed_for_all(topic: Topic) -> None:
    topic.create(1)
    dlq_of(topic).create(1)
    dlq_of(topic).append("by hand")
    assert replay(topic) == 1
    seen: list[object] = []
    consumer(topic, "workers", lambda received: seen.append(received.body), session=2.0).run(count=1, wait=20.0)
    assert seen == ["by hand"]


def test_a_record_that_is_too_large_for_the_dlq_blocks_nothing_and_is_told_of(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create(1)
    topic.append_many(["x" * 100, "small"])
    monkeypatch.setattr("pabal.topic_store.MAX_VALUE", 50)  # as if another client had written it
    done = consumer(topic, "workers", refuse, retry=ONCE, session=2.0)
    done.run(count=2, wait=20.0)
    assert done.dead == 2
    large, small = waiting(topic, 10)
    assert (large.value, small.value) == (b"", b'"small"')
    assert large.headers["pabal-dlq-offset"] == "0" and "at most 50 bytes" in large.headers["pabal-dlq-left"]
    assert replay(topic) == 1


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_a_reason_that_no_text_can_hold_is_kept_as_far_as_it_goes_and_blocks_nothing(topic: Topic) -> None:
    def complain(received: Received) -> None:
        raise ValueError("found \ud800")

    topic.create(1)
    topic.append(1)
    done = consumer(topic, "workers", complain, retry=ONCE)
    alarm = Timer(5.0, done.stop)  # else it would wait for ever
    alarm.start()
    done.run(count=1)
    alarm.cancel()
    assert done.dead == 1 and dead_of(waiting(topic, 1)[0]).reason == "ValueError: found ?"


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_t10_a_record_that_was_damaged_on_disk_is_never_replayed_as_whole(topic: Topic) -> None:
    topic.create(1)
    topic.append({"amount": 100})
    with closing(apsw.Connection(topic.topics.facts()["place"])) as db:
        db.execute("update topic_records set value = cast(replace(value, '100', '900') as blob)")
    seen: list[object] = []
    done = consumer(topic, "workers", lambda received: seen.append(received.body))
    done.run(wait=0.1)
    assert done.dead == 1 and dead_of(waiting(topic, 1)[0]).code == "CORRUPT"
    assert replay(topic) == 0
    done.run(wait=0.1)
    assert seen == [] and topic.bounds()[0].next == 1


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_a_topic_whose_dlq_could_have_no_name_is_told_before_anything_is_consumed(connection: TopicConnection) -> None:
    topic = connection.topic("n" * 198)
    topic.create(1)
    with pytest.raises(InvalidName, match="topic name"):
        consumer(topic, "workers", refuse)


def test_a_replay_up_to_some_places_takes_nothing_that_died_later(topic: Topic) -> None:
    topic.create(2)
    dlq = dlq_of(topic)
    dlq.create(2)
    for number in range(6):
        dlq.append(number, partition=number % 2)
    until = {0: 2, 1: 1}
    assert replay(topic, until={}) == 0 and replay(topic, 2, until) == 2 and replay(topic, until=until) == 1
    assert replay(topic, until=until) == 0
    again = [int(record.value) for number in (0, 1) for record in topic.read(number)]
    assert sorted(again) == [0, 1, 2]
    assert sorted(int(record.value) for record in waiting(topic, 10)) == [3, 4, 5]
