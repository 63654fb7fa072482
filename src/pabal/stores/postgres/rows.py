"""How rows say what the contract says in values: states as numbers, failures as JSON, drafts as columns."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from zlib import crc32

from pabal import jsontext
from pabal.codec import Codec
from pabal.errors import DecodeError
from pabal.message import Message, lasting
from pabal.names import check_id, check_name
from pabal.store import Draft, Entry, Failure, FailureCode, State
from pabal.stores.limits import too_large

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

Row = tuple[Any, ...]


class DocumentGone(DecodeError):
    """There is nothing to decode."""


class Sheet(NamedTuple):
    """A draft with its document written down."""

    draft: Draft
    document: bytes


def write_down(drafts: Sequence[Draft], codec: Codec) -> list[Sheet]:
    """Return the drafts with their documents; raise InvalidInput before anything is sent."""
    sheets = []
    for draft in drafts:
        queue, message, terms = draft.queue, draft.message, draft.terms
        if draft.given_id:
            check_id(message.id)
        document = codec.encode(message, queue=check_name(queue))
        if len(document) > terms.max_bytes:
            raise too_large(draft, len(document))
        sheets.append(Sheet(draft, document))
    return sheets


def plain(sheet: Sheet) -> bool:
    """Say whether a message is ready at once, for anybody, and need not know of others: the usual one."""
    draft, message = sheet.draft, sheet.draft.message
    other = message.group or message.dedup_key or message.target or message.priority or message.expires_at is not None
    return not (other or draft.delay or draft.terms.max_waiting)


def columns_of(sheets: Sequence[Sheet], numbers: dict[str, int]) -> list[Any]:
    """Return the arguments of `publish` in SQL: a column for each, and all documents one after the other."""
    drafts = [sheet.draft for sheet in sheets]
    messages = [draft.message for draft in drafts]
    documents = [sheet.document for sheet in sheets]
    groups, keys = [message.group or None for message in messages], [message.dedup_key or None for message in messages]
    limits = [draft.terms.max_waiting for draft in drafts]
    return [
        array(numbers[draft.queue] for draft in drafts),
        words(message.id for message in messages),
        array(-message.priority for message in messages),
        array(draft.delay for draft in drafts),
        words(message.target for message in messages),
        words(groups) if any(groups) else None,
        words(keys) if any(keys) else None,
        array(draft.terms.dedup_window for draft in drafts),
        array(message.expires_at for message in messages),
        array(limits) if any(limits) else None,
        array(crc32(document) for document in documents),
        array(len(document) for document in documents),
        b"".join(documents),
    ]


def array(values: Iterable[float | None]) -> str:
    """Return numbers as the text of an array: the driver's own way of writing lists costs ten times as much."""
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"


def words(values: Iterable[str | None]) -> str:
    """Return texts as the text of an array."""
    return "{" + ",".join(["null" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def text_of(failure: Failure | None) -> str | None:
    return None if failure is None else jsontext.encode(failure).decode()


def failure_of(text: str | None) -> Failure | None:
    return None if text is None else Failure(**jsontext.decode(text.encode()))


def read_message(codec: Codec, document: bytes | None, crc: int | None) -> Message:
    """Return the message if its document is there and as it was written; raise DecodeError if not."""
    if document is None:
        raise DocumentGone("its document is gone", b"")
    if crc32(document) != crc:
        raise DecodeError("the document is not the one that was stored: its checksum differs", document)
    return codec.decode(document, own=True)


def fault(exc: DecodeError, at: float, attempt: int) -> tuple[int, str]:
    """Return the state and the failure of a message that could not be read."""
    if isinstance(exc, DocumentGone):
        return DEAD, str(text_of(Failure(FailureCode.MISSING_PAYLOAD, exc.reason, at, attempt)))
    return CORRUPT, str(text_of(Failure(FailureCode.CORRUPT, exc.reason, at, attempt)))


def entry_of(queue: str, row: Row, cursor: str, codec: Codec) -> Entry:
    """Return what browse shows of a row of `reads.COLUMNS`."""
    _, id, state, attempt, due_at, _, _, failure, crc, document, token, expires_at = row
    message, data = None, b""
    try:
        message = lasting(read_message(codec, document, crc), expires_at)
    except DecodeError as exc:
        data = exc.data
    if state == CORRUPT and message is not None:
        message, data = None, document
    held = token if state == INFLIGHT else ""
    return Entry(queue, id, STATES[state], attempt, due_at, message, failure_of(failure), data, cursor, held)
