"""A handler of many: one call for what was read, and a bad record that costs the others nothing but their company."""

from collections.abc import Iterable, Sequence
from typing import Any

from pabal.errors import Outage, StoreFailed
from pabal.policy.policy import Backoff, RetryPolicy
from pabal.topic_store import NewRecord, Position
from pabal.topics.attempts import Received, Refusal
from pabal.topics.consumer import Consumer, consumer
from pabal.topics.dead_records import dead_of, waiting
from pabal.topics.topic import Topic

SOON = RetryPolicy(limit=3, backoff=Backoff.FIXED, initial=0.02, max=0.02)
SCHEMA: dict[str, Any] = {"type": "integer"}


class Crowd:
    """A handler that remembers each call and fails as told: always for `bad`, never for `refused`."""

    def __init__(self, *, bad: Sequence[int] = (), refused: Sequence[int] = (), outages: int = 0) -> None:
        self.calls: list[list[Any]] = []
        self.done: list[Any] = []
        self.attempts: list[int] = []
        self._bad, self._refused, self._outages = bad, refused, outages

    def __call__(self, received: Sequence[Received]) -> Iterable[Refusal]:
        bodies = [one.body for one in received]
        self.calls.append(bodies)
        if self._outages:
            self._outages -= 1
            raise Outage("the database is down")
        if any(body in self._bad for body in bodies):
            self.attempts += [one.attempt for one in received if len(received) == 1]
            raise ValueError("boom")
        self.done += [body for body in bodies if body not in self._refused]
        return [Refusal(one, "not wanted") for one in received if one.body in self._refused]


def run(topic: Topic, crowd: Crowd, count: int, **more: Any) -> Consumer:
    found = consumer(topic, "workers", crowd, together=True, retry=SOON, session=5.0, **more)
    found.run(count=count, wait=20.0)
    return found


def committed(topic: Topic) -> list[int]:
    return [share.committed for share in topic.groups()["workers"]]


def test_a_handler_gets_what_was_read_in_one_call(topic: Topic) -> None:
    topic.create(2)
    topic.append_many(list(range(50)), partition=0)
    topic.append_many(list(range(100, 150)), partition=1)
    crowd = Crowd()
    done = run(topic, crowd, 100)
    assert (done.handled, done.dead) == (100, 0)
    assert [body for body in crowd.done if body < 100] == list(range(50))
    assert [body for body in crowd.done if body >= 100] == list(range(100, 150))
    assert max(map(len, crowd.calls)) > 10 and max(map(len, crowd.calls)) <= 100
    assert committed(topic) == [50, 50]


def test_a_bad_record_is_tried_alone_and_the_others_are_handled(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(20)))
    crowd = Crowd(bad=[7])
    done = run(topic, crowd, 20)
    assert crowd.done == [*range(7), *range(8, 20)]
    assert crowd.attempts == [1, 2, 3]  # the call that it spoiled was no try of it
    assert (done.handled, done.dead) == (19, 1)
    [dead] = waiting(topic, 10)
    assert dead_of(dead) == ("workers", "HANDLER_ERROR", "ValueError: boom", 3)
    assert committed(topic) == [20]


def test_a_refused_record_goes_to_the_dlq_at_once_with_its_reason(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(10)))
    crowd = Crowd(refused=[3, 9])
    done = run(topic, crowd, 10)
    assert (done.handled, done.dead) == (8, 2)
    assert crowd.done == [0, 1, 2, 4, 5, 6, 7, 8]
    assert [(record.value, dead_of(record)) for record in waiting(topic, 10)] == [
        (b"3", ("workers", "VALIDATION_ERROR", "not wanted", 1)),
        (b"9", ("workers", "VALIDATION_ERROR", "not wanted", 1)),
    ]
    assert committed(topic) == [10]


def test_an_outage_is_a_try_of_none_of_them(topic: Topic) -> None:
    topic.create(2)
    topic.append_many(list(range(5)), partition=0)
    topic.append_many(list(range(5, 10)), partition=1)
    crowd = Crowd(outages=3)
    done = run(topic, crowd, 10)
    assert (done.handled, done.dead) == (10, 0)
    assert sorted(crowd.done) == list(range(10)) and waiting(topic, 10) == []


def test_what_waits_with_an_outage_is_buried_once(topic: Topic) -> None:
    topic.create(1, schema=SCHEMA)
    values = [b"1", b"2", b'"no number"', b"4"]
    topic.topics.append(topic.name, [NewRecord(value) for value in values])
    crowd = Crowd(outages=3)
    done = run(topic, crowd, 4)
    assert (crowd.done, done.handled, done.dead) == ([1, 2, 4], 3, 1)
    assert [record.value for record in waiting(topic, 10)] == [b'"no number"']


def test_a_record_that_cannot_be_buried_waits_and_nothing_passes_it(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(6)))

    class NoGraves:
        """The driver, with a dlq that cannot be written twice."""

        failures = 2

        def __getattr__(self, name: str) -> Any:
            return getattr(topic.topics, name)

        def append(self, name: str, records: Sequence[NewRecord]) -> list[Position]:
            if name.endswith(".dlq") and self.failures:
                self.failures -= 1
                raise StoreFailed("no room for the dead")
            return topic.topics.append(name, records)

    crowd = Crowd(refused=[2])
    done = run(Topic(topic.name, NoGraves()), crowd, 6)
    assert (done.handled, done.dead) == (6 - 1, 1)
    assert list(dict.fromkeys(crowd.done)) == [0, 1, 3, 4, 5]
    assert [record.value for record in waiting(topic, 10)] == [b"2"] and committed(topic) == [6]


def test_a_consumer_of_many_that_is_stopped_has_committed_what_it_handled(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(40)))
    crowd = Crowd()

    def handle(received: Sequence[Received]) -> Iterable[Refusal]:
        found.stop()
        return crowd(received)

    found = consumer(topic, "workers", handle, together=True, batch=10, session=5.0)
    found.run()
    first = list(crowd.done)
    assert 1 <= len(first) <= 10 and committed(topic) == [len(first)]
    run(topic, crowd, 40 - len(first))
    assert crowd.done == list(range(40))
