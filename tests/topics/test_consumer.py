"""The consumer on both drivers: tries, dead records, outages, schemas, replay."""

import threading
import time
from typing import Any

import pytest

from pabal.connect import TopicConnection, connect_topics
from pabal.errors import InvalidInput, Outage, StoreFailed, ValidationFailed
from pabal.policy.policy import Backoff, RetryPolicy
from pabal.topic_store import NewRecord
from pabal.topics.attempts import Received
from pabal.topics.consumer import Consumer, consumer
from pabal.topics.dead_records import dead_of, dlq_of, replay, waiting
from pabal.topics.topic import Topic

SOON = RetryPolicy(limit=3, backoff=Backoff.FIXED, initial=0.02, max=0.02)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Seen:
    """A handler that remembers what it was given and fails as told."""

    def __init__(self, fail: dict[Any, list[Exception]] | None = None) -> None:
        self.bodies: list[Any] = []
        self.attempts: list[int] = []
        self._fail = fail or {}

    def __call__(self, received: Received) -> None:
        self.bodies.append(received.body)
        self.attempts.append(received.attempt)
        waiting_failures = self._fail.get(received.body) if isinstance(received.body, int) else None
        if waiting_failures:
            raise waiting_failures.pop(0)


def run(topic: Topic, seen: Seen, count: int, group: str = "workers", **more: Any) -> Consumer:
    found = consumer(topic, group, seen, retry=SOON, session=1.0, **more)
    found.run(count=count, wait=20.0)
    return found


def test_each_record_is_handled_in_order_and_committed(topic: Topic) -> None:
    topic.create(1)
    topic.append_many([0, {"n": 1}, "two", b"\x00\xff", None])
    seen = Seen()
    run(topic, seen, 5)
    assert seen.bodies == [0, {"n": 1}, "two", b"\x00\xff", None]
    assert [share.committed for share in topic.groups()["workers"]] == [5]
    topic.append("next")
    again = Seen()
    run(topic, again, 1)
    assert again.bodies == ["next"]


def test_a_record_that_fails_every_time_goes_to_the_dlq_with_its_reason(topic: Topic) -> None:
    topic.create(1)
    topic.append_many([0, 1, 2], key="k", headers={"trace": "t1"})
    seen = Seen({1: [ValueError("boom")] * 3})
    done = run(topic, seen, 3)
    assert seen.bodies == [0, 1, 1, 1, 2]  # in order, and what follows waits for the tries only
    assert seen.attempts == [1, 1, 2, 3, 1]
    assert (done.handled, done.dead) == (2, 1)
    [dead] = waiting(topic, 10)
    assert (dead.topic, dead.key, dead.value) == (f"{topic.name}.dlq", "k", b"1")
    assert dead.headers["trace"] == "t1" and dead.headers["pabal-dlq-offset"] == "1"
    assert dead_of(dead) == ("workers", "HANDLER_ERROR", "ValueError: boom", 3)


def test_a_record_that_succeeds_in_time_is_not_dead(topic: Topic) -> None:
    topic.create(1)
    topic.append(7)
    seen = Seen({7: [ValueError("once"), ValueError("twice")]})
    done = run(topic, seen, 1)
    assert seen.attempts == [1, 2, 3] and (done.handled, done.dead) == (1, 0)
    assert waiting(topic, 10) == []


def test_other_partitions_go_on_while_one_waits_for_another_try(topic: Topic) -> None:
    topic.create(2)
    topic.append(0, partition=0)
    topic.append_many(list(range(1, 11)), partition=1)
    seen = Seen({0: [ValueError("slow down")]})
    slow = RetryPolicy(limit=3, backoff=Backoff.FIXED, initial=1.5, max=1.5)
    consumer(topic, "workers", seen, retry=slow, session=5.0, batch=3).run(count=11, wait=20.0)
    assert sorted(seen.bodies) == [0, 0, *range(1, 11)]
    assert seen.bodies[-1] == 0  # tried again only after all of the other partition was done


def test_an_outage_is_not_a_try(topic: Topic) -> None:
    topic.create(1)
    topic.append_many([1, 2])
    seen = Seen({1: [Outage("database is down")] * 4})
    done = run(topic, seen, 2)
    assert seen.bodies == [1, 1, 1, 1, 1, 2]
    assert seen.attempts == [1] * 6
    assert (done.handled, done.dead) == (2, 0)


def test_an_invalid_record_goes_to_the_dlq_without_a_try(topic: Topic) -> None:
    topic.create(1, schema=SCHEMA)
    topic.append({"n": 1})
    # Others may write what they like.
    topic.topics.append(topic.name, [NewRecord(b'{"n": "two"}'), NewRecord(b"no json"), NewRecord(b'{"n": 3}')])
    seen = Seen()
    done = run(topic, seen, 4)
    assert seen.bodies == [{"n": 1}, {"n": 3}] and (done.handled, done.dead) == (2, 2)
    first, second = (dead_of(record) for record in waiting(topic, 10))
    assert (first.code, first.attempts) == ("VALIDATION_ERROR", 1) and "n must be integer" in first.reason
    assert "NotJson" in second.reason


def test_what_does_not_fit_the_schema_is_not_appended(topic: Topic, connection: TopicConnection) -> None:
    topic.create(1, schema=SCHEMA)
    with pytest.raises(ValidationFailed):
        topic.append_many([{"n": 1}, {"n": "x"}])
    assert topic.bounds()[0].next == 0
    same = connection.topic(topic.name)
    assert same.schema == SCHEMA and same.create(1, schema=SCHEMA) is False
    with pytest.raises(InvalidInput, match="next version"):
        same.create(1, schema={"type": "object"})


def test_dead_records_are_replayed_for_the_group_that_failed_only(topic: Topic) -> None:
    topic.create(2)
    topic.append_many([1, 2, 3], key="k", headers={"h": "1"})
    other = Seen()
    run(topic, other, 3, group="other")
    run(topic, Seen({2: [ValueError("broken")] * 3}), 3)
    assert replay(topic) == 1
    assert waiting(topic, 10) == [] and replay(topic) == 0
    mended = Seen()
    run(topic, mended, 1)
    assert mended.bodies == [2]
    topic.append(4, key="k")
    run(topic, other, 1, group="other")
    assert other.bodies == [1, 2, 3, 4]  # it has had 2 already
    assert dlq_of(topic).bounds() != []


def test_a_consumer_stops_between_records_and_another_goes_on(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(20)))
    seen: list[Any] = []

    def handle(received: Received) -> None:
        seen.append(received.body)
        if received.body == 7:
            first.stop()

    first = consumer(topic, "workers", handle, session=5.0)
    assert first.run() == 8
    rest = Seen()
    run(topic, rest, 12)
    assert [*seen, *rest.bodies] == list(range(20))


def test_an_idle_consumer_is_stopped_from_another_thread(topic: Topic) -> None:
    topic.create(1)
    found = consumer(topic, "workers", Seen(), session=5.0)
    threading.Timer(0.3, found.stop).start()
    start = time.monotonic()
    assert found.run() == 0
    assert time.monotonic() - start < 15.0


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_a_consumer_whose_wait_is_over_sleeps_through_an_outage(topic: Topic) -> None:
    topic.create(1)
    topic.append(1)
    seen = Seen({1: [Outage("database is down")] * 3})
    before = time.thread_time()
    consumer(topic, "workers", seen).run(wait=0.05)
    assert len(seen.bodies) == 4 and time.thread_time() - before < 0.5


def test_a_schema_that_comes_later_counts_for_who_appended_before(topic: Topic) -> None:
    topic.create(1)
    topic.append("early")
    topic.create(1, schema=SCHEMA)
    with pytest.raises(ValidationFailed):
        topic.append("late")


def test_a_schema_that_another_process_gives_a_topic_reaches_who_is_at_work(topic: Topic, topics_url: str) -> None:
    topic.create(1)
    topic.append("early")
    with connect_topics(topics_url) as elsewhere:
        elsewhere.topic(topic.name).create(1, schema=SCHEMA)
        given = time.monotonic()
        with pytest.raises(ValidationFailed):
            while time.monotonic() - given < 10.0:
                topic.append("late")
                time.sleep(0.05)
        elsewhere.topic(topic.name).topics.append(topic.name, [NewRecord(b'"from who checks nothing"')])
        assert run(topic, Seen(), 1).dead == 1
        assert topic.schema == SCHEMA


@pytest.mark.parametrize("topics_url", ["sqlite"], indirect=True)
def test_what_is_read_is_checked_as_before_while_the_store_does_not_answer(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic.create(1, schema=SCHEMA)
    assert topic.schema == SCHEMA

    def fail(name: str) -> dict[str, Any]:
        raise StoreFailed("the disk is slow to answer")

    monkeypatch.setattr(topic.topics, "settings", fail)
    monkeypatch.setattr("pabal.clock.SLOW_POLL", 0.0)
    assert topic.body_of(NewRecord(b'{"n": 1}')) == {"n": 1}
    with pytest.raises(ValidationFailed):
        topic.body_of(NewRecord(b"1"))


async def later(received: object) -> None:
    raise AssertionError("nobody awaits this")


@pytest.mark.parametrize("together", [False, True])
def test_an_async_handler_is_refused(topic: Topic, together: Any) -> None:
    with pytest.raises(InvalidInput, match="found a coroutine function, later"):
        consumer(topic, "workers", later, together=together)


@pytest.mark.parametrize("together", [False, True])
def test_a_coroutine_that_a_handler_returns_is_a_failed_try(topic: Topic, together: Any) -> None:
    topic.create(1)
    topic.append_many([1, 2])
    found = consumer(topic, "workers", lambda received: later(received), retry=SOON, session=1.0, together=together)
    found.run(count=2, wait=20.0)
    assert (found.handled, found.dead) == (0, 2)
    assert "returned a coroutine" in dead_of(waiting(topic, 10)[0]).reason


def test_a_failing_handler_is_told_with_its_traceback(topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    topic.create(1)
    topic.append(1)
    run(topic, Seen({1: [ValueError("boom")]}), 1)
    [told] = [record for record in caplog.records if "handler raised" in record.getMessage()]
    assert told.levelname == "WARNING" and told.exc_info is not None


def test_a_retry_policy_that_is_none_is_refused(topic: Topic) -> None:
    with pytest.raises(InvalidInput, match="retry"):
        consumer(topic, "workers", print, retry=3)  # type: ignore[call-overload]
