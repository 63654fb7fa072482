"""GitHub: one client that reads every page, with ETags and rate limits, and two watchers that use it.

RepositoryWatcher reads the issues, pull requests, comments, reviews and labels of repositories. NotificationWatcher
reads the notifications of an account and marks them as read. Each application passes the function that makes its
events. While nothing happens each question stays the same and is answered with 304, which costs no rate limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from pabal.clock import iso_stamp
from pabal.errors import InvalidInput, WatchFailed
from pabal.jsontext import Json
from pabal.watchers.contract import Found, Look
from pabal.watchers.http import LONGEST_WAIT, HttpClient, PageTrail, json_of

API = "https://api.github.com"
TOKEN = "GITHUB_TOKEN"
# The kinds of items of a repository: the list that holds each, and its further query.
LISTS: dict[str, tuple[str, dict[str, str]]] = {
    "issues": ("/issues", {"state": "all"}),
    "comments": ("/issues/comments", {}),
    "review_comments": ("/pulls/comments", {}),
    "labels": ("/issues/events", {}),
}
REVIEWS = "reviews"  # they have no list of their own: they are read with the pull requests among the issues
_REPOSITORY_HINTS = {
    301: "the repository has another name now; put that into the team file",
    403: "the token may not read this",
    404: "there is no such repository, or the token may not see it",
}

E = TypeVar("E")


class Page(NamedTuple):
    """One page of a list. `etag` and `last_modified` are those of the first page."""

    items: list[Any]
    etag: str
    last_modified: str
    last: bool


class GithubClient:
    """GitHub's API, used by one account or without one. `poll_interval` is the interval that GitHub asked for."""

    def __init__(self, address: str, token: str, *, hints: Mapping[int, str] | None = None) -> None:
        headers = {"Accept": "application/vnd.github+json", "X-GitHub-Api-Version": "2022-11-28"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._http = HttpClient(address, headers, hints=hints)
        self.poll_interval = 0.0

    def pages(
        self, path: str, *, now: float, etag: str = "", last_modified: str = "", query: Mapping[str, str] | None = None
    ) -> Iterator[Page]:
        """Go through the pages of a list; there are none if it did not change since the given marks."""
        # An empty mark would be answered with 304 for ever.
        marks = {"If-None-Match": etag, "If-Modified-Since": last_modified}
        headers = {name: value for name, value in marks.items() if value}
        answer = self._get(path, now, headers=headers, params=query or None)
        if answer.status_code == 304:
            return
        etag, last_modified = answer.headers.get("ETag", ""), answer.headers.get("Last-Modified", "")
        trail = PageTrail()
        while True:
            following = answer.links.get("next", {}).get("url", "")
            items = json_of(answer)
            if not isinstance(items, list):
                raise WatchFailed(f"{answer.url} did not answer with a list")
            yield Page(items, etag, last_modified, not following)
            if not following:
                return
            answer = self._get(trail(following), now)

    def issue(self, repository: str, number: str, now: float) -> dict[str, Any] | None:
        """Return an issue or a pull request; None if it was deleted or moved."""
        path = f"/repos/{repository}/issues/{number}"
        answer = self._http.request("GET", path, now=now, accepted=(200, 301, 404, 410))
        found = json_of(answer) if answer.status_code == 200 else None
        return found if isinstance(found, dict) else None

    def mark_read(self, thread: str, now: float) -> None:
        """Mark a notification as read."""
        self._http.request("PATCH", f"/notifications/threads/{thread}", now=now, accepted=(200, 205, 304, 404))

    def close(self) -> None:
        self._http.close()

    def _get(self, url: str, now: float, **more: Any) -> Any:
        answer = self._http.request("GET", url, now=now, accepted=(200, 304), **more)
        asked = answer.headers.get("X-Poll-Interval", "")
        self.poll_interval = min(float(asked), LONGEST_WAIT) if asked.isdecimal() else self.poll_interval
        return answer


class RepositoryWatcher(Generic[E]):
    """Reads what is new in repositories. `events` makes the events of one item: (kind, repository, item).

    Lists of comments do not hold their issues. `wants_issue` says for which comments the issue is read too, into
    `item["issue"]`.
    """

    def __init__(
        self,
        api: str,
        token: str,
        *,
        repositories: Sequence[str],
        kinds: Sequence[str],
        events: Callable[[str, str, Mapping[str, Any]], Iterable[E]],
        wants_issue: Callable[[str, Mapping[str, Any]], bool] = lambda kind, item: False,
    ) -> None:
        self._client = GithubClient(api, token, hints=_REPOSITORY_HINTS)
        self._repositories = repositories
        self._kinds = kinds
        self._make = events
        self._wants_issue = wants_issue

    def poll(self, look: Look) -> Iterator[Found[E]]:
        cursor = dict(look.cursor)
        for repository in self._repositories:
            for kind in self._kinds:
                if kind == REVIEWS:
                    continue
                since, etag = _position(cursor, f"{repository}/{kind}", look)
                read = self._newest_first if kind == "labels" else self._oldest_first
                for events, position in read(repository, kind, since, etag, look.now):
                    cursor[f"{repository}/{kind}"] = position
                    yield Found(tuple(events), dict(cursor))

    def close(self) -> None:
        self._client.close()

    def _oldest_first(
        self, repository: str, kind: str, since: str, etag: str, now: float
    ) -> Iterator[tuple[list[E], Json]]:
        """Read a list that can begin at a given time."""
        path, query = LISTS[kind]
        query = {**query, "sort": "updated", "direction": "asc", "since": since, "per_page": "100"}
        begun = since
        pages = self._client.pages(f"/repos/{repository}{path}", now=now, etag=etag, query=query)
        for number, page in enumerate(pages):
            items = _objects(repository, kind, page)
            since = max([since, *(str(item.get("updated_at", "")) for item in items)])
            items = [self._with_issue(kind, repository, item, now) for item in items]
            events = self._events(kind, repository, items)
            if kind == "issues":
                events += self._reviews(repository, items, now)
            # The ETag is that of the first page of this very question only.
            kept = page.etag if number == 0 and page.last and since == begun else ""
            yield events, {"since": since, "etag": kept}

    def _newest_first(
        self, repository: str, kind: str, since: str, etag: str, now: float
    ) -> Iterator[tuple[list[E], Json]]:
        """Read a list that begins with the newest item, back to the first one that is known."""
        found: list[E] = []
        newest, first = since, None
        path = f"/repos/{repository}{LISTS[kind][0]}"
        for page in self._client.pages(path, now=now, etag=etag, query={"per_page": "100"}):
            first = first or page
            items = _objects(repository, kind, page)
            fresh = [item for item in items if str(item.get("created_at", "")) >= since]
            newest = max([newest, *(str(item["created_at"]) for item in fresh)])
            found += self._events(kind, repository, fresh)
            if len(fresh) < len(items):
                break
        if first is not None:
            yield found[::-1], {"since": newest, "etag": first.etag}

    def _reviews(self, repository: str, issues: list[dict[str, Any]], now: float) -> list[E]:
        if REVIEWS not in self._kinds:
            return []
        found: list[E] = []
        for issue in issues:
            if "pull_request" in issue:
                try:
                    path = f"/repos/{repository}/pulls/{int(issue['number'])}/reviews"
                except (KeyError, TypeError, ValueError, OverflowError) as exc:
                    raise _unexpected(repository, "issues", repr(exc)) from exc
                for page in self._client.pages(path, now=now):
                    reviews = [{**review, "issue": issue} for review in _objects(repository, REVIEWS, page)]
                    found += self._events(REVIEWS, repository, reviews)
        return found

    def _with_issue(self, kind: str, repository: str, item: dict[str, Any], now: float) -> dict[str, Any]:
        """Return a comment with its issue, if that is wanted and the issue is still there."""
        number = str(item.get("issue_url") or item.get("pull_request_url") or "").rpartition("/")[2]
        if kind == "issues" or "issue" in item or not (number.isdecimal() and number.isascii()):
            return item
        try:
            wanted = self._wants_issue(kind, item)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            raise _unexpected(repository, kind, repr(exc)) from exc
        if not wanted:
            return item
        issue = self._client.issue(repository, number, now)
        return item if issue is None else {**item, "issue": issue}

    def _events(self, kind: str, repository: str, items: list[dict[str, Any]]) -> list[E]:
        try:
            return [event for item in items for event in self._make(kind, repository, item)]
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as exc:
            raise _unexpected(repository, kind, repr(exc)) from exc


class NotificationWatcher(Generic[E]):
    """Reads the notifications of an account, and marks them as read once their events are safe.

    `event` makes the event of a notification, or None if it is not wanted; it raises InvalidInput if the notification
    cannot be understood.
    """

    def __init__(
        self, api: str, token: str, *, per_page: int, mark_read: bool, event: Callable[[Any], E | None]
    ) -> None:
        self._client = GithubClient(api, token)
        self._per_page = per_page
        self._mark_read = mark_read
        self._make = event

    @property
    def poll_interval(self) -> float:
        return self._client.poll_interval

    def poll(self, look: Look) -> Iterator[Found[E]]:
        cursor = dict(look.cursor)
        marks = {name: str(cursor.get(name) or "") for name in ("etag", "last_modified")}
        query = {"per_page": str(self._per_page)}
        threads: list[str] = []
        page = None
        for page in self._client.pages("/notifications", now=look.now, query=query, **marks):
            events: list[E] = []
            problems: list[str] = []
            for item in page.items:
                try:
                    event = self._make(item)
                except InvalidInput as exc:
                    problems.append(f"a notification that cannot be understood: {exc}")
                    continue
                if event is not None:
                    events.append(event)
                    threads.append(str(item["id"]))
            yield Found(tuple(events), cursor, tuple(problems))
        if page is None:
            return
        # Only after the last page, because marking changes the pages. Events that were known already count too: they
        # are still unread if the process died at this point before.
        for thread in threads if self._mark_read else ():
            self._client.mark_read(thread, look.now)
            yield Found((), cursor)
        yield Found((), {**cursor, "etag": page.etag, "last_modified": page.last_modified})

    def close(self) -> None:
        self._client.close()


def _position(cursor: Mapping[str, Json], key: str, look: Look) -> tuple[str, str]:
    """Return the time to read from, and the ETag of the last answer to that very question."""
    known = cursor.get(key)
    if not isinstance(known, dict):
        return iso_stamp(look.since, timespec="seconds"), ""
    return str(known["since"]), str(known["etag"])


def _objects(repository: str, kind: str, page: Page) -> list[dict[str, Any]]:
    if not all(isinstance(item, dict) for item in page.items):
        raise _unexpected(repository, kind, "not a list of objects")
    return page.items


def _unexpected(repository: str, kind: str, what: str) -> WatchFailed:
    return WatchFailed(f"{repository}: GitHub described {kind} in an unexpected way ({what:.80})")
