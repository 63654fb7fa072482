"""The event documents of a kingdom's watchers: GitHub notifications, Jira tickets and lines of programs."""

from __future__ import annotations

from typing import Any

import msgspec

from pabal import jsontext
from pabal.apps.kingdom.documents import Event, Priority, read
from pabal.errors import InvalidInput
from pabal.watchers.jira import Ticket

_SUBJECTS = {"PullRequest": "pr", "Issue": "issue"}
_REASONS = {
    "review_requested": "review_requested",
    "mention": "mentioned",
    "team_mention": "mentioned",
    "assign": "assigned",
    "comment": "comment",
    "state_change": "state_change",
}
_NORMAL = frozenset({"pr.review_requested", "pr.mentioned", "pr.assigned", "issue.assigned"})


class _Subject(msgspec.Struct, frozen=True):
    title: str = ""
    url: str | None = None
    type: str = ""


class _Repository(msgspec.Struct, frozen=True):
    full_name: str


class Notification(msgspec.Struct, frozen=True):
    """The fields of a GitHub notification that events use."""

    id: str
    reason: str
    updated_at: str
    subject: _Subject
    repository: _Repository


def read_notification(item: Any) -> Notification:
    """Read a notification; raise InvalidInput if it is not one."""
    try:
        found = jsontext.convert(item, Notification)
    except msgspec.ValidationError as exc:
        raise InvalidInput(str(exc)) from exc
    if not found.id.isdecimal():
        raise InvalidInput(f"the id of a notification is a number; found {found.id!r:.40}")
    return found


def notification_event(found: Notification) -> Event:
    """Return the event of a notification. The same notification with another time of change is another event."""
    kind, word = _SUBJECTS.get(found.subject.type), _REASONS.get(found.reason)
    what = f"{kind}.{word}" if kind and word and (kind, word) != ("issue", "review_requested") else ""
    priority: Priority = "normal" if what in _NORMAL else "low"
    number = (found.subject.url or "").rpartition("/")[2]
    return Event(
        id=f"evt-github-{found.id}-{found.updated_at}",
        type=f"github.{what}" if what else f"github.notification.{_plain(found.reason)}",
        source="github",
        repo=found.repository.full_name,
        priority=priority,
        payload={
            "notification_thread_id": found.id,
            "reason": found.reason,
            "subject_title": found.subject.title,
            "subject_url": found.subject.url,
            "subject_type": found.subject.type,
            "updated_at": found.updated_at,
            **({"pr_number": number if number.isdecimal() else None} if kind == "pr" else {}),
        },
    )


def ticket_event(ticket: Ticket) -> Event:
    """Return the event of a ticket: `assigned` if it was not known, `updated` if its status changed."""
    fields = ticket.fields
    return Event(
        id=f"evt-jira-{ticket.key}-{ticket.updated:%Y%m%d%H%M%S}",
        type="jira.ticket.assigned" if ticket.previous_status is None else "jira.ticket.updated",
        source="jira",
        payload={
            "ticket_key": ticket.key,
            "summary": fields.get("summary") or "",
            "status": ticket.status,
            "previous_status": ticket.previous_status,
            "priority": (fields.get("priority") or {}).get("name"),
            "labels": fields.get("labels") or [],
            "url": ticket.url,
        },
    )


def line_event(value: Any, now: float) -> Event:
    """Return the event document that a program printed; raise InvalidBody if it is not one."""
    return read(Event, value)


def _plain(reason: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in reason)[:60] or "unknown"
