"""Look without changing anything: settings, counts, pages and single messages, as they are in the directories."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from heapq import nsmallest
from typing import Any

from pabal import jsontext
from pabal.errors import InvalidInput, InvalidPolicy, UnsafeFile
from pabal.filesystem import UNREADABLE, read_whole
from pabal.ids import consumer_tag
from pabal.store import BROWSE_BYTES, Entry, Failure, Held, State
from pabal.stores.files.names import Slot, floor_ms
from pabal.stores.files.order import Order, order_of
from pabal.stores.files.queue_directory import Listing, QueueDirectory, Row
from pabal.stores.files.read import corrupt_reason, locate, order_in, read_failure, read_message, slots_in
from pabal.stores.files.root import Root

MOST_LISTED = 100_000  # rows that are kept for the next pages or batches
WAITING = (State.READY, State.DELAYED)


def read_settings(private: str) -> Mapping[str, Any] | None:
    """Return the settings of a queue from the folder of its own files; None if it has none."""
    path = f"{private}/settings.json"
    try:
        found = jsontext.read(read_whole(path, links=True)[0])
    except FileNotFoundError:
        return None
    except (InvalidInput, UnsafeFile) as exc:
        raise InvalidPolicy(f"{path}: {exc.code}: {exc}") from exc
    if not isinstance(found, dict):
        raise InvalidPolicy(f"{path}: settings are a JSON object; found {type(found).__name__}")
    return found


def counts(root: Root, queue: QueueDirectory) -> dict[State, int]:
    """Count the messages in each state."""
    found = dict.fromkeys(State, 0)
    for state in State:
        if state is State.CORRUPT:
            found[state] = len(corrupt_names(queue))
        elif state not in WAITING:
            found[state] = sum(1 for _ in slots_in(root, queue, state))
    for _, _, _, state in waiting(root, queue):
        found[state] += 1
    return found


def oldest(root: Root, queue: QueueDirectory, state: State) -> float | None:
    """Return since when the oldest message of a state has been in it, as far as file names tell."""
    if state is State.CORRUPT:
        paths = [f"{queue.dirs[state]}/{name}" for name in corrupt_names(queue)]
        times = [time for path in paths if (time := written(f"{path}.why") or written(path))]
    elif state in WAITING:
        times = [slot.due for _, _, slot, found in waiting(root, queue) if found is state]
    else:
        folder = queue.dirs[state]
        times = [
            slot.settled or slot.due or _due(root, queue, folder, name) for name, slot in slots_in(root, queue, state)
        ]
    return min(times) / 1000 if times else None


def holds(root: Root, queue: QueueDirectory) -> dict[str, Held]:
    """Return how many messages each consumer, given by its tag, holds, and since when.

    A lease and each extension are a rename, which sets the file's time of change.
    """
    found: dict[str, Held] = {}
    now = root.clock.now()
    for name, slot in slots_in(root, queue, State.INFLIGHT):
        try:
            leased = os.lstat(f"{queue.inflight}/{name}").st_ctime
        except FileNotFoundError:
            continue
        tag, since = consumer_tag(slot.token), min(now, max(leased, slot.due / 1000))
        before = found.get(tag, Held(0, since))
        found[tag] = Held(before.messages + 1, min(before.since, since))
    return found


def _due(root: Root, queue: QueueDirectory, folder: str, name: str) -> int:
    """Return when a file whose name does not say it became due."""
    order = _order(root, queue, folder, name)[1]
    return root.now() if order is None else order.due


def waiting(root: Root, queue: QueueDirectory) -> list[tuple[str, str, Slot, State]]:
    """List the waiting messages in lease order, as (cursor, path, slot, state)."""
    now, found = root.now(), []
    for directory in queue.waiting:
        for name in os.listdir(directory):
            if not root.layout.admits(name):
                continue
            slot, order = _order(root, queue, directory, name)
            if slot is not None and order is not None:
                cursor = f"{100 - order.priority:03}-{order.due:013}-{order.id}"
                state = waiting_state(queue, directory, slot.due, now)
                found.append((cursor, f"{directory}/{name}", slot._replace(due=order.due), state))
    return sorted(found)


def _order(root: Root, queue: QueueDirectory, directory: str, name: str) -> tuple[Slot | None, Order | None]:
    slot = root.names.parse(name)
    if slot is not None:
        return slot, order_in(root, queue, directory, name, slot)
    # A foreign file that could not be taken in, since the lock is held or nothing can be written here.
    slot = Slot(name, root.names.stem(name.removesuffix(root.names.extension)), "")
    try:
        return slot, order_of(root, read_message(root, f"{directory}/{name}", slot))
    except (FileNotFoundError, *UNREADABLE):
        return None, None


def waiting_state(queue: QueueDirectory, directory: str, due: int, now: int) -> State:
    """Return whether a waiting file is ready: by its directory, or because it has come due there."""
    ready = len(queue.waiting) > 1 and directory == queue.dirs[State.READY]
    return State.READY if ready or due <= now else State.DELAYED


def written(path: str) -> int:
    """Return the time of the last change of a file in milliseconds; 0 if it is gone."""
    try:
        return floor_ms(os.lstat(path).st_mtime)
    except FileNotFoundError:
        return 0


def corrupt_names(queue: QueueDirectory) -> list[str]:
    names = os.listdir(queue.dirs[State.CORRUPT])
    return sorted(name for name in names if not name.startswith(".") and not name.endswith(".why"))


def browse(root: Root, queue: QueueDirectory, state: State, after: str, limit: int) -> list[Entry]:
    """List the messages of a state, a page at a time. The next page uses the same listing, as far as it goes."""
    page: list[Entry] = []
    size = 0
    known = queue.listings.pop(state, None)
    fresh = known is None or known.after != after or not after
    rows = _list(root, queue, state, after) if fresh or known is None else known.rows
    while len(page) < limit and size < BROWSE_BYTES:
        if not rows:
            if fresh:
                break
            fresh, rows = True, _list(root, queue, state, page[-1].cursor if page else after)
            continue
        cursor, path, slot = rows.popleft()
        entry = _corrupt(root, queue, cursor) if slot is None else _entry(root, queue, state, path, slot)
        if entry is None and state is State.INFLIGHT and not fresh:  # each extension changes the name of its file
            fresh, rows = True, _list(root, queue, state, page[-1].cursor if page else after)
        if entry is not None:
            page.append(entry._replace(cursor=cursor))
            size += len(entry.data)
            if entry.message is not None:  # else its file was perhaps not read, whatever its size
                with suppress(OSError):  # it has moved on
                    size += os.stat(path, follow_symlinks=False).st_size
    if rows:
        queue.listings[state] = Listing(page[-1].cursor, rows)
    return page


def _list(root: Root, queue: QueueDirectory, state: State, after: str) -> deque[Row]:
    """List the first messages of a state after a cursor."""
    directory, rows = queue.dirs[state], list[Row]()
    if state is State.CORRUPT:
        rows = [(name, f"{directory}/{name}", None) for name in corrupt_names(queue)]
    elif state in WAITING:
        rows = [(cursor, path, slot) for cursor, path, slot, found in waiting(root, queue) if found is state]
    else:
        rows = [(slot.base, f"{directory}/{name}", slot) for name, slot in slots_in(root, queue, state)]
    return deque(nsmallest(MOST_LISTED, (row for row in rows if row[0] > after)))


def find(root: Root, queue: QueueDirectory, id: str) -> Entry | None:
    """Return one message in whatever state it is."""
    for _ in range(3):  # it may move after it was found and before it is read
        found = locate(root, queue, id)
        if found is None:
            return None
        state, name, slot = found
        if state is State.CORRUPT or slot is None:
            return _corrupt(root, queue, name)
        directory = queue.dirs[state]
        if state in WAITING:
            order = order_in(root, queue, directory, name, slot)
            state = waiting_state(queue, directory, slot.due, root.now())
            slot = slot._replace(due=order.due if order is not None else slot.due)
        entry = _entry(root, queue, state, f"{directory}/{name}", slot)
        if entry is not None:
            return entry
    return None


def _entry(root: Root, queue: QueueDirectory, state: State, path: str, slot: Slot) -> Entry | None:
    """Return the entry of a file; None if the file has moved on."""
    id, data, message = slot.id, b"", None
    try:
        message = read_message(root, path, slot)
    except FileNotFoundError:
        ready = f"{queue.dirs[State.READY]}/{os.path.basename(path)}"
        if state is State.READY and path != ready:  # it was due, and has been moved there since it was listed
            return _entry(root, queue, state, ready, slot)
        return None
    except UNREADABLE as exc:  # it is set aside when it is leased, or by a check
        data = getattr(exc, "data", b"")
    if message is not None and slot.crc < 0:
        id = message.id
    failure = read_failure(queue.reason(state, id, os.path.basename(path)))
    token = slot.token if state is State.INFLIGHT else ""
    return Entry(queue.name, id, state, slot.attempt, slot.due / 1000, message, failure, data, token=token)


def _corrupt(root: Root, queue: QueueDirectory, name: str) -> Entry:
    path, slot, data = f"{queue.dirs[State.CORRUPT]}/{name}", root.names.parse(name), b""
    try:
        data = read_whole(path)[0]
    except (OSError, *UNREADABLE):
        pass  # never opened: a link, a pipe, or gone by now
    try:
        text, written_at = read_whole(f"{path}.why")
        failure = corrupt_reason(text.decode("utf-8", "replace"), written_at)
    except (FileNotFoundError, IsADirectoryError, *UNREADABLE):
        failure = Failure("CORRUPT", "no reason was left")
    id = slot.id if slot is not None else name
    return Entry(queue.name, id, State.CORRUPT, failure=failure, data=data, cursor=name)
