"""The history of a run, written by every process, and the checker that counts violations of the guarantees.

Each process appends JSON lines to its own file, one write(2) a line, so that a killed process leaves all but the line
it was writing. An operation has an `invoke` line before it and after it `ok`, `fail` (it certainly did nothing) or
`info` (the outcome is unknown); an operation that was killed has no second line, which means the same as `info`.

    op        one line for each message; beside t, proc, id it carries
    publish   group, body_hash; a follow-up also the receipt of the verdict it came with
    lease     ok only: receipt, group, body_hash, attempt, seconds, and since: when it was asked for
    expired   the same, for a take-over
    ack nack dead extend    receipt; extend also seconds and since; durable where a power cut must not undo it
    cancel    of a message in whatever state
    revive    ok only
    stored    ok only, at the end: state, body_hash
    cut       ok: a power cut, which may undo leases and plain settlements
    drain     ok: at the end consumers waited and nothing more could be leased
"""

import hashlib
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from pabal import jsontext
from pabal.clock import Clock

_WAITING = frozenset({"ready", "delayed", "inflight"})
_LEASES = frozenset({"lease", "expired"})
_VERDICTS = frozenset({"ack", "nack", "dead"})
_FINAL = frozenset({"ack", "dead", "cancel"})
_NEVER = float("inf")


class Event(NamedTuple):
    t: float
    op: str
    phase: str = "ok"
    id: str = ""
    proc: str = ""
    receipt: str = ""
    group: str = ""
    body_hash: str = ""
    state: str = ""
    attempt: int = 0
    seconds: float = 0.0
    since: float = 0.0
    durable: bool = False
    seed: int = 0


def body_hash(body: object) -> str:
    return hashlib.sha256(jsontext.encode(body)).hexdigest()[:16]


class History:
    """One process's lines, in a file of its own. Times are readings of the boot clock, the same for all processes."""

    def __init__(self, path: Path, *, clock: Clock, seed: int = 0) -> None:
        self._clock = clock
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._proc = path.stem
        self._seed = seed

    def note(self, op: str, phase: str = "ok", **facts: str | float | bool) -> float:
        """Write a line; return its time."""
        t = self._clock.boot()
        event = Event(t=t, op=op, phase=phase, proc=self._proc, seed=self._seed, **facts)  # type: ignore[arg-type]  # fields of Event by name
        os.write(self._fd, jsontext.encode(event._asdict()) + b"\n")
        return t

    def close(self) -> None:
        os.close(self._fd)


def read_history(paths: Iterable[Path]) -> list[Event]:
    """Return the events of all processes in the order of time. A last line cut short is left out."""
    events = []
    for path in paths:
        lines = path.read_bytes().split(b"\n")
        events += [Event(**jsontext.decode(line)) for line in lines[:-1]]
    return sorted(events, key=lambda event: event.t)


class Report(NamedTuple):
    """The violations of each kind; `duplicate` and `uncertain` are allowed and only counted."""

    lost: tuple[str, ...] = ()
    resurrected: tuple[str, ...] = ()
    double_held: tuple[str, ...] = ()
    stale_accepted: tuple[str, ...] = ()
    phantom: tuple[str, ...] = ()
    altered: tuple[str, ...] = ()
    reordered: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    half: tuple[str, ...] = ()
    recounted: tuple[str, ...] = ()
    published: int = 0
    acked: int = 0
    duplicate: int = 0
    uncertain: int = 0

    @property
    def harm(self) -> dict[str, tuple[str, ...]]:
        """The violations by name; empty if there are none."""
        allowed = ("published", "acked", "duplicate", "uncertain")
        return {name: getattr(self, name) for name in self._fields if name not in allowed and getattr(self, name)}


def check_history(events: Sequence[Event]) -> Report:
    """Count the anomalies in the history of one queue system, events in the order of time."""
    return _Checker(events).report()


class _Checker:
    def __init__(self, events: Sequence[Event]) -> None:
        self._by_id: dict[str, list[Event]] = defaultdict(list)
        for event in events:
            if event.id:
                self._by_id[event.id].append(event)
        self._events = events
        self._cuts = [event.t for event in events if event.op == "cut"]
        self._drained = any(event.op == "drain" for event in events)
        self._surveyed = self._drained or any(event.op == "stored" for event in events)

    def report(self) -> Report:
        counted = Counter((event.op, event.phase) for event in self._events)
        return Report(
            lost=self._ids(self._is_lost),
            resurrected=self._ids(self._is_resurrected),
            double_held=self._ids(self._is_double_held),
            stale_accepted=self._ids(self._is_stale_accepted),
            phantom=self._ids(self._is_phantom),
            altered=self._ids(self._is_altered),
            reordered=self._reordered(),
            stuck=self._ids(self._is_stuck),
            half=self._half(),
            recounted=self._ids(self._is_recounted),
            published=counted["publish", "ok"],
            acked=counted["ack", "ok"],
            duplicate=sum(max(0, len(_ok(events, "lease")) - 1) for events in self._by_id.values()),
            uncertain=self._uncertain(),
        )

    def _ids(self, test: Callable[[list[Event]], bool]) -> tuple[str, ...]:
        return tuple(id for id, events in self._by_id.items() if test(events))

    def _is_lost(self, events: list[Event]) -> bool:
        """Acknowledged, and at the end neither in the store nor taken out by anybody; or done without an ack."""
        if not self._surveyed or not _ok(events, "publish"):
            return False
        stored = _ok(events, "stored")
        settled = _did(events, *_FINAL)
        return not settled and (not stored or stored[-1].state in ("done", "dead", "corrupt"))

    def _is_resurrected(self, events: list[Event]) -> bool:
        """Delivered, or still waiting, after a verdict that was the last word."""
        for end in _ok(events, *_FINAL):
            undone = (event.t for event in events if event.op == "revive")
            if any(t > end.t for t in (*undone, *(() if end.durable else self._cuts))):
                continue
            if any(lease.since > end.t for lease in _ok(events, *_LEASES)):
                return True
            if any(found.state in _WAITING for found in _ok(events, "stored")):
                return True
        return False

    def _is_double_held(self, events: list[Event]) -> bool:
        """Two leases that surely overlap: each lasts from its answer to the first call that may have ended it."""
        spans = sorted(self._span(lease, events) for lease in _ok(events, *_LEASES))
        return any(
            later[0] < earlier[1] and later[2] != earlier[2]
            for n, later in enumerate(spans)
            for earlier in spans[:n]
            if not any(earlier[3] < cut < later[0] for cut in self._cuts)
        )

    def _span(self, lease: Event, events: list[Event]) -> tuple[float, float, str, float]:
        end = lease.since + lease.seconds
        for event in events:
            if event.receipt != lease.receipt or event.t < lease.t:
                continue
            if event.op == "extend" and event.phase == "ok":
                end = event.since + event.seconds
            elif event.op == "extend" and event.phase == "invoke":
                end = min(end, event.t + event.seconds)
            elif event.op in _VERDICTS and event.phase == "invoke":
                end = min(end, event.t)
        return lease.t, end, lease.receipt, lease.since

    def _is_stale_accepted(self, events: list[Event]) -> bool:
        """A verdict or extend that went through with a receipt never given, already used otherwise, or given again."""
        leases = _ok(events, *_LEASES)
        for event in _ok(events, *_VERDICTS, "extend"):
            mine = [lease for lease in leases if lease.receipt == event.receipt]
            asked = max(
                (at.t for at in _phase(events, event.op, "invoke", event.receipt) if at.t <= event.t), default=event.t
            )
            if not mine or mine[0].t > event.t:
                return True
            if any(lease.receipt != event.receipt and mine[-1].t < lease.since and lease.t < asked for lease in leases):
                return True
            if any(
                other.receipt == event.receipt and other.op != event.op and other.t < asked
                for other in _ok(events, *_VERDICTS)
            ):
                return True
        return False

    def _is_phantom(self, events: list[Event]) -> bool:
        """Delivered or stored, though it was never published or the publish certainly did nothing."""
        seen = _ok(events, *_LEASES, "stored")
        asked = _phase(events, "publish", "invoke")
        refused = _phase(events, "publish", "fail")
        return bool(seen) and (not asked or asked[0].t > seen[0].t or len(refused) >= len(asked))

    def _is_altered(self, events: list[Event]) -> bool:
        given = {event.body_hash for event in events if event.op == "publish" and event.body_hash}
        return any(event.body_hash and event.body_hash not in given for event in _ok(events, *_LEASES, "stored"))

    def _reordered(self) -> tuple[str, ...]:
        """A message of a group delivered though an earlier one of it was neither done nor dead."""
        groups: dict[str, list[list[Event]]] = defaultdict(list)
        for events in self._by_id.values():
            asked = _phase(events, "publish", "invoke")
            if asked and asked[0].group:
                groups[asked[0].group].append(events)
        return tuple(id for members in groups.values() for id in _overtakers(members))

    def _is_stuck(self, events: list[Event]) -> bool:
        return self._drained and any(found.state in _WAITING for found in _ok(events, "stored"))

    def _half(self) -> tuple[str, ...]:
        """A verdict of which only a part is there: without its follow-ups, with some of them, or they without it."""
        families: dict[str, set[str]] = defaultdict(set)
        for event in _phase(self._events, "publish", "invoke"):
            if event.receipt:
                families[event.receipt].add(event.id)
        sure = {event.receipt for event in _ok(self._events, *_VERDICTS)}
        ends = {event.receipt: event.id for event in self._events if event.op in _FINAL and event.phase == "invoke"}
        found = []
        for receipt, ids in families.items() if self._surveyed else ():
            there = {id for id in ids if _ok(self._by_id[id], *_LEASES, "stored")}
            undone = [each for each in _ok(self._by_id[ends.get(receipt, "")], "stored") if each.state in _WAITING]
            if (there and undone) or ((there or receipt in sure) and there != ids):
                found.append(receipt)
        return tuple(found)

    def _is_recounted(self, events: list[Event]) -> bool:
        """Leased with an attempt that does not count an earlier lease."""
        # One that was asked for before a cut may be undone by it, though its answer was written down after it.
        starts = [*self._cuts, *(event.t for event in events if event.op == "revive")]
        leases = _ok(events, "lease")
        return any(
            later.attempt <= earlier.attempt and earlier.receipt != later.receipt
            for later in leases
            for earlier in leases
            if earlier.t < later.since and not any(earlier.since < start < later.t for start in starts)
        )

    def _uncertain(self) -> int:
        said = Counter((event.op, event.id, event.receipt, event.phase != "invoke") for event in self._events)
        unsaid = sum(
            max(0, many - said[op, id, receipt, True]) for (op, id, receipt, ended), many in said.items() if not ended
        )
        return unsaid + sum(event.phase == "info" for event in self._events)


def _ok(events: Iterable[Event], *ops: str) -> list[Event]:
    return [event for event in events if event.op in ops and event.phase == "ok"]


def _phase(events: Iterable[Event], op: str, phase: str, receipt: str = "") -> list[Event]:
    return [event for event in events if event.op == op and event.phase == phase and receipt in ("", event.receipt)]


def _did(events: Iterable[Event], *ops: str) -> bool:
    """Say whether one of these may have been done: it was asked for and did not certainly fail."""
    asked = Counter((event.op, event.receipt) for event in events if event.op in ops and event.phase == "invoke")
    failed = Counter((event.op, event.receipt) for event in events if event.op in ops and event.phase == "fail")
    return any(many > failed[call] for call, many in asked.items())


def _overtakers(members: Iterable[list[Event]]) -> list[str]:
    """Return the messages of a group that were leased before one was at its end that was published before them.

    Messages that one lease took together, and so have one token, do not overtake each other.
    """
    earlier = [
        (
            published[0].t,
            min((event.t for event in events if event.op in _FINAL and event.phase == "invoke"), default=_NEVER),
            {_token(lease) for lease in _ok(events, "lease")},
        )
        for events in members
        if (published := _ok(events, "publish"))
    ]
    earlier.sort(key=itemgetter(0))
    found = []
    passed, last_end = 0, -_NEVER  # of those that were published before the one in question
    for events in sorted(members, key=_asked):
        while passed < len(earlier) and earlier[passed][0] < _asked(events):
            last_end = max(last_end, earlier[passed][1])
            passed += 1
        for lease in _ok(events, "lease"):
            if lease.t < last_end and any(
                lease.t < end and _token(lease) not in tokens for _, end, tokens in earlier[:passed]
            ):
                found.append(events[0].id)
                break
    return found


def _token(event: Event) -> str:
    return event.receipt.rpartition("/")[2]


def _asked(events: list[Event]) -> float:
    return _phase(events, "publish", "invoke")[0].t
