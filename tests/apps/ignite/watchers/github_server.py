"""A server that answers as GitHub's API does: pages, ETags, rate limits, refusals."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

PER_PAGE = 3  # small, so that tests see several pages


class GithubServer:
    """Lists by path, as many requests as the limit allows, and what was asked."""

    def __init__(self) -> None:
        self.lists: dict[str, list[dict[str, Any]]] = {}
        self.remaining = 5000
        self.reset = 0.0
        self.asked: list[tuple[str, int]] = []
        self.tokens: list[str] = []
        self.next_address = ""
        self.answer: Callable[[], tuple[int, dict[str, str], bytes]] | None = None
        self._ids = 1000
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def add(self, path: str, at: float, *, by: str = "ann", kind: str = "User", **fields: Any) -> dict[str, Any]:
        """Let something happen in o/r at this time."""
        self._ids += 1
        stamp = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        item = {
            "id": self._ids,
            "created_at": stamp,
            "updated_at": stamp,
            "user": {"login": by, "type": kind},
            "html_url": f"https://github.com/o/r/{self._ids}",
            "body": "",
            **fields,
        }
        self.lists.setdefault(f"/repos/o/r{path}", []).append(item)
        return item

    def issue(self, number: int, at: float, **fields: Any) -> dict[str, Any]:
        return self.add("/issues", at, **{"number": number, "title": f"Issue {number}", **fields})

    def comment(self, number: int, at: float, body: str, **fields: Any) -> dict[str, Any]:
        url = f"{self.address}/repos/o/r/issues/{number}"
        return self.add("/issues/comments", at, body=body, issue_url=url, **fields)

    def label(self, number: int, at: float, name: str, by: str = "ann") -> dict[str, Any]:
        issue = {"number": number, "title": f"Issue {number}", "body": "Please"}
        actor = {"login": by, "type": "User"}
        return self.add("/issues/events", at, event="labeled", label={"name": name}, issue=issue, actor=actor)

    def statuses(self) -> list[int]:
        """Return how the requests since the last call were answered."""
        found = [status for _, status in self.asked]
        self.asked.clear()
        return found

    def respond(self, target: str, headers: Any) -> tuple[int, dict[str, str], bytes]:
        if self.answer is not None:
            return self.answer()
        self.tokens.append(headers.get("Authorization", ""))
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        folder, _, number = parts.path.rpartition("/")
        if folder.endswith("/issues") and number.isdecimal():
            found = [item for item in self.lists.get(folder, []) if item["number"] == int(number)]
            return (200, {}, json.dumps(found[0]).encode()) if found else (404, {}, b'{"message": "Not Found"}')
        items = self.lists.get(parts.path, [])
        if "since" in query:
            items = sorted((i for i in items if i["updated_at"] >= query["since"]), key=lambda i: str(i["updated_at"]))
        elif parts.path.endswith("/events"):
            items = sorted(items, key=lambda i: str(i["created_at"]), reverse=True)
        page = int(query.get("page", "1"))
        shown = items[(page - 1) * PER_PAGE : page * PER_PAGE]
        data = json.dumps(shown).encode()
        etag = f'W/"{sha256(target.encode() + data).hexdigest()}"'
        limits = {"X-RateLimit-Remaining": str(self.remaining), "X-RateLimit-Reset": str(int(self.reset))}
        if headers.get("If-None-Match") == etag:
            return 304, {**limits, "ETag": etag}, b""
        if self.remaining == 0:
            return 403, limits, b'{"message": "API rate limit exceeded"}'
        self.remaining -= 1
        if len(items) > page * PER_PAGE:
            following = urlencode({**query, "page": page + 1})
            limits["Link"] = f'<{self.next_address or self.address}{parts.path}?{following}>; rel="next"'
        return 200, {**limits, "ETag": etag}, data

    def _handler(server) -> type[BaseHTTPRequestHandler]:  # the handler has a self of its own
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, headers, data = server.respond(self.path, self.headers)
                server.asked.append((self.path, status))
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler
