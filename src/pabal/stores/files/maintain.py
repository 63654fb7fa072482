"""Maintenance: revive dead messages, cancel waiting ones, purge old ones, sweep the dedup records.

Purges and sweeps work in slices, and list a directory only if something in it may be due.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from heapq import nsmallest
from itertools import islice

from pabal import durable, jsontext
from pabal.filesystem import NO_FILE, UNREADABLE, read_whole, remove, touch
from pabal.ids import new_tag
from pabal.policy.retention import Look, trim_seen_twice
from pabal.store import FailureCode, State
from pabal.stores.files import dedup
from pabal.stores.files.browse import MOST_LISTED, WAITING, corrupt_names, counts, waiting, written
from pabal.stores.files.lease import refreshed
from pabal.stores.files.names import LAST_DUE, Slot, digest, floor_ms
from pabal.stores.files.order import set_time
from pabal.stores.files.queue_directory import QueueDirectory, Row
from pabal.stores.files.read import (
    LiveMessages,
    order_in,
    restate,
    slots_in,
)
from pabal.stores.files.root import DELETED, Root
from pabal.stores.files.settle import finish_all
from pabal.stores.rows import cancelled_at, not_empty

_REMEMBERED = 100_000  # of the oldest settled names, so that a large directory is listed rarely
_SWEEP_SLICE = 1000
_SWEEP_EVERY = 10.0  # seconds
_CANCELLED = "cancelled"  # in the place of the token of the last lease


def revive(root: Root, queue: QueueDirectory, ids: Sequence[str]) -> list[str]:
    """Make dead messages ready again; return the ids of those that were dead."""
    wanted, revived = dict.fromkeys(ids), dict[str, str]()
    for known in _listings(root, queue, State.DEAD):
        with queue:
            for id in wanted:
                found = known.pop(id, None)
                if found is not None and (name := _revive_one(root, queue, *found)):
                    revived[id] = name
        if len(revived) == len(wanted):
            break
    queue.sync([*queue.waiting, queue.dirs[State.DEAD]])
    if root.layout.mirror:
        restate(root, queue, queue.dirs[State.READY], [(name, State.READY, "") for name in revived.values()])
    return [id for id in wanted if id in revived]


def _listings(root: Root, queue: QueueDirectory, state: State) -> Iterator[dict[str, tuple[str, Slot]]]:
    """Yield the messages of a state by id, as far as an earlier call has met them; then as a new listing has them.

    So not every batch lists all. What is known may have moved on.
    """
    yield queue.by_id.setdefault(state, {})
    found = _list_by_id(root, queue, state)
    queue.by_id[state] = dict(islice(found.items(), MOST_LISTED)) if len(found) > MOST_LISTED else found
    yield found


def _list_by_id(root: Root, queue: QueueDirectory, state: State) -> dict[str, tuple[str, Slot]]:
    """List the messages of a state by id, in the order in which they are browsed."""
    if state in WAITING:
        rows = waiting(root, queue)
        return {_id_in(cursor): (path, slot) for cursor, path, slot, found in rows if found is state}
    found, directory = {}, queue.dirs[state]
    for name, slot in sorted(slots_in(root, queue, state)):
        order = order_in(root, queue, directory, name, slot)
        if order is not None:
            found[order.id] = f"{directory}/{name}", slot
    return found


def _id_in(cursor: str) -> str:
    """Return the id in the cursor of a waiting message."""
    return cursor.split("-", 2)[2]


def _revive_one(root: Root, queue: QueueDirectory, source: str, slot: Slot) -> str:
    stamp = queue.next_stamp(root.clock.now()) if slot.group else 0
    ready = queue.dirs[State.READY]
    revived = root.free_name(root.names.revived(slot, root.now(), stamp), *queue.waiting)
    try:
        set_time(root, source)
        root.move(source, f"{ready}/{revived}")
    except FileNotFoundError:
        return ""
    remove(f"{source}.why")
    return revived


def cancel(root: Root, queue: QueueDirectory, ids: Sequence[str], inflight: bool) -> list[str]:
    """Make waiting messages done, and with `inflight` those that a consumer holds; return their ids."""
    wanted, cancelled = frozenset(ids), dict[str, str]()
    if not wanted:
        return []
    refreshed(root, queue)
    with queue:
        for cursor, path, slot, _ in waiting(root, queue):
            if (id := _id_in(cursor)) in wanted and root.names.parse(os.path.basename(path)) is not None:
                cancelled[id] = _cancel_one(root, queue, path, slot, id)
        for name, slot in slots_in(root, queue, State.INFLIGHT) if inflight else ():
            order = order_in(root, queue, queue.inflight, name, slot)
            if order is not None and order.id in wanted:
                cancelled[order.id] = _cancel_one(root, queue, f"{queue.inflight}/{name}", slot, order.id)
    if cancelled:
        if root.layout.mirror:
            files = [(name, State.DONE, str(FailureCode.CANCELLED)) for name in cancelled.values()]
            restate(root, queue, queue.dirs[State.DONE], files)
        # The names of both sides: after a power cut a message must not be back in the place that it left.
        queue.sync([queue.dirs[State.DONE], *queue.waiting, queue.inflight])
        queue.wake()  # the next of its group can be leased
    return [id for id in dict.fromkeys(ids) if id in cancelled]


def _cancel_one(root: Root, queue: QueueDirectory, path: str, slot: Slot, id: str) -> str:
    """Move a message to the done ones, under the token of no lease; return its name there. With the lock held."""
    name = root.names.settled(root.names.leased(slot, slot.attempt, _CANCELLED), root.now())
    name = root.free_name(name, queue.dirs[State.DONE])
    failure = jsontext.pretty(cancelled_at(root.clock.now()))
    root.write_small(queue.reason(State.DONE, id, name), failure, synced=True)
    root.move(path, f"{queue.dirs[State.DONE]}/{name}")
    remove(f"{queue.why}/{id}.why")
    return name


class OldestSettled:
    """The oldest settled messages of a state, as far as this process knows them."""

    def __init__(self) -> None:
        self.names: deque[tuple[int, str]] = deque()  # settled at, name
        self.none_before = 0  # no message was settled before this instant, as of the last listing


def purge(
    root: Root, queue: QueueDirectory, state: State, age: float, limit: int, ids: Sequence[str] | None = None
) -> int:
    """Remove messages that have been in a state for long enough; return how many."""
    if state is State.INFLIGHT:
        return 0
    # Without an age all go, also those that seem to come later: the clock may have been ahead.
    before = root.now() - round(age * 1000) if age > 0 else LAST_DUE
    return _purge(root, queue, state, before, limit, None if ids is None else frozenset(ids))


def trim(root: Root, queue: QueueDirectory, state: State, age: float, limit: int) -> int:
    """Remove messages that were too old at an earlier look too; return how many."""
    path = f"{queue.private}/.look-{state.value}"

    def keep(look: Look) -> None:
        # No room for it: nothing is removed until there is.
        draft = f"{queue.tmp}/{new_tag()}~look"
        with suppress(OSError):
            durable.write_whole(draft, f"{look}\n".encode(), synced=False)
            os.rename(draft, path)
        remove(draft)

    try:
        kept = read_whole(path)[0].decode("ascii", "replace")
    except (FileNotFoundError, *UNREADABLE):
        kept = ""
    return trim_seen_twice(
        root.clock,
        limit,
        kept=kept,
        keep=keep,
        is_due=lambda at: _any_older(root, queue, state, floor_ms(at - age)),
        remove=lambda at: _purge(root, queue, state, floor_ms(at - age), limit, None),
    )


def _purge(
    root: Root, queue: QueueDirectory, state: State, before: int, limit: int, wanted: frozenset[str] | None
) -> int:
    if state is State.CORRUPT:
        return _purge_corrupt(root, queue, before, limit, wanted)
    if state in WAITING:
        refreshed(root, queue)
    if wanted is not None and root.names.native:
        return _purge_ids(root, queue, state, before, limit, wanted)
    if state in WAITING:
        return _purge_waiting(root, queue, state, before, limit, wanted)
    with queue.maintaining:
        if wanted is not None:
            return _purge_some(root, queue, state, before, limit, wanted)
        return _purge_settled(root, queue, state, before, limit)


def _purge_ids(root: Root, queue: QueueDirectory, state: State, before: int, limit: int, wanted: frozenset[str]) -> int:
    removed, left = 0, {*wanted}
    for known in _listings(root, queue, state):
        with queue:
            for id in left & known.keys():
                path, slot = known[id]
                if removed < limit and os.path.lexists(path):
                    left.remove(id)
                    is_due = state is State.DELAYED and slot.due <= root.now()  # it has become ready since
                    removed += not is_due and _remove_if_old(root, queue, state, path, slot, before)
        if not left or removed >= limit:
            break
    return removed


def _remove_if_old(root: Root, queue: QueueDirectory, state: State, path: str, slot: Slot, before: int) -> bool:
    if (written(path) if state in WAITING else slot.settled) > before:
        return False
    id = _remove_file(root, queue, path, slot)
    remove(queue.reason(state, id, os.path.basename(path)))
    return True


def _any_older(root: Root, queue: QueueDirectory, state: State, before: int) -> bool:
    """Return whether a message came into this state before an instant; one that is gone by now may count."""
    if state in (State.DONE, State.DEAD):
        with queue.maintaining:
            known = _oldest_settled(root, queue, state)
            if before < max(known.none_before, _marked(f"{queue.dedup}/.{state.value}", root.now())):
                return False
            return bool(known.names or _list_oldest(root, queue, state, known)) and known.names[0][0] <= before
    if state is State.CORRUPT:
        return any(written(f"{queue.dirs[state]}/{name}.why") <= before for name in corrupt_names(queue))
    return any(found is state and written(path) <= before for _, path, _, found in waiting(root, queue))


def _purge_some(
    root: Root, queue: QueueDirectory, state: State, before: int, limit: int, wanted: frozenset[str]
) -> int:
    rows = [(name, slot) for name, slot in slots_in(root, queue, state) if slot.settled <= before]
    if not root.names.native:
        # A plain stem is most often the id: other files are read only if some ids are not found so.
        named = [row for row in rows if row[1].base in wanted]
        rows = named if len({slot.base for _, slot in named}) == len(wanted) else rows
    removed = 0
    for name, slot in rows:
        if removed < limit:
            order = order_in(root, queue, queue.dirs[state], name, slot)
            if order is not None and order.id in wanted:
                removed += _remove_settled(root, queue, state, name)
    return removed


def _purge_settled(root: Root, queue: QueueDirectory, state: State, before: int, limit: int) -> int:
    known = _oldest_settled(root, queue, state)
    marker, removed = f"{queue.dedup}/.{state.value}", 0
    while removed < limit and before >= max(known.none_before, _marked(marker, root.now())):
        if not known.names and not _list_oldest(root, queue, state, known):
            break
        while known.names and known.names[0][0] <= before and removed < limit:
            removed += _remove_settled(root, queue, state, known.names.popleft()[1])
        if known.names:
            known.none_before = known.names[0][0]
            if known.none_before > before or removed >= limit:
                break
    if removed:
        _mark(marker, known.none_before)
    return removed


def _oldest_settled(root: Root, queue: QueueDirectory, state: State) -> OldestSettled:
    known = queue.oldest.setdefault(state, OldestSettled())
    if known.none_before > root.now():  # the clock was ahead: messages settled since then come before those known
        known = queue.oldest[state] = OldestSettled()
    return known


def _list_oldest(root: Root, queue: QueueDirectory, state: State, known: OldestSettled) -> bool:
    """List a directory for the oldest messages; False if it has none."""
    now = root.now()
    rows = ((slot.settled, name) for name, slot in slots_in(root, queue, state))
    known.names = deque(nsmallest(_REMEMBERED, rows))
    known.none_before = known.names[0][0] if known.names else now
    _mark(f"{queue.dedup}/.{state.value}", known.none_before)
    return bool(known.names)


def _marked(marker: str, now: int) -> int:
    """Return the mark of the last purge of any process: no message was settled before this instant."""
    try:
        about = os.lstat(marker)
    except FileNotFoundError:
        return 0
    instant = about.st_mtime_ns // 1_000_000 if stat.S_ISREG(about.st_mode) else 0
    return instant if instant <= now else 0  # a future one was written before the clock stepped back


def marks(queue: QueueDirectory) -> list[str]:
    """Return the paths of the small files in which a queue keeps what was done, or is being done."""
    looks = [f"{queue.private}/.look-{state.value}" for state in State]
    purges = [f"{queue.dedup}/.{state.value}" for state in (State.DONE, State.DEAD)]
    return [*looks, *purges, f"{queue.dedup}/.swept", f"{queue.private}/{DELETED}", f"{queue.private}/.carrying"]


def _mark(marker: str, instant: int) -> None:
    try:
        touch(marker)
    except OSError as exc:
        if exc.errno in durable.NO_ROOM | NO_FILE:
            return  # a purge makes room, so it must work without; and a check finds what is in the place of a mark
        raise
    os.utime(marker, ns=(instant * 1_000_000, instant * 1_000_000))


def _remove_settled(root: Root, queue: QueueDirectory, state: State, name: str) -> int:
    path, slot = f"{queue.dirs[state]}/{name}", root.names.parse(name)
    if slot is None or not os.path.lexists(path):
        return 0
    _remove_file(root, queue, path, slot)
    remove(f"{path}.why")
    return 1


def _remove_file(root: Root, queue: QueueDirectory, path: str, slot: Slot) -> str:
    directory, name = os.path.split(path)
    order = order_in(root, queue, directory, name, slot)
    id = order.id if order is not None else slot.id
    stem = "" if root.names.native else digest(slot.base, 10)
    dedup.forget_id(queue, id, stem)  # before the file: otherwise a crash would leave an id that is refused for ever
    remove(path)
    return id


def _purge_waiting(
    root: Root, queue: QueueDirectory, state: State, before: int, limit: int, wanted: frozenset[str] | None
) -> int:
    def rows() -> Iterator[Row]:
        for cursor, path, slot, found in waiting(root, queue):
            if found is state and (wanted is None or _id_in(cursor) in wanted):
                yield cursor, path, slot

    def remove_one(cursor: str, path: str, slot: Slot | None) -> bool:
        order = None if slot is None else order_in(root, queue, *os.path.split(path), slot)
        if slot is None or order is None or order.id != _id_in(cursor) or not os.path.lexists(path):
            return False  # the name may be that of another message by now
        return _remove_if_old(root, queue, state, path, slot, before)

    return _purge_listed(queue, state, rows, remove_one, limit, keep=wanted is None)


def _purge_corrupt(root: Root, queue: QueueDirectory, before: int, limit: int, wanted: frozenset[str] | None) -> int:
    def rows() -> Iterator[Row]:
        for name in corrupt_names(queue):
            slot = root.names.parse(name)
            if wanted is None or (slot.id if slot is not None else name) in wanted:
                yield name, f"{queue.dirs[State.CORRUPT]}/{name}", None

    def remove_one(_: str, path: str, slot: Slot | None) -> bool:
        if not os.path.lexists(path) or written(f"{path}.why") > before:
            return False
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):
            os.unlink(path)
        if os.path.lexists(path):
            return False
        remove(f"{path}.why")
        return True

    return _purge_listed(queue, State.CORRUPT, rows, remove_one, limit, keep=wanted is None)


def _purge_listed(
    queue: QueueDirectory,
    state: State,
    rows: Callable[[], Iterator[Row]],
    remove_one: Callable[[str, str, Slot | None], bool],
    limit: int,
    *,
    keep: bool,
) -> int:
    """Remove up to `limit` of the rows. The rest of the listing is kept for the next batch, if so asked."""
    removed = 0
    left = queue.purging.pop(state, None) if keep else None
    for listed in (left, None):
        found = deque(rows()) if listed is None else listed
        with queue:
            while found and removed < limit:
                removed += remove_one(*found.popleft())
        if keep and found:
            queue.purging[state] = found
        if listed is None or removed >= limit:
            break
    return removed


def delete(root: Root, queue: QueueDirectory, force: bool) -> int:
    """Remove all that a queue has; see the contract. Its empty folders stay, for processes that have them open."""
    finish_all(root)
    refreshed(root, queue)
    removed = 0
    for state in (*State, None):
        # Before a message can be seen it lies in `tmp`: its records stay, whenever it comes.
        tags = {name.partition("~")[0] for name in os.listdir(queue.tmp)}
        counted = counts(root, queue)
        if not force and any(count for of, count in counted.items() if of is not State.DONE):
            raise not_empty(queue.name, counted)
        if state is State.INFLIGHT:
            removed += _remove_inflight(root, queue) if force else 0
        elif state is not None:
            while some := _purge(root, queue, state, LAST_DUE, _SWEEP_SLICE, None):
                removed += some if state is not State.DONE else 0
        else:
            with queue:
                dedup.forget_all(queue, tags)
                remove(f"{queue.private}/settings.json", *(f"{queue.private}/.look-{of.value}" for of in State))
                if not os.path.lexists(deleted := f"{queue.private}/{DELETED}"):
                    touch(deleted)
    queue.sync([*queue.dirs.values(), queue.dedup, queue.private])
    queue.wake()
    return removed


def _remove_inflight(root: Root, queue: QueueDirectory) -> int:
    removed = 0
    with queue:
        for name, slot in slots_in(root, queue, State.INFLIGHT):
            id = _remove_file(root, queue, f"{queue.inflight}/{name}", slot)
            remove(f"{queue.why}/{id}.why")
            removed += 1
    return removed


def is_deleted(root: Root, name: str) -> bool:
    """Say whether a queue was deleted and has no messages since."""
    if not os.path.lexists(f"{root.path}/{root.layout.private(name)}/{DELETED}"):
        return False
    queue = root.find(name)
    return queue is not None and not any(counts(root, queue).values())


def sweep_records(root: Root, queue: QueueDirectory) -> None:
    """Remove a slice of the expired dedup records, at most one round through them in ten seconds."""
    marker, now = f"{queue.dedup}/.swept", root.now()
    with queue.maintaining:
        if queue.sweeping is None:
            if now - _marked(marker, now) < _SWEEP_EVERY * 1000:
                return
            _mark(marker, now)
            queue.sweeping = _names(queue.dedup)
        some = list(islice(queue.sweeping, _SWEEP_SLICE))
        if len(some) < _SWEEP_SLICE:
            queue.sweeping.close()
            queue.sweeping = None  # few records are left to the next round: they cost nothing
        else:
            dedup.sweep(queue, some, now, partial(LiveMessages, root, queue))


def _names(path: str) -> Generator[str, None, None]:
    with os.scandir(path) as entries:
        for entry in entries:
            yield entry.name
