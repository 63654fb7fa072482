"""A GitHub of one notification, for the demo: what the sentinel asks for, and no more."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOTIFICATION = {
    "id": "12345678",
    "reason": "review_requested",
    "updated_at": "2026-02-07T10:00:00Z",
    "subject": {
        "title": "Let couriers change horses",
        "url": "https://api.github.com/repos/town/relay/pulls/7",
        "type": "PullRequest",
    },
    "repository": {"full_name": "town/relay"},
}


class Github:
    """Serves until closed."""

    def __init__(self) -> None:
        self.unread: list[dict[str, Any]] = [NOTIFICATION]
        github = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._send(200, github.unread)

            def do_PATCH(self) -> None:
                github.unread = []
                self._send(205, None)

            def _send(self, status: int, document: Any) -> None:
                data = b"" if document is None else json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
