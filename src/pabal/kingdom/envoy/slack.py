"""Slack through its own SDK: the Web API to speak, Socket Mode to listen (`pip install 'pabal[slack]'`).

A message that came is acknowledged to Slack once what became of it is on disk; what is not acknowledged comes again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pabal.errors import ExtraMissing, InvalidInput, NotSent

if TYPE_CHECKING:
    from slack_sdk import WebClient
    from slack_sdk.socket_mode.client import BaseSocketModeClient
    from slack_sdk.socket_mode.request import SocketModeRequest

TIMEOUT = 15  # seconds
LONGEST = 39_000  # characters of a message
_OUTAGE = 10.0  # seconds until a Slack that cannot be reached is tried again
_HARMLESS = frozenset({"already_reacted", "no_reaction", "message_not_found"})
log = logging.getLogger("pabal.kingdom.envoy")


def client(token: str, api: str) -> WebClient:
    """Return the SDK's client; raise ExtraMissing if it is not installed."""
    try:
        from slack_sdk import WebClient
    except ImportError as exc:
        raise ExtraMissing("the envoy needs slack-sdk for Slack: pip install 'pabal[slack]'") from exc
    return WebClient(token=token, base_url=api if api.endswith("/") else f"{api}/", timeout=TIMEOUT)


class SlackChat:
    """Speaks."""

    def __init__(self, web: WebClient) -> None:
        self._web = web

    def post(self, channel: str, text: str, thread_ts: str = "") -> str:
        # Nobody's text may call a whole channel.
        safe = text.replace("<!", "&lt;!")[:LONGEST]
        thread = thread_ts or None
        said = self._call(lambda: self._web.chat_postMessage(channel=channel, text=safe, thread_ts=thread))
        return str(said.get("ts") or "")

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
            raise NotSent(f"Slack refused: {error or f'status {answer.status_code}'}") from exc
        except (SlackClientError, OSError) as exc:
            raise NotSent(f"Slack cannot be reached: {exc}", after=_OUTAGE, counts=False) from exc


class SlackSocket:
    """Listens. `take` is given each event of the chat and returns when it is safe."""

    def __init__(self, app_token: str, web: WebClient, take: Callable[[dict[str, Any]], object]) -> None:
        from slack_sdk.socket_mode.builtin import SocketModeClient

        self._take = take
        self._client = SocketModeClient(app_token=app_token, web_client=web, concurrency=1)
        self._client.socket_mode_request_listeners.append(self._on_request)
        self._begun = False

    @property
    def connected(self) -> bool:
        return self._client.is_connected()

    def connect(self) -> None:
        """Connect for the first time; afterwards the SDK keeps the connection. Raise NotSent if that fails."""
        from slack_sdk.errors import SlackClientError

        if self._begun:
            return
        try:
            self._client.connect()
            self._begun = True
        except (SlackClientError, OSError) as exc:
            raise NotSent(f"Slack cannot be listened to: {exc}", after=_OUTAGE, counts=False) from exc

    def close(self) -> None:
        self._client.close()

    def _on_request(self, client: BaseSocketModeClient, request: SocketModeRequest) -> None:
        from slack_sdk.socket_mode.response import SocketModeResponse

        event = request.payload.get("event") if isinstance(request.payload, dict) else None
        if request.type == "events_api" and isinstance(event, dict):
            try:
                self._take(event)
            except InvalidInput as exc:
                log.warning("a message of Slack's that cannot be used: %s", exc)
        client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
