"""Busy processes at one topic, killed at random, and the judge of what they wrote down."""

import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from itertools import count
from pathlib import Path
from typing import NamedTuple

from pabal.testing.store_place import soon
from pabal.topics.topic import Topic
from tests.crash.harness import ROOT
from tests.crash.topic_busy import GROUP


class Verdict(NamedTuple):
    appended: int  # records whose append was answered
    stored: int
    handled: int
    duplicates: int  # records that were handled more than once
    harm: list[str]


class TopicCrew:
    def __init__(self, url: str, topic: str, histories: Path, *, seed: int, session: float) -> None:
        self._url = url
        self._topic = topic
        self._histories = histories
        self._session = str(session)
        self._numbers = count()
        self._running: list[tuple[str, Path, subprocess.Popen[bytes]]] = []
        self.chance = random.Random(seed)

    def start(self, *roles: str) -> None:
        for role in roles:
            history = self._histories / f"{role}{next(self._numbers)}"
            arguments = [self._url, self._topic, str(history), role, self._session]
            command = [sys.executable, "-m", "tests.crash.topic_busy", *arguments]
            self._running.append((role, history, subprocess.Popen(command, cwd=ROOT)))

    def kill_one(self) -> None:
        """Kill one at random and start another in its place."""
        role, _, process = self._running.pop(self.chance.randrange(len(self._running)))
        assert process.poll() is None, f"a process that does {role} ended by itself"
        process.kill()
        process.wait()
        self.start(role)

    def relieve_one(self) -> None:
        """Start another consumer, then ask the oldest to leave, and see that it did so in good order."""
        place = next(n for n, (role, _, _) in enumerate(self._running) if role == "consume")
        _, history, process = self._running.pop(place)
        self.start("consume")
        assert soon(history.exists, timeout=60.0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0

    def pause(self, shortest: float, longest: float) -> None:
        time.sleep(self.chance.uniform(shortest, longest))

    def stop_appending(self) -> None:
        for role, _, process in self._running:
            if role == "append":
                process.kill()
                process.wait()
        self._running = [found for found in self._running if found[0] != "append"]

    def end(self) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            for _, _, process in self._running:
                process.send_signal(number)
            for _, _, process in self._running:
                try:
                    process.wait(15)
                except subprocess.TimeoutExpired:
                    continue
        self._running.clear()

    def wait_until_busy(self, timeout: float = 60.0) -> None:
        end = time.monotonic() + timeout
        while sum(1 for path in self._histories.glob("*") if path.stat().st_size) < len(self._running):
            assert time.monotonic() < end, "the processes do not start"
            time.sleep(0.02)

    def wait_until_drained(self, topic: Topic, timeout: float = 90.0) -> None:
        end = time.monotonic() + timeout
        while (lag := sum(share.lag for share in topic.groups().get(GROUP, []))) or not topic.groups():
            assert time.monotonic() < end, f"{lag} records are left"
            time.sleep(0.2)


def judge(topic: Topic, histories: Path) -> Verdict:
    """Read the whole topic and compare it with what the processes wrote down."""
    harm: list[str] = []
    stored: dict[tuple[int, int], str] = {}
    for number, (first, end) in enumerate(topic.bounds()):
        at = first
        while at < end:
            for record in topic.read(number, at, 1000):
                stored[number, record.offset] = str(topic.body_of(record))
                if record.offset != at:
                    harm.append(f"a gap in partition {number} before {record.offset}")
                at = record.offset + 1
    answered = [line.split()[1] for path in histories.glob("append*") for line in _lines(path)]
    there = set(stored.values())
    harm += [f"lost: {value}" for value in answered if value not in there]
    harm += _order_of_keys(stored)
    handled = sorted(
        (int(moment), int(partition), int(offset), value)
        for path in histories.glob("consume*")
        for moment, value, partition, offset in (line.split() for line in _lines(path))
    )
    harm += [f"altered: {p}/{o}" for _, p, o, value in handled if stored.get((p, o)) != value]
    seen: set[tuple[int, int]] = set()
    following: dict[int, int] = defaultdict(int)
    for _, partition, offset, _ in handled:
        if (partition, offset) not in seen:
            seen.add((partition, offset))
            if offset != following[partition]:
                harm.append(f"skipped: {partition}/{following[partition]} when {offset} was handled")
            following[partition] = offset + 1
    harm += [f"never handled: {place}" for place in stored.keys() - seen]
    return Verdict(len(answered), len(stored), len(seen), len(handled) - len(seen), harm[:20])


def _order_of_keys(stored: dict[tuple[int, int], str]) -> list[str]:
    """First sights of one key's values rise; a value that is stored twice was not answered the first time."""
    last: dict[str, tuple[int, int]] = {}
    met: set[str] = set()
    harm = []
    for place in sorted(stored):
        value = stored[place]
        key, turn, number = value.split(":")
        if value not in met:
            met.add(value)
            if last.get(key, (-1, -1)) >= (int(turn), int(number)):
                harm.append(f"order of {key} broken at {place}")
            last[key] = (int(turn), int(number))
    return harm


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines()
