"""Servers on this machine that speak the endpoints of GitHub and Jira that a kingdom uses."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Answer(NamedTuple):
    status: int
    body: Any = None
    headers: dict[str, str] = {}


class Server:
    """Answers by its method `reply`; `refusal` comes first if there is one."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.refusal: Callable[[Asked], Answer | None] = lambda asked: None
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def count(self, method: str, part: str = "") -> int:
        return sum(asked.method == method and part in asked.path for asked in self.asked)

    def reply(self, asked: Asked) -> Answer:
        raise NotImplementedError

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                asked = Asked(self.command, self.path, dict(self.headers.items()), self.rfile.read(size))
                server.asked.append(asked)
                answer = server.refusal(asked) or server.reply(asked)
                data = b"" if answer.body is None else json.dumps(answer.body).encode()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Type", "application/json; charset=utf-8")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = handle_one

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


class GithubServer(Server):
    """Unread notifications, in pages of two."""

    def __init__(self) -> None:
        self.unread: dict[str, dict[str, Any]] = {}
        self.poll_interval = ""
        super().__init__()

    def notify(self, id: str, reason: str = "review_requested", **fields: Any) -> None:
        self.unread[id] = {
            "id": id,
            "reason": reason,
            "updated_at": "2026-02-07T10:00:00Z",
            "subject": {"title": "A change", "url": "https://api.github.com/repos/o/r/pulls/7", "type": "PullRequest"},
            "repository": {"full_name": "o/r"},
            **fields,
        }

    def reply(self, asked: Asked) -> Answer:
        path, query = urlsplit(asked.path).path, parse_qs(urlsplit(asked.path).query)
        if asked.method == "PATCH":
            self.unread.pop(path.rpartition("/")[2], None)
            return Answer(205)
        page = int(query.get("page", ["1"])[0])
        items = list(self.unread.values())
        etag = f'"{sha256(json.dumps(items).encode()).hexdigest()[:16]}"'
        headers = {"ETag": etag, "Last-Modified": "Sat, 07 Feb 2026 10:00:00 GMT"}
        if self.poll_interval:
            headers["X-Poll-Interval"] = self.poll_interval
        if asked.headers.get("If-None-Match") == etag:
            return Answer(304, None, headers)
        if len(items) > page * 2:
            headers["Link"] = f'<{self.address}/notifications?page={page + 1}>; rel="next"'
        return Answer(200, items[page * 2 - 2 : page * 2], headers)


class JiraServer(Server):
    """Tickets with the time of their last change, found by how far a search looks back."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.tickets: dict[str, tuple[float, dict[str, Any]]] = {}
        self._now = now
        super().__init__()

    def change(self, key: str, status: str) -> None:
        updated = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%S.000+0000")
        fields = {
            "summary": f"Do {key}",
            "status": {"name": status},
            "priority": {"name": "High"},
            "labels": ["x"],
            "updated": updated,
        }
        self.tickets[key] = (self._now(), {"key": key, "fields": fields})

    def reply(self, asked: Asked) -> Answer:
        if asked.path != "/rest/api/3/search/jql":
            return Answer(404)
        body = json.loads(asked.body)
        found = re.search(r'updated >= "-(\d+)m"', body["jql"])
        assert found, body
        since = self._now() - int(found[1]) * 60
        issues = [issue for at, issue in sorted(self.tickets.values(), key=lambda each: each[0]) if at >= since]
        start, size = int(body.get("nextPageToken", "0")), min(2, body["maxResults"])
        more = {"nextPageToken": str(start + size)} if len(issues) > start + size else {}
        return Answer(200, {"issues": issues[start : start + size], **more})
