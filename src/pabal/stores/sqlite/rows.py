"""How rows of `messages` say what the contract says in values: states as numbers, failures as JSON text."""

from typing import Any
from zlib import crc32

from pabal import jsontext
from pabal.codec import Codec
from pabal.errors import DecodeError
from pabal.message import Message, lasting
from pabal.store import Entry, Failure, FailureCode, State
from pabal.stores.sqlite.bodies import Bodies, Place

READY, DELAYED, INFLIGHT, HELD, DONE, DEAD, CORRUPT = range(7)

STATES = (State.READY, State.DELAYED, State.INFLIGHT, State.READY, State.DONE, State.DEAD, State.CORRUPT)
NUMBERS = {State.DELAYED: DELAYED, State.INFLIGHT: INFLIGHT, State.DONE: DONE, State.DEAD: DEAD, State.CORRUPT: CORRUPT}


class DocumentGone(DecodeError):
    """There is nothing to decode."""


def text_of(failure: Failure) -> str:
    return jsontext.encode(failure).decode()


def failure_of(text: str | None) -> Failure | None:
    return None if text is None else Failure(**jsontext.decode(text.encode()))


def read_message(codec: Codec, bodies: Bodies, place: Place | None, crc: int | None) -> Message:
    """Return the message if its document is there and as it was written; raise DecodeError if not."""
    data = place if type(place) is bytes else bodies.get(place)
    if data is None:
        raise DocumentGone("its document is gone", b"")
    if crc32(data) != crc:
        raise DecodeError("the document is not the one that was stored: its checksum differs", data)
    return codec.decode(data, own=True)


def fault(exc: DecodeError, at: float, attempt: int) -> tuple[int, str]:
    """Return the state and the failure of a message that could not be read."""
    if isinstance(exc, DocumentGone):
        return DEAD, text_of(Failure(FailureCode.MISSING_PAYLOAD, exc.reason, at, attempt))
    return CORRUPT, text_of(Failure(FailureCode.CORRUPT, exc.reason, at, attempt))


def entry_of(queue: str, row: tuple[Any, ...], cursor: str, codec: Codec, bodies: Bodies) -> Entry:
    """Return what browse shows of a row of `reads.COLUMNS`."""
    _, id, state, attempt, due_at, _, _, failure, crc, place, token, expires_at = row
    message, data = None, b""
    try:
        message = lasting(read_message(codec, bodies, place, crc), expires_at)
    except DecodeError as exc:
        data = exc.data
    if state == CORRUPT and message is not None:
        message, data = None, bodies.get(place) or b""
    held = token if state == INFLIGHT else ""
    return Entry(queue, id, STATES[state], attempt, due_at, message, failure_of(failure), data, cursor, held)
