"""Check and mend what crashes and strangers leave behind. Never revives what is dead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from pabal import durable
from pabal.errors import PabalError
from pabal.store import Draft, Finding, State
from pabal.stores.files import dedup
from pabal.stores.files.browsing import waiting_state
from pabal.stores.files.follow_ups import finish, finish_all
from pabal.stores.files.leasing import look
from pabal.stores.files.names import Slot
from pabal.stores.files.publishing import rescue
from pabal.stores.files.reading import UNREADABLE, read_message, read_whole, set_aside
from pabal.stores.files.restating import restate, restated
from pabal.stores.files.root import Root
from pabal.stores.files.settling import remove
from pabal.stores.files.spool import Spool

LEFTOVER_SECONDS = 60.0


def check(root: Root, repair: bool) -> list[Finding]:
    """Look through the whole store; mend what is found if asked."""
    found = list(_settling(root, repair))
    for queue in sorted(root.layout.queues(Path(root.path))):
        found += _directories(root, queue, repair)
        spool = root.make(queue)
        if repair:
            look(root, spool)
        for part in (_leftovers, _messages, _reasons, _records):
            found += part(root, spool, repair)
    return found


def _settling(root: Root, repair: bool) -> Iterator[Finding]:
    for name in sorted(os.listdir(root.settling)):
        folder = f"{root.settling}/{name}"
        if os.path.lexists(f"{folder}/input"):
            yield Finding(folder, "settled, but not finished", "finish it", repair and finish(root, folder))
        elif _age(root, folder) > LEFTOVER_SECONDS:
            yield Finding(folder, "left by a settlement that never was", "remove it", repair)
    if repair:
        finish_all(root)


def _directories(root: Root, queue: str, repair: bool) -> Iterator[Finding]:
    private = root.layout.private(queue)
    parts = {root.layout.directory(queue, state) for state in State} | {
        f"{private}/{p}" for p in ("tmp", "dedup", "why")
    }
    for part in sorted(parts):
        path = Path(root.path, part)
        if not path.is_dir():
            durable.make_dirs(path)  # nothing else can be looked at without it
            yield Finding(str(path), "missing directory", "make it", True)


def _leftovers(root: Root, spool: Spool, repair: bool) -> Iterator[Finding]:
    for name in sorted(os.listdir(spool.tmp)):
        path = f"{spool.tmp}/{name}"
        if _age(root, path) > LEFTOVER_SECONDS:
            with spool:  # its publisher may be asleep just before its claim
                tag = _claimed(root, spool, name)
                if repair and not tag:
                    remove(path)
            if tag:
                yield Finding(path, "published, but not yet to be seen", "publish it", repair)
                if repair:
                    rescue(root, spool, {tag})
                    spool.sync(spool.waiting)
            else:
                yield Finding(path, "left by a writer that died", "remove it", repair)


def _claimed(root: Root, spool: Spool, name: str) -> str:
    """Return the tag of a message in `tmp` that its records already promise."""
    mark, _, final = name.partition("~")
    slot = root.names.parse(final)
    if slot is None:
        return ""
    try:
        message = read_message(root, f"{spool.tmp}/{name}", slot)
    except (FileNotFoundError, *UNREADABLE):
        return ""
    draft = Draft(spool.name, message)
    first = dedup.first_of(dedup.records_of(spool, draft, root.clock.now()), root.now())
    return mark if first is not None and first.tag == mark else ""


def _messages(root: Root, spool: Spool, repair: bool) -> Iterator[Finding]:
    for state in (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD, State.DONE):
        if state is State.DELAYED and len(spool.waiting) == 1:
            continue
        for name in sorted(os.listdir(spool.dirs[state])):
            slot = root.names.parse(name)
            if slot is not None and not name.endswith(".why"):
                yield from _message(root, spool, state, name, slot, repair)


def _message(root: Root, spool: Spool, state: State, name: str, slot: Slot, repair: bool) -> Iterator[Finding]:
    directory = spool.dirs[state]
    path = f"{directory}/{name}"
    try:
        read_message(root, path, slot)
        if root.layout.mirror:
            data, _ = read_whole(path)
            if state in (State.READY, State.DELAYED):
                state = waiting_state(spool, directory, slot.due, root.now())
            if restated(root, data, state) != data:
                mended = repair and restate(root, spool, directory, name, state)
                yield Finding(path, "the document says another state", f"write {state.value}", mended)
    except FileNotFoundError:
        return
    except UNREADABLE as exc:
        if os.path.isdir(path):
            return
        problem = f"damaged: {exc}"
        yield Finding(
            path, problem, "set it aside as corrupt", _mend(repair, _aside, root, spool, directory, name, exc)
        )


def _aside(root: Root, spool: Spool, directory: str, name: str, exc: PabalError) -> None:
    with spool:
        set_aside(root, spool, directory, name, exc)


def _reasons(root: Root, spool: Spool, repair: bool) -> Iterator[Finding]:
    for state in (State.DEAD, State.DONE, State.CORRUPT):
        names = set(os.listdir(spool.dirs[state]))
        for name in sorted(names):
            path = f"{spool.dirs[state]}/{name}"
            if name.endswith(".why") and name.removesuffix(".why") not in names and _age(root, path) > LEFTOVER_SECONDS:
                yield Finding(path, "a reason without its message", "remove it", _mend(repair, remove, path))


def _records(root: Root, spool: Spool, repair: bool) -> Iterator[Finding]:
    names = [name for name in os.listdir(spool.dedup) if not name.startswith(".")]
    over = dedup.over(spool, names, root.now())
    if over:
        mended = repair and dedup.sweep(spool, names, root.now()) > 0
        yield Finding(spool.dedup, f"{len(over)} dedup records past their window", "remove them", mended)


def _age(root: Root, path: str) -> float:
    try:
        return root.clock.now() - os.lstat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _mend(repair: bool, how: Callable[..., None], *args: object) -> bool:
    if repair:
        how(*args)
    return repair
