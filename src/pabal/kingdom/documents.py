"""The four documents of a kingdom: event, task, result and notice, as they stand in its files.

Events, tasks and notices may carry fields that are not ours: other programs write them too. Results of soldiers may
not, for what a model adds is most likely a misunderstanding.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import msgspec

from pabal.errors import InvalidBody, InvalidInput, InvalidName
from pabal.names import check_id, check_name

Priority: TypeAlias = Literal["high", "normal", "low"]
PRIORITIES: tuple[Priority, ...] = ("high", "normal", "low")
Urgency: TypeAlias = Literal["normal", "high", "urgent"]
Status: TypeAlias = Literal["success", "failed", "killed", "needs_human", "skipped"]
QuestionKind: TypeAlias = Literal["confirm", "choose", "text"]
NoticeType: TypeAlias = Literal[
    "thread_start", "thread_update", "thread_reply", "human_input_request", "notification", "report"
]

# What a person said to a question or in a conversation; the second name is the older one.
ANSWERS = frozenset({"slack.thread.reply", "slack.human_response"})
# Chat that somebody should answer even if no general takes it.
CHATS = frozenset({"slack.channel.message", "slack.app_mention"})
MAX_PROCLAMATION = 3000

# What else a result must say, by its status.
NEEDED = {"failed": "error", "killed": "error", "needs_human": "question", "skipped": "reason"}

_TASK_ID = re.compile("^task-[0-9]{8}-[0-9]{3,}$")
_CHANNEL = re.compile("^([CDU][A-Z0-9]+)?$")

T = TypeVar("T", bound=msgspec.Struct)


def _told(**rules: object) -> msgspec.Meta:
    """Tell the schema what `__post_init__` checks, which says more clearly what is wrong."""
    return msgspec.Meta(extra_json_schema=rules)


class _Document(msgspec.Struct, frozen=True, kw_only=True):
    """What events, tasks and notices have in common."""

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
    """Something that happened outside. The id is its natural key: the same id is the same event."""

    source: str = ""
    repo: str | None = None
    payload: dict[str, Any] = {}
    priority: Priority = "normal"


class Task(_Document, frozen=True, kw_only=True):
    """Work for one general, made of an event or by a schedule."""

    event_id: str
    target_general: str
    repo: str | None = None
    payload: dict[str, Any] = {}
    priority: Priority = "normal"
    retry_count: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_name(self.target_general, "general")


class Notice(_Document, frozen=True, kw_only=True, omit_defaults=True):
    """Something to be said to people, by the envoy."""

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
    """Something to be told in a channel of its own, whatever else is told of the task."""

    channel: str
    message: Annotated[str, _told(minLength=1, maxLength=MAX_PROCLAMATION)]

    def __post_init__(self) -> None:
        if not 1 <= len(self.message) <= MAX_PROCLAMATION:
            raise InvalidBody(
                f"proclamation.message must be 1 to {MAX_PROCLAMATION} characters; found {len(self.message)}"
            )


class _Outcome(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a soldier says of its task."""

    task_id: Annotated[str, _told(pattern=_TASK_ID.pattern)]
    status: Status
    summary: str
    error: str = ""
    question: str = ""
    reason: str = ""
    kind: QuestionKind | None = None
    options: list[str] = []
    expire_seconds: Annotated[float, _told(minimum=0)] = 0.0  # of the question; 0: as the kingdom has it
    checkpoint_path: str = ""
    session_id: str = ""
    memory_updates: list[str] = []
    notify_channel: Annotated[str, _told(pattern=_CHANNEL.pattern)] = ""
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
            raise InvalidBody(f"a result with status {self.status} says its {needed}; found none")
        if not self.expire_seconds >= 0:
            raise InvalidBody(f"expire_seconds must be 0 or more; found {self.expire_seconds!r:.40}")
        if not _CHANNEL.fullmatch(self.notify_channel):
            raise InvalidBody(f"notify_channel must be a channel id like C0TEAM; found {self.notify_channel!r:.80}")


class SoldierResult(_Outcome, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The result file that a soldier writes: these fields and no others."""


class Result(_Outcome, frozen=True, kw_only=True, omit_defaults=True):
    """The result that the King reads: a soldier's, with what he needs to know of the task."""

    event_id: str = ""
    target_general: str = ""
    type: str = ""
    repo: str | None = None
    origin: dict[str, Any] = {}  # channel, thread_ts, message_ts of the chat that it began in
    attempts: int = 0


def read(kind: type[T], document: object) -> T:
    """Take a document for what it should be; raise InvalidBody that says what is wrong with it."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as exc:
        cause = exc.__cause__ if isinstance(exc.__cause__, InvalidInput) else exc
        raise InvalidBody(f"{kind.__name__.lower()}: {cause}") from exc
    except InvalidName as exc:
        raise InvalidBody(f"{kind.__name__.lower()}: {exc}") from exc


def document_of(value: msgspec.Struct) -> dict[str, Any]:
    """Return a value as the document that `read` takes."""
    found: dict[str, Any] = msgspec.to_builtins(value)
    return found


def result_of(task: Task, said: dict[str, Any], **more: Any) -> Result:
    """Make the King's result of what a soldier, or somebody in its stead, said of a task."""
    payload = task.payload
    origin = {name: str(payload[name]) for name in ("channel", "thread_ts", "message_ts") if payload.get(name)}
    facts = {
        "task_id": task.id,
        "event_id": task.event_id,
        "target_general": task.target_general,
        "type": task.type,
        "repo": task.repo,
        "origin": origin if "channel" in origin else {},
    }
    return read(Result, {**said, **facts, **more})


def kind_of(document: Mapping[str, Any]) -> type[Event] | type[Task] | type[Result] | type[Notice]:
    """Tell the four apart by what only they have."""
    id = str(document.get("id", ""))
    if id.startswith("task-") or {"id", "event_id", "target_general"} <= document.keys():
        return Task
    if "task_id" in document and "id" not in document:
        return Result
    if "content" in document or id.startswith("msg-"):
        return Notice
    return Event


def priority_class(document: Mapping[str, Any]) -> str:
    """Say under which name an event is addressed to the King: answers of people, else its priority."""
    return "answer" if document.get("type") in ANSWERS else str(document.get("priority") or "normal")


def instant(text: str) -> float:
    """Read an ISO 8601 time, in UTC if it names no zone."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as exc:
        raise InvalidBody(f"a time is like 2026-02-07T10:00:00Z; found {text!r:.60}") from exc
    return round((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp(), 3)


def stamp(at: float) -> str:
    """Write a time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
