"""Questions over HTTP, with a token: GET /questions, POST /questions/TASK/answer {"text": …}."""

from __future__ import annotations

import hmac
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec

from pabal import jsontext
from pabal.apps.kingdom.envoy import settings
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.errors import InvalidConfig, InvalidInput, MessageUnknown, NameTaken, PabalError

LARGEST = 1 << 18  # bytes of a request
TIMEOUT = 10.0  # seconds for a request to come in


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a POST."""

    text: str
    responder: str = "http"


class HttpServer:
    """An HTTP server in a thread of its own."""

    def __init__(self, http: settings.Http, token: str, questions: Questions) -> None:
        if not token:
            raise InvalidConfig(f"http: a port needs a token in the variable {http.token_variable}")
        try:
            self._server = ThreadingHTTPServer((http.host, http.port), _handler(token, questions))
        except OSError as exc:
            raise InvalidConfig(f"http: {http.host}:{http.port} cannot be listened on: {exc.strerror}") from exc
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="envoy-http")
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _handler(token: str, questions: Questions) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT

        def do_GET(self) -> None:
            self._reply(self._get)

        def do_POST(self) -> None:
            self._reply(self._post)

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _get(self) -> Any:
            if self.path != "/questions":
                raise MessageUnknown(f"there is /questions; found {self.path!r:.80}")
            return {"questions": [msgspec.to_builtins(each) for each in questions.open()]}

        def _post(self) -> Any:
            parts = self.path.split("/")
            if len(parts) != 4 or parts[1] != "questions" or parts[3] != "answer":
                raise MessageUnknown(f"there is /questions/TASK/answer; found {self.path!r:.80}")
            size = self.headers.get("Content-Length", "")
            if not size.isdecimal() or len(size) > 9 or int(size) > LARGEST:
                raise InvalidInput(f"a request has at most {LARGEST} bytes, and Content-Length gives their number")
            try:
                answer = jsontext.convert(jsontext.read(self.rfile.read(int(size))), Answer)
            except msgspec.ValidationError as exc:
                raise InvalidInput(f"an answer is like {{'text': 'yes'}}: {exc}") from exc
            return msgspec.to_builtins(questions.answer(parts[2], answer.text, responder=answer.responder, via="http"))

        def _reply(self, ask: Any) -> None:
            given = self.headers.get("Authorization", "").encode()
            try:
                if not hmac.compare_digest(given, f"Bearer {token}".encode()):
                    self._send(401, {"error": "give the token: Authorization: Bearer …"})
                    return
                self._send(200, ask())
            except PabalError as exc:
                self._send(_status(exc), {"error": str(exc), "code": exc.code})

        def _send(self, status: int, document: Any) -> None:
            data = jsontext.encode(document)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _status(exc: PabalError) -> int:
    if isinstance(exc, MessageUnknown):
        return 404
    if isinstance(exc, NameTaken):
        return 409
    return 400 if isinstance(exc, InvalidInput) else 503
