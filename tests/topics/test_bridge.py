"""Bridges on both kinds of topics: at least once, and stored once on the queue's side."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.appending import Topic
from pabal.bridge import to_queue, to_topic
from pabal.connect import Connection, connect
from pabal.dead_records import dead_of, waiting
from pabal.policy import Policy
from pabal.store import State
from pabal.topic import NewRecord


@pytest.fixture
def mq(tmp_path: Path) -> Iterator[Connection]:
    with connect(f"sqlite:{tmp_path / 'queues.db'}") as found:
        yield found


def test_a_message_goes_through_a_topic_and_is_itself_again(mq: Connection, topic: Topic) -> None:
    topic.create(3)
    source, target = mq.queue("orders"), mq.queue("copies")
    published = source.publish(
        {"n": 1}, type="order.placed", sender="shop", group="customer-4", headers={"traceparent": "00-1"}
    )
    source.publish(b"\x00\xff", group="customer-4")
    assert to_topic(source, topic).run(wait=0.2) == 2
    assert source.counts()[State.DONE] == 2
    assert to_queue(topic, "bridge", target, session=2.0).run(count=2, wait=15.0) == 2
    first, second = (entry.message for entry in target.browse(State.READY))
    assert first is not None and second is not None
    assert (first.id, first.body, first.type, first.sender) == (published.id, {"n": 1}, "order.placed", "shop")
    assert first.group == "customer-4" and first.headers == {"traceparent": "00-1"}
    assert second.body == b"\x00\xff"


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

    from threading import Thread

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
