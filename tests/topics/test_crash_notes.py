"""A record that ends the process of its handler each time is found out; nothing else is blamed or slowed down."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pabal.errors import Outage
from pabal.policy.policy import Backoff, RetryPolicy
from pabal.testing.topic_place import joined, take
from pabal.topic_store import NO_NOTES
from pabal.topics.attempts import Received, Refusal
from pabal.topics.consumer import consumer
from pabal.topics.dead_records import dead_of, waiting
from pabal.topics.topic import Topic
from tests.crash.harness import ROOT
from tests.topics.fatal import BATCH, GROUP, LIMIT

SOON = RetryPolicy(limit=3, backoff=Backoff.FIXED, initial=0.02, max=0.02)


class Killed(BaseException):
    """The end of a process: nothing more is committed."""


class Spy:
    """The driver, with a member whose commits are seen, and that can be killed."""

    def __init__(self, topic: Topic) -> None:
        self._topics = topic.topics
        self.commits: list[tuple[Mapping[int, int], Mapping[int, str]]] = []
        self.member: Any = None
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._topics, name)

    def join(self, topic: str, group: str, **more: float) -> Any:
        self.member = self._topics.join(topic, group, **more)
        return _Watched(self)


class _Watched:
    def __init__(self, spy: Spy) -> None:
        self._spy = spy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._spy.member, name)

    def commit(self, offsets: Mapping[int, int], notes: Mapping[int, str] = NO_NOTES) -> None:
        if not self._spy.dead:
            self._spy.commits.append((dict(offsets), dict(notes)))
            self._spy.member.commit(offsets, notes)


def note_of(topic: Topic) -> str:
    """Return the note that stands at the one partition of a topic."""
    [share] = topic.groups()[GROUP]
    with joined(topic.topics, topic.name, GROUP) as member:
        take(member, share.lag)
        return member.note(0)


def begun(topic: Topic) -> list[int]:
    """Return what the note says: offset, times, until."""
    return [int(word) for word in note_of(topic).split()[1:]]


def until_killed(topic: Topic, handler: Callable[[Received], object], **more: Any) -> None:
    """Run a consumer until its handler kills it."""
    spy = Spy(topic)

    def handle(received: Received) -> None:
        try:
            handler(received)
        except Killed:
            spy.dead = True
            raise

    with pytest.raises(Killed):
        consumer(Topic(topic.name, spy), GROUP, handle, session=1.0, **{"retry": SOON, **more}).run(wait=20.0)


@pytest.mark.parametrize("how", ["one-by-one", "together"])
@pytest.mark.timeout(120)
def test_t11_a_record_that_ends_its_process_goes_to_the_dlq_and_all_others_are_handled(
    topic: Topic, topics_url: str, tmp_path: Path, how: str
) -> None:
    topic.create(2)
    bodies = [f"a{n}" for n in range(3 * BATCH)]
    bodies[BATCH + 4] = "fatal"
    topic.append_many(bodies, partition=0)
    others = [f"b{n}" for n in range(BATCH)]
    topic.append_many(others, partition=1)
    history, ends = tmp_path / "history", list[int]()
    while GROUP not in topic.groups() or any(share.lag for share in topic.groups()[GROUP]):
        assert len(ends) < LIMIT + 5, f"it goes on ending its process: {ends}"
        command = [sys.executable, "-m", "tests.topics.fatal", topics_url, topic.name, str(history), how]
        ends.append(subprocess.run(command, cwd=ROOT, timeout=60).returncode)
    assert LIMIT < sum(end != 0 for end in ends) <= LIMIT + 2
    lines = [line.split() for line in history.read_text().splitlines()]
    for number, wanted in ((0, bodies), (1, others)):
        seen = dict.fromkeys(body for partition, body in lines if partition == str(number))
        assert list(seen) == [body for body in wanted if body != "fatal"]
    [dead] = waiting(topic, 10)
    assert dead.value == b'"fatal"'
    assert dead_of(dead) == (GROUP, "POISON", f"its process died or hung in its handler {LIMIT} times", LIMIT)


def test_t11_only_the_record_that_was_begun_is_blamed(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(8)))
    seen: list[Any] = []

    def handle(received: Received) -> None:
        if received.body == 5:
            raise Killed
        seen.append(received.body)

    once = RetryPolicy(limit=1)
    until_killed(topic, handle, retry=once)
    first, times, until = begun(topic)
    assert (times, until) == (0, 8) and first < 5  # one of these
    until_killed(topic, handle, retry=once)
    assert seen == [0, 1, 2, 3, 4, *range(first, 5)] and begun(topic) == [5, 1, 8]
    seen.clear()
    done = consumer(topic, GROUP, handle, retry=once, session=1.0)
    done.run(count=3, wait=20.0)
    assert (done.handled, done.dead, seen) == (2, 1, [6, 7])
    assert [record.value for record in waiting(topic, 10)] == [b"5"]


def test_t11_a_record_that_raises_before_it_kills_is_found_out_too(topic: Topic) -> None:
    topic.create(1)
    topic.append("fatal")

    def handle(received: Received) -> None:
        if received.attempt == 1:
            raise ValueError("not yet")
        raise Killed

    for _ in range(SOON.limit):
        until_killed(topic, handle)
    done = consumer(topic, GROUP, handle, retry=SOON, session=1.0)
    done.run(count=1, wait=20.0)
    assert (done.handled, done.dead) == (0, 1)


@pytest.mark.parametrize("trouble", [Outage("no database"), ValueError("boom"), KeyboardInterrupt()])
def test_t11_who_stops_in_good_order_leaves_no_note(topic: Topic, trouble: BaseException) -> None:
    topic.create(1)
    topic.append(1)

    def handle(received: Received) -> None:
        found.stop()
        raise trouble

    for _ in range(3):
        found = consumer(topic, GROUP, handle, retry=RetryPolicy(limit=2), session=1.0)
        try:
            found.run()
        except KeyboardInterrupt:
            pass
        assert note_of(topic) == ""
    assert waiting(topic, 10) == []


def test_t11_a_stop_among_suspects_keeps_what_is_known_and_counts_nothing(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(4)))

    def kill(received: Received) -> None:
        raise Killed

    def stop(received: Received) -> None:
        found.stop()
        if received.body == 0:
            raise Outage("not today")

    until_killed(topic, kill)
    until_killed(topic, kill)
    first, times, until = begun(topic)
    assert first == 0 < times
    found = consumer(topic, GROUP, stop, retry=SOON, session=1.0)
    found.run()
    assert begun(topic) == [0, times, until]
    until_killed(topic, kill)
    assert begun(topic) == [0, times + 1, until]


def test_t11_a_handler_of_many_gets_suspects_alone_and_the_rest_together(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(4)))

    def kill(received: Received) -> None:
        if received.body == 3:
            raise Killed

    until_killed(topic, kill)
    first, _, until = begun(topic)
    assert until == 4
    topic.append_many([4, 5, 6])
    calls: list[list[Any]] = []

    def handle(received: Sequence[Received]) -> Iterable[Refusal]:
        calls.append([one.body for one in received])
        return ()

    consumer(topic, GROUP, handle, together=True, session=1.0).run(count=7 - first, wait=20.0)
    assert calls == [*([n] for n in range(first, 4)), [4, 5, 6]]


def test_t11_only_the_first_batch_of_a_partition_costs_commits_more(topic: Topic) -> None:
    topic.create(1)
    topic.append_many(list(range(50)))
    spy = Spy(topic)
    consumer(Topic(topic.name, spy), GROUP, lambda received: None, batch=5, session=1.0).run(count=50, wait=20.0)
    noted = [(offsets, notes) for offsets, notes in spy.commits if notes]
    assert 1 <= len(noted) <= 5 and noted[0][0] == {0: 0} and max(offsets[0] for offsets, _ in noted) < 5
    assert [offsets for offsets, notes in spy.commits if not notes][-1] == {0: 50}


def test_t11_a_note_of_somebody_else_says_nothing(topic: Topic) -> None:
    topic.create(1)
    topic.append_many([1, 2])
    seen: list[Any] = []

    def handle(received: Received) -> None:
        seen.append(received.body)
        found.stop()
        raise Outage("no further")

    for note in ("begun 1 99 100", "begun 0 99", "metadata of another client"):
        with joined(topic.topics, topic.name, GROUP) as member:
            take(member, 2)
            member.commit({0: 0}, {0: note})
        found = consumer(topic, GROUP, handle, session=1.0)
        found.run()
    assert seen == [1, 1, 1] and waiting(topic, 10) == []
