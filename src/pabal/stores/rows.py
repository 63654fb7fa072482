"""Shared by the SQL stores: states as numbers, failures as JSON, documents with checksums, cursors, encoded drafts.

A row of `messages` has a state number. HELD is a state of the tables only: the message is ready, but another member of
its group comes first.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import NoneType
from typing import Any, TypeAlias, TypeVar
from zlib import crc32

from pabal import jsontext
from pabal.codec import Codec
from pabal.errors import DecodeError, InvalidInput, InvalidPolicy, QueueNotEmpty, TooLarge
from pabal.message import Message, drop_expiry_if_revived
from pabal.names import check_id, check_name
from pabal.policy.policy import settings_from
from pabal.policy.validation import schema_fault
from pabal.store import BROWSE_BYTES, Draft, Entry, Failure, FailureCode, State, read_failure_document

log = logging.getLogger("pabal")

T = TypeVar("T")
Document = TypeVar("Document", bound=bytes | str)
Row = tuple[Any, ...]
OptionalRow = TypeVar("OptionalRow", Row, Row | None)

READY, DELAYED, INFLIGHT, HELD, DONE, DEAD, CORRUPT = range(7)
STATES = (State.READY, State.DELAYED, State.INFLIGHT, State.READY, State.DONE, State.DEAD, State.CORRUPT)
NUMBERS = {
    State.READY: READY,
    State.DELAYED: DELAYED,
    State.INFLIGHT: INFLIGHT,
    State.DONE: DONE,
    State.DEAD: DEAD,
    State.CORRUPT: CORRUPT,
}

# The columns of browse and find, in the order of `entry_of` and `cursor_of`. The time is the one by which a page of
# this state is ordered. {order} is the column of the priority, as each database keeps it.
COLUMNS = """seq, id, state, attempt, due_at,
case state when 1 then due_at when 2 then lease_until else state_since end, {order},
failure, crc, document, token, expires_at"""


class DocumentGone(DecodeError):
    """The row has no document, or its file is missing."""


# Leases


def by_group(
    rows: Iterable[T], order: Callable[[T], Any], group: Callable[[T], str | None], seq: Callable[[T], Any]
) -> list[T]:
    """Sort leased messages by the place of the first of their group, inside a group in publish order."""
    rows = sorted(rows, key=seq)
    firsts: dict[str | None, T] = {}
    for row in rows:
        firsts.setdefault(group(row), row)
    return sorted(rows, key=lambda row: order(firsts[group(row)] if group(row) else row))  # it keeps the order of `seq`


# Drafts


# A draft with its document, or the name of the file that holds it, and the checksum of the document. A plain tuple: a
# named one costs a tenth of a publish of many.
EncodedDraft: TypeAlias = tuple[Draft, Document, int]


def encode_drafts(drafts: Iterable[Draft], codec: Codec) -> list[EncodedDraft[bytes]]:
    """Encode and measure the drafts; raise InvalidInput before anything is written."""
    encoded: list[EncodedDraft[bytes]] = []
    encode, queue = codec.encode, None
    for draft in drafts:
        if draft.queue != queue:
            queue = check_name(draft.queue)
        if draft.given_id:
            check_id(draft.message.id)
        document = encode(draft.message, queue=queue)
        if len(document) > draft.terms.max_bytes:
            raise too_large(draft, len(document))
        encoded.append((draft, document, crc32(document)))
    return encoded


def too_large(draft: Draft, size: int) -> TooLarge:
    """Return the error for a message whose document has `size` bytes. Every store uses these words."""
    queue, most = draft.queue, draft.terms.max_bytes
    return TooLarge(
        f"{queue} takes messages of {most} bytes at most, encoded; {draft.message.id} has {size}: "
        f"`pabal policy set {queue} --set maxBytes={size}` lets it in"
    )


def not_empty(queue: str, counts: Mapping[State, int]) -> QueueNotEmpty:
    """Return the error for a queue that is to be deleted and has messages. Every store uses these words."""
    found = ", ".join(f"{count} {state}" for state, count in counts.items() if count and state is not State.DONE)
    return QueueNotEmpty(f"{queue} has messages ({found}) and was not deleted: handle or purge them, or give force")


# Documents and failures


def read_message(codec: Codec, document: bytes | None, crc: int | None) -> Message:
    """Return the message if its document is there and unchanged; raise DecodeError if not."""
    if document is None:
        raise DocumentGone("its document is gone", b"")
    if crc32(document) != crc:
        raise DecodeError("the document is not the one that was stored: its checksum differs", document)
    return codec.decode(document, own=True)


def failure_text(failure: Failure | None) -> str | None:
    """Return a failure as its column holds it."""
    return None if failure is None else jsontext.encode(failure).decode()


def is_failure(text: str) -> bool:
    """Return whether this text is a failure as `failure_text` writes it."""
    try:
        read_failure_document(text)
    except (ValueError, TypeError):
        return False
    return True


def failure_of(text: str | None) -> Failure | None:
    """Return the failure that a column holds. A damaged one costs nothing but its reason."""
    if text is None:
        return None
    try:
        return read_failure_document(text)
    except (ValueError, TypeError):
        return Failure(FailureCode.CORRUPT, f"the failure in its row cannot be read: {text!r:.200}")


def unreadable(exc: DecodeError, at: float, attempt: int) -> tuple[int, str | None]:
    """Return the state and the failure column for a message that could not be read."""
    if isinstance(exc, DocumentGone):
        return DEAD, failure_text(Failure(FailureCode.MISSING_PAYLOAD, exc.reason, at, attempt))
    return CORRUPT, failure_text(Failure(FailureCode.CORRUPT, exc.reason, at, attempt))


def cancelled_at(at: float) -> Failure:
    """Return the failure of a message that was cancelled."""
    return Failure(FailureCode.CANCELLED, at=round(at, 3))


# Settings


def read_settings(queue: str, text: Any) -> Mapping[str, Any] | None:
    """Return the settings of a queue from the column that keeps them; raise InvalidPolicy if they are damaged."""
    if text is None:
        return None
    try:
        settings = jsontext.read(text.encode())
        if not isinstance(settings, dict):
            raise InvalidInput("they are no JSON object")
    except (AttributeError, InvalidInput) as exc:
        raise InvalidPolicy(
            f"queue {queue} has settings that cannot be read ({exc}): give it others, with `pabal policy set "
            f"{queue} --file PATH`, or set them aside with `pabal doctor --repair`"
        ) from exc
    return settings


def settings_fault(settings: bytes | None) -> str:
    """Return why the settings of a queue cannot be used, or ''."""
    if settings is None:
        return ""
    try:
        return schema_fault(settings_from(jsontext.read(settings)).policy.body_schema)
    except InvalidInput as exc:
        return str(exc)


# Entries and cursors


_KINDS = (
    *((int,), (str,), (int,), (int,), (float,), (float,), (int,)),
    *((str, NoneType), (int, NoneType), (bytes, str, NoneType), (str,), (float, NoneType)),
)


def check_row(row: OptionalRow) -> OptionalRow:
    """Return a row of COLUMNS if its values are of the right kinds; raise TypeError if not: it is damaged."""
    if row is not None:
        for value, kinds in zip(row, _KINDS, strict=True):
            if type(value) not in kinds:
                raise TypeError(f"found {type(value).__name__}, expected {kinds[0].__name__}")
        STATES[row[2]]
    return row


def entry_of(queue: str, row: Row, codec: Codec, load: Callable[[Any], bytes | None]) -> Entry:
    """Return the entry for a row of COLUMNS. `load` returns the document that the column keeps or names."""
    _, id, state, attempt, due_at, _, _, failure, crc, place, token, expires_at = row
    message, data = None, b""
    try:
        message = drop_expiry_if_revived(read_message(codec, load(place), crc), expires_at)
    except DecodeError as exc:
        data = exc.data
    if message is not None and (state == CORRUPT or message.id != id):
        message, data = None, load(place) or b""
    held = token if state == INFLIGHT else ""
    return Entry(queue, id, STATES[state], attempt, due_at, message, failure_of(failure), data, cursor_of(row), held)


def entries_of(queue: str, rows: Iterable[Row], codec: Codec, load: Callable[[Any], bytes | None]) -> list[Entry]:
    """Return the entries of one page, which ends early if its documents are large."""
    found: list[Entry] = []
    size = 0

    def measured(place: Any) -> bytes | None:
        nonlocal size
        document = load(place)
        size += len(document or b"")
        return document

    for row in rows:
        found.append(entry_of(queue, row, codec, measured))
        if size >= BROWSE_BYTES:
            break
    return found


def cut_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows of COLUMNS until the documents in them are as large as a page may be."""
    size = 0
    for row in rows:
        yield row
        if isinstance(row[9], bytes) and (size := size + len(row[9])) >= BROWSE_BYTES:
            return


def cursor_of(row: Row) -> str:
    """Return the position of a row of COLUMNS within its state, for `after`."""
    seq, id, state, _, due_at, time, order = row[:7]
    if state == READY:
        return f"{order}~{due_at.hex()}~{id}"
    return f"{'held~' if state == HELD else ''}{time.hex()}~{seq}"


def ready_cursor(after: str, first: int) -> tuple[int, float, str]:
    """Return where a page of ready messages starts: priority order, due time, id. `first` comes before all orders."""
    order, due_at, id = _split(after, 3) if after else (str(first), "-inf", "")
    return _number_in(order, int), _number_in(due_at, float.fromhex), id


def time_cursor(after: str) -> tuple[float, int]:
    """Return where a page ordered by time starts: time and seq."""
    time, seq = _split(after, 2) if after else ("-inf", "0")
    return _number_in(time, float.fromhex), _number_in(seq, int)


def _split(cursor: str, parts: int) -> Sequence[str]:
    found = cursor.split("~")
    if len(found) != parts:
        raise _no_cursor(cursor)
    return found


def _number_in(text: str, read: Callable[[str], T]) -> T:
    try:
        number = read(text)
    except (ValueError, OverflowError) as exc:
        raise _no_cursor(text) from exc
    if isinstance(number, int) and abs(number) >= 1 << 63:  # more than a database takes
        raise _no_cursor(text)
    return number


def _no_cursor(found: str) -> InvalidInput:
    return InvalidInput(f"`after` takes the cursor of an entry; found {found!r:.80}")


def log_corrupt(queue: str, id: str, reason: str) -> None:
    """Log a message that cannot be read and is set aside."""
    fields = {"queue": queue, "id": id, "reason": reason}
    log.warning("message corrupt: %(queue)s/%(id)s: %(reason)s", fields)
