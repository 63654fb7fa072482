"""The codec of a kingdom's files: the whole document is the body of its message.

What orders and addresses the message is taken from the document: id, type, priority, target, time. The word in its
`status` follows the folder that it lies in; a result's status is its own and never touched.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from pabal import jsontext
from pabal.errors import DecodeError, InvalidBody, InvalidInput, NotJson
from pabal.kingdom.documents import Event, Notice, Result, Task, instant, kind_of, priority_class, read
from pabal.message import PRIORITIES, Message, check_message

# For each kind the words that fit a state; the first is written. Results have none.
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
            # A document that says nothing is pending, as its type has it: a look at it is no reason to write it anew.
            if kind_of(document) is Result or document.get("status", "pending") in words:
                return data
            return _with_status(text, words[0]).encode()
        except (ValueError, AttributeError) as exc:
            raise DecodeError(f"NotJson: {exc}", data) from exc


def message_of(document: Mapping[str, Any], *, id: str = "", at: float = 0.0) -> Message:
    """Return the message whose body is this document; `id` and `at` stand in where it has none."""
    return check_message(unchecked(document, id=id, at=at))


def unchecked(document: Mapping[str, Any], *, id: str = "", at: float = 0.0) -> Message:
    """Return the same, for who has it checked elsewhere."""
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
        group=found.task_id if isinstance(found, Notice) else "",  # what is told of a task is told in its order
        dedup_key=_key(found),
        created_at=instant(created) if created else round(at, 3),
    )


def _target(found: msgspec.Struct) -> str:
    if isinstance(found, Event):
        return priority_class({"type": found.type, "priority": found.priority})
    return found.target_general if isinstance(found, Task) else ""


def _key(found: msgspec.Struct) -> str:
    """One task for each event; a schedule names no event, and its occurrences have keys of their own."""
    return found.event_id if isinstance(found, Task) and not found.event_id.startswith("schedule-") else ""


def _with_status(text: str, word: str) -> str:
    """Put a word in the place of the document's own status, every other character as it was."""
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
