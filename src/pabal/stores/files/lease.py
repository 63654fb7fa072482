"""Lease, extend, take over, and when to look again: a lease is one rename that adds attempt, token and deadline."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from pabal.filesystem import UNREADABLE, rename_new
from pabal.ids import consumer_tag, lease_token
from pabal.store import Lease, Outcome, Receipt, State
from pabal.stores.files.foreign import PATIENCE, take_in
from pabal.stores.files.index import Index, index_of
from pabal.stores.files.names import Slot, ceil_ms, digest, short_boot, short_token
from pabal.stores.files.queue_directory import LeasedFile, QueueDirectory
from pabal.stores.files.read import find_leases, order_in, read_failure, read_message, restate, set_aside, slots_in
from pabal.stores.files.root import Root
from pabal.stores.rows import by_group

JUDGING_SECONDS = 5.0  # the lease of a process that takes over a message to judge it
_LAST_DEADLINE = 16**10 - 1


def lease(
    root: Root,
    queue: QueueDirectory,
    limit: int,
    seconds: float,
    tag: str,
    *,
    consumer: str = "",
    token: str = "",
    successive: bool = False,
) -> list[Lease]:
    """Lease the first messages; see the contract. `tag` is that of the consumer."""
    repeats = token != ""
    token, target = token or lease_token(tag), digest(consumer) if consumer else ""
    leases: list[Lease] = []
    held: list[LeasedFile] = []
    seen: set[str] = set()  # foreign files that were looked at and stay: their writers are still busy
    while len(leases) < limit:
        with queue:
            if repeats and not leases and (held := _held_under(root, queue, token)):
                break
            index = queue.index or index_of(root, queue)
            index.refresh()
            fresh = index.foreign.keys() - seen
            wanted = limit - len(leases)
            taken = [] if fresh else _take(root, queue, index, wanted, token, seconds, target, successive)
        if fresh:
            # If some were taken in, another file may come by the name of one of these.
            seen |= fresh & index.foreign.keys() if take_in(root, queue, index) else fresh
            continue
        leases += _read_all(root, queue, taken, token)
        if not taken and not index.foreign.keys() - seen:
            break
    return _leases_again(root, queue, held, token) if held else leases


def _take(
    root: Root,
    queue: QueueDirectory,
    index: Index,
    limit: int,
    token: str,
    seconds: float,
    target: str,
    successive: bool,
) -> list[LeasedFile]:
    taken: list[LeasedFile] = []
    term = _term(root, token, seconds)
    group = ""  # of the last one, if those after it in its group come next
    while len(taken) < limit:
        found = (index.pop_successor(group, target) if group else None) or index.pop(target)
        if found is None:
            break
        name, slot = found
        leased = root.free_name(root.names.leased(slot, slot.attempt + 1, term), queue.inflight)
        if not _move_inflight(root, queue, name, leased):
            index.leave(name)
            continue
        group = ""
        if slot.group or not root.names.native:
            held = index.lease(name, leased)
            group = held if successive else ""
        taken.append(LeasedFile(leased, slot, slot.attempt + 1, slot.token != ""))
    return taken


def _term(root: Root, token: str, seconds: float) -> str:
    deadline = min(ceil_ms(root.clock.boot() + seconds), _LAST_DEADLINE)
    return f"{short_token(token)}.{short_boot(root.clock.boot_id)}.{deadline:x}"


def _move_inflight(root: Root, queue: QueueDirectory, name: str, leased: str) -> bool:
    for directory in queue.waiting:
        try:
            root.move(f"{directory}/{name}", f"{queue.inflight}/{leased}")
        except FileNotFoundError:
            continue
        return True
    return False


def _read_all(root: Root, queue: QueueDirectory, taken: Sequence[LeasedFile], token: str) -> list[Lease]:
    """Read the messages of new leases. Unreadable files are set aside; those that are gone by now are left out."""
    leases = []
    for each in taken:
        name, slot = each.name, each.slot
        try:
            message = read_message(root, f"{queue.inflight}/{name}", slot)
        except FileNotFoundError:
            continue
        except UNREADABLE as exc:
            with queue:
                set_aside(root, queue, queue.inflight, name, exc)
            continue
        if root.layout.mirror and not restate(root, queue, queue.inflight, [(name, State.INFLIGHT, "")]):
            continue
        id, due = slot.id, slot.due
        if not root.names.native:
            id, order = message.id, order_in(root, queue, queue.inflight, name, slot)
            due = order.due if order is not None else due
        queue.remember_lease(id, token, each)
        failure = read_failure(f"{queue.why}/{id}.why") if each.failed else None
        leases.append(Lease(Receipt(queue.name, id, token), message, each.attempt, due / 1000, failure))
    return leases


def _held_under(root: Root, queue: QueueDirectory, token: str) -> list[LeasedFile]:
    """Return the files that a token holds already."""
    short, rows = short_token(token), slots_in(root, queue, State.INFLIGHT)
    return [LeasedFile(name, slot, slot.attempt) for name, slot in rows if slot.token == short]


def _leases_again(root: Root, queue: QueueDirectory, held: list[LeasedFile], token: str) -> list[Lease]:
    """Return the leases of files that their holder asks for again, in order."""
    if root.names.native:
        held = by_group(held, lambda each: each.name, lambda each: each.slot.group, lambda each: each.slot.stamp)
        return _read_all(root, queue, held, token)
    return by_group(
        _read_all(root, queue, held, token),
        lambda lease: (-lease.message.priority, lease.due_at, lease.receipt.id),
        lambda lease: lease.message.group,
        lambda lease: (lease.message.created_at, lease.receipt.id),
    )


def extend(root: Root, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
    """Let leases end later or sooner; see the contract."""
    outcomes = [Outcome.LOST] * len(receipts)
    batches: dict[str, dict[int, Receipt]] = {}
    for number, receipt in enumerate(receipts):
        batches.setdefault(receipt.queue, {})[number] = receipt
    for name, batch in batches.items():
        if (queue := root.find(name)) is not None:
            for number in _extend_batch(root, queue, batch, seconds):
                outcomes[number] = Outcome.APPLIED
    return outcomes


def _extend_batch(root: Root, queue: QueueDirectory, receipts: Mapping[int, Receipt], seconds: float) -> Iterator[int]:
    """Extend leases of one queue; yield the numbers of those that still hold their message."""
    with queue:
        for receipt in receipts.values():  # another process may have extended or settled it
            known = queue.known_lease(receipt.id, receipt.token)
            if known is not None and not os.path.lexists(f"{queue.inflight}/{known.name}"):
                queue.forget_lease(receipt.id, receipt.token)
        leases = find_leases(root, queue, {*receipts.values()})
        for number, receipt in receipts.items():
            if (leased := leases.get(receipt)) is not None:
                longer = root.names.leased(leased.slot, leased.attempt, _term(root, receipt.token, seconds))
                if longer != leased.name:
                    longer = root.free_name(longer, queue.inflight)
                try:
                    _rename_leased(root, queue, leased.name, longer)
                except FileNotFoundError:
                    continue  # another program has removed it: the others are extended
                leases[receipt] = leased._replace(name=longer)
                queue.remember_lease(receipt.id, receipt.token, leases[receipt])
                yield number


def _rename_leased(root: Root, queue: QueueDirectory, name: str, new: str) -> None:
    root.move(f"{queue.inflight}/{name}", f"{queue.inflight}/{new}")
    queue.note_renamed(name, new)


def refreshed(root: Root, queue: QueueDirectory) -> Index:
    """Return the index of a queue after catching up with its directories and taking in foreign files."""
    with queue:
        index = index_of(root, queue)
        index.refresh()
    while index.foreign and take_in(root, queue, index):
        with queue:
            index.refresh()
    return index


def expired(root: Root, queue: QueueDirectory, limit: int) -> dict[str, list[Lease]]:
    """Take over leases and messages that ran out; see the contract. Return them by the tags of their consumers."""
    ending = lease_token()
    index = refreshed(root, queue)
    with queue:
        index.refresh()
        taken = _take_lapsed(root, queue, limit, ending)
        many = sum(map(len, taken.values()))
        taken[""] = _take_expired(root, queue, index, limit - many, ending)
    return {tag: _read_all(root, queue, files, tag + ending) for tag, files in taken.items()}


def _is_lapsed(root: Root, slot: Slot) -> bool:
    return slot.boot != short_boot(root.clock.boot_id) or slot.deadline <= root.boot()


def _take_lapsed(root: Root, queue: QueueDirectory, limit: int, ending: str) -> dict[str, list[LeasedFile]]:
    taken: dict[str, list[LeasedFile]] = {}
    many = 0
    for name in os.listdir(queue.inflight):
        slot = root.names.parse(name)
        if slot is None or not slot.leased:
            if root.names.native:  # else it may be a file of the application
                _return_unleased(queue, name)
        elif many >= limit:
            break
        elif _is_lapsed(root, slot):
            tag = consumer_tag(slot.token)
            term = _term(root, tag + ending, JUDGING_SECONDS)
            leased = root.free_name(root.names.leased(slot, slot.attempt, term), queue.inflight)
            with suppress(FileNotFoundError):
                _rename_leased(root, queue, name, leased)
                taken.setdefault(tag, []).append(LeasedFile(leased, slot, slot.attempt))
                many += 1
    return taken


def _return_unleased(queue: QueueDirectory, name: str) -> None:
    """Move a file whose name was changed back to the ready ones, where it is taken in like any other. With the lock."""
    if not os.path.isdir(f"{queue.inflight}/{name}"):
        with suppress(FileNotFoundError, FileExistsError):
            rename_new(f"{queue.inflight}/{name}", f"{queue.dirs[State.READY]}/{name}")


def _take_expired(root: Root, queue: QueueDirectory, index: Index, limit: int, token: str) -> list[LeasedFile]:
    taken: list[LeasedFile] = []
    now, term = root.now(), _term(root, token, JUDGING_SECONDS)
    while len(taken) < limit and (name := index.pop_expired(now)) is not None:
        slot = root.names.parse(name)
        if slot is not None:
            leased = root.free_name(root.names.leased(slot, slot.attempt, term), queue.inflight)
            if _move_inflight(root, queue, name, leased):
                index.lease(name, leased)
                taken.append(LeasedFile(leased, slot, slot.attempt))
    return taken


def next_due(root: Root, queue: QueueDirectory) -> float | None:
    """Return after how many seconds to look again; see the contract."""
    with queue:
        index = index_of(root, queue)
        index.refresh()
        change = index.next_change()
        leases = [slot for _, slot in slots_in(root, queue, State.INFLIGHT)]
    waits = [] if change is None else [change / 1000 - root.clock.now()]
    waits += [0.0 if _is_lapsed(root, slot) else slot.deadline / 1000 - root.clock.boot() for slot in leases]
    if index.foreign:
        waits.append(PATIENCE)
    return max(0.0, min(waits)) if waits else None
