"""One member of a group: reads its partitions, commits, and sends heartbeats in the background."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from pabal.clock import SLOW_POLL, Clock
from pabal.errors import PabalError, StoreClosed
from pabal.sql.bells import Bells
from pabal.sql.handle import Handle
from pabal.sql.writer import Transaction
from pabal.topic_store import NO_NOTES, Record, check_notes
from pabal.topic_stores.sqlite import groups
from pabal.topic_stores.sqlite.groups import Held, Step
from pabal.topic_stores.sqlite.records import Known, page
from pabal.watch import PathWatch

T = TypeVar("T")

BEATS = 3  # in each session
LOOKS = 0.02  # seconds between looks at the group while there are records to read
_NOT_HELD = Held(-1, 0, "")


class Place:
    """The parts of the driver that a member uses: the database, the bells and the clock."""

    def __init__(self, db: Handle, bells: Bells, clock: Clock) -> None:
        self.db = db
        self.bells = bells
        self.clock = clock


class SqliteMember:
    def __init__(self, place: Place, topic: Known, group: str, *, name: str, session: float, patience: float) -> None:
        self.name = name
        self._db, self._bells, self._clock = place.db, place.bells, place.clock
        self._topic = topic
        self._session, self._patience = session, patience
        self._watch: PathWatch | None = None
        self._woken = False
        self._held: dict[int, Held] = {}
        self._next: dict[int, int] = {}
        self._notes: dict[int, str] = {}  # as found when the partitions were taken over
        self._paused: set[int] = set()
        self._turn = 0
        self._look_at = 0.0  # when to look again whether the group has changed
        self._called = time.monotonic()
        self._group = self._write(lambda tx: groups.find_group(tx, topic, group))
        self._id = self._write(lambda tx: groups.enter(tx, self._group, name, self._clock, session))
        self._settled = -1  # the generation for which the share was computed
        self._closing = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="pabal-topic-heartbeat", daemon=True)
        self._heart.start()

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._held)

    def read(self, limit: int, wait: float = 0.0) -> list[Record]:
        """Compute the share again if the group has changed, then read on; without records, sleep until the bell."""
        deadline = time.monotonic() + wait
        while True:
            self._called = now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + LOOKS
                if self._changed():
                    self._settle()
            records = self._fetch(limit)
            if not records:
                self._look_at = 0.0
            remaining = deadline - now
            if records or remaining <= 0 or self._woken:
                self._woken = False
                return records
            if self._watch is None:
                self._watch = self._bells.watch([self._topic.bell])  # armed: look once more before sleeping
            else:
                self._watch.wait(min(remaining, SLOW_POLL))

    def commit(self, offsets: Mapping[int, int], notes: Mapping[int, str] = NO_NOTES) -> None:
        """Commit offsets of the group, if this member still owns all these partitions."""
        self._called = time.monotonic()
        check_notes(offsets, notes)
        steps: dict[int, Step] = {}
        for number, offset in offsets.items():
            if number not in self._held:
                raise groups.fenced(self._topic, number)
            steps[number] = Step(offset, self._held[number].epoch, notes.get(number, ""))
        if steps:
            self._write(lambda tx: groups.commit(tx, self._topic, self._group, self._id, steps), durable=True)

    def note(self, partition: int) -> str:
        return self._notes.get(partition, "")

    def seek(self, partition: int, offset: int) -> None:
        """Continue from this offset, if this member owns the partition."""
        if partition in self._held:
            self._next[partition] = offset

    def pause(self, partition: int) -> None:
        self._paused.add(partition)

    def resume(self, partition: int) -> None:
        self._paused.discard(partition)

    def wake(self) -> None:
        self._woken = True
        watch = self._watch
        if watch is not None:
            watch.wake()

    def close(self) -> None:
        """Leave the group. If the driver was closed before, the session runs out instead."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._heart.join()
        try:
            self._write(lambda tx: groups.leave(tx, self._group, self._id))
        except StoreClosed:
            pass
        finally:
            if self._watch is not None:
                self._watch.close()

    def _changed(self) -> bool:
        return self._settled != self._db.read(lambda db: groups.generation(db, self._group))

    def _settle(self) -> None:
        def work(tx: Transaction) -> tuple[int, dict[int, Held], int]:
            member = self._id
            if not groups.beat(tx, self._group, member, self._clock, self._session):
                # It was silent for too long, and others have its partitions: it comes back as a new member.
                member = groups.enter(tx, self._group, self.name, self._clock, self._session)
                groups.expire(tx, self._group, self._clock)
            held = groups.settle_share(tx, self._topic, self._group, member)
            return member, held, groups.generation(tx.connection, self._group)

        self._id, held, self._settled = self._write(work)
        for number in held.keys() | self._held.keys():
            if held.get(number, _NOT_HELD).epoch != self._held.get(number, _NOT_HELD).epoch:
                self._next.pop(number, None)
                self._notes.pop(number, None)
                self._paused.discard(number)
                if number in held:
                    _, self._next[number], self._notes[number] = held[number]
        self._held = held

    def _fetch(self, limit: int) -> list[Record]:
        open_ones = sorted(self._held.keys() - self._paused)
        if not open_ones:
            return []
        self._turn += 1
        start = self._turn % len(open_ones)
        records: list[Record] = []
        for number in open_ones[start:] + open_ones[:start]:
            found = self._page(number, limit - len(records))
            if found:
                self._next[number] = found[-1].offset + 1
                records = records + found if records else found
                if len(records) >= limit:
                    break
        return records

    def _page(self, number: int, limit: int) -> list[Record]:
        return self._db.read(lambda db: page(db, self._topic, number, self._next[number], limit))

    def _beat(self) -> None:
        while not self._closing.wait(self._session / BEATS):
            if time.monotonic() - self._called > self._patience:
                continue  # the reading thread hangs: the others shall have its partitions
            try:
                self._write(lambda tx: groups.beat(tx, self._group, self._id, self._clock, self._session))
            except PabalError:
                continue  # the reading thread gets the same error and raises it

    def _write(self, work: Callable[[Transaction], T], *, durable: bool = False) -> T:
        return self._db.write(work, durable=durable, essential=True)
