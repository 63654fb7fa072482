"""Look without touching: counts, pages and single messages, read from the directories as they are."""

from __future__ import annotations

import os

from pabal.store import Entry, Failure, State
from pabal.stores.files.finding import locate, order_in, slots_in
from pabal.stores.files.leasing import look
from pabal.stores.files.names import Slot
from pabal.stores.files.reading import (
    UNREADABLE,
    failure_of_text,
    read_failure,
    read_message,
    read_whole,
    why_path,
)
from pabal.stores.files.root import Root
from pabal.stores.files.spool import Spool

WAITING = (State.READY, State.DELAYED)


def counts(root: Root, queue: str) -> dict[State, int]:
    """Count the messages in each state."""
    found = dict.fromkeys(State, 0)
    spool = root.spool(queue)
    if spool is not None:
        look(root, spool)
        for state in State:
            if state is State.CORRUPT:
                found[state] = len(corrupt_names(spool))
            elif state not in WAITING:
                found[state] = sum(1 for _ in slots_in(root, spool, state))
        for _, _, _, state in waiting(root, spool):
            found[state] += 1
    return found


def waiting(root: Root, spool: Spool) -> list[tuple[str, str, Slot, State]]:
    """List what waits in lease order, as (cursor, path, slot, state)."""
    now, found = root.now(), []
    for directory in spool.waiting:
        for name in os.listdir(directory):
            slot = root.names.parse(name) if root.layout.admits(name) else None
            order = order_in(root, spool, directory, name, slot) if slot is not None else None
            if slot is not None and order is not None:
                cursor = f"{100 - order.priority:03}-{order.due:013}-{order.id}"
                state = waiting_state(spool, directory, order.due, now)
                found.append((cursor, f"{directory}/{name}", slot._replace(due=order.due), state))
    return sorted(found)


def waiting_state(spool: Spool, directory: str, due: int, now: int) -> State:
    """Say whether a waiting file is ready: by its directory, or because it has come due there."""
    ready = len(spool.waiting) > 1 and directory == spool.dirs[State.READY]
    return State.READY if ready or due <= now else State.DELAYED


def corrupt_names(spool: Spool) -> list[str]:
    names = os.listdir(spool.dirs[State.CORRUPT])
    return sorted(name for name in names if not name.startswith(".") and not name.endswith(".why"))


def browse(root: Root, queue: str, state: State, after: str, limit: int) -> list[Entry]:
    """List the messages of a state, a page at a time."""
    spool = root.spool(queue)
    if spool is None:
        return []
    look(root, spool)
    if state is State.CORRUPT:
        return [_corrupt(root, spool, name) for name in corrupt_names(spool) if name > after][:limit]
    if state in WAITING:
        rows = [(cursor, path, slot) for cursor, path, slot, found in waiting(root, spool) if found is state]
    else:
        directory = spool.dirs[state]
        rows = sorted((slot.base, f"{directory}/{name}", slot) for name, slot in slots_in(root, spool, state))
    page: list[Entry] = []
    for cursor, path, slot in rows:
        if cursor > after and len(page) < limit and (entry := _entry(root, spool, state, path, slot)) is not None:
            page.append(entry._replace(cursor=cursor))
    return page


def find(root: Root, queue: str, id: str) -> Entry | None:
    """Return one message in whatever state it is."""
    spool = root.spool(queue)
    if spool is None:
        return None
    look(root, spool)
    for _ in range(3):  # it may move between being found and being read
        found = locate(root, spool, id)
        if found is None:
            return None
        state, name, slot = found
        path = f"{spool.dirs[state]}/{name}"
        if state is State.CORRUPT or slot is None:
            return _corrupt(root, spool, name)
        if state in WAITING:
            order = order_in(root, spool, spool.dirs[state], name, slot)
            slot = slot._replace(due=order.due if order is not None else slot.due)
            state = waiting_state(spool, spool.dirs[state], slot.due, root.now())
        entry = _entry(root, spool, state, path, slot)
        if entry is not None:
            return entry
    return None


def _entry(root: Root, spool: Spool, state: State, path: str, slot: Slot) -> Entry | None:
    """Return what a file holds; None if it has moved on."""
    id, data, message = slot.id, b"", None
    try:
        message = read_message(root, path, slot)
    except FileNotFoundError:
        return None
    except UNREADABLE as exc:  # to be set aside when it is leased, or by a check
        data = getattr(exc, "data", b"")
    if message is not None and not root.names.native:
        id = message.id
    settled = state in (State.DONE, State.DEAD)
    failure = read_failure(f"{path}.why" if settled else why_path(spool, id))
    held = slot.token if state is State.INFLIGHT else ""
    return Entry(spool.name, id, state, slot.attempt, slot.due / 1000, message, failure, data, token=held)


def _corrupt(root: Root, spool: Spool, name: str) -> Entry:
    path, slot, data = f"{spool.dirs[State.CORRUPT]}/{name}", root.names.parse(name), b""
    try:
        data = read_whole(path)[0]
    except (OSError, *UNREADABLE):
        pass  # never opened: a link, a pipe, or gone by now
    failure = None
    try:
        with open(f"{path}.why", "rb") as file:
            failure = failure_of_text(file.read().decode("utf-8", "replace"), os.fstat(file.fileno()).st_mtime)
    except FileNotFoundError:
        failure = Failure("CORRUPT", "no reason was left")
    id = slot.id if slot is not None else name
    return Entry(spool.name, id, State.CORRUPT, failure=failure, data=data, cursor=name)
