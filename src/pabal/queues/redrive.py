"""Redrive: dead messages become ready again, in their own queue or in another one of the same store, at a rate; and
messages that their policy moved to a dead-letter queue, where they are ready, go back.

A message that goes to another queue keeps its id and all of its fields. It is taken in there first, and then removed
where it was dead, up to a hundred of them together. A kill in between leaves these in both queues, and none is lost:
the same redrive, repeated, finds them in the target, adds nothing and removes the dead ones.

A message that goes back from a dead-letter queue is leased there, and settled in one step with its publish: it is in
one of both queues at every time. It gets a new id, and keeps its first one as `original-id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from pabal.clock import Clock, SystemClock
from pabal.errors import InvalidInput, LeaseLost, ValidationFailed
from pabal.message import Message, replace
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue, check_ids
from pabal.queues.verdicts import ORIGINAL_ID, SOURCE_QUEUE
from pabal.store import Draft, Entry, Movable, Outcome, Settlement, State

MOST_AT_ONCE = 100
NOT_DEAD = "it is not dead any more"
NOT_READY = "it does not wait any more, or it is for one consumer, or others of its group are before it"
_ALIVE = (State.READY, State.DELAYED, State.INFLIGHT)
_STEPS = 10  # in a second, if there is a rate
_HELD = 60.0  # seconds for which a message that goes back is leased
_MOST_PASSED = 2000  # messages before those that go back, which are leased and released


class Redriven(NamedTuple):
    """The ids of the messages that are ready now, and for each other one why it is not."""

    ids: list[str]
    kept: dict[str, str]


def redrive(source: Queue, ids: Sequence[str], target: Queue | None = None, *, clock: Clock | None = None) -> Redriven:
    """Make dead messages ready again with no attempts and no time to live, in their own queue or in `target`."""
    check_ids(ids)
    wanted = list(dict.fromkeys(ids))
    if target is None or target.name == source.name:
        ready = source.revive(wanted)
        left = set(wanted).difference(ready)
        return Redriven(ready, {id: source.still_unfit(id) or NOT_DEAD for id in wanted if id in left})
    if not isinstance(source.store, Movable):
        raise InvalidInput("messages of this kind of store cannot go to another queue: redrive them where they are")
    move = _Move(source, target, source.store, clock or SystemClock())
    kept: dict[str, str] = {}
    for start in range(0, len(wanted), MOST_AT_ONCE):
        kept |= move.some(wanted[start : start + MOST_AT_ONCE])
    return Redriven([id for id in wanted if id not in kept], kept)


class _Move:
    """Moves dead messages of one queue to another."""

    def __init__(self, source: Queue, target: Queue, store: Movable, clock: Clock) -> None:
        self._source = source
        self._target = target
        self._store = store
        self._clock = clock
        self._window = target.read_policy().dedup_window

    def some(self, ids: Sequence[str]) -> dict[str, str]:
        """Move messages, with two commits for all of them; return for each that stays where it is why."""
        kept: dict[str, str] = {}
        messages: dict[str, Message] = {}
        for id in ids:
            entry = self._source.find(id)
            why = self._why_not(entry)
            if why:
                kept[id] = why
            elif entry is not None and entry.message is not None:
                messages[id] = replace(entry.message, expires_at=None)
        now = self._clock.now()
        entries = [
            Entry(self._target.name, id, State.READY, due_at=now, message=message) for id, message in messages.items()
        ]
        taken = set(self._store.carry(self._target.name, entries, window=self._window))
        for id in messages.keys() - taken:
            found = self._target.find(id)
            if found is None or found.message != messages[id]:
                kept[id] = f"{self._target.name} has or had another message of this id"
        moved = [id for id in messages if id not in kept]
        if moved and self._source.store.purge(self._source.name, State.DEAD, ids=moved, limit=len(moved)) < len(moved):
            kept |= {id: NOT_DEAD for id in moved if self._is_alive(id, taken_in=id in taken)}
        return kept

    def _why_not(self, entry: Entry | None) -> str:
        """Return why a message cannot be moved, or an empty text."""
        if entry is None or entry.state is not State.DEAD:
            return NOT_DEAD
        if entry.message is None:
            return "its body is gone"
        try:
            self._target.validate(entry.message)
        except ValidationFailed as exc:
            return f"it does not fit the schema of {self._target.name}: {exc}"
        return ""

    def _is_alive(self, id: str, *, taken_in: bool) -> bool:
        """Return whether somebody has revived a message meanwhile; then it goes on where it is."""
        found = self._source.find(id)
        if found is None or found.state not in _ALIVE:
            return False
        if taken_in:
            self._target.cancel([id])
        return True


def moved_from(message: Message | None, queue: str) -> str:
    """Return the queue from which its policy moved a message to this one; empty if it was not moved here."""
    found = "" if message is None else message.headers.get(SOURCE_QUEUE, "")
    return "" if found == queue else found


def send_back(source: Queue, ids: Sequence[str], target: Queue) -> Redriven:
    """Send ready messages of a dead-letter queue back to the queue from which they were moved.

    A lease takes what comes first: other messages before these are held meanwhile, and released as if nobody had.
    """
    check_ids(ids)
    wanted = list(dict.fromkeys(ids))
    if source.paused:
        return Redriven([], dict.fromkeys(wanted, f"{source.name} is paused: resume it, and send them back then"))
    left, kept, passed = set(wanted), dict[str, str](), list[Delivery[Any]]()
    try:
        while left and len(passed) < _MOST_PASSED:
            found = source.lease(min(len(left), MOST_AT_ONCE), visibility=_HELD)
            if not found:
                break
            passed += found
            chosen = [each for each in found if each.message.id in left]
            left.difference_update(each.message.id for each in chosen)
            going, unfit = list[Settlement](), dict[str, str]()
            for delivery in chosen:
                try:
                    draft = _sent_back(delivery.message, target)
                except ValidationFailed as exc:
                    unfit[delivery.message.id] = f"it does not fit the schema of {target.name}: {exc}"
                else:
                    going.append(Settlement(delivery.receipt, source.settler.done([draft])))
            outcomes = source.settler.settle_many(going)
            lost = {each.receipt.id for each, got in zip(going, outcomes, strict=True) if got is Outcome.LOST}
            kept |= unfit | dict.fromkeys(lost, NOT_READY)
            gone = {each.receipt.id for each in going}
            passed = [each for each in passed if each.message.id not in gone]
    finally:
        for delivery in passed:
            with suppress(LeaseLost):
                delivery.release(counted=False)
    far = f"more than {_MOST_PASSED} messages wait before it"
    kept |= dict.fromkeys(left, far if len(passed) >= _MOST_PASSED else NOT_READY)
    return Redriven([id for id in wanted if id not in kept], kept)


def _sent_back(message: Message, target: Queue) -> Draft:
    """Return a message as it goes on in the queue that it came from; raise ValidationFailed if it does not fit."""
    target.validate(message)
    return moved_on(message, target.draft(message.body))


def moved_on(message: Message, draft: Draft) -> Draft:
    """Return the draft of a message that goes to another queue: all of its fields, with the id and times of `draft`.

    It keeps its first id, and the queue that it came from until it is back there. It has no keys: they may be known in
    the other queue, and it would be dropped.
    """
    headers = {**message.headers, ORIGINAL_ID: message.headers.get(ORIGINAL_ID, message.id)}
    if headers.get(SOURCE_QUEUE) == draft.queue:
        del headers[SOURCE_QUEUE]
    new = draft.message
    times = {"created_at": new.created_at, "expires_at": new.expires_at}
    return replace(draft, message=replace(message, id=new.id, **times, headers=headers, dedup_key="", unique=""))


def lots(ids: Sequence[str], rate: float | None) -> Iterator[tuple[Sequence[str], float]]:
    """Yield parts of these ids, each with the seconds that it takes at a rate, in messages a second."""
    size = MOST_AT_ONCE if rate is None else max(1, min(MOST_AT_ONCE, int(rate / _STEPS)))
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        yield part, 0.0 if rate is None else len(part) / rate
