"""Bridges on both kinds of topics: at least once, and stored once on the queue's side."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread, Timer

import apsw
import pytest

from pabal.connect import Connection, connect, connect_topics
from pabal.errors import StoreClosed
from pabal.ids import new_token
from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.queue import Queue
from pabal.store import State
from pabal.topic_store import NewRecord
from pabal.topics.bridge import to_queue, to_topic
from pabal.topics.dead_records import dead_of, waiting
from pabal.topics.topic import Topic


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    with connect(f"sqlite:{tmp_path / 'queues.db'}") as found:
        yield found


def test_a_message_goes_through_a_topic_and_is_itself_again(mq: Connection, topic: Topic) -> None:
    topic.create(3)
    source, target = mq.queue("orders"), mq.queue("copies")
    published = source.publish(
        {"n": 1},
        type="order.placed",
        sender="shop",
        group="customer-4",
        headers={"traceparent": "00-1"},
        attributes={"tags": ["a", "b"]},
        priority=7,
        ttl=3600,
        version=2,
    )
    sent = source.find(published.id)
    source.publish(b"\x00\xff", group="customer-4")
    assert to_topic(source, topic).run(wait=0.2) == 2
    assert source.counts()[State.DONE] == 2
    assert to_queue(topic, "bridge", target, session=2.0).run(count=2, wait=15.0) == 2
    first, second = (entry.message for entry in target.browse(State.READY))
    assert first is not None and second is not None
    assert (first.id, first.body, first.type, first.sender) == (published.id, {"n": 1}, "order.placed", "shop")
    assert first.group == "customer-4" and first.headers == {"traceparent": "00-1"}
    assert second.body == b"\x00\xff"
    assert sent is not None and sent.message is not None and sent.message.expires_at
    assert (first.attributes, first.priority, first.expires_at) == ({"tags": ["a", "b"]}, 7, sent.message.expires_at)
    assert (first.version, second.version) == (2, 1)
    assert (second.attributes, second.priority, second.expires_at) == ({}, 0, None)


def test_a_header_of_ours_that_a_stranger_got_wrong_sends_the_record_to_the_dlq(mq: Connection, topic: Topic) -> None:
    topic.create(1)
    wrong = [{"pabal-priority": "soon"}, {"pabal-attributes": "[1]"}, {"pabal-expires-at": "-5"}]
    topic.topics.append(topic.name, [NewRecord(b'"body"', headers=headers) for headers in wrong])
    carrier = to_queue(topic, "bridge", mq.queue("copies"), session=2.0)
    carrier.run(count=3, wait=20.0)
    assert carrier.dead == 3 and mq.queue("copies").counts()[State.READY] == 0


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(("group", "thread"), [("", "t-1"), ("t-1", "t-1"), ("g", "t-1"), ("g", ""), ("", "")])
def test_a_message_is_of_the_group_that_it_had_and_of_no_other(
    mq: Connection, topic: Topic, group: str, thread: str
) -> None:
    topic.create(1)
    mq.queue("orders").publish(1, group=group, thread_id=thread)
    to_topic(mq.queue("orders"), topic).run(wait=0.1)
    to_queue(topic, "bridge", mq.queue("copies")).run(wait=0.1)
    [lease] = mq.queue("copies").lease()
    assert (lease.message.group, lease.message.thread_id) == (group, thread)


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_a_record_of_anybody_is_of_the_group_of_its_key(mq: Connection, topic: Topic) -> None:
    topic.create(1)
    topic.append(1, key="customer-4")
    to_queue(topic, "bridge", mq.queue("copies")).run(wait=0.1)
    assert mq.queue("copies").lease()[0].message.group == "customer-4"


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_a_message_for_one_consumer_is_still_for_that_one(mq: Connection, topic: Topic) -> None:
    topic.create(1)
    topic.append("hers", headers={"pabal-target": "ann"})
    to_queue(topic, "bridge", mq.queue("copies")).run(wait=0.1)
    assert mq.queue("copies").lease() == []
    [entry] = mq.queue("copies").browse(State.READY)
    assert entry.message is not None and entry.message.target == "ann"


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_the_dead_letter_of_a_body_that_does_not_fit_stays_though_the_message_would_expire(
    mq: Connection, topic: Topic
) -> None:
    topic.create(1)
    strict = Policy(
        body_schema={"type": "string"}, on_invalid="dead-letter", dead_letters=DeadLetterPolicy(queue="unfit")
    )
    mq.queue("copies").configure(strict)
    topic.append(1, headers={"pabal-expires-at": "2000000000.0"})
    to_queue(topic, "bridge", mq.queue("copies")).run(wait=0.1)
    [dead], [letter] = mq.queue("copies").browse(State.DEAD), mq.queue("unfit").browse(State.READY)
    assert dead.message is not None and dead.message.expires_at is None
    assert letter.message is not None and letter.message.expires_at != 2000000000.0


def test_what_a_crash_carries_twice_is_stored_once(mq: Connection, topic: Topic) -> None:
    topic.create(1)
    topic.append_many([1, 2, 3], key="k")
    target = mq.queue("copies")
    to_queue(topic, "bridge", target, session=1.0).run(count=3, wait=15.0)
    # As if the bridge had died after publishing and before committing.
    topic.topics.reset(topic.name, "bridge", {0: 0})
    assert to_queue(topic, "bridge", target, session=1.0).run(count=3, wait=15.0) == 3
    assert target.counts()[State.READY] == 3


def test_a_queue_that_is_full_makes_the_bridge_wait(mq: Connection, topic: Topic) -> None:
    topic.create(1)
    topic.append_many([1, 2])
    target = mq.queue("small")
    target.configure(Policy(max_waiting=1))
    carrier = to_queue(topic, "bridge", target, session=5.0)
    taken: list[object] = []

    def make_room() -> None:
        for delivery in target.lease(1, wait=15.0):
            delivery.ack()
            taken.append(delivery.message.body)

    thread = Thread(target=make_room)
    thread.start()
    assert carrier.run(count=2, wait=20.0) == 2
    thread.join()
    assert taken == [1] and carrier.dead == 0


def test_a_body_that_the_queue_refuses_goes_to_the_dlq(mq: Connection, topic: Topic) -> None:
    topic.create(1)
    topic.topics.append(topic.name, [NewRecord(b'"fine"'), NewRecord(b'"no"', key="bad\nkey"), NewRecord(b'"too"')])
    target = mq.queue("copies")
    carrier = to_queue(topic, "bridge", target, session=2.0)
    assert carrier.run(count=3, wait=20.0) == 2 and carrier.dead == 1
    [dead] = waiting(topic, 10)
    assert dead.value == b'"no"' and "control character" in dead_of(dead).reason


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_a_message_waits_while_the_store_of_its_topic_fails(mq: Connection, topic: Topic) -> None:
    topic.create(1)
    source = patient(mq)
    break_down(topic)
    Timer(1.0, mend, [topic]).start()
    assert to_topic(source, topic).run(count=1) == 1
    assert source.counts()[State.DEAD] == 0 and topic.bounds()[0].next == 1


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_a_bridge_that_is_stopped_while_the_store_of_its_topic_fails_gives_its_message_back(
    mq: Connection, topic: Topic
) -> None:
    topic.create(1)
    source = patient(mq)
    break_down(topic)
    carrier = to_topic(source, topic)
    Timer(0.5, carrier.stop).start()
    assert carrier.run(count=1) == 0
    assert source.counts()[State.READY] == 1 and source.counts()[State.DEAD] == 0


def test_a_bridge_ends_when_the_connection_of_its_topic_was_closed(mq: Connection, topics_url: str) -> None:
    source = patient(mq)
    with connect_topics(topics_url) as topics:
        topic = topics.topic(f"topic-{new_token()}")
        topic.create(1)
    with pytest.raises(StoreClosed):
        to_topic(source, topic).run()
    assert source.counts()[State.READY] == 1 and source.counts()[State.DEAD] == 0


def patient(mq: Connection) -> Queue:
    """Return a queue with a message that may fail once."""
    queue = mq.queue("orders")
    queue.configure(Policy(retry=RetryPolicy(limit=1)))
    queue.publish("patient")
    return queue


def break_down(topic: Topic) -> None:
    with closing(apsw.Connection(topic.topics.facts()["place"])) as db:
        db.execute("create trigger down before insert on topic_records begin select 1 from nowhere; end")


def mend(topic: Topic) -> None:
    with closing(apsw.Connection(topic.topics.facts()["place"])) as db:
        db.set_busy_timeout(5000)
        db.execute("drop trigger down")
