"""Ways to wake that only notify: hook, webhook, and the hooks of Claude Code and Codex.

The agent settles the message itself.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
from urllib.parse import SplitResult, urlsplit

from pabal import jsontext
from pabal.apps.ignite import hooks
from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.team import Agent
from pabal.apps.ignite.wakes import Turn, WakeContext
from pabal.apps.ignite.workspace import HOOKS
from pabal.filesystem import touch
from pabal.names import shown_url

_TIMEOUT = 5.0  # seconds


class HookWake:
    """Touches `state/hooks/<agent>`, which wakes programs that watch the file and `pabal ignite inbox --wait`."""

    def __init__(self, context: WakeContext) -> None:
        self._folder = context.root / "state" / "hooks"

    def wake(self, turn: Turn) -> None:
        path = self._folder / turn.agent
        try:
            touch(path)
            os.utime(path)
        except OSError as exc:
            raise WakeFailed(f"cannot touch {path}: {exc.strerror}") from exc

    def stop(self, turn: Turn) -> None:
        """Do nothing: a touch needs no end."""


class CodexHookWake:
    """Announces a message to the hooks of a session: it is told when a prompt is submitted and when a turn ends."""

    def __init__(self, context: WakeContext) -> None:
        self._root = context.root

    def wake(self, turn: Turn) -> None:
        try:
            hooks.announce(self._root, turn.agent, turn.receipt.token)
        except OSError as exc:
            raise WakeFailed(f"cannot write below {self._root / HOOKS}: {exc.strerror}") from exc

    def stop(self, turn: Turn) -> None:
        """Do nothing: hooks look for what is in hand."""


class ClaudeHookWake(CodexHookWake):
    """Wakes a session of Claude Code through the command that waits in its background."""

    def wake(self, turn: Turn) -> None:
        if not hooks.is_awaited(self._root, turn.agent):
            raise WakeFailed(
                "no session of Claude Code waits for mail: it works, or is not there, or has not ended a turn yet;"
                " `pabal ignite hooks install claude` makes it wait"
            )
        super().wake(turn)

    def is_there(self, agent: str, about: Agent) -> bool:
        return hooks.is_awaited(self._root, agent)


class WebhookWake:
    """Posts the path of the message to a server on this machine; a 2xx answer means that the agent got it."""

    def __init__(self, context: WakeContext) -> None:
        pass

    def wake(self, turn: Turn) -> None:
        host, parts = _local(turn.about.url)
        document = {
            "path": turn.path,
            "id": turn.message.id,
            "agent": turn.agent,
            "type": turn.message.type,
            "attempt": turn.attempt,
            "receipt": str(turn.receipt),
        }
        connection = http.client.HTTPConnection(host, parts.port or 80, timeout=_TIMEOUT)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request("POST", parts.path or "/", jsontext.encode(document), headers)
            status = connection.getresponse().status
        except (OSError, http.client.HTTPException) as exc:
            raise WakeFailed(f"{shown_url(turn.about.url)} does not answer: {exc}") from exc
        finally:
            connection.close()
        if not 200 <= status < 300:
            raise WakeFailed(f"{shown_url(turn.about.url)} answered {status}; 2xx was expected")

    def stop(self, turn: Turn) -> None:
        """Do nothing: a request cannot be taken back."""

    def is_there(self, agent: str, about: Agent) -> bool:
        try:
            host, parts = _local(about.url)
            socket.create_connection((host, parts.port or 80), _TIMEOUT).close()
        except (OSError, WakeFailed):
            return False
        return True


def _local(url: str) -> tuple[str, SplitResult]:
    """Return the address to connect to; refuse one that is not on this machine."""
    try:
        parts = urlsplit(url)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
        if parts.scheme == "http" and ipaddress.ip_address(host).is_loopback and parts.port != 0:
            return host, parts
    except ValueError:
        pass
    raise WakeFailed(f"a webhook is on this machine: http://127.0.0.1:PORT/PATH; found {shown_url(url)}")
