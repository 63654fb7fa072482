"""Jira: a watcher of the tickets that a search finds, which reports new tickets and changes of their status."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

from pabal.errors import WatchFailed
from pabal.watchers.contract import Found, Look
from pabal.watchers.http import HttpClient, PageTrail, json_of

_FIELDS = ["summary", "status", "priority", "labels", "updated"]
_KEY = re.compile(r"[A-Z][A-Z0-9_]*-\d+", re.ASCII)
_FIRST_LOOK = 10  # minutes back
_OVERLAP = 2  # minutes: Jira counts whole ones, and its clock is not ours

E = TypeVar("E")


class Ticket(NamedTuple):
    """A ticket whose status is new. `previous_status` is None for a ticket that was not known."""

    key: str
    status: str
    previous_status: str | None
    updated: datetime
    url: str
    fields: dict[str, Any]


class JiraWatcher(Generic[E]):
    """Runs a search. `jql` selects the tickets, the time is added to it; `event` makes the event of a ticket."""

    def __init__(
        self, url: str, auth: tuple[str, str] | None, *, jql: str, page_size: int, event: Callable[[Ticket], E]
    ) -> None:
        self._http = HttpClient(url, {"Accept": "application/json"}, auth=auth)
        self._jql = jql
        self._page_size = page_size
        self._make = event

    def poll(self, look: Look) -> Iterator[Found[E]]:
        known = look.cursor.get("known_issues")
        statuses = dict(known) if isinstance(known, dict) else {}
        for issues, last in self._pages(look):
            events: list[E] = []
            problems: list[str] = []
            for issue in issues:
                try:
                    ticket = self._ticket(issue, statuses)
                    if ticket.status != ticket.previous_status:
                        events.append(self._make(ticket))
                except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as exc:
                    problems.append(f"a ticket that cannot be understood: {type(exc).__name__} {exc}")
                    continue
                statuses[ticket.key] = ticket.status
            done = {"last_check": look.now} if last else {}
            yield Found(tuple(events), {**look.cursor, "known_issues": dict(statuses), **done}, tuple(problems))

    def close(self) -> None:
        self._http.close()

    def _pages(self, look: Look) -> Iterator[tuple[list[Any], bool]]:
        last = look.cursor.get("last_check")
        since = look.now - float(last) if isinstance(last, int | float) else None
        minutes = _FIRST_LOOK if since is None else math.ceil(max(0.0, since) / 60) + _OVERLAP
        body: dict[str, Any] = {
            "jql": f'({self._jql}) AND updated >= "-{minutes}m" ORDER BY updated ASC',
            "fields": _FIELDS,
            "maxResults": self._page_size,
        }
        trail = PageTrail()
        while True:
            answer = json_of(
                self._http.request("POST", "/rest/api/3/search/jql", now=look.now, accepted=(200,), json=body)
            )
            issues = answer.get("issues") if isinstance(answer, dict) else None
            if not isinstance(issues, list):
                raise WatchFailed(f"{self._http.address} did not answer with issues")
            token = answer.get("nextPageToken")
            yield issues, not token
            if not token:
                return
            body["nextPageToken"] = trail(str(token))

    def _ticket(self, issue: dict[str, Any], statuses: dict[str, Any]) -> Ticket:
        key, fields = issue["key"], issue["fields"]
        if not _KEY.fullmatch(key):
            raise ValueError(f"the key of a ticket is like QP-123; found {key!r:.40}")
        return Ticket(
            key,
            str(fields["status"]["name"]),
            statuses.get(key),
            datetime.fromisoformat(fields["updated"]).astimezone(UTC),
            f"{self._http.address}/browse/{key}",
            fields,
        )
