"""GitHub's API as a watcher needs it: pages, ETags, rate limits. The only place that speaks HTTP.

The token is sent to the API's own address only, and never over plain HTTP except to this machine. Needs httpx2
(`pip install 'pabal[github]'`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from pabal.errors import ExtraMissing, InvalidConfig, WatchFailed

if TYPE_CHECKING:
    import httpx2

TIMEOUT = 20.0  # seconds
MOST_PAGES = 50
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})


class Page(NamedTuple):
    """One page of an answer; `etag` says what its first page looked like."""

    items: list[dict[str, Any]]
    etag: str
    last: bool


class GithubApi:
    """Asks one API, as one user or as nobody."""

    def __init__(self, address: str, token: str) -> None:
        try:
            import httpx2
        except ImportError as exc:
            raise ExtraMissing("the GitHub watcher needs httpx2: pip install 'pabal[github]'") from exc
        place = urlsplit(address)
        if place.scheme != "https" and place.hostname not in _LOCAL:
            raise InvalidConfig(f"api: https is needed; found {address!r:.80}")
        headers = {"Accept": "application/vnd.github+json", "User-Agent": "pabal", "X-GitHub-Api-Version": "2022-11-28"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._failed = httpx2.HTTPError
        self._address = address.rstrip("/")
        self._client = httpx2.Client(headers=headers, timeout=TIMEOUT, follow_redirects=False)

    def pages(self, path: str, *, now: float, etag: str = "", **query: str) -> Iterator[Page]:
        """Go through the pages of a list; none if it looks as it did under this ETag."""
        url = f"{self._address}{path}"
        answer = self._get(url, now, {"If-None-Match": etag} if etag else {}, query)
        if answer.status_code == 304:
            return
        seen = answer.headers.get("ETag", "")
        for _ in range(MOST_PAGES):
            following = answer.links.get("next", {}).get("url", "")
            yield Page(self._items(answer), seen, not following)
            if not following:
                return
            if not following.startswith(f"{self._address}/"):
                raise WatchFailed(f"{url} goes on at another address, {following!r:.120}; it was not asked")
            answer = self._get(following, now, {}, {})
        raise WatchFailed(f"{url} has more than {MOST_PAGES} pages: watch from a later time or fewer repositories")

    def close(self) -> None:
        self._client.close()

    def _get(self, url: str, now: float, headers: dict[str, str], query: dict[str, str]) -> httpx2.Response:
        try:
            answer = self._client.get(url, headers=headers, params=query or None)
        except self._failed as exc:
            raise WatchFailed(f"{url} did not answer ({type(exc).__name__}: {exc})") from exc
        if answer.status_code in (403, 429) and (wait := _wait(answer, now)):
            raise WatchFailed(f"{url}: the rate limit is used up for {wait:.0f} seconds", after=wait)
        if answer.status_code not in (200, 304):
            raise WatchFailed(f"{url} answered {answer.status_code}{_HINTS.get(answer.status_code, '')}")
        return answer

    def _items(self, answer: httpx2.Response) -> list[dict[str, Any]]:
        try:
            items = answer.json()
        except ValueError as exc:
            raise WatchFailed(f"{answer.url} did not answer with JSON") from exc
        if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
            raise WatchFailed(f"{answer.url} did not answer with a list")
        return items


_HINTS = {
    301: ": the repository has another name now; put that into the team file",
    401: ": the token is not valid",
    403: ": the token may not read this",
    404: ": there is no such repository, or the token may not see it",
}


def _wait(answer: httpx2.Response, now: float) -> float:
    """Return the seconds that a refusal asks us to wait; 0 if it is no matter of rates."""
    after = answer.headers.get("Retry-After", "")
    if after.isdecimal():
        return float(after)
    reset = answer.headers.get("X-RateLimit-Reset", "")
    if answer.headers.get("X-RateLimit-Remaining") == "0" and reset.isdecimal():
        return max(1.0, float(reset) - now)
    return 60.0 if answer.status_code == 429 else 0.0
