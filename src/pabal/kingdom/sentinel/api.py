"""HTTP as watchers need it: one address, one credential, refusals and rate limits as WatchFailed.

A credential is sent to its own address only, and never over plain HTTP except to this machine. Needs httpx2
(`pip install 'pabal[kingdom]'`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pabal.errors import ExtraMissing, InvalidConfig, WatchFailed

if TYPE_CHECKING:
    import httpx2

TIMEOUT = 20.0  # seconds
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_HINTS = {401: ": the token is not valid", 403: ": the token may not do this", 404: ": there is no such thing to see"}


class Api:
    """Asks one server."""

    def __init__(self, address: str, headers: dict[str, str], auth: tuple[str, str] | None = None) -> None:
        try:
            import httpx2
        except ImportError as exc:
            raise ExtraMissing("watchers that speak HTTP need httpx2: pip install 'pabal[kingdom]'") from exc
        place = urlsplit(address)
        if place.scheme != "https" and place.hostname not in _LOCAL:
            raise InvalidConfig(f"an address begins with https://; found {address!r:.80}")
        self.address = address.rstrip("/")
        self._failed = httpx2.HTTPError
        self._client = httpx2.Client(
            headers={"User-Agent": "pabal", **headers}, auth=auth, timeout=TIMEOUT, follow_redirects=False
        )

    def ask(self, method: str, url: str, *, now: float, accepted: tuple[int, ...], **more: Any) -> httpx2.Response:
        """Ask; `url` is a path or an address below ours. Raise WatchFailed for all but the accepted answers."""
        whole = url if url.startswith(f"{self.address}/") else f"{self.address}{url}"
        if not url.startswith(("/", f"{self.address}/")):
            raise WatchFailed(f"{self.address} goes on at another address, {url!r:.120}; it was not asked")
        try:
            answer = self._client.request(method, whole, **more)
        except self._failed as exc:
            raise WatchFailed(f"{whole} did not answer ({type(exc).__name__}: {exc})") from exc
        if answer.status_code in accepted:
            return answer
        if answer.status_code in (403, 429) and (wait := _wait(answer, now)):
            raise WatchFailed(f"{whole}: the rate limit is used up for {wait:.0f} seconds", after=wait)
        raise WatchFailed(f"{whole} answered {answer.status_code}{_HINTS.get(answer.status_code, '')}")

    def close(self) -> None:
        self._client.close()


class Once:
    """Refuses a place that was there before in the same look: a server that leads in circles is not followed."""

    def __init__(self) -> None:
        self._been: set[str] = set()

    def __call__(self, place: str) -> str:
        if place in self._been:
            raise WatchFailed(f"the server leads in circles: the page {place!r:.120} comes again in one look")
        self._been.add(place)
        return place


def json_of(answer: httpx2.Response) -> Any:
    """Return the JSON of an answer."""
    try:
        return answer.json()
    except ValueError as exc:
        raise WatchFailed(f"{answer.url} did not answer with JSON") from exc


def _wait(answer: httpx2.Response, now: float) -> float:
    """Return the seconds that a refusal asks us to wait; 0 if it is no matter of rates."""
    after = answer.headers.get("Retry-After", "")
    if after.isdecimal():
        return float(after)
    reset = answer.headers.get("X-RateLimit-Reset", "")
    if answer.headers.get("X-RateLimit-Remaining") == "0" and reset.isdecimal():
        return max(1.0, float(reset) - now)
    return 60.0 if answer.status_code == 429 else 0.0
