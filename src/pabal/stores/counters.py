"""Cumulative counts of each queue, added up over all processes that use a store.

A handle counts in memory and writes the counts of a queue with one unflushed write: at once after a publish and after
every verdict that is no plain acknowledgement. Leases and plain acknowledgements are written with it, after hundreds of
them, when expired leases are looked for, as every consumer does before it sleeps, and at the close. See ADR 31.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from weakref import WeakSet

from pabal.clock import Clock
from pabal.filesystem import NO_FILE, private
from pabal.store import (
    DURATIONS,
    Counters,
    Dead,
    Done,
    Draft,
    Durations,
    FailureCode,
    Lease,
    Outcome,
    Published,
    Receipt,
    Retry,
    Settlement,
    Verdict,
    with_copies,
)

_WRITE_SECONDS = 1.0  # between two writes where a write costs a call to a server
_MAX_NOTES = 256
OTHER = "OTHER"  # a failure code that is none of ours
_EXPIRED = (FailureCode.LEASE_EXPIRED, FailureCode.EXPIRED)
_CODES = (*FailureCode, OTHER)
_MAX_TOKENS = 10_000  # leases whose beginning is remembered

# The cells of a queue, by position. New ones go to the end: the positions are kept on disk.
_PUBLISHED, _DELIVERED, _ACKED, _RETRIED, _DROPPED, _STALE = range(6)
_EXPIRED_AT = 6
_DEAD_AT = _EXPIRED_AT + len(_EXPIRED)
_IN_QUEUE = _DEAD_AT + len(_CODES)
_WIDTH = len(DURATIONS) + 2  # the buckets, and the sum in microseconds
_IN_WORK = _IN_QUEUE + _WIDTH
CELLS = _IN_WORK + _WIDTH

_CODE_CELLS = {str(code): _DEAD_AT + place for place, code in enumerate(_CODES)}
_APPLIED, _PLAIN = Outcome.APPLIED, Done()
_all: WeakSet[Counting] = WeakSet()


class Tally:
    """The counts of one queue in one handle."""

    __slots__ = ("cells", "place", "queue")

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.cells = array("Q", bytes(8 * CELLS))
        self.place = -1  # where the file has it


class Counting:
    """Counts what one handle does. A subclass keeps the counts and adds up those of all handles.

    A lease or a plain acknowledgement is only noted; `_MAX_NOTES` of them are counted together, which costs a tenth.
    """

    def __init__(self, clock: Clock, *, prompt: bool = True) -> None:
        self._clock = clock
        self._prompt = prompt  # a publish and a retry are written at once, else with the notes
        self._lock = threading.Lock()
        self._tallies: dict[str, Tally] = {}
        self._unwritten: set[Tally] = set()
        self._leases: list[tuple[str, str, Sequence[float], float]] = []  # queue, token, instants of ready, now
        self._acks: list[tuple[str, str, int, float]] = []  # queue, token, how many, now
        self._began: dict[str, float] = {}  # when a token was leased
        self._written_at = float("-inf")
        _all.add(self)

    # What happened

    def published(self, drafts: Sequence[Draft], answers: Sequence[Published]) -> None:
        """Count the messages of a publish that are no duplicates."""
        queue = drafts[0].queue
        if len(answers) == 1:
            fresh = {queue: 0 if answers[0].duplicate else 1}
        elif True not in [answer.duplicate for answer in answers] and (
            [draft.queue for draft in drafts].count(queue) == len(answers)
        ):
            fresh = {queue: len(answers)}
        else:
            pairs = zip(drafts, answers, strict=True)
            fresh = Counter(draft.queue for draft, answer in pairs if not answer.duplicate)
        with self._lock:
            for queue, count in fresh.items():
                if count:
                    tally = self._tallies.get(queue) or self._new_tally(queue)
                    tally.cells[_PUBLISHED] += count
                    self._unwritten.add(tally)
            for draft, answer in zip(drafts, answers, strict=True) if with_copies(drafts) is not drafts else ():
                if not answer.duplicate:
                    self._count_dead(draft)
            if self._unwritten and (self._prompt or self._is_time()):
                self._write()

    def leased(self, leases: Sequence[Lease], *, asked: bool) -> None:
        """Note leases; `asked` says that the caller gave their token and may have got them before."""
        receipt = leases[0].receipt
        token = receipt.token
        if asked and self._holds(token):
            return
        notes = self._leases
        notes.append((receipt.queue, token, [lease.due_at for lease in leases], self._clock.now()))
        if len(notes) >= _MAX_NOTES:
            self.write()

    def settled(self, settlements: Sequence[Settlement], outcomes: Sequence[Outcome]) -> None:
        """Note plain acknowledgements of one lease; count other verdicts, and the follow-ups of those applied."""
        if not settlements:
            return
        many, (receipt, verdict) = len(settlements), settlements[0]
        plain = verdict == _PLAIN and outcomes.count(_APPLIED) == many
        if plain and many > 1:
            plain = [verdict for _, verdict in settlements].count(verdict) == many
            plain = plain and [receipt.token for receipt, _ in settlements].count(receipt.token) == many
        if plain:
            notes = self._acks
            notes.append((receipt.queue, receipt.token, many, self._clock.now()))
            if len(notes) >= _MAX_NOTES:
                self.write()
            return
        now, at_once = self._clock.now(), False
        with self._lock:
            self._count_notes()
            for (receipt, verdict), outcome in zip(settlements, outcomes, strict=True):
                if outcome is _APPLIED:
                    at_once |= self._count_verdict(receipt, verdict, now)
                elif outcome is Outcome.LOST and self._knows(receipt.queue):  # a forged one may name any queue
                    self._tally(receipt.queue).cells[_STALE] += 1
            if self._unwritten and (at_once or self._is_time()):
                self._write()

    def expired(self, leases: Sequence[Lease]) -> None:
        """Count leases and times to live that ran out, and write what was not written."""
        if leases:
            now = self._clock.now()
            with self._lock:
                for lease in leases:
                    over = lease.expired
                    if over is None:
                        over = lease.message.expires_at is not None and lease.message.expires_at <= now
                    self._tally(lease.receipt.queue).cells[_EXPIRED_AT + over] += 1
        if self._unwritten or self._leases or self._acks:
            self.write()

    def _count_verdict(self, receipt: Receipt, verdict: Verdict, now: float) -> bool:
        """Count a verdict that was applied; return whether it is to be written at once."""
        cells, at_once = self._tally(receipt.queue).cells, self._prompt
        if (began := self._began.get(receipt.token)) is not None:
            _add(cells, _IN_WORK, [now - began])
        if isinstance(verdict, Retry):
            cells[_RETRIED] += 1
        elif isinstance(verdict, Dead):
            cells[_CODE_CELLS.get(verdict.failure.code, _IN_QUEUE - 1)] += 1
            at_once = True
        elif verdict.failure is not None:
            cells[_DROPPED] += 1
            at_once = True
        else:
            cells[_ACKED] += 1
        for draft in verdict.then:
            self._tally(draft.queue).cells[_PUBLISHED] += 1
            self._count_dead(draft)
        return at_once

    def _count_dead(self, draft: Draft) -> None:
        """Count a message that is stored as dead."""
        if draft.failure is not None:
            self._tally(draft.queue).cells[_CODE_CELLS.get(draft.failure.code, _IN_QUEUE - 1)] += 1

    def _holds(self, token: str) -> bool:
        with self._lock:
            self._count_notes()
            return token in self._began

    def _count_notes(self) -> None:
        """Count what was only noted. Other threads may note more meanwhile."""
        leases = self._leases[:]
        del self._leases[: len(leases)]
        acks = self._acks[:]
        del self._acks[: len(acks)]
        began, durations, last = self._began, dict[str, list[float]](), ""
        found: list[float] = []
        for queue, token, dues, now in leases:
            began[token] = now
            if queue != last:
                last, found = queue, durations.setdefault(queue, [])
            if len(dues) == 1:
                found.append(now - dues[0])
            else:
                found.extend([now - due for due in dues])
        for queue, found in durations.items():
            cells = self._tally(queue).cells
            cells[_DELIVERED] += len(found)
            _add(cells, _IN_QUEUE, found)
        durations, last, cells = {}, "", array("Q")
        for queue, token, many, now in acks:
            if queue != last:
                last, found, cells = queue, durations.setdefault(queue, []), self._tally(queue).cells
            cells[_ACKED] += many
            if (then := began.get(token)) is not None:
                if many == 1:
                    found.append(now - then)
                else:
                    _add(cells, _IN_WORK, [now - then], many)
        for queue, found in durations.items():
            _add(self._tally(queue).cells, _IN_WORK, found)
        if len(began) > _MAX_TOKENS:
            for old in list(began)[: _MAX_TOKENS // 2]:
                del began[old]

    # Where the counts are kept

    def total(self, queue: str) -> Counters:
        """Return the counts of all handles."""
        self.write()
        with self._lock:
            return _counters(self._sum(queue))

    def write(self) -> None:
        """Write everything that was not written."""
        with self._lock:
            self._count_notes()
            if self._unwritten:
                self._write()

    close = write

    def start_afresh(self) -> None:
        """Leave to the parent, after a fork, what it counted."""
        self._lock = threading.Lock()
        self._tallies, self._unwritten, self._began = {}, set(), {}
        self._leases, self._acks = [], []

    def _is_time(self) -> bool:
        return not 0 <= self._clock.boot() - self._written_at < _WRITE_SECONDS

    def _tally(self, queue: str) -> Tally:
        found = self._tallies.get(queue) or self._new_tally(queue)
        self._unwritten.add(found)
        return found

    def _new_tally(self, queue: str) -> Tally:
        found = self._tallies[queue] = Tally(queue)
        return found

    def _write(self) -> None:
        self._written_at = self._clock.boot()
        if self._put(self._unwritten):
            self._unwritten.clear()

    def _put(self, tallies: Iterable[Tally]) -> bool:
        """Keep these counts; return False if some could not be written, so that it is tried again. It never fails."""
        return True

    def _knows(self, queue: str) -> bool:
        """Return whether a handle has counted something in this queue."""
        return queue in self._tallies

    def _sum(self, queue: str) -> Sequence[int]:
        found = self._tallies.get(queue)
        return found.cells if found else array("Q", bytes(8 * CELLS))


_MAGIC = b"pabal counters 1"
_NAME = 256  # bytes for the name of a queue
_RECORD = 1024
_LARGEST = 2**62


class FileCounters(Counting):
    """Counts in a folder with a file for each handle that is open at the same time.

    A handle locks the first file that no other has and goes on counting in it. So the files are as many as there ever
    were handles at once, and the counts of the store are their sum. A file begins with `_MAGIC`; each record has the
    name of a queue and its cells.
    """

    def __init__(self, folder: str, clock: Clock) -> None:
        super().__init__(clock)
        self._folder = folder
        self._fd = -1
        self._records = 1
        self._files: dict[str, _KnownFile] = {}  # all of the folder, by name

    def close(self) -> None:
        """Write everything that was not written, and leave the file to another handle."""
        self.write()
        with self._lock:
            self._give_up()

    __del__ = close

    def _put(self, tallies: Iterable[Tally]) -> bool:
        with suppress(OSError):
            if self._fd < 0:
                self._open()
            for tally in tallies:
                if tally.place < 0:
                    name = tally.queue.encode().ljust(_NAME, b"\0")
                    os.pwrite(self._fd, name + tally.cells.tobytes(), self._records * _RECORD)
                    tally.place = self._records * _RECORD + _NAME
                    self._records += 1
                else:
                    os.pwrite(self._fd, tally.cells, tally.place)
            return True
        return False

    def _open(self) -> None:
        """Lock a file that no handle uses, and add what it holds to what was counted in memory."""
        with suppress(FileExistsError):
            os.mkdir(self._folder, 0o700)
        number = 0
        while True:
            number += 1
            try:
                fd = private(f"{self._folder}/{number}", os.O_RDWR | os.O_CREAT | os.O_NONBLOCK)
            except OSError as exc:
                if exc.errno in NO_FILE:
                    continue
                raise
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                data = _read(fd)
                if not data:
                    os.pwrite(fd, _MAGIC.ljust(_RECORD, b"\0"), 0)
                elif not data.startswith(_MAGIC):
                    raise BlockingIOError  # damaged: it is left as it is
                break
            except BlockingIOError:
                os.close(fd)
            except BaseException:
                os.close(fd)
                raise
        self._fd = fd
        self._records = max(1, -(-len(data) // _RECORD))
        for place, queue in _queues_in(data, 0):
            tally, cells = self._tallies.setdefault(queue, Tally(queue)), _cells_in(data[place : place + _RECORD])
            if tally.place < 0 and cells is not None:
                tally.place = place + _NAME
                for at, count in enumerate(cells):
                    tally.cells[at] += count

    def _knows(self, queue: str) -> bool:
        return queue in self._tallies or any(self._sum(queue))

    def _sum(self, queue: str) -> Sequence[int]:
        sums = [0] * CELLS
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(self._folder)
        self._files = {name: self._files.get(name) or _KnownFile() for name in names if name.isdecimal()}
        for name, file in self._files.items():
            with suppress(OSError):
                for cells in file.cells_of(f"{self._folder}/{name}", queue):
                    sums = [one + other for one, other in zip(sums, cells, strict=True)]
        own = self._tallies.get(queue)
        if own is not None and own.place < 0:  # it could not be written
            sums = [one + other for one, other in zip(sums, own.cells, strict=True)]
        return sums

    def start_afresh(self) -> None:
        super().start_afresh()
        self._give_up()  # the parent's descriptor keeps the lock

    def _give_up(self) -> None:
        fd, self._fd, self._records = self._fd, -1, 1
        self._tallies = {}
        if fd >= 0:
            os.close(fd)


class _KnownFile:
    """A file of counters as its readers know it: the places of its queues, so that a queue costs no whole file.

    A record keeps place and queue while its cells change, and new ones go to the end. A record that is another's after
    all is that of a file that was replaced, which is read anew.
    """

    def __init__(self) -> None:
        self._inode = self._size = self._end = 0
        self._places: dict[str, list[int]] = {}

    def cells_of(self, path: str, queue: str) -> list[array[int]]:
        """Return the cells of each record of a queue, as they are now, if they can be read."""
        fd = private(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if os.pread(fd, len(_MAGIC), 0) != _MAGIC:
                return []
            for _ in range(2):
                self._learn(fd)
                records = [os.pread(fd, _RECORD, place) for place in self._places.get(queue, ())]
                if all(_queue_in(record) == queue for record in records):
                    return [cells for record in records if (cells := _cells_in(record)) is not None]
                self._forget()
            return []
        finally:
            os.close(fd)

    def _learn(self, fd: int) -> None:
        """Note the places of the records that are new."""
        about = _about(fd)
        if about.st_ino != self._inode or about.st_size < self._size:
            self._forget()
        self._inode, self._size = about.st_ino, about.st_size
        for place, queue in _queues_in(os.pread(fd, about.st_size, self._end), self._end):
            self._places.setdefault(queue, []).append(place)
            self._end = place + _RECORD

    def _forget(self) -> None:
        self._inode = self._size = self._end = 0
        self._places.clear()


def _about(fd: int) -> os.stat_result:
    """Return what is known of a file; raise BlockingIOError, as for a file that another handle has, if it is none."""
    about = os.fstat(fd)
    if not stat.S_ISREG(about.st_mode):
        raise BlockingIOError
    return about


def _read(fd: int) -> bytes:
    return os.pread(fd, _about(fd).st_size, 0)


def _queues_in(data: bytes, start: int) -> Iterable[tuple[int, str]]:
    """Return place and queue of each record in the part of a file that starts there."""
    for at in range(0 if start else _RECORD, len(data) - _NAME, _RECORD):
        if queue := _queue_in(data[at : at + _NAME]):
            yield start + at, queue


def _queue_in(record: bytes) -> str:
    name = record[:_NAME].rstrip(b"\0")
    return name.decode() if name.isascii() else ""


def _cells_in(record: bytes) -> array[int] | None:
    """Return the cells of a record; None if they are damaged."""
    cells = array("Q")
    cells.frombytes(record[_NAME : _NAME + 8 * CELLS].ljust(8 * CELLS, b"\0"))
    return cells if max(cells) <= _LARGEST else None


def _add(cells: array[int], start: int, durations: list[float], times: int = 1) -> None:
    """Add durations to a histogram, each so many times."""
    durations.sort()
    below = 0
    while below < len(durations):
        bucket = bisect_left(DURATIONS, durations[below])
        end = bisect_right(durations, DURATIONS[bucket]) if bucket < len(DURATIONS) else len(durations)
        cells[start + bucket] += (end - below) * times
        below = end
    seconds, at = sum(durations) * times, start + _WIDTH - 1
    if seconds > 0:  # less if the wall clock stepped back
        cells[at] = min(_LARGEST, cells[at] + int(seconds * 1e6))


def _counters(cells: Sequence[int]) -> Counters:
    return Counters(
        published=cells[_PUBLISHED],
        delivered=cells[_DELIVERED],
        acked=cells[_ACKED],
        retried=cells[_RETRIED],
        dropped=cells[_DROPPED],
        stale=cells[_STALE],
        expired={str(code): cells[_EXPIRED_AT + place] for place, code in enumerate(_EXPIRED)},
        dead={code: cells[at] for code, at in _CODE_CELLS.items()},
        in_queue=_durations(cells, _IN_QUEUE),
        in_work=_durations(cells, _IN_WORK),
    )


def _durations(cells: Sequence[int], start: int) -> Durations:
    end = start + _WIDTH - 1
    return Durations(tuple(cells[start:end]), cells[end] / 1e6)


def _in_child() -> None:
    for counting in list(_all):
        counting.start_afresh()


os.register_at_fork(after_in_child=_in_child)
