"""The message: the fields that are fixed at publish and never change. A frozen value without behaviour."""

from collections.abc import Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Literal, TypeAlias, TypeVar

import msgspec

from pabal.errors import InvalidHeader, InvalidInput, InvalidText, TooManyHeaders
from pabal.jsontext import Json, check
from pabal.names import check_id, check_name

MIN_PRIORITY, MAX_PRIORITY = -100, 100
PRIORITIES: Mapping[str, int] = MappingProxyType({"critical": 9, "high": 6, "normal": 0, "low": -6})
MAX_TEXT = 1024  # characters of type, group, dedup_key, unique, ids of thread, trace and reply, header names
MAX_HEADERS = 100
MAX_SECONDS = 100 * 366 * 86400.0
MAX_INSTANT = 253402300799.0  # the last second of the year 9999
Value = TypeVar("Value", bound=msgspec.Struct)
Priority: TypeAlias = int | Literal["critical", "high", "normal", "low"]
Seconds: TypeAlias = float | timedelta
_KINDS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("version", (int,)),
    ("priority", (int,)),
    ("attributes", (dict,)),
    ("headers", (dict,)),
    ("created_at", (float, int)),
    ("expires_at", (float, int, type(None))),
)


# A frozen value refers only to older values, which do not refer back: the garbage collector can skip it (gc=False).
class Message(msgspec.Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """A JSON value or bytes with its fields. `attributes` belong to the application; `headers` travel unchanged."""

    id: str
    body: Json | bytes
    type: str = ""
    version: int = 1
    sender: str = ""
    target: str = ""
    attributes: dict[str, Json] = {}
    headers: dict[str, str] = {}
    priority: int = 0
    group: str = ""
    dedup_key: str = ""
    thread_id: str = ""
    trace_id: str = ""
    reply_to: str = ""
    created_at: float = 0.0
    expires_at: float | None = None
    unique: str = ""


def replace(value: Value, **fields: object) -> Value:
    """Return a copy of a message or another struct with some fields changed."""
    return msgspec.structs.replace(value, **fields)


def drop_expiry_if_revived(message: Message, expires_at: float | None) -> Message:
    """Return the message without its expiry if the store has none: a revived message no longer expires."""
    return message if message.expires_at is None or expires_at is not None else replace(message, expires_at=None)


def check_message(message: Message) -> Message:
    """Return the message if every field is legal; raise the InvalidInput that names the first that is not."""
    check_id(message.id)
    if type(message.body) is not bytes:
        check(message.body)
    _check_kinds(message)
    check(message.attributes)
    _check_headers(message.headers)
    if message.target:
        check_name(message.target, "target")
    if message.sender:
        check_name(message.sender, "sender")
    if not MIN_PRIORITY <= message.priority <= MAX_PRIORITY:
        raise InvalidInput(f"priority must be {MIN_PRIORITY} to {MAX_PRIORITY}; found {message.priority}")
    check(message.version)
    for what, instant in (("created_at", message.created_at), ("expires_at", message.expires_at or 0.0)):
        if not 0 <= instant <= MAX_INSTANT:
            raise InvalidInput(f"{what} must be in the years 1970 to 9999; found {instant!r:.40}")
    for what in ("type", "group", "dedup_key", "thread_id", "trace_id", "reply_to", "unique"):
        if text := getattr(message, what):
            _check_text(what, text)
    return message


def _check_kinds(message: Message) -> None:
    for what, kinds in _KINDS:
        value = getattr(message, what)
        if type(value) not in kinds:
            raise InvalidInput(f"{what} must be {kinds[0].__name__}; found {value!r:.40}")


def check_count(what: str, value: int) -> int:
    """Return the value if it is a whole number of at least 1; raise InvalidInput if not."""
    if type(value) is not int or value < 1:
        raise InvalidInput(f"{what} must be a whole number of at least 1; found {value!r:.40}")
    return value


def check_seconds(what: str, value: float, *, least: float = 0.0) -> float:
    """Return the value if it is a duration; raise InvalidInput if it is negative, infinite or not a number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= MAX_SECONDS:
        raise InvalidInput(f"{what} must be {least:g} to {MAX_SECONDS:g} seconds; found {value!r:.40}")
    return value


def seconds_of(value: Seconds) -> float:
    """Return a duration given as seconds or as a timedelta."""
    return value.total_seconds() if isinstance(value, timedelta) else value


def priority_of(value: object) -> int:
    """Return a priority given as a number or by name."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, str) and value in PRIORITIES:
        return PRIORITIES[value]
    raise InvalidInput(f"priority must be a whole number or one of {', '.join(PRIORITIES)}; found {value!r:.40}")


def _check_headers(headers: Mapping[str, str]) -> None:
    if len(headers) > MAX_HEADERS:
        raise TooManyHeaders(f"{MAX_HEADERS} headers at most; found {len(headers)}")
    for name, value in headers.items():
        try:
            _check_text("header name", name)
            _check_text(f"header {name}", value, limit=MAX_TEXT * 8)
        except InvalidInput as exc:
            raise InvalidHeader(str(exc)) from exc


def _check_text(what: str, text: str, limit: int = MAX_TEXT) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"{what} must be text; found {type(text).__name__}")
    if len(text) > limit:
        raise InvalidInput(f"{what} must be at most {limit} characters; found {len(text)}")
    if not text.isprintable() and any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise InvalidText(f"{what} holds a control character")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as exc:
            raise InvalidText(f"{what} holds a lone surrogate") from exc
