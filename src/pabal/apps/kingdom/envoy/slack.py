"""Slack through its SDK: the Web API to send, Socket Mode to receive (extra `slack`).

A received message is acknowledged to Slack once its event is durable; Slack sends an unacknowledged message again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pabal.apps.kingdom.envoy.blocks import blocks_of, closed_blocks, question_text
from pabal.apps.kingdom.envoy.outbound import Posted
from pabal.apps.kingdom.envoy.questions import Question
from pabal.apps.kingdom.errors import NotSent
from pabal.errors import ExtraMissing, InvalidConfig, InvalidInput

if TYPE_CHECKING:
    from slack_sdk import WebClient
    from slack_sdk.socket_mode.client import BaseSocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest

TIMEOUT = 15  # seconds
LONGEST = 39_000  # characters of a message
_OUTAGE = 10.0  # seconds until the next try when Slack cannot be reached
_HARMLESS = frozenset({"already_reacted", "no_reaction", "message_not_found"})
# No fault of a notice: the app is not set up yet, or not any more.
_UNREADY = frozenset(
    {
        "invalid_auth",
        "not_authed",
        "account_inactive",
        "token_revoked",
        "token_expired",
        "missing_scope",
        "no_permission",
    }
)
_CHANNEL = frozenset({"channel_not_found", "not_in_channel", "is_archived"})
log = logging.getLogger("pabal.kingdom.envoy")


def client(token: str, api: str) -> WebClient:
    """Return the SDK's client; raise ExtraMissing if it is not installed, InvalidConfig for a broken token."""
    check_token(token)
    try:
        from slack_sdk import WebClient
    except ImportError as exc:
        raise ExtraMissing(
            "the envoy needs slack-sdk for Slack: install Pabal with its extra 'slack' (README, Extras)"
        ) from exc
    return WebClient(token=token, base_url=api if api.endswith("/") else f"{api}/", timeout=TIMEOUT)


def check_token(token: str) -> None:
    """Raise InvalidConfig for a token that cannot stand in a header: the SDK would name it in its error."""
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise InvalidConfig("a token of Slack's holds a line break, a space or another odd character: write it again")


class SlackChat:
    """A Chat in Slack."""

    def __init__(self, web: WebClient) -> None:
        self._web = web

    def post(self, channel: str, text: str, thread_ts: str = "", question: Question | None = None) -> Posted:
        safe, thread = _safe(text), thread_ts or None
        blocks = (blocks_of(question, safe) if question is not None else []) or None
        answer = self._call(
            lambda: self._web.chat_postMessage(channel=channel, text=safe, thread_ts=thread, blocks=blocks)
        )
        return Posted(str(answer.get("channel") or channel), str(answer.get("ts") or ""))

    def show_question(self, question: Question) -> None:
        text, place = _safe(question_text(question)), (question.channel, question.message_ts)
        blocks = blocks_of(question, text) or closed_blocks(text)
        self._call(lambda: self._web.chat_update(channel=place[0], ts=place[1], text=text, blocks=blocks))

    def react(self, channel: str, message_ts: str, name: str, *, instead_of: str = "") -> None:
        if instead_of:
            self._call(lambda: self._web.reactions_remove(channel=channel, timestamp=message_ts, name=instead_of))
        self._call(lambda: self._web.reactions_add(channel=channel, timestamp=message_ts, name=name))

    def _call(self, ask: Callable[[], Any]) -> Any:
        from slack_sdk.errors import SlackApiError, SlackClientError

        try:
            return ask()
        except SlackApiError as exc:
            answer: Any = exc.response
            error = answer.get("error") if answer.data else None
            if error in _HARMLESS:
                return {}
            if answer.status_code == 429 or error == "ratelimited":
                after = str(answer.headers.get("Retry-After") or answer.headers.get("retry-after") or "")
                seconds = float(after) if after.isdecimal() else _OUTAGE
                raise NotSent(f"Slack asks for {seconds:.0f} seconds of patience", after=seconds, counts=False) from exc
            reason = f"Slack refused: {error or f'status {answer.status_code}'}"
            if error in _UNREADY:
                raise NotSent(reason, after=_OUTAGE, counts=False) from exc
            raise NotSent(reason, of_channel=error in _CHANNEL) from exc
        except (SlackClientError, OSError) as exc:
            raise NotSent(f"Slack cannot be reached: {exc}", after=_OUTAGE, counts=False) from exc


def _safe(text: str) -> str:
    """Return a text that notifies no whole channel."""
    return text.replace("<!", "&lt;!")[:LONGEST]


class SlackSocket:
    """Receives events, and buttons that were pressed. `take` and `press` return when what they got is durable."""

    def __init__(
        self,
        app_token: str,
        web: WebClient,
        take: Callable[[dict[str, Any]], object],
        press: Callable[[dict[str, Any]], object],
    ) -> None:
        from slack_sdk.socket_mode.builtin import SocketModeClient

        check_token(app_token)
        self._take = take
        self._press = press
        self._client = SocketModeClient(app_token=app_token, web_client=web, concurrency=1)
        self._client.socket_mode_request_listeners.append(self._on_request)

    def connect(self) -> None:
        """Connect for the first time; afterwards the SDK keeps the connection. Raise NotSent if that fails."""
        from slack_sdk.errors import SlackClientError

        try:
            self._client.connect()
        except (SlackClientError, OSError) as exc:
            raise NotSent(f"Slack cannot be listened to: {exc}", after=_OUTAGE, counts=False) from exc

    def close(self) -> None:
        self._client.close()

    def _on_request(self, client: BaseSocketModeClient, request: SocketModeRequest) -> None:
        from slack_sdk.socket_mode.response import SocketModeResponse

        payload = request.payload if isinstance(request.payload, dict) else {}
        event = payload.get("event")
        try:
            if request.type == "events_api" and isinstance(event, dict):
                self._take(event)
            elif request.type == "interactive":
                self._press(payload)
        except InvalidInput as exc:
            log.warning("a message of Slack's that cannot be used: %(error)s", {"error": str(exc)})
        client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
