"""HTTP for watchers: one server, one credential; refusals and rate limits are raised as WatchFailed.

A credential is sent to its own server only, and over plain HTTP only to this machine. Needs httpx2.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pabal import jsontext
from pabal.errors import ExtraMissing, InvalidConfig, InvalidInput, InvalidUrl, WatchFailed
from pabal.names import check_servers, shown_url, split_url

if TYPE_CHECKING:
    import httpx2

TIMEOUT = 20.0  # seconds
LONGEST_WAIT = 86_400.0  # seconds: what a server may ask for, whatever it writes
_LOCAL = frozenset({"127.0.0.1", "localhost", "::1"})
_HINTS = {401: "the token is not valid", 403: "the token may not do this", 404: "it does not exist for this token"}


class HttpClient:
    """Sends requests to one server. `hints` explain its refusals, by status."""

    def __init__(
        self,
        address: str,
        headers: Mapping[str, str],
        *,
        auth: tuple[str, str] | None = None,
        hints: Mapping[int, str] | None = None,
    ) -> None:
        try:
            import httpx2
        except ImportError as exc:
            raise ExtraMissing(
                "watchers that use HTTP need httpx2: install Pabal with its extra 'github' (README, Extras)"
            ) from exc
        try:
            parts = split_url(address)
            check_servers(parts)
        except InvalidUrl as exc:
            raise InvalidConfig(f"the address of a server: {exc}") from exc
        if parts.scheme != "https" and parts.hostname not in _LOCAL:
            raise InvalidConfig(
                f"an address must begin with https://, except on this machine; found {shown_url(address)}"
            )
        if "@" in parts.netloc:
            raise InvalidConfig(f"{shown_url(address)}: credentials belong into the variables that the settings name")
        if not all(text.isascii() and text.isprintable() for text in (*headers.values(), *(auth or ()))):
            # The client would name the whole value in its error.
            raise InvalidConfig(f"the credential for {shown_url(address)} holds a line break or another odd character")
        self.address = address.rstrip("/")
        self._hints = {**_HINTS, **(hints or {})}
        self._failed = httpx2.HTTPError
        self._client = httpx2.Client(
            headers={"User-Agent": "pabal", **headers}, auth=auth, timeout=TIMEOUT, follow_redirects=False
        )

    def request(self, method: str, url: str, *, now: float, accepted: tuple[int, ...], **more: Any) -> httpx2.Response:
        """Send a request; `url` is a path, or an address on this server. Raise WatchFailed unless it is accepted."""
        whole = url if url.startswith(f"{self.address}/") else f"{self.address}{url}"
        if not url.startswith(("/", f"{self.address}/")):
            raise WatchFailed(f"{self.address} continues at another address, {url!r:.120}, which was not asked")
        try:
            answer = self._client.request(method, whole, **more)
        except self._failed as exc:
            raise WatchFailed(f"{whole} did not answer ({type(exc).__name__}: {exc})") from exc
        status = answer.status_code
        if status in accepted:
            return answer
        if status in (403, 429) and (wait := _rate_limit(answer, now)):
            raise WatchFailed(f"{whole}: the rate limit is used up for {wait:.0f} seconds", after=wait)
        hint = f": {self._hints[status]}" if status in self._hints else ""
        raise WatchFailed(f"{whole} answered {status}{hint}")

    def close(self) -> None:
        self._client.close()


class PageTrail:
    """The pages of one look: refuses a page that comes again, so that a server cannot lead a watcher in circles."""

    def __init__(self) -> None:
        self._visited: set[str] = set()

    def __call__(self, page: str) -> str:
        if page in self._visited:
            raise WatchFailed(f"the server leads in circles: the page {page!r:.120} comes again in one look")
        self._visited.add(page)
        return page


def json_of(answer: httpx2.Response) -> Any:
    """Return the JSON of an answer."""
    try:
        return jsontext.read(answer.content)
    except InvalidInput as exc:
        raise WatchFailed(f"{answer.url} did not answer with JSON: {exc.code}") from exc


def _rate_limit(answer: httpx2.Response, now: float) -> float:
    """Return the seconds to wait that a refusal asks for; 0 if it is not about a rate limit."""
    after = answer.headers.get("Retry-After", "")
    if after.isdecimal():
        return min(float(after), LONGEST_WAIT)
    reset = answer.headers.get("X-RateLimit-Reset", "")
    if answer.headers.get("X-RateLimit-Remaining") == "0" and reset.isdecimal():
        return min(max(1.0, float(reset) - now), LONGEST_WAIT)
    return 60.0 if answer.status_code == 429 else 0.0
