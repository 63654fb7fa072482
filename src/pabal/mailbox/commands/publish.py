"""The command that publishes, by the policy of its queue."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pabal import jsontext
from pabal.drafting import Options
from pabal.errors import InvalidRequest
from pabal.mailbox.commands.command import Command, Kind, Payload, Work, key_of
from pabal.mailbox.commands.context import Context
from pabal.mailbox.protocol import Request
from pabal.store import Published


class _Publish(Payload, frozen=True, kw_only=True):
    queue: str
    message: Any
    attributes: str | dict[str, Any] = ""
    priority: int | str = 0
    delay_ms: float = 0
    target_consumer_id: str = ""
    message_id: str = ""
    type: str = ""
    version: int = 1
    headers: dict[str, str] = {}
    group: str = ""
    deduplication_key: str = ""
    thread_id: str = ""
    trace_id: str = ""
    reply_to: str = ""
    sender: str = ""
    ttl_sec: float | None = None


def publish(context: Context, request: Request) -> Work:
    asked = request.read(_Publish)
    queue = context.queue(asked.queue)
    context.check_sender(request, asked.sender)
    said: Options = {
        "id": asked.message_id or context.message_id(request),
        "type": asked.type,
        "version": asked.version,
        "sender": asked.sender or request.client,
        "target": asked.target_consumer_id,
        "attributes": _attributes(asked.attributes),
        "headers": asked.headers,
        "priority": asked.priority,
        "group": asked.group,
        "dedup_key": asked.deduplication_key,
        "thread_id": asked.thread_id,
        "trace_id": asked.trace_id,
        "reply_to": asked.reply_to,
        "delay": asked.delay_ms / 1000,
    }
    if asked.ttl_sec is not None:
        said["ttl"] = asked.ttl_sec
    # Text is JSON text, as it always was here; anything else is the message itself.
    body = jsontext.read(asked.message.encode()) if isinstance(asked.message, str) else asked.message

    draft = queue.draft(body, **said)

    def finish(found: Sequence[Published]) -> dict[str, Any]:
        [first] = found
        answer: dict[str, Any] = {"messageId": first.id, "messageKey": key_of(draft.queue, first.id)}
        if first.duplicate:
            answer["duplicate"] = True
        if draft.queue != queue.name:
            answer["deadLettered"] = True  # the policy takes invalid messages in as dead letters
        return answer

    return Work([draft], finish)


def _attributes(given: str | dict[str, Any]) -> dict[str, Any]:
    found = jsontext.read(given.encode()) if isinstance(given, str) and given else given or {}
    if not isinstance(found, dict):
        raise InvalidRequest(f"payload.attributes: an object is expected; found {type(found).__name__}")
    return found


PUBLISHING: dict[str, Command] = {"publish": Command(publish, Kind.PUBLISH)}
