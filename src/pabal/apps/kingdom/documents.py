"""The four documents of a kingdom: event, task, result and notice, as they are in its files.

Events, tasks and notices may have unknown fields, because other programs write them too. Results of soldiers may not,
because a field that a model adds is most likely a misunderstanding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from pabal import jsontext
from pabal.clock import iso_stamp, utc_seconds
from pabal.errors import InvalidBody, InvalidInput, InvalidName
from pabal.message import Message
from pabal.names import check_id, check_name
from pabal.store import Failure, FailureCode

Priority: TypeAlias = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
Urgency: TypeAlias = Literal["normal", "high", "urgent"]
Status: TypeAlias = Literal["success", "failed", "killed", "needs_human", "skipped"]
QuestionKind: TypeAlias = Literal["confirm", "choose", "text"]
NoticeType: TypeAlias = Literal[
    "thread_start", "thread_update", "thread_reply", "human_input_request", "notification", "report"
]

# Events of what a person answered to a question or in a conversation; the second type is the older one.
ANSWERS = frozenset({"slack.thread.reply", "slack.human_response"})
# Chat messages that get an answer even if no general takes them.
CHATS = frozenset({"slack.channel.message", "slack.app_mention"})
MAX_PROCLAMATION = 3000
LONGEST_EXPIRY = 10 * 365 * 86400  # seconds

# The field that a result needs, by its status.
NEEDED = {"failed": "error", "killed": "error", "needs_human": "question", "skipped": "reason"}

_TASK_ID = re.compile("^task-[0-9]{8}-[0-9]{3,}$")
_CHANNEL = re.compile("^([CDU][A-Z0-9]+)?$")

T = TypeVar("T", bound=msgspec.Struct)


def _schema(**rules: object) -> msgspec.Meta:
    """Put rules into the JSON Schema. `__post_init__` checks them, with clearer errors."""
    return msgspec.Meta(extra_json_schema=rules)


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """The common fields of events, tasks and notices."""

    id: str
    type: str
    created_at: str = ""
    status: str = "pending"

    def __post_init__(self) -> None:
        check_id(self.id)
        if not self.type:
            raise InvalidBody("type is empty")
        if self.created_at:
            instant(self.created_at)


class Event(_Document, frozen=True, kw_only=True):
    """Something that happened outside. The same id is the same event."""

    source: str = ""
    repo: str | None = None
    payload: dict[str, Any] = {}
    priority: Priority = "normal"


class Task(_Document, frozen=True, kw_only=True):
    """Work for one general, made from an event or by a schedule."""

    event_id: str
    target_general: str
    repo: str | None = None
    payload: dict[str, Any] = {}
    priority: Priority = "normal"
    retry_count: int = 0
    retry_of: str | msgspec.UnsetType = msgspec.UNSET  # the task that a person made again as this one

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.target_general, "general")


class Notice(_Document, frozen=True, kw_only=True, omit_defaults=True):
    """A message to people, which the envoy sends."""

    type: NoticeType
    content: str
    status: str = msgspec.field(default_factory=lambda: "pending")  # always written
    task_id: str = ""
    channel: str = ""
    urgency: Urgency = msgspec.field(default_factory=lambda: "normal")  # likewise
    context: dict[str, Any] = {}
    thread_ts: str = ""
    reply_context: dict[str, Any] = {}
    track_conversation: dict[str, Any] = {}
    source_ref: dict[str, Any] = {}


class Proclamation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A message for a channel of its own, beside the other notices of the task."""

    channel: str
    message: Annotated[str, _schema(minLength=1, maxLength=MAX_PROCLAMATION)]

    def __post_init__(self) -> None:
        if not 1 <= len(self.message) <= MAX_PROCLAMATION:
            raise InvalidBody(
                f"proclamation.message must be 1 to {MAX_PROCLAMATION} characters; found {len(self.message)}"
            )


class _Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The common fields of results."""

    task_id: Annotated[str, _schema(pattern=_TASK_ID.pattern)]
    status: Status
    summary: str = ""
    error: str = ""
    question: str = ""
    reason: str = ""
    kind: QuestionKind | None = None
    options: list[str] = []
    expire_seconds: Annotated[float, _schema(minimum=0, maximum=LONGEST_EXPIRY)] = (
        0.0  # of the question; 0: the setting of the kingdom
    )
    checkpoint_path: str = ""
    session_id: str = ""
    memory_updates: list[str] = []
    notify_channel: Annotated[str, _schema(pattern=_CHANNEL.pattern)] = ""
    proclamation: Proclamation | None = None
    details: Any = None
    metrics: dict[str, Any] = {}
    soldier_id: str = ""
    completed_at: str = ""

    def __post_init__(self) -> None:
        if not _TASK_ID.fullmatch(self.task_id):
            raise InvalidBody(f"task_id must be like task-20260226-001; found {self.task_id!r:.80}")
        needed = NEEDED.get(self.status)
        if needed and not getattr(self, needed):
            raise InvalidBody(f"a result with status {self.status} must have {needed}; found none")
        if not 0 <= self.expire_seconds <= LONGEST_EXPIRY:
            raise InvalidBody(f"expire_seconds must be 0 to {LONGEST_EXPIRY:.0f}; found {self.expire_seconds!r:.40}")
        if not _CHANNEL.fullmatch(self.notify_channel):
            raise InvalidBody(f"notify_channel must be a channel id like C0TEAM; found {self.notify_channel!r:.80}")


class SoldierResult(_Outcome, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The result file that a soldier writes, with no other fields."""


class Result(_Outcome, frozen=True, kw_only=True, omit_defaults=True):
    """The result that the King reads: a soldier's result with facts about the task."""

    event_id: str = ""
    target_general: str = ""
    type: str = ""
    original_type: str = ""  # of the task that asked, if this one went on with it
    repo: str | None = None
    workspace: str = ""  # the folder of its soldier, below that of the general, if it is kept
    origin: dict[str, str] = {}  # channel, thread_ts and message_ts of the chat where the task began
    attempts: int = 0


def read(kind: type[T], document: object) -> T:
    """Read a document as a value of its kind; raise InvalidBody with its mistake. An unknown priority is normal."""
    if kind in (Event, Task) and isinstance(document, Mapping) and isinstance(document.get("priority"), str):
        if document["priority"] not in PRIORITIES:
            document = {**document, "priority": "normal"}
    try:
        return jsontext.convert(document, kind)
    except msgspec.ValidationError as exc:
        cause = str(exc.__cause__) if isinstance(exc.__cause__, InvalidInput) else plain_words(str(exc))
        raise InvalidBody(cause) from exc
    except InvalidName as exc:
        raise InvalidBody(str(exc)) from exc


_PLAIN = (
    (r"Object missing required field `(\w+)`", r"the field `\1` is missing"),
    (r"Object contains unknown field `([^`]*)`", r"there is no field `\1`"),
    (r"Expected `([^`]*)`, got `([^`]*)`", r"expected \1, found \2"),
    (r" - at `\$\.?([^`]*)`", r" in `\1`"),
)


def plain_words(text: str) -> str:
    """Return an error of the parser in words for people."""
    for pattern, words in _PLAIN:
        text = re.sub(pattern, words, text)
    return text


_CODES = re.compile(r"((VALIDATION_ERROR|HANDLER_ERROR|NACKED|CORRUPT|LEASE_EXPIRED|Invalid(Body|Name)): )+")


def plain_reason(failure: Failure | None) -> str:
    """Return why a document failed in words for people: without the codes and names of errors."""
    if failure is None:
        return "unknown"
    found = _CODES.sub("", failure.reason).strip()
    if failure.code == "NotJson":
        return f"no JSON: {found}"
    if failure.code == FailureCode.POISON:
        return f"its general died {found.partition(':')[0]} while it worked on it"
    return found or str(failure.code).replace("_", " ").lower()


def event_of(message: Message) -> Event:
    """Read the event in a message, whose id is that of the event."""
    if not isinstance(message.body, dict):
        raise InvalidBody(f"an event is a JSON object; found {type(message.body).__name__}")
    return read(Event, {**message.body, "id": message.id})


def document_of(value: msgspec.Struct) -> dict[str, Any]:
    """Return the document of a value, which `read` takes."""
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def result_of(task: Task, result: dict[str, Any], **more: Any) -> Result:
    """Make the King's result from the result of a soldier, and from the task."""
    payload = task.payload
    origin = {name: str(payload[name]) for name in ("channel", "thread_ts", "message_ts") if payload.get(name)}
    facts = {
        "task_id": task.id,
        "event_id": task.event_id,
        "target_general": task.target_general,
        "type": task.type,
        "original_type": str(payload.get("original_type") or "") if task.type == "resume" else "",
        "repo": task.repo,
        "origin": origin if "channel" in origin else {},
    }
    return read(Result, {**result, **facts, **more})


def kind_of(document: Mapping[str, Any]) -> type[Event] | type[Task] | type[Result] | type[Notice]:
    """Return the kind of a document, by the fields that only this kind has."""
    id = str(document.get("id", ""))
    if id.startswith("task-") or {"id", "event_id", "target_general"} <= document.keys():
        return Task
    if "task_id" in document and "id" not in document:
        return Result
    if "content" in document or id.startswith("msg-"):
        return Notice
    return Event


def instant(text: str) -> float:
    """Read an ISO 8601 time, in UTC if it names no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidBody(f"a time is like 2026-02-07T10:00:00Z; found {text!r:.60}") from exc
    return round(utc_seconds(found), 3)


def stamp(at: float) -> str:
    """Write a time as ISO 8601 in UTC, with milliseconds."""
    return iso_stamp(at)
