"""Schedules: messages that come at times given by a cron line or an interval, without a leader.

A schedule is a message of the queue `pabal.schedules` that is delayed until its next occurrence. Every consumer looks
there once a second. The one that leases the message acks it, and in the same step publishes the message of the
occurrence and the schedule for the time after it. So a crash at any point leaves the schedule as it was or one
occurrence further, and the id of a message, made of name and occurrence, is the same whoever publishes it.

All times are those of the store's clock, and so the same for all consumers whatever their own clocks show. The unique
key of a schedule is its name with a hash of its terms: processes that begin together and add the same schedule add it
once. Of two schedules with one name, as a crash between adding and removing leaves them, the one added last counts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from weakref import WeakKeyDictionary

import msgspec

from pabal import jsontext
from pabal.clock import Clock, iso_stamp
from pabal.errors import InvalidInput, LeaseLost, MessageUnknown, PabalError
from pabal.jsontext import Json
from pabal.message import MAX_SECONDS, Seconds, check_seconds, replace, seconds_of
from pabal.names import check_name
from pabal.policy.bodies import json_body
from pabal.policy.policy import Policy, RetryPolicy
from pabal.queues import cron
from pabal.queues.cron import check as check_line
from pabal.queues.cron import local_zone
from pabal.store import Draft, Published, State, Store

if TYPE_CHECKING:
    from pabal.queues.delivery import Delivery
    from pabal.queues.queue import Queue

log = logging.getLogger("pabal")

QUEUE = "pabal.schedules"
CRON = "cron"  # the target of schedules with a cron line: only a process that can read it leases them
LATE = 60.0  # seconds: if nobody looked for longer than this after an occurrence, it was missed
_EVERY = 1.0  # seconds between two looks
_LOOK_EVERY = 10.0  # seconds: a schedule that is ready because its consumer gave it back has no due time
_REST = 10.0  # seconds after a failure
_AT_ONCE = 100
_SHORTEST = 1.0  # seconds between two occurrences
# Seconds: a schedule that waits for an occurrence later than the first one after so long was moved on by a wrong clock.
# Not less for a cron line: in the hour that comes twice, its next time depends on which of the two hours it is.
_AHEAD_CRON, _AHEAD_EVERY = 3600.0, LATE
_CHECK_EVERY = 60.0  # seconds between two looks for such schedules
_TICK = 0.001  # seconds: a change counts as added so much later than what it replaces, at least
_LONGEST_NAME = 80
_LIVE = (State.DELAYED, State.READY, State.INFLIGHT)
# An attempt is over in an instant; one that does not end was killed, and says nothing against the schedule.
_POLICY = Policy(retry=RetryPolicy(limit=1_000_000, initial=0.0))

CatchUp: TypeAlias = Literal["once", "skip"]
MakeQueue: TypeAlias = "Callable[[str, str], Queue]"  # from the names of a queue and of a consumer


class Schedule(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A message that comes again and again: `cron` is a cron line in a time zone, or `every` a number of seconds.

    Times of `every` are counted from 1970, so that all processes agree about them: with 3600 at each full hour in UTC.
    """

    name: str
    queue: str
    body: Json = None
    cron: str = ""
    every: float = 0.0
    timezone: str = ""
    catch_up: CatchUp = "once"
    type: str = ""
    next: float = 0.0  # the time of its next occurrence
    added: float = 0.0  # when it was added or changed: the latest of those with one name counts
    set_back: int = 0  # how often, because a clock had been ahead

    def __post_init__(self) -> None:
        if bool(self.cron) == bool(self.every) or (self.every and not self.every >= _SHORTEST):
            raise ValueError(f"a cron line or {_SHORTEST:g} or more seconds are expected")

    @property
    def next_at(self) -> datetime:
        return datetime.fromtimestamp(self.next, UTC)

    def after(self, at: float) -> float | None:
        """Return the first occurrence after an instant; None if there is none."""
        if self.cron:
            return cron.following(self.cron, self.timezone, at)
        turn = int(at // self.every)
        return next(time for n in (turn, turn + 1, turn + 2) if (time := n * self.every) > at)  # whatever the rounding

    def latest(self, at: float) -> float | None:
        """Return the last occurrence at or before an instant."""
        if self.cron:
            return cron.last(self.cron, self.timezone, at)
        turn = int(at // self.every)
        return next(time for n in (turn + 1, turn, turn - 1) if (time := n * self.every) <= at)

    def due(self, now: float) -> list[float]:
        """Return the occurrences to publish: each that was not missed, or of those that were missed one or none."""
        if now - self.next > LATE:
            latest = max(self.next, self.latest(now) or 0.0)
            return [] if self.catch_up == "skip" and now - latest > LATE else [latest]
        found: list[float] = []
        at: float | None = self.next
        while at is not None and at <= now:
            found.append(at)
            at = self.after(at)
        return found


def make_schedule(
    name: str,
    *,
    queue: str,
    body: Any = None,
    cron: str | None = None,
    every: Seconds | None = None,
    timezone: str = "",
    catch_up: CatchUp = "once",
    type: str = "",
) -> Schedule:
    """Make a schedule, or raise the InvalidInput that says what is wrong."""
    if len(check_name(name, "schedule")) > _LONGEST_NAME:
        raise InvalidInput(f"the name of a schedule has {_LONGEST_NAME} characters at most; found {len(name)}")
    if (cron is None) == (every is None):
        raise InvalidInput('give cron, as in "0 9 * * 1-5", or every, as in 3600, and not both')
    if catch_up not in ("once", "skip"):
        raise InvalidInput(f"catch_up is once or skip; found {catch_up!r:.40}")
    seconds = 0.0
    if cron is None and every is not None:
        seconds = float(check_seconds("every", seconds_of(every), least=_SHORTEST))
        if timezone:
            raise InvalidInput("a timezone belongs to a cron line; every is a number of seconds")
    else:
        timezone = timezone or local_zone()
        check_line(cron or "", timezone, name)
    value = json_body(body)
    if isinstance(value, bytes):
        raise InvalidInput("the body of a schedule is JSON; found bytes")
    return Schedule(name, check_name(queue), value, cron or "", seconds, timezone, catch_up, type)


class Schedules:
    """The schedules of a store."""

    def __init__(self, make_queue: MakeQueue, clock: Clock) -> None:
        self._make_queue = make_queue
        self._clock = clock
        self._queue = make_queue(QUEUE, CRON if cron.available() else "")
        self._looked = self._checked = float("-inf")
        self._resting_until = float("-inf")  # after a failure, so that it is not repeated with every look

    def add(self, schedule: Schedule) -> Schedule:
        """Add a schedule, or change the one of this name; return it with its next time. Repeating it is harmless."""
        self._make_queue(schedule.queue, "").draft(schedule.body, type=schedule.type or None)  # refused now, if ever
        while not _same(kept := self._last_added(schedule.name), schedule):
            now = self._queue.store.now()
            at = schedule.after(now)
            if at is None:
                raise InvalidInput(f"{schedule.name}: the cron line {schedule.cron!r:.60} never comes again")
            self._queue.ensure_policy(_POLICY)
            # An earlier one with these terms, as a crash leaves it, has the unique key.
            self._cancel(id for id, each in self._found(schedule.name).items() if _same(each, schedule))
            made = replace(schedule, next=at, added=max(now, kept.added + _TICK if kept else 0.0))
            [answer] = self._queue.store.publish([self._draft(made, now)])
            if not answer.duplicate:  # else another process that adds the same was faster
                kept = made
                break
        assert kept is not None
        self._cancel_older(kept)
        for id, each in self._found(schedule.name).items():
            if _order(each) == _order(kept):
                return self._in_time(id, each)
        return kept

    def all(self) -> list[Schedule]:
        """Return all schedules by name."""
        found = {each.name: each for each in self._found().values()}
        return [found[name] for name in sorted(found)]

    def _cancel_older(self, kept: Schedule) -> None:
        """Cancel what another schedule had of this name; what was set back is cancelled by the process that did it."""
        while older := [id for id, each in self._found(kept.name).items() if _order(each)[:2] < _order(kept)[:2]]:
            self._cancel(older)  # again: a consumer may just have moved one on

    def _in_time(self, id: str, schedule: Schedule) -> Schedule:
        """Set a schedule back that was moved on far too late while a clock was ahead; return it as it is then."""
        now = self._queue.store.now()
        latest = schedule.after(now + (_AHEAD_CRON if schedule.cron else _AHEAD_EVERY))
        following = schedule.after(now)
        if latest is None or following is None or schedule.next <= latest:
            return schedule
        made = replace(schedule, next=following, set_back=schedule.set_back + 1)
        [answer] = self._queue.store.publish([self._draft(made, now)])
        if answer.duplicate:  # by its unique key: another process sets it back
            return made
        if self._queue.cancel([id], inflight=True):
            facts = {"name": schedule.name, "at": iso_stamp(schedule.next)}
            log.warning("schedule %(name)s waited until %(at)s because a clock had been ahead: it is set back", facts)
            return made
        # Since it was read, it was removed, changed or moved on: that counts.
        while again := [key for key, each in self._found(made.name).items() if _order(each) == _order(made)]:
            self._cancel(again)
        return schedule

    def _last_added(self, name: str) -> Schedule | None:
        return next(reversed(self._found(name).values()), None)

    def remove(self, name: str) -> bool:
        """Remove a schedule; return whether it was there. Messages that it has published stay."""
        removed = False
        while found := self._found(check_name(name, "schedule")):  # again: a consumer may just have moved it on
            self._cancel(found)
            removed = True
        return removed

    def run(self, name: str) -> Published:
        """Publish the message of a schedule now, beside its occurrences."""
        schedule = next((each for each in self.all() if each.name == name), None)
        if schedule is None:
            known = ", ".join(each.name for each in self.all()) or "none"
            raise MessageUnknown(f"no schedule {name!r:.80}; there are {known}")
        headers = {"schedule": name}
        return self._make_queue(schedule.queue, "").publish(schedule.body, type=schedule.type or None, headers=headers)

    def tend(self) -> int:
        """Publish what is due; return how many messages were published."""
        now = self._clock.boot()
        if self._resting_until - _REST <= now < self._resting_until:
            return 0
        due = self._queue.store.next_due(QUEUE)
        if due is not None and not 0 <= now - self._checked < _CHECK_EVERY:
            self._checked = now
            for id, each in {each.name: (id, each) for id, each in self._found().items()}.values():
                self._in_time(id, each)
        if (due is None or due > 0) and 0 <= now - self._looked < _LOOK_EVERY:
            return 0
        self._looked = now
        if not (deliveries := self._queue.lease(_AT_ONCE)):
            return 0
        last = {each.name: each for each in self._found().values()}
        return sum(self._fire(delivery, last) for delivery in deliveries)

    def _fire(self, delivery: Delivery, last: Mapping[str, Schedule]) -> int:
        facts = {"id": delivery.message.id}
        try:
            schedule = jsontext.convert(delivery.body, Schedule)
            then = list(self._messages_of(schedule, last.get(schedule.name, schedule)))
            delivery.ack(then=then)
            return sum(draft.queue != QUEUE for draft in then)
        except LeaseLost:  # it was removed or changed at this moment
            return 0
        except msgspec.ValidationError as exc:
            log.error("schedule %(id)s is set aside: %(error)s", {**facts, "error": str(exc)})
            with suppress(LeaseLost):
                delivery.bury(str(exc))
        except Exception as exc:  # a store that is busy, a queue that refuses the message, a time zone unknown here
            log.error(
                "schedule %(id)s could not be published, and is tried again: %(error)s", {**facts, "error": str(exc)}
            )
            self._resting_until = self._clock.boot() + _REST
            with suppress(PabalError):
                delivery.release(counted=False)
        return 0

    def _messages_of(self, schedule: Schedule, last: Schedule) -> Iterator[Draft]:
        """Yield the messages of the occurrences that are due, and the schedule for the time after them.

        `last` is the one of this name that was added last. One that is added later cancels this one.
        """
        if _order(last) > _order(schedule):
            return  # another one of this name has taken its place
        now = self._queue.store.now()
        due = schedule.due(now)
        if not due and now >= schedule.next:
            facts = {"name": schedule.name, "at": iso_stamp(schedule.next)}
            log.warning("schedule %(name)s: missed at %(at)s, and skipped", facts)
        for at in due:
            if (draft := self._occurrence(schedule, at)) is not None:
                yield draft
        following = schedule.after(now) if now >= schedule.next else schedule.next
        if following is not None:
            yield self._draft(replace(schedule, next=following), now)

    def _occurrence(self, schedule: Schedule, at: float) -> Draft | None:
        stamp = iso_stamp(at)
        try:
            return self._make_queue(schedule.queue, "").draft(
                schedule.body,
                id=occurrence_id(schedule.name, at),
                type=schedule.type or None,
                headers={"schedule": schedule.name, "occurrence": stamp},
            )
        except InvalidInput as exc:  # by the queue's schema, which was changed since
            facts = {"name": schedule.name, "at": stamp, "error": str(exc)}
            log.error("schedule %(name)s: nothing is published for %(at)s: %(error)s", facts)
            return None

    def _draft(self, schedule: Schedule, now: float) -> Draft:
        text = sha256(_terms(schedule)).hexdigest()[:12]
        return self._queue.draft(
            msgspec.to_builtins(schedule),
            unique=f"{schedule.name}/{text}/{schedule.set_back}",
            target=CRON if schedule.cron else None,
            delay=min(max(0.0, schedule.next - now), MAX_SECONDS),
        )

    def _found(self, name: str = "") -> dict[str, Schedule]:
        """Return the schedules, or those of one name, by id: the one that was added last comes last."""
        found: dict[str, Schedule] = {}
        for _ in range(2):  # a message that changes its state meanwhile is met the second time
            for state in _LIVE:
                for entry in self._queue.entries(state):
                    with suppress(msgspec.ValidationError):
                        if entry.message is not None:
                            found[entry.id] = jsontext.convert(entry.message.body, Schedule)
        ids = sorted(found, key=lambda id: (*_order(found[id]), found[id].next))
        return {id: found[id] for id in ids if name in ("", found[id].name)}

    def _cancel(self, ids: Any) -> None:
        if gone := list(ids):
            self._queue.cancel(gone, inflight=True)


def occurrence_id(name: str, at: float) -> str:
    """Return the id of the message of an occurrence."""
    moment = datetime.fromtimestamp(at, UTC)
    part = f"-{round(at * 1000) % 1000:03d}" if round(at * 1000) % 1000 else ""
    return f"{name}.{moment:%Y%m%dT%H%M%S}{part}Z"


def _terms(schedule: Schedule) -> bytes:
    """Return what tells two schedules of one name apart: all but the times."""
    return jsontext.encode(msgspec.to_builtins(replace(schedule, next=0.0, added=0.0, set_back=0)))


def _same(found: Schedule | None, schedule: Schedule) -> bool:
    return found is not None and _terms(found) == _terms(schedule)


def _order(schedule: Schedule) -> tuple[float, bytes, int]:
    """Return the place of a schedule among those of its name, which stays the same when it is moved on."""
    return schedule.added, _terms(schedule), schedule.set_back


_tended: WeakKeyDictionary[Store, float] = WeakKeyDictionary()  # when this process looked last, on the boot clock
_looking = threading.Lock()


def tend(store: Store, clock: Clock, schedules: Callable[[], Schedules]) -> None:
    """Publish the occurrences that are due, unless this process looked less than a second ago."""
    now = clock.boot()
    with _looking:
        if 0 <= now - _tended.get(store, float("-inf")) < _EVERY:
            return
        _tended[store] = now
    try:
        schedules().tend()
    except (
        Exception
    ) as exc:  # consumers of other queues go on; if the store is the reason, they are told by their own call
        log.warning("the schedules of a store could not be looked at: %(error)s", {"error": str(exc)})
