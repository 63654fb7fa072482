"""Watches GitHub notifications: every page, only when something changed, marked as read once their events are safe."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pabal.errors import InvalidInput, WatchFailed
from pabal.kingdom.documents import Event, Priority
from pabal.kingdom.sentinel.api import Api, Once, json_of
from pabal.kingdom.sentinel.contract import Page, Parsed, State

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


class GithubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`polling: github:`. An empty list is no filter."""

    interval_seconds: float = 60.0
    api: str = "https://api.github.com"
    token_variable: str = "GITHUB_TOKEN"
    repos: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    mark_read: bool = True
    per_page: int = 50


class _Subject(msgspec.Struct, frozen=True):
    title: str = ""
    url: str | None = None
    type: str = ""


class _Repository(msgspec.Struct, frozen=True):
    full_name: str


class Notification(msgspec.Struct, frozen=True):
    """What we need of a notification."""

    id: str
    reason: str
    updated_at: str
    subject: _Subject
    repository: _Repository


class GithubWatcher:
    """One account's notifications."""

    def __init__(self, settings: GithubSettings, token: str) -> None:
        self._settings = settings
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        self._api = Api(settings.api, {**headers, **({"Authorization": f"Bearer {token}"} if token else {})})
        self._asked_interval = 0.0
        self._now = 0.0

    @property
    def interval(self) -> float:
        """Return ours or GitHub's, whichever is longer."""
        return max(self._settings.interval_seconds, self._asked_interval)

    def fetch(self, state: State, now: float) -> Iterator[Page | None]:
        self._now = now
        # An empty mark would be answered "nothing new" for ever.
        known = {"If-None-Match": state.get("etag"), "If-Modified-Since": state.get("last_modified")}
        headers = {name: str(value) for name, value in known.items() if value}
        query = {"per_page": str(self._settings.per_page)}
        answer = self._ask("/notifications", headers=headers, params=query)
        if answer.status_code == 304:
            return
        marks = {"etag": answer.headers.get("ETag", ""), "last_modified": answer.headers.get("Last-Modified", "")}
        once = Once()
        while True:
            following = answer.links.get("next", {}).get("url", "")
            items = json_of(answer)
            if not isinstance(items, list):
                raise WatchFailed(f"{answer.url} did not answer with a list")
            yield Page(items, {} if following else marks)
            if not following:
                return
            answer = self._ask(once(following))

    def parse(self, page: Page, state: State) -> Parsed:
        events: list[Event] = []
        problems: list[str] = []
        for item in page.items:
            try:
                found = msgspec.convert(item, Notification)
                if self._concerns(found):
                    events.append(event_of(found))
            except (msgspec.ValidationError, InvalidInput) as exc:
                problems.append(f"a notification that cannot be understood: {exc}")
        return Parsed(events, {**state, **page.facts}, tuple(problems))

    def post_emit(self, events: list[Event]) -> Iterator[None]:
        for event in events if self._settings.mark_read else ():
            thread = event.payload["notification_thread_id"]
            self._api.ask("PATCH", f"/notifications/threads/{thread}", now=self._now, accepted=(200, 205, 304, 404))
            yield

    def close(self) -> None:
        self._api.close()

    def _ask(self, url: str, **more: Any) -> Any:
        answer = self._api.ask("GET", url, now=self._now, accepted=(200, 304), **more)
        asked = answer.headers.get("X-Poll-Interval", "")
        self._asked_interval = float(asked) if asked.isdecimal() else self._asked_interval
        return answer

    def _concerns(self, found: Notification) -> bool:
        settings = self._settings
        in_repos = not settings.repos or found.repository.full_name in settings.repos
        return in_repos and (not settings.reasons or found.reason in settings.reasons)


def event_of(found: Notification) -> Event:
    """Return the event of a notification; the same one at another time of change is another event."""
    kind, word = _SUBJECTS.get(found.subject.type), _REASONS.get(found.reason)
    what = f"{kind}.{word}" if kind and word and (kind, word) != ("issue", "review_requested") else ""
    priority: Priority = "normal" if what in _NORMAL else "low"
    number = (found.subject.url or "").rpartition("/")[2]
    if not found.id.isdecimal():
        raise InvalidInput(f"the id of a notification is a number; found {found.id!r:.40}")
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


def _plain(reason: str) -> str:
    return "".join(char if char.isascii() and char.isalnum() else "_" for char in reason)[:60] or "unknown"
