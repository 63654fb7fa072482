"""Check and repair a whole store: the traces of crashes and of other programs. Never revives a dead message."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

from pabal import durable
from pabal.errors import DecodeError, InvalidPolicy
from pabal.filesystem import UNREADABLE, read_whole, remove, rename_new
from pabal.ids import new_tag
from pabal.policy.policy import settings_from
from pabal.policy.validation import schema_fault
from pabal.store import Draft, Finding, State
from pabal.stores.files import dedup
from pabal.stores.files.browse import WAITING, read_settings, waiting_state
from pabal.stores.files.lease import refreshed
from pabal.stores.files.maintain import marks
from pabal.stores.files.names import Slot, floor_ms, native_base
from pabal.stores.files.publish import finish_others
from pabal.stores.files.queue_directory import QueueDirectory
from pabal.stores.files.read import (
    LiveMessages,
    belongs,
    id_of_stem,
    read_failure,
    read_message,
    restate,
    restated,
    set_aside,
)
from pabal.stores.files.root import DAMAGED_QUEUE, Root, is_of_queue
from pabal.stores.files.settle import explain, finish_all, finish_if_possible, is_leftover
from pabal.stores.files.settlement_folder import is_committed, unexplained

_MISSING = "missing directory", "make it"


def check(root: Root, repair: bool) -> list[Finding]:
    """Look through the whole store, and repair it if asked."""
    head = list(_format(root, repair))
    found: list[Finding] = []
    for name in sorted(root.layout.queues(Path(root.path))):
        try:
            found += _queue(root, name, repair)
        except DAMAGED_QUEUE as exc:
            if not is_of_queue(exc):
                raise
            found.append(Finding(f"queue {name}", f"it cannot be checked: {exc}", "move away what is there"))
    return [*head, *_settling(root, repair), *found]  # settled last: its queues may have been mended just now


def _queue(root: Root, name: str, repair: bool) -> list[Finding]:
    found = list(_directories(root, name, repair))
    if not all(finding.repaired for finding in found):
        return found  # nothing else can be checked without them
    queue = root.find(name) or root.make(name)
    if repair:
        refreshed(root, queue)
    for part in (_settings, _marks, _stamp, _leftovers, _messages, _reasons, _records):
        found += part(root, queue, repair)
    return found


def _format(root: Root, repair: bool) -> Iterator[Finding]:
    problem = root.format_problem()
    if problem:
        path = f"{root.path}/pabal.json"
        if repair:
            _put_away(path)
            root.write_format()
        yield Finding(path, f"cannot be read: {problem}", "set it aside and write it anew", repair)


def _settings(root: Root, queue: QueueDirectory, repair: bool) -> Iterator[Finding]:
    path = f"{queue.private}/settings.json"
    try:
        fault = schema_fault(settings_from(read_settings(queue.private) or {}).policy.body_schema)
    except InvalidPolicy as exc:
        fault = str(exc).removeprefix(f"{path}: ")
    if fault:
        if repair:
            _put_away(path)
            queue.sync([queue.private])
        remedy = f"set it aside: {queue.name} then has the default policy until it gets another"
        yield Finding(path, f"a policy that cannot be used: {fault}", remedy, repair)


def _marks(root: Root, queue: QueueDirectory, repair: bool) -> Iterator[Finding]:
    for path in marks(queue):
        if os.path.lexists(path) and (os.path.islink(path) or not os.path.isfile(path)):
            if repair:
                _put_away(path)
            yield Finding(path, "not a plain file", "set it aside", repair)


def _put_away(path: str) -> None:
    """Keep a damaged file beside its place, under another name."""
    with suppress(FileNotFoundError):
        os.rename(path, f"{path}.{new_tag()}")


def _settling(root: Root, repair: bool) -> Iterator[Finding]:
    for name in sorted(os.listdir(root.settling)):
        folder = f"{root.settling}/{name}"
        if is_committed(folder):
            mended = repair and finish_if_possible(root, folder) and not os.path.lexists(folder)
            if folder in root.stuck:
                problem = f"settled, and cannot be finished: {root.stuck[folder]}"
                yield Finding(folder, problem, "move away what is there")
                continue
            yield Finding(folder, "settled, but not finished", "finish it", mended, ordinary=True)
        elif not os.path.isdir(folder):
            yield Finding(folder, "not the folder of a settlement", "move it away", False)
        elif unexplained(folder):
            if repair:
                explain(root, folder)
            mended = repair and not unexplained(folder)
            yield Finding(folder, "a file that no plan names", "give it its name back, or set it aside", mended)
        elif is_leftover(root, folder):
            yield Finding(folder, "left by a settlement that never was", "remove it", repair, ordinary=True)
    if repair:
        finish_all(root, repair=True)


def _directories(root: Root, name: str, repair: bool) -> Iterator[Finding]:
    private = root.layout.private(name)
    lock = f"{root.path}/{private}/.lock"
    if os.path.lexists(lock) and not os.path.isfile(lock) and not os.path.islink(lock):
        if repair:
            _put_away(lock)
        yield Finding(lock, "not a plain file", "set it aside", repair)
    states = {root.layout.directory(name, state) for state in State}
    for part in sorted(states | {f"{private}/{part}" for part in ("tmp", "dedup", "why")}):
        path = Path(root.path, part)
        if not path.is_dir():
            other = os.path.lexists(path) and not path.is_symlink()
            if other and not repair:
                yield Finding(str(path), "not a folder", "set it aside, and make the folder")
                continue
            try:
                if other:
                    _put_away(str(path))
                durable.make_dirs(path)  # also without repair: nothing else can be checked without it
            except OSError as exc:
                yield Finding(str(path), f"missing directory, which cannot be made: {exc.strerror}", "make it")
            else:
                problem, remedy = ("not a folder", "set it aside, and make the folder") if other else _MISSING
                yield Finding(str(path), problem, remedy, True)


def _stamp(root: Root, queue: QueueDirectory, repair: bool) -> Iterator[Finding]:
    if queue.stamp_is_damaged():
        if repair:
            with queue:
                if queue.last_stamp() is None:
                    queue.mend_stamp()
        where, problem = f"{queue.private}/.lock", "the last place in the order of groups cannot be read"
        yield Finding(where, problem, "take it from the names of the messages", repair)


def _leftovers(root: Root, queue: QueueDirectory, repair: bool) -> Iterator[Finding]:
    for name in sorted(os.listdir(queue.tmp)):
        path = f"{queue.tmp}/{name}"
        if is_leftover(root, path):
            with queue if repair else nullcontext():  # its publisher may be asleep just before its claim
                tag = _claimed(root, queue, name)
                if repair and not tag:
                    remove(path)
            if tag:
                yield Finding(path, "published, but not yet to be seen", "publish it", repair, ordinary=True)
                if repair:
                    finish_others(root, queue, {tag})
                    queue.sync([*queue.waiting, queue.dirs[State.DEAD]])
            else:
                yield Finding(path, "left by a writer that died", "remove it", repair, ordinary=True)


def _claimed(root: Root, queue: QueueDirectory, name: str) -> str:
    """Return the tag of a message in `tmp` if its records already promise it, else an empty text."""
    mark, _, final = name.partition("~")
    slot = root.names.parse(final)
    if slot is None:
        return ""
    try:
        message = read_message(root, f"{queue.tmp}/{name}", slot)
    except (FileNotFoundError, *UNREADABLE):
        return ""
    draft = Draft(queue.name, message)
    first = dedup.first_of(dedup.records_of(queue, draft, root.clock.now()), root.now(), lambda other: True)
    return mark if first is not None and first.tag == mark else ""


def _messages(root: Root, queue: QueueDirectory, repair: bool) -> Iterator[Finding]:
    for state in (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD, State.DONE):
        if state is State.DELAYED and len(queue.waiting) == 1:
            continue
        for name in sorted(os.listdir(queue.dirs[state])):
            slot = root.names.parse(name)
            if name.endswith(".why"):
                continue
            if state not in WAITING and root.names.native and (slot is None or not belongs(state, slot)):
                yield from _renamed(root, queue, state, name, repair)
            elif slot is not None:
                yield from _message(root, queue, state, name, slot, repair)


def _renamed(root: Root, queue: QueueDirectory, state: State, name: str, repair: bool) -> Iterator[Finding]:
    """Give a file a name of its state again, which another program has renamed or put there."""
    path = f"{queue.dirs[state]}/{name}"
    if os.path.isdir(path):
        return
    if repair:
        with queue, suppress(FileNotFoundError):
            try:
                data, written_at = read_whole(path)
                reason = None if state is State.INFLIGHT else read_failure(path)
                if reason is not None and reason.at:
                    raise DecodeError("NotAMessage: why a message failed, under another name", data)
                message = root.codec.decode(data, id=id_of_stem(name.partition("~")[0]), at=written_at)
            except UNREADABLE as exc:
                set_aside(root, queue, queue.dirs[state], name, exc)
            else:
                due = min(floor_ms(written_at), root.now())
                base = native_base(message, message.id, due, stamp=0, crc=zlib.crc32(data), own=False)
                marks = "" if state is State.INFLIGHT else f"~a0~s{root.now():x}.{new_tag()}"
                folder = queue.dirs[State.READY if state is State.INFLIGHT else state]
                rename_new(path, f"{folder}/{base}{marks}{root.names.extension}")
    remedy = "make it ready" if state is State.INFLIGHT else f"name it as {state.value}"
    yield Finding(path, f"its name is not that of a message {_named(state)}", remedy, repair)


def _named(state: State) -> str:
    return "in flight" if state is State.INFLIGHT else f"that is {state.value}"


def _message(root: Root, queue: QueueDirectory, state: State, name: str, slot: Slot, repair: bool) -> Iterator[Finding]:
    directory = queue.dirs[state]
    path = f"{directory}/{name}"
    try:
        read_message(root, path, slot)
        if root.layout.mirror:
            data, _ = read_whole(path)
            if state in WAITING:
                state = waiting_state(queue, directory, slot.due, root.now())
            if restated(root, data, state) != data:
                mended = repair and bool(restate(root, queue, directory, [(name, state, "")]))
                yield Finding(path, "the document says another state", f"write {state.value}", mended)
    except FileNotFoundError:
        return
    except UNREADABLE as exc:
        if os.path.isdir(path):
            return
        if repair:
            with queue:
                set_aside(root, queue, directory, name, exc)
        yield Finding(path, f"damaged: {exc}", "set it aside as corrupt", repair)


def _reasons(root: Root, queue: QueueDirectory, repair: bool) -> Iterator[Finding]:
    for state in (State.DEAD, State.DONE, State.CORRUPT):
        names = set(os.listdir(queue.dirs[state]))
        for name in sorted(names):
            path = f"{queue.dirs[state]}/{name}"
            if name.endswith(".why") and name.removesuffix(".why") not in names and is_leftover(root, path):
                if repair:
                    remove(path)
                yield Finding(path, "a reason without its message", "remove it", repair, ordinary=True)
            elif name.endswith(".why") and state is not State.CORRUPT:
                yield from _reason(root, queue, queue.dirs[state], name, repair)
    for name in sorted(os.listdir(queue.why)):
        yield from _reason(root, queue, queue.why, name, repair)


def _reason(root: Root, queue: QueueDirectory, folder: str, name: str, repair: bool) -> Iterator[Finding]:
    if os.path.lexists(f"{folder}/{name}") and read_failure(f"{folder}/{name}") is None:
        if repair:
            with queue:
                set_aside(root, queue, folder, name, DecodeError("NotAReason: why a message failed, not readable", b""))
        yield Finding(f"{folder}/{name}", "a reason that cannot be read", "set it aside as corrupt", repair)


def _records(root: Root, queue: QueueDirectory, repair: bool) -> Iterator[Finding]:
    names = [name for name in os.listdir(queue.dedup) if not name.startswith(".")]
    for name in sorted(dedup.damaged(queue, names, root.now())):
        names.remove(name)
        if repair:
            with queue:
                remove(f"{queue.dedup}/{name}")
        yield Finding(
            f"{queue.dedup}/{name}", "a dedup record that is damaged, and does not count", "remove it", repair
        )
    expired = dedup.expired(queue, names, root.now(), LiveMessages(root, queue))
    if expired:
        mended = repair and dedup.sweep(queue, names, root.now(), partial(LiveMessages, root, queue)) > 0
        yield Finding(
            queue.dedup, f"{len(expired)} dedup records past their window", "remove them", mended, ordinary=True
        )
