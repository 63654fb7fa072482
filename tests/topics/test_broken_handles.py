"""After an I/O error a database handle is given up: whoever goes on does so with a new one; nobody waits for ever."""

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from fcntl import LOCK_EX, LOCK_UN, flock
from pathlib import Path
from threading import Thread, Timer
from typing import Any

import pytest

from pabal.connect import Connection, TopicConnection, connect, connect_topics
from pabal.errors import Fenced, StoreClosed, StoreFailed, Uncertain
from pabal.sql.writer_lock import _Waiter
from pabal.store import State
from pabal.topics.attempts import Received
from pabal.topics.bridge import to_queue, to_topic
from pabal.topics.consumer import consumer
from pabal.topics.topic import Topic
from tests.cli.command import Pabal
from tests.topics.breaking import break_handles
from tests.waiting import until


@pytest.fixture
def queues(tmp_path: Path) -> Path:
    return tmp_path / "queues.db"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "topics.db"


@pytest.fixture
def mq(queues: Path) -> Iterator[Connection]:
    with connect(f"sqlite:{queues}") as found:
        yield found


@pytest.fixture
def connection(log: Path) -> Iterator[TopicConnection]:
    with connect_topics(f"sqlite:{log}") as found:
        yield found


@pytest.fixture
def topic(connection: TopicConnection) -> Topic:
    found = connection.topic("events.v1")
    found.create(1)
    return found


def bodies(topic: Topic) -> list[object]:
    return [topic.body_of(record) for record in topic.read(0)]


def test_a_topic_is_opened_anew_by_the_call_after_the_one_that_failed(topic: Topic, log: Path) -> None:
    topic.append(1)
    break_handles(log)
    with pytest.raises(Uncertain):
        topic.append(2)
    topic.append(3)
    assert bodies(topic) in ([1, 3], [1, 2, 3])


def test_a_topic_that_was_closed_stays_closed(topic: Topic, connection: TopicConnection, log: Path) -> None:
    break_handles(log)
    with pytest.raises(Uncertain):
        topic.append(1)
    connection.close()
    with pytest.raises(StoreClosed):
        topic.append(2)


def test_threads_that_share_a_topic_all_go_on(topic: Topic, log: Path) -> None:
    told: list[Any] = []

    def append(name: int) -> None:
        for number in range(50):
            try:
                topic.append([name, number])
                told.append([name, number])
            except (StoreFailed, Uncertain):
                continue

    threads = [Thread(target=append, args=[name]) for name in range(4)]
    for thread in threads:
        thread.start()
    break_handles(log)
    for thread in threads:
        thread.join()
    found = [topic.body_of(record) for record in topic.read(0, limit=1000)]
    assert len(told) > 150 and all(found.count(body) == 1 for body in told)


def test_a_child_forked_while_another_thread_opens_the_topic_anew_can_use_it(topic: Topic, log: Path) -> None:
    break_handles(log)
    with pytest.raises(Uncertain):
        topic.append(1)
    lock, aside = Path(f"{log}.lock"), Path(f"{log}.aside")
    lock.rename(aside)
    lock.mkdir()
    with pytest.raises(StoreFailed):
        topic.append(2)  # what was given up is closed, and nothing is open
    lock.rmdir()
    aside.rename(lock)
    with lock.open() as held:
        flock(held, LOCK_EX)
        thread = Thread(target=topic.append, args=["parent"])
        thread.start()
        while not waits_for_its_turn(thread):
            time.sleep(0.01)
        # Not by this thread, and not yet: the fork waits until the other thread has had its turn.
        Timer(0.2, flock, (held, LOCK_UN)).start()
        child = os.fork()
        if child == 0:
            try:
                topic.append("child")
            finally:
                os._exit(0)
    thread.join()
    assert ended(child)
    assert {"parent", "child"} <= set(map(str, bodies(topic)))


def waits_for_its_turn(thread: Thread) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    return frame is not None and frame.f_code is _Waiter.take.__code__


def ended(child: int) -> bool:
    """Say whether a child ends by itself within ten seconds; it is gone afterwards."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def test_a_member_reads_on_where_it_was_and_its_commit_is_still_its_own(topic: Topic, log: Path) -> None:
    topic.append_many([1, 2, 3])
    member = topic.topics.join(topic.name, "workers")
    assert [record.offset for record in member.read(2, 5.0)] == [0, 1]
    break_handles(log)
    with pytest.raises(Uncertain):
        member.commit({0: 1})
    member.commit({0: 2})
    assert [record.offset for record in member.read(5, 5.0)] == [2]
    member.close()
    assert [(share.committed, share.owner) for share in topic.groups()["workers"]] == [(2, "")]
    with pytest.raises(Fenced):
        member.commit({0: 3})


def test_a_consumer_ends_with_the_error_and_the_next_one_goes_on(topic: Topic, log: Path) -> None:
    topic.append_many([1, 2, 3])
    seen: list[object] = []

    def handle(received: Received) -> None:
        seen.append(received.body)
        if len(seen) == 2:
            break_handles(log)

    with pytest.raises(Uncertain):
        consumer(topic, "workers", handle, batch=1).run()
    assert consumer(topic, "workers", handle).run(wait=0.5) >= 1
    assert sorted(set(map(str, seen))) == ["1", "2", "3"]


def test_a_bridge_to_a_topic_whose_handle_broke_goes_on_with_a_new_one(mq: Connection, topic: Topic, log: Path) -> None:
    mq.queue("orders").publish_many([1, 2, 3])
    break_handles(log)
    assert to_topic(mq.queue("orders"), topic).run(wait=0.5) == 3
    assert set(map(str, bodies(topic))) == {"1", "2", "3"}


def test_a_bridge_to_a_queue_whose_handle_broke_ends_and_sets_no_record_aside(
    mq: Connection, topic: Topic, queues: Path
) -> None:
    topic.append_many([1, 2])
    target = mq.queue("copies")
    target.publish("first")
    break_handles(queues)
    carrier = to_queue(topic, "bridge", target)
    with pytest.raises(StoreFailed):
        carrier.run(wait=30.0)
    assert (carrier.handled, carrier.dead) == (0, 0)
    with connect(f"sqlite:{queues}") as anew:
        assert to_queue(topic, "bridge", anew.queue("copies")).run(wait=0.5) == 2
        assert anew.queue("copies").counts()[State.READY] == 3


@pytest.mark.parametrize("broken", ["queues.db", "topics.db"])
@pytest.mark.parametrize("direction", ["to-queue", "to-topic"])
def test_the_bridge_command_opens_its_stores_anew(
    topic: Topic, tmp_path: Path, queues: Path, caplog: pytest.LogCaptureFixture, direction: str, broken: str
) -> None:
    caplog.set_level(logging.WARNING)
    pabal = Pabal(f"sqlite:{queues}", tmp_path)
    pabal.ok("publish", "orders", "1")
    topic.append(1)

    def carried() -> bool:
        with connect(f"sqlite:{queues}") as mq:
            counts = mq.queue("copies" if direction == "to-queue" else "orders").counts()
        return bool(counts[State.READY if direction == "to-queue" else State.DONE])

    def meddle() -> None:
        until(carried)  # the bridge is at work and has nothing to do
        break_handles(tmp_path / broken)
        with connect(f"sqlite:{queues}") as mq:
            mq.queue("orders").publish(2)
        append_again(topic, 2)

    thread = Thread(target=meddle)
    thread.start()
    names = ("events.v1", "copies") if direction == "to-queue" else ("orders", "events.v1")
    told = pabal.ok("bridge", direction, *names, "--topics", f"sqlite:{tmp_path / 'topics.db'}", "--wait", "3s")
    thread.join()
    assert told in ("carried 2", "carried 3")  # one of them twice, if the failure came between its two steps
    assert "bridge waits" in caplog.text or "opened anew" in caplog.text
    with connect(f"sqlite:{queues}") as mq:
        assert mq.queue("copies").counts()[State.READY] == (2 if direction == "to-queue" else 0)
        assert mq.queue("orders").counts()[State.DONE] == (2 if direction == "to-topic" else 0)


def append_again(topic: Topic, body: int) -> None:
    """Append though the handle is broken: the call that meets it fails, the next one has a new handle."""
    with suppress(StoreFailed, Uncertain):
        topic.append(body)
        return
    if not any(record.value == str(body).encode() for record in topic.read(0)):  # an uncertain one may be there
        topic.append(body)


def test_a_bridge_command_that_waits_for_a_store_that_is_gone_can_be_stopped(
    topic: Topic, tmp_path: Path, queues: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pabal = Pabal(f"sqlite:{queues}", tmp_path)
    pabal.ok("publish", "other", "1")

    def meddle() -> None:
        until(lambda: topic.groups())  # the bridge has joined
        break_handles(queues)
        queues.rename(tmp_path / "elsewhere.db")
        queues.mkdir()  # it cannot be opened anew
        topic.append(1)
        while caplog.text.count("bridge waits") < 2:
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = Thread(target=meddle)
    thread.start()
    ran = pabal("bridge", "to-queue", "events.v1", "copies", "--topics", f"sqlite:{tmp_path / 'topics.db'}")
    thread.join()
    assert (ran.code, ran.out) == (1, "carried 0\n")
