"""Watches GitHub: new issues, pull requests, comments, reviews and labels become messages.

A mention or a label that asks for work makes a github_task, if it comes from somebody who may; all else that is new
makes a github_event. Lists are asked for what changed since the last item seen: while nothing happens the question is
the same, the answer is 304, and that costs nothing of the rate limit.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from pabal.errors import InvalidConfig, WatchFailed
from pabal.ignite.watchers.contract import Event, Found, Look
from pabal.ignite.watchers.github_api import GithubApi
from pabal.ignite.watchers.github_events import Rules, event_of, items_of
from pabal.jsontext import Json

TOKEN = "GITHUB_TOKEN"
_repository = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII).fullmatch
# What can be watched: the list to ask for it, and whether that list can begin at a given time.
_LISTS = {
    "issues": ("/issues", {"state": "all"}),
    "comments": ("/issues/comments", {}),
    "review_comments": ("/pulls/comments", {}),
    "labels": ("/issues/events", {}),
}


class GithubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to watch, and what asks for work. The token is read from a variable and never written anywhere."""

    repositories: tuple[str, ...]
    watch: tuple[str, ...] = ("issues", "comments", "review_comments", "reviews", "labels")
    mention: str = "@ignite"
    labels: tuple[str, ...] = ("ignite",)
    allowed_users: tuple[str, ...] = ()  # who may ask for work; everybody if empty
    ignore_bots: bool = True
    api: str = "https://api.github.com"
    token_variable: str = TOKEN


class GithubWatcher:
    """Asks for what changed in each repository."""

    def __init__(self, settings: GithubSettings, api: GithubApi) -> None:
        self._settings = settings
        self._api = api
        self._rules = Rules(
            mention=settings.mention,
            labels=frozenset(settings.labels),
            allowed=frozenset(name.lower() for name in settings.allowed_users),
            ignore_bots=settings.ignore_bots,
        )

    @classmethod
    def made(cls, options: Mapping[str, Any], variables: Mapping[str, str]) -> GithubWatcher:
        """Make one from its options, with the token that the variables hold."""
        settings = msgspec.convert(options, GithubSettings)
        wrong = [name for name in settings.repositories if not _repository(name)]
        if wrong or not settings.repositories:
            raise InvalidConfig(f"repositories: each is owner/name; found {', '.join(wrong) or 'none'}")
        if unknown := set(settings.watch) - {*_LISTS, "reviews"}:
            raise InvalidConfig(f"watch: some of {', '.join(_LISTS)}, reviews; found {', '.join(sorted(unknown))}")
        return cls(settings, GithubApi(settings.api, variables.get(settings.token_variable, "")))

    def poll(self, look: Look) -> Iterator[Found]:
        cursor = dict(look.cursor)
        for repository in self._settings.repositories:
            for kind in self._settings.watch:
                if kind == "labels":
                    steps = self._newest_first(repository, kind, cursor, look)
                elif kind != "reviews":  # those come with the issues
                    steps = self._oldest_first(repository, kind, cursor, look)
                else:
                    continue
                for events, place in steps:
                    cursor[f"{repository}/{kind}"] = place
                    yield Found(tuple(events), dict(cursor))

    def _oldest_first(
        self, repository: str, kind: str, cursor: Mapping[str, Json], look: Look
    ) -> Iterator[tuple[list[Event], Json]]:
        since, etag = _place(cursor, f"{repository}/{kind}", look)
        path, query = _LISTS[kind]
        order = {"sort": "updated", "direction": "asc", "since": since, "per_page": "100"}
        begun, count = since, 0
        for page in self._api.pages(f"/repos/{repository}{path}", now=look.now, etag=etag, **query, **order):
            count += 1
            since = max([since, *(str(item.get("updated_at", "")) for item in page.items)])
            events = self._events(kind, repository, page.items, look)
            if kind == "issues":
                events += self._reviews(repository, page.items, look)
            # The ETag speaks of the first page of this very question only.
            kept = page.etag if count == 1 and page.last and since == begun else ""
            yield events, {"since": since, "etag": kept}

    def _newest_first(
        self, repository: str, kind: str, cursor: Mapping[str, Json], look: Look
    ) -> Iterator[tuple[list[Event], Json]]:
        since, etag = _place(cursor, f"{repository}/{kind}", look)
        found: list[Event] = []
        newest, seen = since, None
        for page in self._api.pages(f"/repos/{repository}{_LISTS[kind][0]}", now=look.now, etag=etag, per_page="100"):
            seen = page.etag if seen is None else seen  # a new event is on the first page
            fresh = [raw for raw in page.items if str(raw.get("created_at", "")) >= since]
            newest = max([newest, *(str(raw["created_at"]) for raw in fresh)])
            found += self._events(kind, repository, fresh, look)
            if len(fresh) < len(page.items):
                break
        if seen is not None:
            yield found[::-1], {"since": newest, "etag": seen}

    def _reviews(self, repository: str, issues: list[dict[str, Any]], look: Look) -> list[Event]:
        if "reviews" not in self._settings.watch:
            return []
        events = []
        for raw in issues:
            if "pull_request" in raw:
                path = f"/repos/{repository}/pulls/{int(raw['number'])}/reviews"
                for page in self._api.pages(path, now=look.now):
                    told = [{**review, "issue": raw} for review in page.items]
                    events += self._events("reviews", repository, told, look)
        return events

    def _events(self, kind: str, repository: str, told: list[dict[str, Any]], look: Look) -> list[Event]:
        try:
            items = [item for raw in told for item in items_of(kind, repository, raw)]
            events = [event for item in items if (event := event_of(item, self._rules)) is not None]
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise WatchFailed(f"{repository}: {kind} are not told as GitHub tells them ({exc!r:.80})") from exc
        return [event for event in events if event.at >= look.since]


def _place(cursor: Mapping[str, Json], key: str, look: Look) -> tuple[str, str]:
    """Return since when to ask, and the ETag of the last answer to that very question."""
    place = cursor.get(key)
    if not isinstance(place, dict):
        return datetime.fromtimestamp(look.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"), ""
    return str(place["since"]), str(place["etag"])
