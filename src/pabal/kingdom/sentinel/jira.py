"""Watches Jira tickets by a search: a ticket never seen is `assigned`, one whose status changed is `updated`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from pabal.errors import InvalidConfig, InvalidInput, WatchFailed
from pabal.kingdom.documents import Event
from pabal.kingdom.sentinel.api import Api, Once, json_of
from pabal.kingdom.sentinel.contract import Page, Parsed, State

_FIELDS = ["summary", "status", "priority", "labels", "updated"]
_KEY = re.compile(r"[A-Z][A-Z0-9_]*-\d+", re.ASCII)
_FIRST_LOOK = 10  # minutes back
_OVERLAP = 2  # minutes: Jira counts whole ones, and its clock is not ours


class JiraSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`polling: jira:`. `jql` says which tickets; the time is added to it."""

    url: str
    interval_seconds: float = 300.0
    jql: str = "assignee = currentUser()"
    user_variable: str = "JIRA_USER_EMAIL"
    token_variable: str = "JIRA_API_TOKEN"
    page_size: int = 20

    def __post_init__(self) -> None:
        if re.search(r"\border\s+by\b", self.jql, re.IGNORECASE):
            raise InvalidConfig(f"jql: leave the order out, it is added; found {self.jql!r:.120}")


class JiraWatcher:
    """The tickets that a search finds."""

    def __init__(self, settings: JiraSettings, user: str, token: str) -> None:
        self._settings = settings
        self._api = Api(settings.url, {"Accept": "application/json"}, (user, token) if user else None)

    @property
    def interval(self) -> float:
        return self._settings.interval_seconds

    def fetch(self, state: State, now: float) -> Iterator[Page | None]:
        last = state.get("last_check")
        since = now - float(last) if isinstance(last, int | float) else None
        minutes = _FIRST_LOOK if since is None else math.ceil(max(0.0, since) / 60) + _OVERLAP
        body: dict[str, Any] = {
            "jql": f'({self._settings.jql}) AND updated >= "-{minutes}m" ORDER BY updated ASC',
            "fields": _FIELDS,
            "maxResults": self._settings.page_size,
        }
        once = Once()
        while True:
            answer = json_of(self._api.ask("POST", "/rest/api/3/search/jql", now=now, accepted=(200,), json=body))
            issues = answer.get("issues") if isinstance(answer, dict) else None
            if not isinstance(issues, list):
                raise WatchFailed(f"{self._settings.url} did not answer with issues")
            token = answer.get("nextPageToken")
            yield Page(issues, {} if token else {"last_check": now})
            if not token:
                return
            body["nextPageToken"] = once(str(token))

    def parse(self, page: Page, state: State) -> Parsed:
        before = state.get("known_issues")
        known = dict(before) if isinstance(before, dict) else {}
        events: list[Event] = []
        problems: list[str] = []
        for item in page.items:
            try:
                event, status = self._event(item, known)
            except (KeyError, TypeError, AttributeError, ValueError) as exc:
                problems.append(f"a ticket that cannot be understood: {type(exc).__name__} {exc}")
                continue
            if event is not None:
                events.append(event)
            known[item["key"]] = status
        return Parsed(events, {**state, "known_issues": known, **page.facts}, tuple(problems))

    def post_emit(self, events: list[Event]) -> Iterator[None]:
        return iter(())

    def close(self) -> None:
        self._api.close()

    def _event(self, item: dict[str, Any], known: dict[str, Any]) -> tuple[Event | None, str]:
        key, fields = item["key"], item["fields"]
        if not _KEY.fullmatch(key):
            raise InvalidInput(f"the key of a ticket is like QP-123; found {key!r:.40}")
        status, before = str(fields["status"]["name"]), known.get(key)
        if before == status:
            return None, status
        event = Event(
            id=f"evt-jira-{key}-{_digits(fields['updated'])}",
            type="jira.ticket.assigned" if before is None else "jira.ticket.updated",
            source="jira",
            payload={
                "ticket_key": key,
                "summary": fields.get("summary") or "",
                "status": status,
                "previous_status": before,
                "priority": (fields.get("priority") or {}).get("name"),
                "labels": fields.get("labels") or [],
                "url": f"{self._api.address}/browse/{key}",
            },
        )
        return event, status


def _digits(updated: str) -> str:
    """Return a time of Jira's, `2026-02-07T10:00:00.000+0000`, as 20260207100000 in UTC."""
    return datetime.fromisoformat(updated).astimezone(UTC).strftime("%Y%m%d%H%M%S")
