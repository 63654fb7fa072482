"""Files to messages: read, check, decode; find a message or a lease; set aside unreadable files.

Layouts with `mirror` also keep the state of each message in its document. The directory is the truth. The edited
document takes the place of the old one by exchanging the two files, which fails if the file is gone: a lost lease
changes nothing.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Collection, Iterator, Sequence
from functools import cache, partial

from pabal import durable
from pabal.errors import DecodeError, PabalError
from pabal.filesystem import UNREADABLE, close_all, exchange, read_whole, remove
from pabal.ids import new_tag, new_token
from pabal.message import Message, replace
from pabal.names import check_id
from pabal.store import Failure, FailureCode, Receipt, State, read_failure_document
from pabal.stores.files.dedup import First
from pabal.stores.files.names import ID_PLACE, Slot, digest, safe_name, short_token, token_of
from pabal.stores.files.order import DocumentOrder, Order, order_of, recall
from pabal.stores.files.queue_directory import LeasedFile, QueueDirectory
from pabal.stores.files.root import Root
from pabal.stores.files.settlement_folder import is_committed, read_plan

log = logging.getLogger("pabal")

_AT_ONCE = 200  # documents written and flushed together, each with an open descriptor


def read_message(root: Root, path: str, slot: Slot, *, as_written: bool = False) -> Message:
    """Return the message in a file. Raise DecodeError, UnsafeFile or TooLarge if there is none.

    A revived message has no expiry, whatever its document says, unless it is asked for `as_written`.
    """
    data, written_at = read_whole(path)
    if slot.crc < 0:
        message = decode(root, data, id=id_of_stem(slot.id), at=written_at)
    else:
        found = zlib.crc32(data)
        if found != slot.crc:
            raise DecodeError(f"ChecksumMismatch: crc32 is {found:08x}, not {slot.crc:08x}: the file was changed", data)
        message = decode(root, data, id=slot.id, at=written_at, own=slot.own)
    if message.expires_at is None or slot.expires or as_written or not (slot.revived or root.names.native):
        return message
    return replace(message, expires_at=None)


def decode(root: Root, data: bytes, *, id: str, at: float, own: bool = False) -> Message:
    """Return the message in a document. Whatever is wrong with it, the others are served: raise DecodeError."""
    try:
        return root.codec.decode(data, id=id, at=at, own=own)
    except (PabalError, OSError):
        raise
    except Exception as exc:
        raise DecodeError(f"{type(exc).__name__}: {exc}", data) from exc


def id_of_stem(stem: str) -> str:
    """Return the id that a message without one gets from the stem of its file."""
    try:
        return check_id(stem)
    except PabalError:
        return f"file-{digest(stem, 20)}"


# Order


def learn(root: Root, queue: QueueDirectory, directory: str, name: str, slot: Slot) -> DocumentOrder | None:
    """Return the order of a plain name from its file. The index keeps it, unless the file is settled, or in flight and
    known.
    """
    found = read_order(root, queue.name, directory, name, slot)
    if found is None:
        return None
    order, about = found
    if queue.index is not None and not slot.settled and not (slot.leased and queue.index.orders.of(name, slot)):
        queue.index.orders.learn(name, order, about)
    return order.at(slot)


def read_order(
    root: Root, queue: str, directory: str, name: str, slot: Slot
) -> tuple[DocumentOrder, os.stat_result] | None:
    """Return the order of a plain name, from its attribute or else its document, and the status of the file before."""
    path = f"{directory}/{name}"
    if (kept := recall(root, queue, slot.base, path)) is not None:
        return kept.order, kept.about
    try:
        about = os.lstat(path)  # before it is read: afterwards the name may be that of another file
        message = read_message(root, path, slot, as_written=True)
    except (FileNotFoundError, *UNREADABLE):
        return None
    return order_of(root, message), about


def order_in(root: Root, queue: QueueDirectory, directory: str, name: str, slot: Slot) -> Order | None:
    """Return the order of a file; the document of a plain name is read if its order is not known."""
    if root.names.native:
        return slot
    orders = queue.index.orders if queue.index is not None else None
    known = orders.of(name, slot) if orders is not None else None
    if orders is not None and directory in queue.waiting and (known is None or orders.of_another(directory, name)):
        # Not kept: the index has not met this file yet, and must claim its id then.
        found = read_order(root, queue.name, directory, name, slot)
        return None if found is None else found[0].at(slot)
    # A settled file may have the name of another that still waits.
    if known is None or orders is None or slot.settled:
        return learn(root, queue, directory, name, slot)
    if slot.leased and orders.of_another(directory, name):
        again = learn(root, queue, directory, name, slot)
        return again if again is None or again.id != known.id else known  # else it is an edited copy of itself
    return known


# Reasons


def set_aside(root: Root, queue: QueueDirectory, directory: str, file: str, exc: PabalError, *, name: str = "") -> None:
    """Move a file that is not a message to the corrupt ones, after its reason. With the lock held.

    It keeps its name, as far as possible, unless another is given.
    """
    corrupt = queue.dirs[State.CORRUPT]
    slot = None if name else root.names.parse(file)
    stem, extension = (
        (slot.base, slot.extension) if slot is not None else (safe_name((name or file).replace("~", "-")), "")
    )
    if slot is None and not name or os.path.lexists(f"{corrupt}/{stem}{extension}"):
        stem += f"~{new_token()}"  # another bad file of that name keeps it
    target = f"{corrupt}/{stem}{extension}"
    text = exc.reason if isinstance(exc, DecodeError) else f"{exc.code}: {exc}"
    root.write_small(f"{target}.why", f"{text}\n".encode("utf-8", "replace"), synced=False)
    now = root.clock.now()
    os.utime(f"{target}.why", (now, now))  # its age is counted from here
    try:
        root.move(f"{directory}/{file}", target)
    except FileNotFoundError:
        remove(f"{target}.why")
        return
    fields = {"queue": queue.name, "file": target, "reason": text}
    log.warning("message corrupt: %(queue)s: %(file)s: %(reason)s", fields)


def corrupt_reason(text: str, at: float) -> Failure:
    """Return the failure in the text of the reason file of a corrupt message."""
    code, colon, reason = text.strip().partition(": ")
    return Failure(code, reason, at) if colon else Failure(FailureCode.CORRUPT, text.strip(), at)


def read_failure(path: str) -> Failure | None:
    """Return the failure in the reason file of a retried, dead or dropped message."""
    try:
        return read_failure_document(read_whole(path)[0])
    except (FileNotFoundError, ValueError, *UNREADABLE):  # missing, or damaged, which a check finds
        return None


# The state in the document


def restate(root: Root, queue: QueueDirectory, directory: str, files: Sequence[tuple[str, State, str]]) -> set[str]:
    """Write states and reasons into documents of a directory; return the names that are there. Flushes are shared."""
    present: set[str] = set()
    for start in range(0, len(files), _AT_ONCE):
        some = files[start : start + _AT_ONCE]
        present |= root.despite_full_disk(partial(_restate, root, queue, directory, some))
    return present


def _restate(root: Root, queue: QueueDirectory, directory: str, files: Sequence[tuple[str, State, str]]) -> set[str]:
    present = {name for name, _, _ in files}
    edited: list[tuple[str, str]] = []  # name, and the path of its new document
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        for name, state, reason in files:
            try:
                data, _ = read_whole(f"{directory}/{name}")
            except FileNotFoundError:
                present.discard(name)
                continue
            except UNREADABLE:
                continue  # not a document to write into, which is noticed when it is read
            document = restated(root, data, state, reason)
            if document != data:
                draft = f"{queue.tmp}/{new_tag()}~restated"
                edited.append((name, draft))
                durable.write_into(fds, draft, document)
        durable.sync_all(fds)
        for name, draft in edited:
            try:
                exchange(draft, f"{directory}/{name}")
            except FileNotFoundError:
                present.discard(name)
    finally:
        close_all(closing)
        remove(*(draft for _, draft in edited))
    return present


def restated(root: Root, data: bytes, state: State, reason: str = "") -> bytes:
    """Return a document with its state; unchanged if it has no place for one."""
    if root.restatable is None:
        return data
    try:
        return root.restatable.restate(data, state.value, at=root.clock.now(), reason=reason)
    except DecodeError:
        return data


# Finding a message by its id, or the file of a lease by its token, in the directories


# In the order in which messages move, so that one that is moving is not missed.
_SEARCHED = (State.READY, State.DELAYED, State.INFLIGHT, State.DEAD, State.DONE, State.CORRUPT)


def slots_in(root: Root, queue: QueueDirectory, state: State) -> Iterator[tuple[str, Slot]]:
    """Yield name and slot of each file of a state that carries the marks of the store."""
    for name in os.listdir(queue.dirs[state]):
        slot = root.names.parse(name)
        if slot is not None and belongs(state, slot):
            yield name, slot


def belongs(state: State, slot: Slot) -> bool:
    """Say whether a name has the marks of a state."""
    # An application may keep files of its own in the directories of a plain layout.
    if state is State.INFLIGHT:
        return slot.leased
    return slot.settled > 0 if state in (State.DONE, State.DEAD) else not slot.leased


def locate(root: Root, queue: QueueDirectory, id: str) -> tuple[State, str, Slot | None] | None:
    """Find a message by its id: return its state, the name of its file, and the slot unless the name is foreign."""
    if (held := _in_flight(root, queue, id)) is not None:
        return held
    for _ in range(2):  # a message that moves back meanwhile is met the second time
        for state in _SEARCHED:
            met = queue.by_id.get(state, {}).get(id) if state is State.DEAD else None  # its name stays as it is
            if met is not None and os.path.lexists(met[0]):
                return state, os.path.basename(met[0]), met[1]
            for _, name, slot in _find_in(root, queue, state, (id,)):
                return state, name, slot
    return None


def _in_flight(root: Root, queue: QueueDirectory, id: str) -> tuple[State, str, Slot] | None:
    """Return where a message is that this process leased, if its file still has the name that is remembered."""
    _, known = queue.leased.get(id, ("", None))
    slot = None if known is None else root.names.parse(known.name)
    if known is None or slot is None or not os.path.lexists(f"{queue.inflight}/{known.name}"):
        return None
    return State.INFLIGHT, known.name, slot


def present(root: Root, queue: QueueDirectory, ids: Collection[str]) -> set[str]:
    """Return those of the ids that messages of the queue have, in any state: the listings serve all of them."""
    missing = {*ids}
    for _ in range(2):  # as above
        for state in _SEARCHED:
            if missing:
                missing -= {id for id, _, _ in _find_in(root, queue, state, missing)}
    return {*ids} - missing


class LiveMessages:
    """Says which messages wait, are in flight, or are on their way there, at the moment of the first question: one
    listing for the questions about many.

    A caller that holds the lock of the queue meanwhile gets the truth: none moves, and no other record is made.
    """

    def __init__(self, root: Root, queue: QueueDirectory) -> None:
        self._root, self._queue = root, queue
        self._id_of = cache(partial(_id_of, root, queue))
        self._gone: set[tuple[str, str]] = set()
        self._tags: set[str] | None = None  # of messages whose records are made, but which nobody sees yet
        self._arriving: set[str] = set()
        # Directory and name, by id. A native name is parsed only when it is asked for.
        self._found: dict[str, set[tuple[str, str]]] = {}

    def __call__(self, first: First, but: str = "") -> bool:
        """Say whether the message of a record is live. The file `but` does not count."""
        if self._tags is None:
            self._tags = self._look()
        if first.tag in self._tags or first.id in self._arriving:
            return True
        return any(
            "/".join(file) != but and file not in self._gone and self._id_of(*file) == first.id
            for file in self._found.get(first.id, ())
        )

    def add(self, id: str) -> None:
        """Note that a message has come since."""
        self._arriving.add(id)

    def drop(self, directory: str, name: str) -> None:
        """Note that a file was moved away since."""
        self._gone.add((directory, name))

    def _look(self) -> set[str]:
        root, queue = self._root, self._queue
        tags = {name.partition("~")[0] for name in os.listdir(queue.tmp)}
        for directory in (*queue.waiting, queue.inflight, root.settling, *queue.waiting):  # some move meanwhile
            for name in os.listdir(directory):
                if directory == root.settling:
                    self._arriving.update(_settled_into(f"{directory}/{name}", queue))
                else:
                    id = name[ID_PLACE:].partition("~")[0] if root.names.native else self._id_of(directory, name)
                    self._found.setdefault(id, set()).add((directory, name))
        return tags


def _settled_into(folder: str, queue: QueueDirectory) -> Iterator[str]:
    """Yield the ids of the messages in the folder of a settlement that come to this queue, or come back to it."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    if not is_committed(folder) or not (plan := read_plan(folder)):
        return
    if plan["queue"] == queue.name and plan["state"] in (State.READY, State.DELAYED):
        yield plan["id"]
    for each in plan["outputs"]:
        if each["file"] in names and each["queue"] == queue.name and each["state"] != State.DEAD:
            yield each["first"][0]


def _id_of(root: Root, queue: QueueDirectory, directory: str, name: str) -> str:
    """Return the id of the message in a file that waits or is in flight, and may be gone by now; "" if it is none."""
    slot, inflight = root.names.parse(name), directory == queue.inflight
    if slot is None or slot.leased is not inflight or not (inflight or root.layout.admits(name)):
        return ""
    order = order_in(root, queue, directory, name, slot)
    return "" if order is None else order.id


def _find_in(
    root: Root, queue: QueueDirectory, state: State, ids: Collection[str]
) -> Iterator[tuple[str, str, Slot | None]]:
    """Yield id, file name and slot of each message of a state that has one of these ids. The slot of a foreign name is
    None.
    """
    directory = queue.dirs[state]
    for name in os.listdir(directory):
        if root.names.native and name[ID_PLACE:].partition("~")[0] not in ids and name not in ids:
            continue
        slot = root.names.parse(name)
        if state is State.CORRUPT:
            id = slot.id if slot is not None else name
            if id in ids and not name.endswith(".why"):
                yield id, name, slot
        elif slot is not None and belongs(state, slot):
            if directory in queue.waiting and not root.layout.admits(name):
                continue
            order = order_in(root, queue, directory, name, slot)
            if order is not None and order.id in ids:
                yield order.id, name, slot


def find_leases(root: Root, queue: QueueDirectory, receipts: Collection[Receipt]) -> dict[Receipt, LeasedFile]:
    """Return the files that receipts hold: those that this process remembers, which may have a new name by now, and the
    others under whatever names their leases were extended to.
    """
    leases = {receipt: known for receipt in receipts if (known := queue.known_lease(receipt.id, receipt.token))}
    found = _find_by_token(root, queue, State.INFLIGHT, [each for each in receipts if each not in leases])
    return leases | {receipt: LeasedFile(name, slot, slot.attempt) for receipt, (name, slot) in found.items()}


def find_settled(
    root: Root, queue: QueueDirectory, receipts: Collection[Receipt], states: tuple[State, ...]
) -> set[Receipt]:
    """Return the receipts whose message lies in one of these states and whose lease was the last one of it."""
    return {receipt for state in states for receipt in _find_by_token(root, queue, state, receipts)}


def _find_by_token(
    root: Root, queue: QueueDirectory, state: State, receipts: Collection[Receipt]
) -> dict[Receipt, tuple[str, Slot]]:
    """Find the files of a state by their ids and the tokens of their last leases: one listing for all receipts."""
    if not receipts:
        return {}
    wanted = {(receipt.id, short_token(receipt.token)): receipt for receipt in receipts}
    ids, tokens = {id for id, _ in wanted}, {token for _, token in wanted}
    directory = queue.dirs[state]
    found: dict[Receipt, tuple[str, Slot]] = {}
    for name in os.listdir(directory):
        if name.endswith(".why") or root.names.native and name[ID_PLACE:].partition("~")[0] not in ids:
            continue
        if token_of(name) not in tokens:
            continue
        slot = root.names.parse(name)
        if slot is None or not belongs(state, slot):
            continue
        order = order_in(root, queue, directory, name, slot)
        if order is not None and (receipt := wanted.get((order.id, slot.token))) is not None:
            found[receipt] = name, slot
            if len(found) == len(wanted):
                break
    return found
