"""Message files as the original tool handles them: built from their parts, shown as JSON.

The body is text and kept unchanged, with its comments; a missing final newline is added. A file that is built can be
decoded; a file that is shown only needs readable headers.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pabal.codecs.mime import fields
from pabal.codecs.mime.addresses import Recipients, message_id_of, sender_text, shown_text
from pabal.codecs.mime.codec import YAML_TYPE, priority_text
from pabal.codecs.mime.fields import date_text, decoded, header_line, read_head
from pabal.codecs.yaml import read
from pabal.errors import MissingHeader, NotUtf8
from pabal.names import ascii_name, check_id, check_name

_PREFIX = "x-ignite-"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The parts of a message file."""

    id: str
    at: float
    sender: str
    recipients: Recipients
    type: str
    priority: int = 0
    thread_id: str = ""
    in_reply_to: str = ""
    repository: str = ""
    issue: str = ""
    status: str = ""
    body: bytes = b""


def build(parts: Parts) -> bytes:
    """Return the message file; raise the InvalidInput that names the wrong part."""
    if not parts.type:
        raise MissingHeader("X-IGNITE-Type must be given")
    to, cc = (tuple(_agents(names)) for names in parts.recipients)
    if not to:
        raise MissingHeader("To must name at least one agent")
    body = parts.body
    value = read(body)
    if body and not body.endswith(b"\n") and read(body + b"\n") == value:
        body += b"\n"  # so that `cat` shows several files apart
    made = datetime.fromtimestamp(parts.at, UTC)
    headers = (
        ("MIME-Version", "1.0"),
        ("Message-ID", message_id_of(check_id(parts.id), {})),
        ("From", sender_text(check_name(ascii_name(parts.sender), "sender"))),
        ("To", shown_text(to)),
        ("Cc", shown_text(cc) if cc else ""),
        ("Date", date_text(made)),
        ("X-IGNITE-Type", parts.type),
        ("X-IGNITE-Priority", priority_text(parts.priority)),
        (fields.THREAD_ID, parts.thread_id),
        (fields.IN_REPLY_TO, parts.in_reply_to),
        (fields.REPOSITORY, parts.repository),
        (fields.ISSUE, parts.issue),
        (fields.STATUS, parts.status),
        (fields.MICROSECONDS, str(made.microsecond or "")),
        ("Content-Type", YAML_TYPE),
        ("Content-Transfer-Encoding", "8bit"),
    )
    return "".join([*(header_line(name, value) for name, value in headers if value), "\n"]).encode() + body


def as_json(data: bytes) -> dict[str, Any]:
    """Return a message file as JSON: its headers by their short names, and its body as text."""
    head = read_head(data)
    found = {field.name.lower(): decoded(field.name, field.raw) for field in head.fields}
    document: dict[str, Any] = {
        "message_id": found.get("message-id", ""),
        "from": found.get("from", ""),
        "to": _listed(found.get("to", "")),
        "cc": _listed(found.get("cc", "")),
        "date": found.get("date", ""),
        "in_reply_to": found.get("in-reply-to", ""),
        "type": found.get("x-ignite-type", ""),
        "priority": found.get("x-ignite-priority", "normal"),
        "thread_id": found.get("x-ignite-thread-id", ""),
        "repository": found.get("x-ignite-repository", ""),
        "issue": found.get("x-ignite-issue", ""),
        "status": found.get("x-ignite-status", ""),
        "content_type": found.get("content-type", ""),
        "body": _text(data[head.size :]),
    }
    for name, value in found.items():
        if name.startswith(_PREFIX):
            document.setdefault(name.removeprefix(_PREFIX).replace("-", "_"), value)
    return document


def body_of(data: bytes) -> bytes:
    """Return the body of a message file unchanged."""
    return data[read_head(data).size :]


def _agents(listed: Iterable[str]) -> Iterator[str]:
    """Return names that were given one by one, or several in one text with commas."""
    for text in listed:
        yield from (check_name(ascii_name(name), "agent") for name in map(str.strip, text.split(",")) if name)


def _listed(value: str) -> list[str]:
    return [] if value.endswith(":;") else [name.strip() for name in value.split(",") if name.strip()]


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as exc:
        raise NotUtf8(f"the body must be UTF-8: {exc.reason} at byte {exc.start}") from exc
