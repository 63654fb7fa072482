"""A store for tests, in the memory of one process: the contract as plainly as it can be said, dicts and one lock.

Nothing survives the process. The conformance suite judges the other stores beside it.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from struct import pack
from typing import Any

from pabal.clock import Clock
from pabal.codecs.json import JsonCodec
from pabal.errors import DecodeError, NameTaken, QueueFull, StoreClosed, TooLarge
from pabal.ids import consumer_tag, lease_token
from pabal.message import Message, drop_expiry_if_revived
from pabal.names import check_id, check_name
from pabal.policy.retention import trim_seen_twice
from pabal.store import (
    Consumer,
    Counters,
    Dead,
    Done,
    Draft,
    Entry,
    Failure,
    FailureCode,
    Held,
    KnownSettings,
    Lease,
    Outcome,
    Published,
    Receipt,
    Retry,
    Settlement,
    State,
    Verdict,
    Watch,
    check_targets,
)
from pabal.stores.consumers import Register
from pabal.stores.counters import Counting
from pabal.stores.rows import cancelled_at, not_empty

SWEEP_SECONDS = 30.0
WAITING = (State.READY, State.DELAYED)


@dataclass
class Row:
    """One message and everything about it that changes."""

    data: bytes
    id: str
    seq: int
    group: str
    target: str
    priority: int
    due_at: float
    expires_at: float | None
    since: float
    state: State = State.READY
    attempt: int = 0
    token: str = ""
    boot_id: str = ""
    deadline: float = 0.0
    settled_by: tuple[str, type[Verdict]] | None = None
    failure: Failure | None = None


@dataclass
class Place:
    """What a disk is to other stores: the handles of one place share it."""

    rows: dict[str, dict[str, Row]] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)
    unique: dict[tuple[str, str], str] = field(default_factory=dict)  # the last message of each unique key
    settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    seq: int = 0
    rung: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))
    bell: int = 0
    looks: dict[str, str] = field(default_factory=dict)
    counting: Counting | None = None
    register: Register | None = None


class MemoryWatch:
    def __init__(self, place: Place) -> None:
        self._place = place
        self._heard = place.bell

    def wait(self, timeout: float) -> bool:
        with self._place.rung:
            rung = self._place.rung.wait_for(lambda: self._place.bell != self._heard, timeout)
            self._heard = self._place.bell
            return rung

    def wake(self) -> None:
        with self._place.rung:
            self._heard = -1
            self._place.rung.notify_all()

    def close(self) -> None:
        pass


class MemoryStore:
    def __init__(self, place: Place, *, clock: Clock) -> None:
        self._place = place
        self._clock = clock
        self._codec = JsonCodec()
        self._closed = False
        self._counting = place.counting = place.counting or Counting(clock)
        self._register = place.register = place.register or Register(clock)

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        with self._open():
            check_targets(self, drafts)
            for draft in drafts:
                self._admit(draft)
            for queue in {draft.queue for draft in drafts}:
                self._check_room([draft for draft in drafts if draft.queue == queue])
            answers = [self._put(draft) for draft in drafts]
            if answers:
                self._counting.published(drafts, answers)
            return answers

    def lease(
        self,
        queue: str,
        limit: int,
        seconds: float,
        *,
        consumer: str = "",
        token: str = "",
        successive: bool = False,
    ) -> list[Lease]:
        with self._open():
            held = [row for row in self._rows(queue) if token and self._held_by(row, token)]
            if held:
                return [self._lease_of(queue, row) for row in self._by_group(held)]
            tag = self._register.tag(consumer, token) if queue in self._place.rows else ""
            asked, token = bool(token), token or lease_token(tag)
            picked = self._pick(queue, limit, consumer, successive)
            leases = [self._hold(queue, row, token, seconds, attempt=1) for row in picked]
            if leases:
                self._counting.leased(leases, asked=asked)
            return leases

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        with self._open():
            for _, verdict in settlements:
                for draft in verdict.then:
                    self._admit(draft)
            outcomes = [self._settle_one(receipt, verdict) for receipt, verdict in settlements]
            self._counting.settled(settlements, outcomes)
            return outcomes

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        with self._open():
            outcomes = []
            self._register.extended(receipts)
            for receipt in receipts:
                row = self._current(receipt)
                if row:
                    self._grant(row, row.token, seconds)
                outcomes.append(Outcome.APPLIED if row else Outcome.LOST)
            return outcomes

    def expired(self, queue: str, limit: int) -> list[Lease]:
        with self._open():
            rows = [row for row in self._rows(queue) if self._lapsed(row) or self._outlived(row)]
            rows = [row for row in sorted(rows, key=self._order) if self._readable(row)]
            self._register.sweep(lambda: {tag for tag, _ in self._holds()})
            ending, leases = lease_token(), list[Lease]()
            for row in rows[:limit]:
                tag = consumer_tag(row.token) if row.state is State.INFLIGHT else ""
                leases += self._register.named(tag, [self._hold(queue, row, tag + ending, SWEEP_SECONDS)])
            self._counting.expired(leases)
            return leases

    def now(self) -> float:
        return self._clock.now()

    def next_due(self, queue: str) -> float | None:
        with self._open():
            waits = [wait for row in self._rows(queue) for wait in self._waits(row)]
            return max(0.0, min(waits)) if waits else None

    def counts(self, queue: str) -> dict[State, int]:
        with self._open():
            found = dict.fromkeys(State, 0)
            for row in self._rows(queue):
                found[row.state] += 1
            return found

    def counters(self, queue: str) -> Counters:
        with self._open():
            return self._counting.total(queue)

    def oldest(self, queue: str, state: State) -> float | None:
        with self._open():
            rows = [row for row in self._rows(queue) if row.state is state]
            return min((row.due_at if state is State.READY else row.since for row in rows), default=None)

    def consumers(self) -> list[Consumer]:
        with self._open():
            return self._register.all(self._holds())

    def _holds(self) -> dict[tuple[str, str], Held]:
        found: dict[tuple[str, str], list[float]] = {}
        for queue in self._place.rows:
            for row in self._rows(queue):
                if row.state is State.INFLIGHT:
                    found.setdefault((consumer_tag(row.token), queue), []).append(row.since)
        return {key: Held(len(times), min(times)) for key, times in found.items()}

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        with self._open():
            rows = sorted((row for row in self._rows(queue) if row.state is state), key=self._order)
            entries = [self._entry(queue, row) for row in rows]
            return [entry for entry in entries if entry.cursor > after][:limit]

    def find(self, queue: str, id: str) -> Entry | None:
        with self._open():
            row = self._place.rows.get(queue, {}).get(id)
            return self._entry(queue, row) if row else None

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        with self._open():
            rows = map(self._place.rows.get(queue, {}).get, dict.fromkeys(ids))
            dead = [row for row in rows if row and row.state is State.DEAD]
            for row in dead:
                row.attempt, row.failure, row.settled_by, row.expires_at = 0, None, None, None
                row.seq = self._next_seq()
                self._move(row, State.READY)
                row.due_at = self._clock.now()
                self._ring()
            return [row.id for row in dead]

    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        with self._open():
            self._rows(queue)  # what is due becomes ready
            states = (*WAITING, State.INFLIGHT) if inflight else WAITING
            rows = map(self._place.rows.get(queue, {}).get, dict.fromkeys(ids))
            cancelled = [row for row in rows if row and row.state in states]
            for row in cancelled:
                row.failure, row.token, row.settled_by = cancelled_at(self._clock.now()), "", None
                self._move(row, State.DONE)
                self._ring()
            return [row.id for row in cancelled]

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        with self._open():
            if state is State.INFLIGHT:
                return 0
            before = self._clock.now() - age if age > 0 else float("inf")
            old = [row for row in self._rows(queue) if row.state is state and row.since <= before]
            old = [row for row in old if ids is None or row.id in ids][:limit]
            for row in old:
                del self._place.rows[queue][row.id]
            return len(old)

    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        key = f"{queue}/{state}"
        with self._open():
            return trim_seen_twice(
                self._clock,
                limit,
                kept=self._place.looks.get(key, ""),
                keep=lambda look: self._place.looks.__setitem__(key, str(look)),
                is_due=lambda at: any(row.state is state and row.since <= at - age for row in self._rows(queue)),
                remove=lambda at: self.purge(queue, state, age=self._clock.now() - at + age, limit=limit),
            )

    def delete(self, queue: str, *, force: bool = False) -> int:
        with self._open():
            counts = self.counts(queue)
            left = sum(count for state, count in counts.items() if state is not State.DONE)
            if left and not force:
                raise not_empty(queue, counts)
            self._place.rows.pop(queue, None)
            self._place.settings.pop(queue, None)
            for key in [key for key in self._place.keys if key[0] == queue]:
                del self._place.keys[key]
            self._ring()
            return left

    def queues(self) -> list[str]:
        with self._open():
            return sorted(self._place.rows.keys() | self._place.settings.keys())

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        with self._open():
            return self._place.settings.get(queue)

    def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
        with self._open():
            self._check_queue(queue)
            if known is not ... and known != self._place.settings.get(queue):
                return False
            self._place.settings[queue] = dict(settings)
            self._ring()
            return True

    def facts(self) -> Mapping[str, str]:
        return {"place": "memory"}

    def watch(self, queues: Sequence[str]) -> Watch:
        with self._open():
            return MemoryWatch(self._place)

    def close(self) -> None:
        self._closed = True

    def damage(self, queue: str, id: str) -> None:
        """Spoil the stored bytes, as a bad disk would."""
        row = self._place.rows[queue][id]
        row.data = bytes([row.data[0] ^ 1]) + row.data[1:]

    def _open(self) -> threading.Condition:
        if self._closed:
            raise StoreClosed("this store is closed")
        return self._place.rung

    def _rows(self, queue: str) -> list[Row]:
        rows = list(self._place.rows.get(queue, {}).values())
        for row in rows:
            if row.state is State.DELAYED and self._due(row):
                self._move(row, State.READY)
        return rows

    def _due(self, row: Row) -> bool:
        return row.due_at <= self._clock.now()

    def _check_queue(self, queue: str) -> None:
        check_name(queue)
        for other in self._place.rows.keys() | self._place.settings.keys():
            if other != queue and other.lower() == queue.lower():
                raise NameTaken(f"{queue} differs from {other} in case only")

    def _admit(self, draft: Draft) -> None:
        self._check_queue(draft.queue)
        check_id(draft.message.id)
        if len(self._codec.encode(draft.message, queue=draft.queue)) > draft.terms.max_bytes:
            raise TooLarge(f"{draft.terms.max_bytes} bytes at most")

    def _check_room(self, drafts: Sequence[Draft]) -> None:
        queue, room = drafts[0].queue, drafts[0].terms.max_waiting
        waiting = sum(row.state in WAITING for row in self._rows(queue))
        if room and waiting + sum(self._first_id(draft) is None for draft in drafts) > room:
            raise QueueFull(f"{room} waiting messages at most in {queue}")

    def _first_id(self, draft: Draft) -> str | None:
        """Return the id of the message that this one repeats."""
        queue, message = draft.queue, draft.message
        if draft.given_id and message.id in self._place.rows.get(queue, {}):
            return message.id
        for key in self._keys(draft):
            id, until = self._place.keys.get((queue, key), ("", 0.0))
            if self._clock.now() < until:
                return id
        return self._live_id(draft)

    def _live_id(self, draft: Draft) -> str | None:
        """Return the id of the message with the same unique key that is not done, dead or removed."""
        id = self._place.unique.get((draft.queue, draft.message.unique), "") if draft.message.unique else ""
        row = self._place.rows.get(draft.queue, {}).get(id)
        return id if row is not None and row.state in (*WAITING, State.INFLIGHT) else None

    def _keys(self, draft: Draft) -> list[str]:
        named = [f"key {draft.message.dedup_key}"] if draft.message.dedup_key else []
        return named + ([f"id {draft.message.id}"] if draft.given_id else [])

    def _put(self, draft: Draft) -> Published:
        first, now, message = self._first_id(draft), self._clock.now(), draft.message
        if first is not None:
            return Published(first, duplicate=True)
        for key in self._keys(draft):
            self._place.keys[draft.queue, key] = message.id, now + draft.terms.dedup_window
        if message.unique and draft.failure is None:
            self._place.unique[draft.queue, message.unique] = message.id
        self._place.rows.setdefault(draft.queue, {})[message.id] = Row(
            data=self._codec.encode(message, queue=draft.queue),
            id=message.id,
            seq=self._next_seq(),
            group=message.group,
            target=message.target,
            priority=message.priority,
            due_at=now + draft.delay,
            expires_at=message.expires_at,
            since=now,
            state=State.DEAD if draft.failure else State.DELAYED if draft.delay > 0 else State.READY,
            failure=draft.failure,
        )
        self._ring()
        return Published(message.id)

    def _next_seq(self) -> int:
        self._place.seq += 1
        return self._place.seq

    def _order(self, row: Row) -> tuple[int, float, str]:
        return -row.priority, row.due_at, row.id

    def _by_group(self, rows: list[Row]) -> list[Row]:
        """Sort leased rows by the place of the first of their group, inside a group in publish order."""
        firsts: dict[str, Row] = {}
        for row in sorted(rows, key=lambda row: row.seq):
            firsts.setdefault(row.group or row.id, row)
        return sorted(rows, key=lambda row: (self._order(firsts[row.group or row.id]), row.seq))

    def _pick(self, queue: str, limit: int, consumer: str, successive: bool) -> list[Row]:
        picked: list[Row] = []
        for row in sorted(self._rows(queue), key=self._order):
            if len(picked) >= limit:
                break
            if self._may_be_leased(row, consumer) and self._first_of_group(queue, row) and self._readable(row):
                picked.append(row)
                if successive and row.group:
                    picked += self._successors(queue, row, consumer)
        return picked[:limit]

    def _successors(self, queue: str, first: Row, consumer: str) -> list[Row]:
        """Return the members of a group after its first one that may be leased with it."""
        alive = (*WAITING, State.INFLIGHT)
        members = [row for row in self._rows(queue) if row.group == first.group and row.state in alive]
        later = sorted((row for row in members if row.seq > first.seq), key=lambda row: row.seq)
        return [row for row in takewhile(lambda row: self._may_be_leased(row, consumer), later) if self._readable(row)]

    def _may_be_leased(self, row: Row, consumer: str) -> bool:
        return row.state is State.READY and self._meant_for(row, consumer) and not self._outlived(row)

    def _meant_for(self, row: Row, consumer: str) -> bool:
        return row.target in ("", consumer)

    def _first_of_group(self, queue: str, row: Row) -> bool:
        return not row.group or not any(
            other.state is State.INFLIGHT or (other.state in WAITING and other.seq < row.seq)
            for other in self._rows(queue)
            if other.group == row.group
        )

    def _readable(self, row: Row) -> bool:
        try:
            self._codec.decode(row.data)
        except DecodeError as exc:
            row.failure = Failure(FailureCode.CORRUPT, exc.reason, self._clock.now())
            self._move(row, State.CORRUPT)
            return False
        return True

    def _hold(self, queue: str, row: Row, token: str, seconds: float, attempt: int = 0) -> Lease:
        row.attempt += attempt
        self._move(row, State.INFLIGHT)
        self._grant(row, token, seconds)
        return self._lease_of(queue, row)

    def _grant(self, row: Row, token: str, seconds: float) -> None:
        row.token, row.boot_id, row.deadline = token, self._clock.boot_id, self._clock.boot() + seconds

    def _lease_of(self, queue: str, row: Row) -> Lease:
        return Lease(Receipt(queue, row.id, row.token), self._message(row), row.attempt, row.due_at, row.failure)

    def _message(self, row: Row) -> Message:
        return drop_expiry_if_revived(self._codec.decode(row.data), row.expires_at)

    def _held_by(self, row: Row, token: str) -> bool:
        return row.state is State.INFLIGHT and row.token == token

    def _lapsed(self, row: Row) -> bool:
        return row.state is State.INFLIGHT and (
            row.boot_id != self._clock.boot_id or row.deadline <= self._clock.boot()
        )

    def _outlived(self, row: Row) -> bool:
        return row.state in WAITING and row.expires_at is not None and row.expires_at <= self._clock.now()

    def _waits(self, row: Row) -> list[float]:
        waits = []
        if row.state is State.DELAYED:
            waits.append(row.due_at - self._clock.now())
        if row.state is State.INFLIGHT:
            waits.append(0.0 if self._lapsed(row) else row.deadline - self._clock.boot())
        if row.state in WAITING and row.expires_at is not None:
            waits.append(row.expires_at - self._clock.now())
        return waits

    def _current(self, receipt: Receipt) -> Row | None:
        row = self._place.rows.get(receipt.queue, {}).get(receipt.id)
        return row if row and self._held_by(row, receipt.token) else None

    def _settle_one(self, receipt: Receipt, verdict: Verdict) -> Outcome:
        row = self._current(receipt)
        if row is None:
            known = self._place.rows.get(receipt.queue, {}).get(receipt.id)
            same = known and known.state is not State.INFLIGHT and known.settled_by == (receipt.token, type(verdict))
            return Outcome.REPEATED if same else Outcome.LOST
        self._apply(row, verdict)
        for draft in verdict.then:
            self._put(draft)
        self._ring()
        return Outcome.APPLIED

    def _apply(self, row: Row, verdict: Verdict) -> None:
        row.settled_by = row.token, type(verdict)
        row.failure = verdict.failure
        if isinstance(verdict, Retry):
            row.attempt -= not verdict.counted
            row.due_at = self._clock.now() + verdict.delay
            self._move(row, State.DELAYED if verdict.delay > 0 else State.READY)
        elif isinstance(verdict, Done):
            self._move(row, State.DONE)
        elif isinstance(verdict, Dead):
            self._move(row, State.DEAD)

    def _move(self, row: Row, state: State) -> None:
        row.state, row.since = state, self._clock.now()

    def _entry(self, queue: str, row: Row) -> Entry:
        whole = row.state is not State.CORRUPT
        return Entry(
            queue=queue,
            id=row.id,
            state=row.state,
            attempt=row.attempt,
            due_at=row.due_at,
            message=self._message(row) if whole else None,
            failure=row.failure,
            data=b"" if whole else row.data,
            cursor=f"{100 - row.priority:03d}-{pack('>d', row.due_at).hex()}-{row.id}",  # sorts as `_order`
            token=row.token if row.state is State.INFLIGHT else "",
        )

    def _ring(self) -> None:
        self._place.bell += 1
        self._place.rung.notify_all()
