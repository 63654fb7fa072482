"""Redrive: dead messages become ready again, in their own queue or in another one of the same store, at a rate.

A message that goes to another queue keeps its id and all of its fields. It is taken in there first, and then removed
where it was dead. A kill in between leaves it in both, and no message is lost: the same redrive, repeated, finds it in
the target, adds nothing and removes the dead one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pabal.clock import Clock, SystemClock
from pabal.errors import InvalidInput, ValidationFailed
from pabal.message import replace
from pabal.queues.queue import Queue, check_ids
from pabal.store import Entry, Movable, State

MOST_AT_ONCE = 100
NOT_DEAD = "it is not dead any more"
_ALIVE = (State.READY, State.DELAYED, State.INFLIGHT)
_STEPS = 10  # in a second, if there is a rate


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
    why = {id: move.one(id) for id in wanted}
    return Redriven([id for id, reason in why.items() if not reason], {id: text for id, text in why.items() if text})


class _Move:
    """Moves dead messages of one queue to another, one by one."""

    def __init__(self, source: Queue, target: Queue, store: Movable, clock: Clock) -> None:
        self._source = source
        self._target = target
        self._store = store
        self._clock = clock
        self._window = target.policy.dedup_window

    def one(self, id: str) -> str:
        """Move a message; return why it stays where it is, or an empty text."""
        entry = self._source.find(id)
        if entry is None or entry.state is not State.DEAD:
            return NOT_DEAD
        if entry.message is None:
            return "its body is gone"
        message = replace(entry.message, expires_at=None)
        try:
            self._target.validate(message)
        except ValidationFailed as exc:
            return f"it does not fit the schema of {self._target.name}: {exc}"
        ready = Entry(self._target.name, id, State.READY, due_at=self._clock.now(), message=message)
        taken_in = bool(self._store.carry(self._target.name, [ready], window=self._window))
        if not taken_in:
            found = self._target.find(id)
            if found is None or found.message != message:
                return f"{self._target.name} has or had another message of this id"
        if not self._source.store.purge(self._source.name, State.DEAD, ids=[id], limit=1):
            found = self._source.find(id)
            if found is not None and found.state in _ALIVE:  # somebody has revived it meanwhile: it goes on where it is
                if taken_in:
                    self._target.cancel([id])
                return NOT_DEAD
        return ""


def lots(ids: Sequence[str], rate: float | None) -> Iterator[tuple[Sequence[str], float]]:
    """Yield parts of these ids, each with the seconds that it takes at a rate, in messages a second."""
    size = MOST_AT_ONCE if rate is None else max(1, min(MOST_AT_ONCE, int(rate / _STEPS)))
    for start in range(0, len(ids), size):
        part = ids[start : start + size]
        yield part, 0.0 if rate is None else len(part) / rate
