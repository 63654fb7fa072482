"""Publish: write whole into `tmp`, flush, claim keys and ids, flush, rename, flush.

Nothing is flushed under the lock, except where a limit on waiting messages must hold too. A record is durable before
its message can be seen, and the message lies in `tmp`, also durable, before the record is made: after a crash in
between, the next publisher of that key finishes the publish.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import NamedTuple

from pabal import durable, jsontext
from pabal.errors import QueueFull, StoreBusy, StoreClosed, Uncertain
from pabal.filesystem import close_all, remove, rename_new
from pabal.ids import is_ours, new_tag
from pabal.names import check_id, check_name
from pabal.store import Draft, Published, State
from pabal.stores.files import dedup
from pabal.stores.files.dedup import First
from pabal.stores.files.index import index_of
from pabal.stores.files.names import Slot, ceil_ms, digest, floor_ms, has_group, native_base, with_stamp
from pabal.stores.files.order import DocumentOrder, order_of, remember
from pabal.stores.files.queue_directory import QueueDirectory
from pabal.stores.files.read import LiveMessages, locate, present
from pabal.stores.files.root import Root
from pabal.stores.rows import too_large

_REMEMBERED = 10_000  # generated ids that a process remembers
_UNFIT = "unfit"  # in the place of the token of the last lease
_AT_ONCE = 200  # files written and flushed together, each with an open descriptor


class EncodedDraft:
    """A draft as a file: its bytes, its name, and the path where it is written before it is published."""

    def __init__(self, root: Root, draft: Draft, data: bytes, now: float) -> None:
        self.draft, self.data, self.id, self.now = draft, data, draft.message.id, now
        self.queue = root.queues.get(draft.queue) or root.make(draft.queue)
        self.state = State.DELAYED if draft.delay > 0 else State.READY
        self.failure = draft.failure
        if self.failure is not None:
            self.state = State.DEAD
        if root.layout.mirror and root.restatable is not None:
            self.data = root.restatable.restate(data, self.state, at=now)
        self.crc = zlib.crc32(self.data)
        keyed = draft.given_id or draft.message.dedup_key or draft.message.unique
        self.records = dedup.records_of(self.queue, draft, now) if keyed else []
        self.first: First | None = None  # the message that was first, if this one is a duplicate
        self.claimed = self.moved = False  # its records are made, it can be seen
        self.tag = new_tag()
        self.stem = ""
        self.order: DocumentOrder | None = None  # this and the stem are of plain names only
        due = ceil_ms(now + draft.delay) if draft.delay > 0 else floor_ms(now)
        if root.names.native:  # its place in its group is known when it is revealed
            base = native_base(draft.message, self.id, due, stamp=0, crc=self.crc, own=True)
        else:
            self.stem, self.order = root.names.stem(root.layout.stem(draft.message)), order_of(root, draft.message)
            base = f"{self.stem}~a0~d{due:x}" if draft.delay > 0 else self.stem
        if self.state is State.DEAD:
            base += f"~a0~s{floor_ms(now):x}.{_UNFIT}"
        self.final = f"{base}{root.names.extension}"
        self.path = f"{self.queue.tmp}/{self.tag}~{self.final}"

    @property
    def as_first(self) -> First:
        return First(self.id, self.tag, digest(self.stem, 10) if self.stem else "")

    def write_reason(self, root: Root) -> None:
        """Write the failure, if there is one, to where it belongs in this state."""
        if self.failure is not None:
            draft = f"{self.queue.tmp}/{new_tag()}~why"
            root.write_small(draft, jsontext.pretty(self.failure), synced=True)
            os.rename(draft, self.queue.reason(self.state, self.id, self.final))


def encode(root: Root, drafts: Iterable[Draft]) -> list[EncodedDraft]:
    """Encode the drafts and refuse those that are not valid, before anything is written."""
    now = root.clock.now()
    documents = []
    for draft in drafts:
        check_id(draft.message.id)
        check_name(draft.queue)  # before the codec writes it down
        data = root.codec.encode(draft.message, queue=draft.queue)
        if len(data) > draft.terms.max_bytes:
            raise too_large(draft, len(data))
        documents.append((draft, data))
    return [EncodedDraft(root, draft, data, now) for draft, data in documents]


def publish(root: Root, drafts: Sequence[EncodedDraft]) -> list[Published]:
    """Store the drafts durably, and say of each whether its message was there already."""
    _find_first(root, drafts)
    fresh = [each for each in drafts if each.first is None]
    limited = any(each.draft.terms.max_waiting for each in fresh)
    if limited:
        _check_room(root, fresh)
    stage(fresh)
    by_queue: dict[QueueDirectory, list[EncodedDraft]] = {}
    for each in drafts:
        by_queue.setdefault(each.queue, []).append(each)
    try:
        with _room_kept(root, drafts) if limited else nullcontext():
            if any(each.records for each in fresh):
                _claim(root, fresh)
            try:
                for each in fresh:
                    if each.failure is not None and each.first is None:
                        each.write_reason(root)
                for queue, some in by_queue.items():
                    _reveal(root, queue, some)
            except OSError as exc:
                raise _uncertain(drafts, root.fault(exc, "publishing")) from exc
    except (StoreClosed, StoreBusy) as exc:  # by another thread or process, in the middle
        if isinstance(exc, StoreBusy) and not any(each.claimed or each.moved for each in fresh):
            discard(each.path for each in fresh)
            raise
        raise _uncertain(drafts, exc) from exc
    try:
        for queue, some in by_queue.items():
            # Of a duplicate too: that the first message is there must be as sure as for a message of our own.
            found = [queue.dirs[each.state] for each in some]
            if any(each.first for each in some):
                found += [*queue.waiting, queue.dirs[State.DEAD]]
            for directory in dict.fromkeys(found):
                durable.sync_dir(directory)
    except OSError as exc:
        raise _uncertain(drafts, root.fault(exc, "publishing")) from exc
    for each in fresh:
        if not each.draft.given_id:
            if len(each.queue.published) >= _REMEMBERED:
                each.queue.published.clear()
            each.queue.published.add(each.id)
    return [Published(e.first.id, duplicate=True) if e.first else Published(e.id) for e in drafts]


def _uncertain(drafts: Sequence[EncodedDraft], why: object) -> Uncertain:
    ids = tuple(each.id for each in drafts)
    return Uncertain(f"{why}; it may have been stored: repeat with the same id", ids)


# Duplicates and limits


def _find_first(root: Root, drafts: Sequence[EncodedDraft]) -> None:
    """Find the duplicates, also within the batch. This is without the lock: `_claim` looks again."""
    seen: dict[str | tuple[QueueDirectory, str], EncodedDraft] = {}
    published = published_before(root, drafts)
    alive = {queue: LiveMessages(root, queue) for queue in {each.queue for each in drafts}}
    for each in drafts:
        marks: list[str | tuple[QueueDirectory, str]] = [(each.queue, each.id), *(path for path, _ in each.records)]
        earlier = next((seen[mark] for mark in marks if mark in seen), None)
        if earlier is not None:
            each.first = earlier.as_first
        elif each.records:
            each.first = dedup.first_of(each.records, root.now(), alive[each.queue])
        if each.first is None and each in published:
            each.first = First(each.id, "")
        if each.first is None:
            seen.update(dict.fromkeys(marks, each))


def published_before(root: Root, drafts: Iterable[EncodedDraft]) -> set[EncodedDraft]:
    """Return the drafts whose id we generated and whose message is in their queue. Such an id has no record."""
    suspects: dict[QueueDirectory, list[EncodedDraft]] = {}
    for each in drafts:
        # Looked for only if it may be there: the caller gives it (after Uncertain), or this process has published it.
        if is_ours(each.id) if each.draft.given_id else each.id in each.queue.published:
            suspects.setdefault(each.queue, []).append(each)
    found = {queue: present(root, queue, {each.id for each in some}) for queue, some in suspects.items()}
    return {each for queue, some in suspects.items() for each in some if each.id in found[queue]}


def _check_room(root: Root, drafts: Sequence[EncodedDraft]) -> None:
    coming: dict[QueueDirectory, list[EncodedDraft]] = {}
    for each in drafts:
        if each.draft.terms.max_waiting:
            coming.setdefault(each.queue, []).append(each)
    for queue, some in coming.items():
        most = some[0].draft.terms.max_waiting
        with queue:
            index = index_of(root, queue)
            index.refresh()
            waiting = index.count_waiting()
        if waiting + len(some) > most:
            raise QueueFull(
                f"{most} waiting messages at most in {queue.name}; {waiting} are there, {len(some)} more came"
            )


def _room_kept(root: Root, drafts: Sequence[EncodedDraft]) -> ExitStack:
    """Hold the locks of the queues from the last count until the messages can be seen."""
    fresh = [each for each in drafts if each.first is None]
    with ExitStack() as locks:
        # Always in the same order: this is the only place that holds two of them at once.
        for queue in sorted({each.queue for each in drafts}, key=lambda queue: queue.name):
            locks.enter_context(queue)
        try:
            _check_room(root, fresh)
        except BaseException:
            discard(each.path for each in fresh)
            raise
        return locks.pop_all()


def _claim(root: Root, drafts: Sequence[EncodedDraft]) -> None:
    now, keyed = root.now(), [each for each in drafts if each.records]
    claimed: list[EncodedDraft] = []
    try:
        for queue in dict.fromkeys(each.queue for each in keyed):
            with queue:
                alive = LiveMessages(root, queue)
                for each in keyed:
                    if each.queue is queue:
                        os.lstat(each.path)  # a check may have removed it as a leftover: then no record may promise it
                        each.first = dedup.claim(each.records, each.as_first, now, alive)
                        each.claimed = each.first is None
                        claimed.append(each)
    except OSError:
        for each in claimed:
            if each.first is None:
                with each.queue:
                    remove(*(path for path, _ in each.records))
        discard(each.path for each in drafts)
        raise
    discard(each.path for each in keyed if each.first is not None)


# Files


class StagedFile(NamedTuple):
    """A file that is written beside drafts."""

    path: str
    data: bytes
    now: float
    order: None = None


def stage(files: Sequence[EncodedDraft | StagedFile]) -> None:
    """Write every file to its path, whole and flushed; on failure none is left."""
    written: list[str] = []
    try:
        for start in range(0, len(files), _AT_ONCE):
            _stage_some(files[start : start + _AT_ONCE], written)
    except BaseException:
        discard(written)
        raise


def _stage_some(files: Sequence[EncodedDraft | StagedFile], written: list[str]) -> None:
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        for each in files:
            durable.write_into(fds, each.path, each.data)
            written.append(each.path)
            os.utime(fds[-1], (each.now, each.now))  # the message waits from here
            if each.order is not None:
                remember(fds[-1], each.queue.name, each.stem, each.order, claimed=False)
        durable.sync_all(fds)
    finally:
        close_all(closing)


def discard(paths: Iterable[str]) -> None:
    """Remove files that are not needed, as far as possible."""
    for path in paths:
        with suppress(OSError):
            os.unlink(path)


def _reveal(root: Root, queue: QueueDirectory, drafts: Sequence[EncodedDraft]) -> None:
    """Rename the drafts of a queue to where consumers see them, after their records are durable."""
    if any(each.records for each in drafts):
        durable.sync_dir(queue.dedup)
    fresh = [each for each in drafts if each.first is None]
    if len(fresh) < len(drafts):
        others = {each.first.tag for each in drafts if each.first} - {each.tag for each in fresh}
        if others:
            finish_others(root, queue, others)
    grouped = any(each.draft.message.group for each in fresh)
    with queue if grouped else nullcontext():
        for each in fresh:
            _move(root, each)


def _move(root: Root, draft: EncodedDraft) -> None:
    queue, name = draft.queue, draft.final
    if draft.draft.message.group and draft.state in (State.READY, State.DELAYED):
        name = stamped(root, queue, name)
    target = f"{queue.dirs[draft.state]}/{name}"
    try:
        if root.names.native:
            os.rename(draft.path, target)
        else:
            rename_new(draft.path, target)
        draft.moved = True
    except FileExistsError:
        draft.first = draft.as_first  # two plain names are equal only if the messages are the same
        discard([draft.path])
    except FileNotFoundError:
        if not draft.records or not os.path.isdir(os.path.dirname(target)):
            raise
        if locate(root, queue, draft.id) is None:
            with queue:
                remove(*dedup.own_of(draft.records, draft.tag))
            raise
        # Otherwise a publisher of the same key has finished this publish for us.


def stamped(root: Root, queue: QueueDirectory, name: str) -> str:
    """Return a name with the next place in the publish order of its group, if it has one. With the lock held."""
    return with_stamp(name, queue.next_stamp(root.clock.now())) if has_group(name) else name


def finish_others(root: Root, queue: QueueDirectory, tags: set[str]) -> None:
    """Finish for other publishers, which have made their records but have not moved their messages, or have died."""
    for name in os.listdir(queue.tmp):
        tag, _, final = name.partition("~")
        slot = root.names.parse(final)
        if slot is None or tag not in tags or tag.startswith(dedup.CARRIED):
            continue  # only the process that carries a message from another store knows its state
        with queue:
            state = state_in(root, slot)
            name_there = final if state is State.DEAD else stamped(root, queue, final)
            with suppress(FileNotFoundError, FileExistsError):
                rename_new(f"{queue.tmp}/{name}", f"{queue.dirs[state]}/{name_there}")


def state_in(root: Root, slot: Slot) -> State:
    """Return the state in which a message of this name is published."""
    if slot.settled:
        return State.DEAD
    return State.DELAYED if slot.due > root.now() else State.READY
