"""The codec of a kingdom's files: the whole document is the body of its message.

The id, type, priority, target and time of the message come from the document. Its `status` follows the folder of the
file; the status of a result belongs to the result and never changes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pabal import jsontext
from pabal.apps.kingdom.documents import ANSWERS, Event, Notice, Result, Task, instant, kind_of, read
from pabal.errors import DecodeError, InvalidBody, InvalidInput, InvalidName, NotJson
from pabal.message import PRIORITIES, Message, check_message
from pabal.names import check_name

# For each kind and state the words of `status` that fit; the first is written. Results have none.
_WORDS: dict[type[msgspec.Struct], dict[str, tuple[str, ...]]] = {
    Event: {"done": ("dispatched",), "dead": ("failed",)},
    Task: {
        "inflight": ("in_progress",),
        "done": ("completed", "failed", "needs_human", "skipped"),
        "dead": ("failed",),
    },
    Notice: {"done": ("sent",), "dead": ("failed",)},
}
_space = json.decoder.WHITESPACE.match  # type: ignore[attr-defined]  # where the standard decoder keeps it
_value = json.JSONDecoder(strict=False).raw_decode


class KingdomCodec:
    content_type = "application/json"
    extension = ".json"

    def encode(self, message: Message, *, queue: str = "") -> bytes:
        if not isinstance(message.body, dict):
            raise InvalidBody("a kingdom's queues carry events, tasks, results and notices: JSON objects")
        return jsontext.pretty(message.body)

    def decode(self, data: bytes, *, id: str = "", at: float = 0.0, own: bool = False) -> Message:
        try:
            document = jsontext.read(data)
            if not isinstance(document, dict):
                raise NotJson(f"a document is a JSON object; found {type(document).__name__}")
            return message_of(document, id=id, at=at)
        except (ValueError, TypeError, OverflowError) as exc:
            code = exc.code if isinstance(exc, InvalidInput) else "InvalidBody"
            raise DecodeError(f"{code}: {exc}", data) from exc

    def restate(self, data: bytes, state: str, *, at: float, reason: str = "") -> bytes:
        try:
            text = data.decode()
            document = jsontext.decode(data)
            words = _WORDS.get(kind_of(document), {}).get(state, ("pending",))
            # A document without a status is pending by default, and need not be written again.
            if kind_of(document) is Result or document.get("status", "pending") in words:
                return data
            return _with_status(text, words[0]).encode()
        except (ValueError, AttributeError) as exc:
            raise DecodeError(f"NotJson: {exc}", data) from exc


def message_of(document: Mapping[str, Any], *, id: str = "", at: float = 0.0) -> Message:
    """Return the message of a document; `id` and `at` are used if the document has none."""
    return check_message(unchecked(document, id=id, at=at))


def unchecked(document: Mapping[str, Any], *, id: str = "", at: float = 0.0) -> Message:
    """Return the message of a document without the check of messages, which the caller makes."""
    kind = kind_of(document)
    body = dict(document)
    if kind is not Result:
        body.setdefault("id", id)
    found = read(kind, body)
    created = getattr(found, "completed_at" if kind is Result else "created_at")
    return Message(
        id=body["task_id"] if kind is Result else body["id"],
        body=body,
        type=body.get("type", ""),
        target=_target(found),
        priority=PRIORITIES[getattr(found, "priority", "normal")],
        group=found.task_id if isinstance(found, Notice) else "",  # notices of one task are sent in their order
        dedup_key=_key(found),
        created_at=instant(created) if created else round(at, 3),
    )


def _target(found: msgspec.Struct) -> str:
    """Return to whom a document is addressed: an event by its class and type, under which the King leases it."""
    if isinstance(found, Event):
        return "answer" if found.type in ANSWERS else _address(found.priority, found.type)
    return found.target_general if isinstance(found, Task) else ""


def _address(priority: str, type: str) -> str:
    try:
        return check_name(f"{priority}.{type}", "target")
    except InvalidName:  # types are free text
        return f"{priority}.{hashlib.sha256(type.encode('utf-8', 'replace')).hexdigest()[:32]}"


def _key(found: msgspec.Struct) -> str:
    """Return the dedup key: one task for each event, and one for each task that is made again.

    Tasks of schedules have no event and other keys.
    """
    if not isinstance(found, Task):
        return ""
    if found.retry_of:
        return f"retry-{found.retry_of}"
    return "" if found.event_id.startswith("schedule-") else found.event_id


def _with_status(text: str, word: str) -> str:
    """Replace the top-level status of a document; every other character stays."""
    at = _space(text, 0).end() + 1
    end = at
    while (at := _space(text, at).end()) < len(text) and text[at] == '"':
        key, at = _value(text, at)
        start = _space(text, _space(text, at).end() + 1).end()
        _, end = _value(text, start)
        if key == "status":
            return f"{text[:start]}{json.dumps(word)}{text[end:]}"
        at = _space(text, end).end() + 1
    comma = "," if end > text.index("{") + 1 else ""
    return f'{text[:end]}{comma} "status": {json.dumps(word)}{text[end:]}'
