"""Reading a topic to its end, record by record, in a thread of its own: every gateway sees every record.

A gateway has a group to itself, whose members wake it and show its lag, but nothing hangs on the group: where to go on
is known here. Partitions that a dead predecessor of the same name still holds, or a live namesake, are read directly.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from pabal.errors import PabalError
from pabal.topic import Member, Record, Topics

log = logging.getLogger("pabal.chat")

_BATCH = 500
_WAIT = 1.0  # seconds
_NEAR = 0.05  # seconds between looks at partitions that are not ours
_COMMIT_SECONDS = 5.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before going on after an error


class Follower:
    """Hands on what is appended to a topic from `start` on, in order for each partition, each record once."""

    def __init__(
        self, topics: Topics, topic: str, group: str, start: Mapping[int, int], take: Callable[[list[Record]], None]
    ) -> None:
        """`take` is called in the follower's thread; what it raises ends the thread."""
        self._topics, self._topic, self._group = topics, topic, group
        self._next = dict(start)
        self._take = take
        self._stopping = threading.Event()
        self._member: Member | None = None
        self._thread = threading.Thread(target=self._run, name=f"pabal-chat-{topic}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the group and return when the thread has ended."""
        self._stopping.set()
        member = self._member
        if member is not None:
            member.wake()
        self._thread.join()

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._member = member = self._topics.join(self._topic, self._group)
                try:
                    self._follow(member)
                finally:
                    self._member = None
                    member.close()
            except PabalError as exc:
                log.warning("%s goes on in %s after %s: %s", self._group, self._topic, exc.code, exc)
                pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(pause * 2, _LONGEST_PAUSE)
                self._stopping.wait(pause)

    def _follow(self, member: Member) -> None:
        committed = 0.0
        while not self._stopping.is_set():
            others = self._next.keys() - member.partitions
            records = self._fresh(member, member.read(_BATCH, _NEAR if others else _WAIT))
            for partition in self._next.keys() - member.partitions:
                records += self._advance(self._topics.read(self._topic, partition, self._next[partition], _BATCH))
            if records:
                self._take(records)
            if time.monotonic() - committed > _COMMIT_SECONDS or self._stopping.is_set():
                committed = time.monotonic()
                member.commit({number: self._next[number] for number in member.partitions})

    def _fresh(self, member: Member, records: Sequence[Record]) -> list[Record]:
        """Leave out what was handed on, and put in what the group had passed over."""
        fresh: list[Record] = []
        stale: set[int] = set()
        for record in records:
            number = record.partition
            if record.offset < self._next[number]:
                stale.add(number)
                continue
            while record.offset > self._next[number]:
                page = self._topics.read(self._topic, number, self._next[number], _BATCH)
                missed = self._advance([found for found in page if found.offset < record.offset])
                if not missed:
                    break  # offsets need not be without gaps
                fresh += missed
            fresh += self._advance([record])
        for number in stale:
            member.seek(number, self._next[number])
        return fresh

    def _advance(self, records: list[Record]) -> list[Record]:
        for record in records:
            self._next[record.partition] = record.offset + 1
        return records
