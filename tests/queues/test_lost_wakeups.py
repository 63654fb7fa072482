"""Search for a lost wake-up: one that only the slow poll would make up for.

The slow poll is put off here, so that a lost wake-up leaves its message untaken and is counted. Threads share the
inotify instance, join and leave lines, close watches and make them again, and processes fork meanwhile. Small here;
with PABAL_SOAK=1 a million wake-ups.
"""

import os
import random
import signal
import threading
import time
from pathlib import Path
from queue import SimpleQueue

import pytest

from pabal.clock import SystemClock
from pabal.queues.queue import Queue
from pabal.sql.bells import Bells
from tests.openers import OPENERS

SOAK = os.environ.get("PABAL_SOAK") == "1"
PATIENCE = 20.0  # seconds in which a wake-up that is not lost comes on any machine


class Sleepers:
    """Threads that each wait for one bell, and close and make their watches again at random."""

    def __init__(self, bells: Bells, many: int, seed: int) -> None:
        self.names = [f"q{number}" for number in range(many)]
        self.rung = [0] * many
        self.lost: list[str] = []
        self.seen: SimpleQueue[int] = SimpleQueue()
        self._bells = bells
        self._ended = False
        self._watches = [bells.watch([name]) for name in self.names]
        self._threads = [threading.Thread(target=self._sleep, args=(place, seed)) for place in range(many)]
        for thread in self._threads:
            thread.start()

    def _sleep(self, place: int, seed: int) -> None:
        chance, seen = random.Random(f"{seed}-{place}"), 0
        while self._wait(place, seen, chance):
            seen += 1
            self.seen.put(place)
            if chance.random() < 0.1:
                old, self._watches[place] = self._watches[place], self._bells.watch([self.names[place]])
                old.close()
            if chance.random() < 0.3:
                self._watches[chance.randrange(len(self._watches))].wake()  # as the end of a waiter does

    def _wait(self, place: int, seen: int, chance: random.Random) -> bool:
        """Wait until the bell rings once more; return False at the end."""
        while seen == self.rung[place] and not self._ended:
            if not self._watches[place].wait(PATIENCE) and seen != self.rung[place]:
                self.lost.append(f"bell {place} at {seen}")
            while chance.random() < 0.5 and seen == self.rung[place] and not self._ended:
                time.sleep(0.0005)  # woken for nothing, it does something else for a while
        return not self._ended

    def ring(self, places: list[int]) -> None:
        for place in places:
            self.rung[place] += 1
            self._bells.ring([self.names[place]])

    def end(self) -> None:
        self._ended = True
        for watch in self._watches:
            watch.wake()
        for thread in self._threads:
            thread.join()
        for watch in self._watches:
            watch.close()


def test_threads_that_share_the_instance_miss_no_event(tmp_path: Path) -> None:
    seed, wanted, most = random.randrange(1 << 32) if SOAK else 17, 1_000_000 if SOAK else 10_000, 8
    chance, bells = random.Random(seed), Bells(tmp_path / "bells")
    sleepers = Sleepers(bells, most, seed)
    count = 0
    while count < wanted and not sleepers.lost:
        places = chance.sample(range(most), chance.randint(1, most))
        sleepers.ring(places)
        for _ in places:
            sleepers.seen.get(timeout=2 * PATIENCE)
        count += len(places)
        if count % 1000 < most:
            child = os.fork()
            if child == 0:
                try:
                    bells.ring([])
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
    sleepers.end()
    bells.close()
    assert sleepers.lost == [], f"seed {seed}, after {count:,} wake-ups"


@pytest.mark.parametrize("store", ["sqlite", "files"])
def test_consumers_that_come_and_go_miss_no_message(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SLOW_POLL": 1e6, "_LONGEST_SLEEP": 1e6, "_LEADER_SECONDS": 1e6, "_IDLE_LINES": 1}.items():
        monkeypatch.setattr(f"pabal.queues.waiter.{name}", value)
    monkeypatch.setattr("pabal.queues.waiter._WATCH_SECONDS", 0.02)
    seed, wanted = random.randrange(1 << 32) if SOAK else 17, 100_000 if SOAK else 150
    chance, opened = random.Random(seed), OPENERS[store].open(tmp_path, SystemClock())
    queues, taken = [Queue(f"q{number}", opened) for number in range(3)], SimpleQueue[object]()
    ended = False

    def consume(number: int) -> None:
        own = random.Random(f"{seed}-{number}")
        while not ended:
            queue = queues[own.randrange(3)] if number >= 3 else queues[number]
            # The first three never give up: whatever the others do, each queue has a consumer that sleeps.
            for delivery in queue.lease(wait=own.choice([0.001, 0.01]) if number >= 3 else 1e6):
                delivery.ack()
                taken.put(delivery.body)

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for count in range(wanted):
        chance.choice(queues).publish(count)
        assert taken.get(timeout=PATIENCE) == count, f"seed {seed}"
        if count % 50 == 0:
            _take_in_child(queues[0])
    ended = True
    for queue in queues:
        queue.publish_many([None] * 12)
    for thread in threads:
        thread.join()
    opened.close()


def _take_in_child(queue: Queue) -> None:
    """Let a forked child wait for a message of its own, published while it sleeps."""
    own = Queue("child", queue.store)
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(round(PATIENCE))
            own.lease(wait=1e6)[0].ack()
            os._exit(0)
        finally:
            os._exit(1)
    own.publish("x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
