"""The application of the gateway: finds the part that a request is for, and serves SQS and the pages of operators."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from random import getrandbits

import pabal.aio
from pabal.clock import Clock
from pabal.errors import PabalError, TooLarge
from pabal.gateway.api.access import Access
from pabal.gateway.api.people import People
from pabal.gateway.api.server import ApiServer
from pabal.gateway.api.topics import TopicDesk
from pabal.gateway.http import ClientGone, Receive, Scope, Send, Stopping, Waits, read_body
from pabal.gateway.mount import AgentMount
from pabal.gateway.signature import RIGHTS, Key, Keys, Request
from pabal.gateway.sqs import wire
from pabal.gateway.sqs.directory import Caller
from pabal.gateway.sqs.errors import SqsError, error_of
from pabal.gateway.sqs.service import LOOK_PATH, Service
from pabal.gateway.sqs.wire import Call, Written
from pabal.queues.metrics import queues_metrics
from pabal.queues.prometheus import prometheus_text
from pabal.runtime.origins import Origins
from pabal.runtime.resources import store_metrics

log = logging.getLogger("pabal.gateway")

MOST_BYTES = 4 << 20  # of a request: ten messages, in a form
_CREDENTIAL = re.compile(r"Credential=([^/,\s]+)/\d{8}/([a-z0-9-]+)/")
_PLAIN = {"content-type": "text/plain; charset=utf-8"}


class Gateway:
    """Serves SQS, the dashboard and the HTTP interface, as an ASGI application.

    SQS is at `/`, and shows messages without leasing them at `/_aws/sqs/messages`; agents are at `/mcp`; for operators
    there are `/healthz`, `/readyz`, `/metrics`.
    """

    def __init__(
        self,
        mq: pabal.aio.Connection,
        clock: Clock,
        access: Access,
        origins: Origins,
        people: People,
        agents: AgentMount,
        *,
        keys: Keys | None = None,
        read_only: bool = False,
        topics: str = "",
        heartbeat: Path | None = None,
    ) -> None:
        self._mq = mq
        self._clock = clock
        self._access = access
        self._origins = origins
        self._keys = keys
        self._read_only = read_only
        self._service = Service(mq, clock, read_only=read_only)
        self._waits = Waits()
        self._topics = TopicDesk(topics)
        self._api = ApiServer(
            mq, clock, access, self._waits, self._topics, people, read_only=read_only, heartbeat=heartbeat
        )
        self._agents = agents

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        if reason := self._refusal(scope, headers):
            written = Written(403, _PLAIN, f"{reason}\n".encode())
        elif self._api.takes(scope):
            await self._api(scope, receive, send)
            return
        elif self._agents.takes(scope["path"]):
            await self._agents(scope, receive, send)
            return
        else:
            try:
                written = await self._answer(scope, headers, receive)
            except ClientGone:
                return
        pairs = [(name.encode(), value.encode("latin-1", "replace")) for name, value in written.headers.items()]
        pairs.append((b"content-length", b"%d" % len(written.body)))
        await send({"type": "http.response.start", "status": written.status, "headers": pairs})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else written.body})

    def begin(self) -> None:
        """Take over the move tasks of gateways that have ended, unless this one only shows."""
        if not self._read_only:
            self._service.begin()

    async def close(self) -> None:
        """End the work in the background."""
        self._api.close()
        await self._agents.close()
        await self._service.close()
        await self._topics.close()

    async def dismiss(self) -> None:
        """End the long polls: what they would have taken stays in its queue, and clients ask again."""
        self._waits.end()
        self._agents.dismiss()

    def _refusal(self, scope: Scope, given: Mapping[bytes, bytes]) -> str:
        """Return why a request is refused: a page of another site made it, or its Host is not ours. Else ''."""
        site = given.get(b"sec-fetch-site")
        if site is not None and site not in (b"none", b"same-origin"):
            # A link of another page may open the dashboard, which is the same for everybody and sends no cookie then.
            if (scope["path"], scope["query_string"], given.get(b"sec-fetch-mode")) != ("/", b"", b"navigate"):
                return "pages of other sites may not call the gateway"
        return self._origins.refusal(given)[1]

    async def _answer(self, scope: Scope, given: Mapping[bytes, bytes], receive: Receive) -> Written:
        path: str = scope["path"]
        if path in ("/healthz", "/readyz"):
            return await self._for_operators(path)
        request_id = _new_request_id()
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in given.items()}
        target = headers.get("x-amz-target", "")
        form, wants_json = not target, headers.get("accept") == "application/json"
        try:
            body = await _body(receive)
            query = scope["query_string"].decode("latin-1")
            request = Request(
                scope["method"], scope.get("raw_path", b"").decode("latin-1") or path, query, headers, body
            )
            if path == "/metrics":
                return self._refused_metrics(request) or await self._for_operators(path)
            key = self._keys.verified(request) if self._keys is not None else None
            base = f"{scope['scheme']}://{headers.get('host', '')}"
            if path.startswith(LOOK_PATH):
                caller = Caller(base, _region(headers), *_rights(key))
                call = _call(request, target, base, "")
                if call.action not in ("", "ReceiveMessage"):
                    raise SqsError("InvalidAction", f"The action {call.action} is not valid for this endpoint.")
                answer = await self._service.look(path, call.given, caller)
                call = call._replace(action="ReceiveMessage")
                return await self._mq.threads(wire.write_answer, call, answer, request_id)
            call = _call(request, target, base, path)
            if not call.action:
                return wire.write_unknown_operation(request_id)
            self._check_shows(call.action)
            client = scope["state"]["transport"].is_closing, partial(self._waits.while_there, receive)
            caller = Caller(base, _region(headers), *_rights(key), *client)
            return wire.write_answer(call, await self._service.call(call.action, call.given, caller), request_id)
        except SqsError as exc:
            return wire.write_error(exc, request_id, form=form, wants_json=wants_json)
        except PabalError as exc:
            return wire.write_error(error_of(exc), request_id, form=form, wants_json=wants_json)
        except ClientGone:
            raise
        except Stopping:
            error = SqsError("ServiceUnavailable", "The gateway is being stopped: ask again.")
            return wire.write_error(error, request_id, form=form, wants_json=wants_json)
        except Exception:
            log.exception("a request failed")
            error = SqsError("InternalFailure", f"The request failed; the log says why, under {request_id}.")
            return wire.write_error(error, request_id, form=form, wants_json=wants_json)

    def _refused_metrics(self, request: Request) -> Written | None:
        """Return the refusal of a request for the metrics, which name every queue; None if it may have them."""
        if self._keys is None:
            return None
        key = self._access.key_of({"authorization": request.headers.get("authorization", "")}, "")
        if key is None:
            try:
                key = self._keys.verified(request)
            except SqsError as exc:
                text = f"{exc.message} Metrics need a key: Authorization: Bearer KEY:SECRET\n"
                return Written(401, {**_PLAIN, "www-authenticate": 'Basic realm="pabal"'}, text.encode())
        if "look" in key.rights and "*" in key.queues:
            return None
        return Written(403, _PLAIN, b"metrics need a key with the right to look at all queues\n")

    def _check_shows(self, action: str) -> None:
        if self._read_only and action not in RIGHTS["look"]:
            raise SqsError("AccessDeniedException", f"This gateway only shows: {action} is not allowed.")

    async def _for_operators(self, path: str) -> Written:
        if path == "/healthz":
            return Written(200, _PLAIN, b"ok\n")
        try:
            names = await self._mq.queues()
            if path == "/readyz":
                return Written(200, _PLAIN, b"ready\n")
            text = await self._mq.threads(self._figures, names)
        except PabalError as exc:
            return Written(503, _PLAIN, f"the store does not answer: {exc}\n".encode())
        return Written(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, text.encode())

    def _figures(self, names: list[str]) -> str:
        blocking = self._mq.blocking
        figures = queues_metrics(blocking.store, map(blocking.queue, names), self._clock.now())
        return prometheus_text({"store": store_metrics(blocking.store), **figures})


def _call(request: Request, target: str, base: str, path: str) -> Call:
    """Read the action and its parameters, in either protocol."""
    if target:
        return wire.read_json(target, request.body)
    of_queue = path.strip("/")
    try:
        text = "&".join(part for part in (request.query, request.body.decode()) if part)
    except UnicodeDecodeError as exc:
        raise SqsError("MalformedQueryString", f"The form is no UTF-8: {exc}") from exc
    call = wire.read_form(text, f"{base}/{of_queue}" if of_queue else "", request.headers.get("accept", ""))
    if of_queue and call.action in ("CreateQueue", "ListQueues"):
        raise SqsError("InvalidAction", f"The action {call.action} is not valid for this endpoint.")
    return call


def _new_request_id() -> str:
    """Return an id in the form of a UUID. It names a line of the log, and is no secret."""
    text = f"{getrandbits(128):032x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def _region(headers: Mapping[str, str]) -> str:
    found = _CREDENTIAL.search(headers.get("authorization", ""))
    return found[2] if found else "us-east-1"


def _rights(key: Key | None) -> tuple[str, Callable[[str, str], bool] | None]:
    return ("", None) if key is None else (key.name, key.allows)


async def _body(receive: Receive) -> bytes:
    """Read the body of a request; refuse one that is too large."""
    try:
        return await read_body(receive, MOST_BYTES)
    except TooLarge:
        raise SqsError("RequestEntityTooLarge", f"A request has at most {MOST_BYTES} bytes.") from None
