"""Schedules: messages that come at times given by a cron line or an interval, without a leader.

A schedule is a message of the queue `pabal.schedules` that is delayed until its next occurrence. Every consumer looks
there once a second. The one that leases the message acks it, and in the same step publishes the message of the
occurrence and the schedule for the time after it. So a crash at any point leaves the schedule as it was or one
occurrence further, and the id of a message, made of name and occurrence, is the same whoever publishes it.

The unique key of a schedule is its name with a hash of its terms: processes that begin together and add the same
schedule add it once. Of two schedules with one name, as a crash between adding and removing leaves them, the younger
counts.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
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
from pabal.store import Draft, Published, State, Store

if TYPE_CHECKING:
    from pabal.queues.delivery import Delivery
    from pabal.queues.queue import Queue

log = logging.getLogger("pabal")

QUEUE = "pabal.schedules"
CRON = "cron"  # the target of schedules with a cron line: only a process that can read it leases them
LATE = 60.0  # seconds: an occurrence that is found later than this was missed
_EVERY = 1.0  # seconds between two looks
_LOOK_EVERY = 10.0  # seconds: a schedule that is ready because its consumer gave it back has no due time
_REST = 10.0  # seconds after a failure
_AT_ONCE = 100
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

    @property
    def next_at(self) -> datetime:
        return datetime.fromtimestamp(self.next, UTC)

    def after(self, at: float) -> float | None:
        """Return the first occurrence after an instant; None if there is none."""
        if self.cron:
            return cron.following(self.cron, self.timezone, at)
        return (at // self.every + 1) * self.every

    def latest(self, at: float) -> float | None:
        """Return the last occurrence at or before an instant."""
        return cron.last(self.cron, self.timezone, at) if self.cron else at // self.every * self.every


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
        seconds = float(check_seconds("every", seconds_of(every), least=1.0))
        if timezone:
            raise InvalidInput("a timezone belongs to a cron line; every is a number of seconds")
    else:
        _check_line(cron or "", timezone, name)
    value = json_body(body)
    if isinstance(value, bytes):
        raise InvalidInput("the body of a schedule is JSON; found bytes")
    return Schedule(name, check_name(queue), value, cron or "", seconds, timezone, catch_up, type)


def _check_line(line: str, timezone: str, name: str) -> None:
    cron.check(line, timezone, name)


class Schedules:
    """The schedules of a store."""

    def __init__(self, make_queue: MakeQueue, clock: Clock) -> None:
        self._make_queue = make_queue
        self._clock = clock
        self._queue = make_queue(QUEUE, CRON if cron.available() else "")
        self._looked = float("-inf")
        self._resting_until = float("-inf")  # after a failure, so that it is not repeated with every look

    def add(self, schedule: Schedule) -> Schedule:
        """Add a schedule, or change the one of this name; return it with its next time. Repeating it is harmless."""
        self._make_queue(schedule.queue, "").draft(schedule.body, type=schedule.type or None)  # refused now, if ever
        found = self._found(schedule.name)
        kept = next((id for id, each in found.items() if _terms(each) == _terms(schedule)), "")
        if not kept:
            now = self._clock.now()
            at = schedule.after(now)
            if at is None:
                raise InvalidInput(f"{schedule.name}: the cron line {schedule.cron!r:.60} never comes again")
            self._queue.ensure_policy(_POLICY)
            schedule = replace(schedule, next=at)
            [answer] = self._queue.store.publish([self._draft(schedule, now)])
            kept = answer.id  # of another process that adds the same, if it was faster
        self._cancel(id for id in found if id != kept)
        return found.get(kept, schedule)

    def all(self) -> list[Schedule]:
        """Return all schedules by name."""
        found: dict[str, Schedule] = {}
        for each in self._found().values():
            found[each.name] = each  # the youngest comes last
        return [found[name] for name in sorted(found)]

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
        if (due is None or due > 0) and 0 <= now - self._looked < _LOOK_EVERY:
            return 0
        self._looked = now
        return sum(self._fire(delivery) for delivery in self._queue.lease(_AT_ONCE))

    def _fire(self, delivery: Delivery) -> int:
        now = self._clock.now()
        facts = {"id": delivery.message.id}
        try:
            schedule = msgspec.convert(delivery.body, Schedule)
            then = list(self._messages_of(schedule, delivery, now))
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

    def _messages_of(self, schedule: Schedule, delivery: Delivery, now: float) -> Iterator[Draft]:
        """Yield the message of the occurrence that is due, and the schedule for the time after it."""
        if any(id > delivery.message.id for id in self._found(schedule.name)):
            return  # a younger one of this name has taken its place
        latest = max(schedule.next, schedule.latest(now) or 0.0)
        if now - latest > LATE and schedule.catch_up == "skip":
            facts = {"name": schedule.name, "at": iso_stamp(latest)}
            log.warning("schedule %(name)s: missed at %(at)s, and skipped", facts)
        elif (draft := self._occurrence(schedule, latest)) is not None:
            yield draft
        following = schedule.after(latest)
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
            unique=f"{schedule.name}/{text}",
            target=CRON if schedule.cron else None,
            delay=min(max(0.0, schedule.next - now), MAX_SECONDS),
        )

    def _found(self, name: str = "") -> dict[str, Schedule]:
        """Return the schedules, or those of one name, by id: the youngest last."""
        found: dict[str, Schedule] = {}
        for _ in range(2):  # a message that changes its state meanwhile is met the second time
            for state in _LIVE:
                for entry in self._queue.entries(state):
                    with suppress(msgspec.ValidationError):
                        if entry.message is not None:
                            found[entry.id] = msgspec.convert(entry.message.body, Schedule)
        return {id: found[id] for id in sorted(found) if name in ("", found[id].name)}

    def _cancel(self, ids: Any) -> None:
        if gone := list(ids):
            self._queue.cancel(gone, inflight=True)


def occurrence_id(name: str, at: float) -> str:
    """Return the id of the message of an occurrence."""
    moment = datetime.fromtimestamp(at, UTC)
    part = f"-{round(at * 1000) % 1000:03d}" if round(at * 1000) % 1000 else ""
    return f"{name}.{moment:%Y%m%dT%H%M%S}{part}Z"


def _terms(schedule: Schedule) -> bytes:
    """Return what tells two schedules of one name apart: all but the time."""
    return jsontext.encode(msgspec.to_builtins(replace(schedule, next=0.0)))


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
