"""A look at the messages of a queue that changes nothing, at the address that users of LocalStack know."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

import pabal.aio
from pabal.gateway.sqs import messages
from pabal.gateway.sqs.directory import queue_in
from pabal.gateway.sqs.errors import missing, no_queue
from pabal.store import Entry, State

PATH = "/_aws/sqs/messages"


def name_asked(path: str, query: str) -> str:
    """Return the queue that is looked at, by its URL or by the end of the path."""
    url = parse_qs(query).get("QueueUrl", [path.removeprefix(PATH)])[0]
    name = queue_in(url)
    if not name:
        raise missing("QueueUrl")
    return name


async def look(mq: pabal.aio.Connection, name: str, query: str) -> dict[str, Any]:
    """Return the messages of a queue as a ReceiveMessage would, without leasing them."""
    asked = {key: values[0].lower() == "true" for key, values in parse_qs(query).items()}
    if name not in await mq.queues():
        raise no_queue()
    states = [State.READY]
    states += [State.INFLIGHT] if asked.get("ShowInvisible") else []
    states += [State.DELAYED] if asked.get("ShowDelayed") else []
    queue = mq.queue(name)
    found = [_shown(entry) for state in states async for entry in queue.entries(state) if entry.message is not None]
    return {"Messages": found} if found else {}


def _shown(entry: Entry) -> dict[str, Any]:
    message = entry.message
    assert message is not None
    body = messages.body_out(message)
    attributes = messages.attributes_out(message)
    shown: dict[str, Any] = {
        "MessageId": messages.id_out(message),
        "MD5OfBody": messages.md5_of(body),
        "Body": body,
        "Attributes": {
            "SenderId": message.sender or messages.ANONYMOUS,
            "SentTimestamp": str(round(message.created_at * 1000)),
            "ApproximateReceiveCount": str(entry.attempt),
        },
    }
    if attributes:
        shown["MD5OfMessageAttributes"] = messages.md5_of_attributes(attributes)
        shown["MessageAttributes"] = messages.as_given(attributes)
    return shown
