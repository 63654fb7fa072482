"""Many threads that wait for one queue: one looks and sleeps on the watch, the others cost nothing."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.clock import SystemClock
from pabal.queues.queue import Queue
from pabal.queues.store_proxy import StoreProxy
from pabal.queues.waiter import Waiter
from pabal.store import Lease, Watch
from tests.openers import OPENERS
from tests.waiting import until


class Counted(StoreProxy):
    """Counts the calls of consumers that wait."""

    calls = watches = 0

    def lease(self, queue: str, limit: int, seconds: float, **more: Any) -> list[Lease]:
        self.calls += 1
        return super().lease(queue, limit, seconds, **more)

    def next_due(self, queue: str) -> float | None:
        self.calls += 1
        return super().next_due(queue)

    def watch(self, queues: object) -> Watch:
        self.watches += 1
        return super().watch(queues)  # type: ignore[arg-type]


class Crew:
    """Threads that wait for one message each, of one queue."""

    def __init__(self, store: Counted, many: int, consumers: int = 1) -> None:
        self.store = store
        self.found: list[object] = []
        self.waiters = [Waiter(Queue("jobs", store, consumer=f"c{number % consumers}")) for number in range(many)]
        self.threads = [threading.Thread(target=self._wait, args=(waiter,)) for waiter in self.waiters]
        for thread in self.threads:
            thread.start()
        until(lambda: store.calls >= many)

    def _wait(self, waiter: Waiter) -> None:
        with waiter:
            for delivery in waiter.lease(1, 60.0, float("inf")):
                self.found.append(delivery.body)
                delivery.ack()

    def end(self) -> None:
        for waiter in self.waiters:
            waiter.stop()
        for thread in self.threads:
            thread.join()


@pytest.fixture(params=["sqlite", "files"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Counted]]:
    stores: list[Counted] = []

    def opened() -> Counted:
        stores.append(Counted(OPENERS[request.param].open(tmp_path, SystemClock())))
        return stores[-1]

    yield opened
    for store in stores:
        store.close()


def wakeups(others: set[str]) -> int:
    """Count how often threads of this process have gone to sleep so far, those of other tests left out."""
    total = 0
    for task in set(os.listdir("/proc/self/task")) - others:
        try:
            lines = Path(f"/proc/self/task/{task}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
    return total


def test_idle_threads_do_not_look_and_do_not_wake_up(open_store: Callable[[], Counted]) -> None:
    spent: dict[int, tuple[int, int]] = {}
    for many in (10, 200):
        others = set(os.listdir("/proc/self/task"))
        store = open_store()
        crew = Crew(store, many)
        time.sleep(0.5)  # all have looked once and have gone to sleep
        calls, sleeps = store.calls, wakeups(others)
        time.sleep(2.5)
        spent[many] = store.calls - calls, wakeups(others) - sleeps
        assert store.watches == 1
        crew.end()
    (few_calls, few_sleeps), (many_calls, many_sleeps) = spent[10], spent[200]
    assert many_calls <= few_calls + 5 and many_sleeps <= few_sleeps + 60, spent


def test_every_waiting_thread_gets_its_message(open_store: Callable[[], Counted]) -> None:
    store = open_store()
    crew = Crew(store, 30)
    publisher = Queue("jobs", store)
    publisher.publish("first")
    publisher.publish_many(list(range(20)))
    for number in range(20, 29):
        publisher.publish(number)
    for thread in crew.threads:
        thread.join(20)
    assert sorted(map(str, crew.found)) == sorted(["first", *map(str, range(29))])


def test_a_message_for_one_consumer_finds_it_among_others(open_store: Callable[[], Counted]) -> None:
    store = open_store()
    crew = Crew(store, 9, consumers=3)
    Queue("jobs", store).publish("for c2", target="c2")
    until(lambda: crew.found == ["for c2"])
    crew.end()


def test_a_waiter_that_is_stopped_leaves_the_others_waiting(open_store: Callable[[], Counted]) -> None:
    store = open_store()
    crew = Crew(store, 5)
    for waiter, thread in list(zip(crew.waiters, crew.threads, strict=True))[:4]:
        waiter.stop()  # the leader, or one that follows
        thread.join(20)
        assert not thread.is_alive()
    Queue("jobs", store).publish("last")
    crew.threads[4].join(20)
    assert crew.found == ["last"]


def test_a_leader_that_could_not_hand_over_is_replaced(
    open_store: Callable[[], Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pabal.queues.waiter._LONGEST_SLEEP", 0.05)
    monkeypatch.setattr("pabal.queues.waiter._LEADER_SECONDS", 0.1)
    store = open_store()
    gone = Waiter(Queue("jobs", store))
    gone._wait(0.1)  # leads, arms the watch, and is never heard of again
    crew = Crew(store, 3)
    Queue("jobs", store).publish("x")
    until(lambda: crew.found == ["x"])
    crew.end()


def test_a_forked_child_waits_by_itself(open_store: Callable[[], Counted]) -> None:
    store = open_store()
    crew = Crew(store, 3)
    child = os.fork()
    if child == 0:
        try:
            taken = Queue("jobs", store).lease(1, wait=20)
            taken[0].ack()
            os._exit(0)
        finally:
            os._exit(1)
    queue = Queue("jobs", store)
    queue.publish_many(list(range(4)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    for thread in crew.threads:
        thread.join(20)
    assert len(crew.found) == 3


def test_a_waiter_of_the_parent_can_be_used_in_a_forked_child(open_store: Callable[[], Counted]) -> None:
    store = open_store()
    queue = Queue("jobs", store)
    with Waiter(queue) as waiter:
        while waiter._line is None:  # on a busy machine the look alone may take longer than it waits
            assert waiter.lease(1, None, 0.01) == []
        queue.publish(1)
        with waiter._line._mutex:  # another thread stands in there when the process forks
            child = os.fork()
            if child == 0:
                signal.alarm(20)
                os._exit(0 if waiter.lease(1, None, 5.0) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_waiting_leases_share_a_watch_that_is_made_again_each_minute(
    open_store: Callable[[], Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store()
    queue = Queue("jobs", store)
    for _ in range(20):
        assert queue.lease(wait=0.001) == []
        assert Queue("jobs", store).lease(wait=0.001) == []
    assert store.watches == 1
    monkeypatch.setattr("pabal.queues.waiter._WATCH_SECONDS", 0.0)
    before = descriptors()
    queue.lease(wait=0.001)
    queue.lease(wait=0.001)
    assert store.watches > 2 and descriptors() == before


def test_a_store_keeps_few_watches_and_its_close_ends_them(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite://{tmp_path}/db") as mq:
        queues = [mq.queue(f"q{number}") for number in range(40)]
        for queue in queues:
            queue.publish(0)
            queue.lease()[0].ack()
        gc.collect()
        before = descriptors()
        for queue in queues:
            assert queue.lease(wait=0.001) == []
        assert descriptors() - before <= 16 * 2 + 3  # each has an epoll set and an eventfd
        waiter = Waiter(queues[-1])
        assert waiter.lease(1, None, 0.001) == []
    with waiter:
        pass  # its last waiter closes the watch
    assert descriptors() <= before + 1


FORKED = """
import os, sys
import pabal

def watched():  # epoll sets and eventfds
    found = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    return sum(os.readlink(path).startswith("anon_inode:[event") for path in found if os.path.islink(path))

with pabal.connect(sys.argv[1]) as mq:
    before = watched()
    mq.queue("jobs").lease(wait=0.5)
    child = os.fork()
    if child == 0:
        os._exit(watched() - before)
    print(watched() - before, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_does_not_keep_the_watches_of_its_parent(tmp_path: Path) -> None:
    # A process of its own: other tests leave watches to the collector of garbage.
    command = [sys.executable, "-c", FORKED, f"sqlite://{tmp_path}/db"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "2 0\n"


def test_one_publish_and_a_thousand_waiting_threads(open_store: Callable[[], Counted]) -> None:
    store = open_store()
    crew = Crew(store, 1000)
    until(lambda: store.watches == 1)
    before = store.calls
    Queue("jobs", store).publish("x")
    until(lambda: crew.found == ["x"])
    # The leader takes it, the next one looks and sleeps; beside it, a look each second.
    assert store.calls - before < 50
    crew.end()
    assert crew.found == ["x"]


class Told(StoreProxy):
    """Tells whenever a consumer asks how long to sleep."""

    pipe = -1

    def next_due(self, queue: str) -> float | None:
        if queue == "jobs":  # else it looks when the next schedule is due
            os.write(self.pipe, b".")
        return super().next_due(queue)


def test_one_publish_and_a_hundred_waiting_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pabal.queues.waiter.SLOW_POLL", 1e6)
    monkeypatch.setattr(
        "pabal.queues.queue.SLOW_POLL", 1e6
    )  # else those that slept for a second sweep, which may write
    alone, crowd = (_written_for_one(tmp_path / str(many), many) for many in (1, 100))
    assert 0 < crowd == alone


def _written_for_one(place: Path, many: int) -> int:
    """Publish one message for so many processes that sleep; return how many bytes all of them together wrote."""
    place.mkdir()
    store, (here, there) = Told(OPENERS["sqlite"].open(place, SystemClock())), os.pipe()
    store.pipe = there
    children = []
    for _ in range(many):
        children.append(os.fork())
        if children[-1] == 0:
            try:
                found = Queue("jobs", store).lease(wait=1e6)
                os.write(there, b"x" * len(found))
                signal.pause()
            finally:
                os._exit(1)
    try:
        told = _read(here, many)
        assert told == b"." * many  # all sleep
        before = (place / "pabal.db-wal").stat().st_size
        Queue("jobs", store).publish("x")
        told = _read(here, many)  # one has it, the others sleep again
        assert sorted(told) == sorted(b"x" + b"." * (many - 1))
        return (place / "pabal.db-wal").stat().st_size - before
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(here)
        os.close(there)
        store.close()


def _read(pipe: int, many: int) -> bytes:
    data = b""
    while len(data) < many:
        data += os.read(pipe, many - len(data))
    return data
