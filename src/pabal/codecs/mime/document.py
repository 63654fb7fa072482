"""A message file in the words of the original tool: built from its parts, told as JSON.

The body is text that is kept as it was given, comments and all. What is built can be decoded; what is told need not be:
only its headers must be readable.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pabal.codecs.mime import fields
from pabal.codecs.mime.addresses import Recipients, message_id_of, names_text
from pabal.codecs.mime.codec import YAML_TYPE, priority_text
from pabal.codecs.mime.dates import date_text
from pabal.codecs.mime.head import header_line, read_head
from pabal.codecs.mime.words import decoded
from pabal.codecs.mime.yaml_read import read
from pabal.errors import MissingHeader, NotUtf8
from pabal.names import check_id, check_name

_PREFIX = "x-ignite-"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a message file is built from."""

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
    """Return the message file; raise the InvalidInput that names the part it cannot be built from."""
    if not parts.recipients.to:
        raise MissingHeader("To must name at least one agent")
    if not parts.type:
        raise MissingHeader("X-IGNITE-Type must be given")
    for name in parts.recipients.all:
        check_name(name, "agent")
    read(parts.body)
    made = datetime.fromtimestamp(parts.at, UTC)
    headers = (
        ("MIME-Version", "1.0"),
        ("Message-ID", message_id_of(check_id(parts.id), {})),
        ("From", check_name(parts.sender, "sender")),
        ("To", names_text(parts.recipients.to)),
        ("Cc", names_text(parts.recipients.cc) if parts.recipients.cc else ""),
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
    return "".join([*(header_line(name, value) for name, value in headers if value), "\n"]).encode() + parts.body


def told(data: bytes) -> dict[str, Any]:
    """Return a message file as the tool's JSON: its headers by their short names, and its body as text."""
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
    """Return the body of a message file as it stands."""
    return data[read_head(data).size :]


def _listed(value: str) -> list[str]:
    return [] if value.endswith(":;") else [name.strip() for name in value.split(",") if name.strip()]


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as exc:
        raise NotUtf8(f"the body must be UTF-8: {exc.reason} at byte {exc.start}") from exc
