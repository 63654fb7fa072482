"""The MIME codec: a message as a file that mail programs, `cat` and the original tool can read.

Headers have the fields of the message; the body is YAML, or base64 for bytes. To names the queue; several recipients
are in the message's own headers. Fields that change (status, retries) are in the file and not in the message.

X-IGNITE-Status has the state of the message. The folder of the file is the truth: a status that fits the state is kept,
so that writing the same state twice changes nothing, and `delivered`, which only the deliverer can know, is kept.
"""

from __future__ import annotations

import json
from base64 import b64decode, encodebytes
from binascii import Error
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pabal import jsontext
from pabal.clock import iso_stamp
from pabal.codecs import yaml
from pabal.codecs.mime import addresses, fields
from pabal.codecs.mime.fields import (
    ERROR_AT,
    ERROR_REASON,
    LAST_RETRY_AT,
    MAX_HEAD,
    PROCESSED_AT,
    RETRY_COUNT,
    STATUS,
    Head,
    date_text,
    decoded,
    edited,
    header_line,
    read_date,
    read_head,
)
from pabal.codecs.yaml import MAX_YAML, read
from pabal.errors import (
    DecodeError,
    InvalidDate,
    InvalidEncoding,
    InvalidHeader,
    InvalidInput,
    InvalidText,
    MissingHeader,
    NotMime,
    TooLarge,
)
from pabal.jsontext import Json, storable
from pabal.message import PRIORITIES, Message, check_message, priority_of

YAML_TYPE = "text/x-yaml; charset=utf-8"
_BYTES_TYPE = "application/octet-stream"
_YAML_TYPES = frozenset({"text/x-yaml", "text/yaml", "application/yaml", "application/x-yaml"})
_AS_IT_IS = frozenset({"8bit", "7bit", "binary"})
_NAMES = {number: name for name, number in PRIORITIES.items()}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class MimeCodec:
    content_type = "message/rfc822"
    extension = ".mime"

    def encode(self, message: Message, *, queue: str = "") -> bytes:
        try:
            body, kind, encoding = _encoded_body(message.body)
            head = "".join(header_line(name, value) for name, value in _headers(message, queue, kind, encoding))
            opening = f"{head}\n".encode()
        except UnicodeEncodeError as exc:
            raise InvalidText("the message holds a lone surrogate, which UTF-8 cannot carry") from exc
        if len(opening) > MAX_HEAD:
            raise TooLarge(f"headers have at most {MAX_HEAD} bytes; these have {len(opening)}")
        return opening + body

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        try:
            message = _message(data)
            return message if own else check_message(message)
        except (ValueError, OverflowError) as exc:
            code = exc.code if isinstance(exc, InvalidInput) else "NotMime"
            raise DecodeError(f"{code}: {exc}", data) from exc

    def restate(self, data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
        try:
            return restated(data, state, at=at, reason=reason)
        except InvalidInput as exc:
            raise DecodeError(f"{exc.code}: {exc}", data) from exc


def priority_text(priority: int) -> str:
    """Return the name of a priority, if it has one."""
    return _NAMES.get(priority) or str(priority)


def _headers(message: Message, queue: str, kind: str, encoding: str) -> list[tuple[str, str]]:
    recipients = addresses.named(message)
    message_id = addresses.message_id_of(message.id, message.headers)
    said = {"To", "Cc"} if recipients.to else set()
    if message.headers.get("Message-ID") == message_id:
        said.add("Message-ID")
    own, rest = fields.sorted_out({name: text for name, text in message.headers.items() if name not in said})
    made = datetime.fromtimestamp(message.created_at, UTC)
    found = [
        ("MIME-Version", "1.0"),
        ("Message-ID", message_id),
        ("From", addresses.sender_text(message.sender)),
        ("To", addresses.shown_text(recipients.to or ((queue,) if queue else ()))),
        ("Cc", addresses.shown_text(recipients.cc) if recipients.cc else ""),
        ("Date", date_text(made)),
        ("X-IGNITE-Type", message.type),
        ("X-IGNITE-Priority", priority_text(message.priority)),
        (fields.THREAD_ID, message.thread_id),
        *own.items(),
        *((name, getattr(message, field)) for field, name in fields.TEXTS.items()),
        (fields.MICROSECONDS, str(made.microsecond or "")),
        (
            fields.EXPIRES_AT,
            "" if message.expires_at is None else iso_stamp(message.expires_at, timespec="auto", utc="+00:00"),
        ),
        (fields.VERSION, "" if message.version == 1 else str(message.version)),
        (fields.ATTRIBUTES, _json_text(message.attributes)),
        (fields.HEADERS, _json_text(rest)),
        ("Content-Type", kind),
        ("Content-Transfer-Encoding", encoding),
    ]
    return [(name, value) for name, value in found if value or name in own or name == "X-IGNITE-Type"]


def _json_text(value: Mapping[str, Json]) -> str:
    """Return a JSON object in ASCII, which a header can hold unchanged."""
    if not value:
        return ""
    jsontext.encode(value)  # refuses lone surrogates
    return json.dumps(value, separators=(",", ":"))


def _encoded_body(body: Json | bytes) -> tuple[bytes, str, str]:
    if isinstance(body, bytes):
        return encodebytes(body), _BYTES_TYPE, "base64"
    text = yaml.write(body).encode()
    if len(text) > MAX_YAML:
        raise TooLarge(f"a body has at most {MAX_YAML} bytes as YAML; this one has {len(text)}: send a reference")
    return text, YAML_TYPE, "8bit"


def _message(data: bytes) -> Message:
    head = read_head(data)
    found = {field.name.lower(): field.raw for field in head.fields}
    for name in fields.REQUIRED:
        if name.lower() not in found:
            raise MissingHeader(f"{name} is missing")
    if found["mime-version"] != "1.0":
        raise NotMime(f"MIME-Version must be 1.0; found {found['mime-version']!r:.40}")
    id, message_id = addresses.read_message_id(found["message-id"])
    texts = {field: decoded(name, found.get(name.lower(), "")) for field, name in fields.TEXTS.items()}
    return Message(
        id=id,
        body=_body(data[head.size :], found["content-type"], found["content-transfer-encoding"]),
        type=decoded("X-IGNITE-Type", found["x-ignite-type"]),
        sender=addresses.read_sender(decoded("From", found["from"])),
        priority=_priority(found["x-ignite-priority"]),
        thread_id=decoded(fields.THREAD_ID, found.get("x-ignite-thread-id", "")),
        created_at=_created(found["date"], found.get("x-pabal-microseconds", "")),
        expires_at=_expires(found.get("x-pabal-expires-at", "")),
        version=_whole(fields.VERSION, found.get("x-pabal-version", ""), 1),
        attributes=_json(fields.ATTRIBUTES, found.get("x-pabal-attributes", "")),
        headers=_own_headers(head, found, message_id),
        **texts,
    )


def _own_headers(head: Head, found: dict[str, str], message_id: str) -> dict[str, str]:
    own = {"Message-ID": message_id} if message_id else {}
    to, cc = (addresses.read_names(decoded(name, found.get(name.lower(), ""))) for name in ("To", "Cc"))
    if cc or len(to) > 1:
        own |= {name: addresses.names_text(names) for name, names in (("To", to), ("Cc", cc)) if names}
    for field in head.fields:
        if field.name.lower() not in fields.OURS:
            own[fields.name_of(field.name)] = decoded(field.name, field.raw)
    rest = _json(fields.HEADERS, found.get("x-pabal-headers", ""))
    if not all(isinstance(value, str) for value in rest.values()):
        raise InvalidHeader(f"{fields.HEADERS} must be an object of texts")
    return {**own, **rest}


def _body(data: bytes, kind: str, encoding: str) -> Json | bytes:
    kind, _, rest = kind.lower().partition(";")
    charset = rest.partition("charset=")[2].partition(";")[0].strip(' "')
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise InvalidEncoding(f"charset must be utf-8; found {charset!r:.40}")
    if encoding.lower() == "base64":
        data = _from_base64(data)
    elif encoding.lower() not in _AS_IT_IS:
        raise InvalidEncoding(f"Content-Transfer-Encoding must be 8bit or base64; found {encoding!r:.40}")
    if kind.strip() == _BYTES_TYPE:
        return data
    if kind.strip() not in _YAML_TYPES:
        raise NotMime(f"Content-Type must be {YAML_TYPE}; found {kind!r:.60}")
    return read(data)


def _from_base64(data: bytes) -> bytes:
    try:
        return b64decode(data.translate(None, b"\r\n"), validate=True)
    except Error as exc:
        raise InvalidEncoding(f"the body is not base64: {exc}") from exc


def _priority(raw: str) -> int:
    return int(raw) if raw.lstrip("-").isdecimal() and raw.isascii() and len(raw) < 5 else priority_of(raw.lower())


def _created(date: str, micros: str) -> float:
    instant = read_date(date) + timedelta(microseconds=_whole(fields.MICROSECONDS, micros, 0) % 1_000_000)
    return (instant - _EPOCH).total_seconds()


def _expires(raw: str) -> float | None:
    if not raw:
        return None
    try:
        return (datetime.fromisoformat(raw) - _EPOCH).total_seconds()
    except (ValueError, TypeError) as exc:
        raise InvalidDate(f"{fields.EXPIRES_AT} must be like 2026-02-10T03:00:00+00:00; found {raw!r:.60}") from exc


def _whole(name: str, raw: str, default: int) -> int:
    if not raw:
        return default
    if not (raw.lstrip("-").isdecimal() and raw.isascii() and len(raw) <= 20):
        raise InvalidHeader(f"{name} must be a whole number; found {raw!r:.40}")
    return int(raw)


def _json(name: str, raw: str) -> dict[str, Any]:
    value = jsontext.read(decoded(name, raw).encode()) if raw else {}
    if not isinstance(value, dict):
        raise InvalidHeader(f"{name} must be a JSON object")
    return value


# The status words that fit each state; the first is written. A message that was not taken yet may have none.
_WORDS: dict[str, tuple[str, ...]] = {
    "ready": ("queued", "retrying", ""),
    "delayed": ("queued", "retrying", ""),
    "inflight": ("processing", "delivered"),
    "done": ("completed",),
    "dead": ("dead_letter",),
    "corrupt": ("error",),
}
_HELD = _WORDS["inflight"]
_LONGEST_REASON = 500


def restated(data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
    """Return the file with its status changed; raise InvalidInput if it has no headers."""
    head = read_head(data)
    before = head.get(STATUS) or ""
    if before in _WORDS[state]:
        return data
    now = iso_stamp(at, timespec="seconds", utc="+00:00")
    changes: dict[str, str | None] = {STATUS: _WORDS[state][0]}
    if state == "inflight":
        changes[PROCESSED_AT] = now
    elif state in ("ready", "delayed") and before in _HELD:
        changes |= {STATUS: "retrying", RETRY_COUNT: str(_retries(head) + 1), LAST_RETRY_AT: now}
    if reason:
        changes |= {ERROR_REASON: _line(reason), ERROR_AT: now}
    elif state in ("inflight", "done"):
        changes |= {ERROR_REASON: None, ERROR_AT: None}
    return edited(data, changes)


def _retries(head: Head) -> int:
    raw = head.get(RETRY_COUNT) or "0"
    return int(raw) if raw.isdecimal() and raw.isascii() and len(raw) < 10 else 0


def _line(reason: str) -> str:
    """Return a reason as one line for a header."""
    text = "".join(char if char.isprintable() else " " for char in reason)
    return storable(text)[:_LONGEST_REASON].strip()
