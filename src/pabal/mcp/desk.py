"""The desk: what the tools of a server do for one agent. There is one for queues and one for mail.

Here is the contract, and what both have in common: how messages are shown, and how long a call may wait.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Protocol

from pabal import jsontext
from pabal.clock import iso_stamp
from pabal.errors import InvalidInput
from pabal.jsontext import Json
from pabal.mcp.leases import LONGEST_EXTENSION, Call
from pabal.mcp.tools import LONGEST_WAIT, Arguments, AskHuman, Document, Tool
from pabal.message import Message, check_seconds
from pabal.queues.queue import MIN_LEASE
from pabal.store import Entry, Failure

LONGEST_BODY = 40_000  # characters of JSON: clients cut longer answers, or fill the context of the model
REPEATED = "it was done before; only the first ack of a receipt sends a reply"
GLANCE = 200  # characters of a body in a list


class Desk(Protocol):
    """Serves the calls of one agent. Threads may share it."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The tools, in the order in which they are always listed."""
        ...

    def serve(self, name: str, arguments: Arguments, call: Call) -> Document:
        """Run a tool; raise PabalError if it cannot be done."""
        ...

    def release(self) -> None:
        """Give back what the agent holds, if the desk leased it: the agent is gone."""
        ...

    def close(self, *, release: bool = True) -> None:
        """Close the store. Without `release` the agent outlives this desk, and may settle what it holds elsewhere."""
        ...


def waiting_time(seconds: float) -> float:
    """Return how long a call may wait."""
    return min(check_seconds("wait", seconds), LONGEST_WAIT)


def extension(seconds: float) -> float:
    """Return for how long a call asks to keep a message."""
    if check_seconds("seconds", seconds, least=MIN_LEASE) > LONGEST_EXTENSION:
        raise InvalidInput(f"seconds must be at most {LONGEST_EXTENSION:g}; extend again before they have passed")
    return seconds


def check_offset(offset: int) -> None:
    """Refuse a place in a body that cannot be."""
    if offset < 0:
        raise InvalidInput(f"offset must be 0 or more; found {offset}")


def check_question(given: AskHuman) -> None:
    """Refuse a call that asks nothing, or two things."""
    if bool(given.question) == bool(given.question_id):
        raise InvalidInput("give a question, or the question_id of one that you asked before")


def message_document(message: Message, *, offset: int = 0) -> Document:
    """Return a message as agents see it, without empty fields; a long body is cut."""
    fields: Document = {
        "id": message.id,
        "from": message.sender,
        "type": message.type,
        "thread_id": message.thread_id,
        "reply_to": message.reply_to,
        "priority": message.priority,
        "attributes": message.attributes,
        "sent": iso_stamp(message.created_at, timespec="seconds") if message.created_at else "",
    }
    return {name: value for name, value in fields.items() if value} | body_fields(message.body, offset=offset)


def body_fields(body: Json | bytes, *, offset: int = 0) -> Document:
    """Return a body whole if it is short, else a part of its JSON text from `offset` on, and where it goes on."""
    text = _text_of(body)
    if len(text) <= LONGEST_BODY and not offset:
        return {"body": b64encode(body).decode(), "encoding": "base64"} if isinstance(body, bytes) else {"body": body}
    part = text[offset : offset + LONGEST_BODY]
    found: Document = {"body_part": part, "body_length": len(text)}
    if isinstance(body, bytes):
        found["encoding"] = "base64"
    if offset + len(part) < len(text):
        found["next"] = f"look with this id and offset {offset + len(part)} shows the next part"
    return found


def _text_of(body: Json | bytes) -> str:
    return b64encode(body).decode() if isinstance(body, bytes) else jsontext.encode(body).decode()


def contains(message: Message, wanted: str) -> bool:
    """Return whether a text stands in the body of a message, its type or its sender; letters in any case."""
    found = "" if isinstance(message.body, bytes) else _text_of(message.body)
    return wanted.casefold() in f"{message.type}\n{message.sender}\n{found}".casefold()


def glance(entry: Entry) -> Document:
    """Return a message in one line of a list."""
    found: Document = {"id": entry.id, "state": str(entry.state)}
    if entry.message is not None:
        message = entry.message
        found |= {"from": message.sender, "type": message.type, "thread_id": message.thread_id}
        found["sent"] = iso_stamp(message.created_at, timespec="seconds")
        found["body"] = _text_of(message.body)[:GLANCE]
    if entry.attempt:
        found["attempt"] = entry.attempt
    if entry.failure is not None:
        found["failure"] = failure_text(entry.failure)
    return {name: value for name, value in found.items() if value}


def entry_document(entry: Entry, *, offset: int = 0) -> Document:
    """Return one message of a store whole."""
    found = glance(entry)
    if entry.message is not None:
        found = {**found, **message_document(entry.message, offset=offset)}
        if "body_part" in found:
            del found["body"]
    elif entry.data:
        found |= body_fields(entry.data, offset=offset)
    return found


def failure_text(failure: Failure) -> str:
    return f"{failure.code}: {failure.reason}" if failure.reason else failure.code
