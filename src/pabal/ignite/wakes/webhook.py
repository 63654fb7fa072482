"""webhook: posts the path of the message to a server on this machine; 2xx means that the agent has heard."""

from __future__ import annotations

import http.client
import ipaddress
from urllib.parse import SplitResult, urlsplit

from pabal import jsontext
from pabal.errors import WakeFailed
from pabal.ignite.wakes import Surroundings, Turn

_PATIENCE = 5.0  # seconds


class WebhookWake:
    def __init__(self, place: Surroundings) -> None:
        pass

    def wake(self, turn: Turn) -> None:
        host, parts = _local(turn.about.url)
        told = {
            "path": turn.path,
            "id": turn.message.id,
            "agent": turn.agent,
            "type": turn.message.type,
            "attempt": turn.attempt,
            "receipt": str(turn.receipt),
        }
        link = http.client.HTTPConnection(host, parts.port or 80, timeout=_PATIENCE)
        try:
            link.request("POST", parts.path or "/", jsontext.encode(told), {"Content-Type": "application/json"})
            status = link.getresponse().status
        except (OSError, http.client.HTTPException) as exc:
            raise WakeFailed(f"{turn.about.url:.200} does not answer: {exc}") from exc
        finally:
            link.close()
        if not 200 <= status < 300:
            raise WakeFailed(f"{turn.about.url:.200} answered {status}; 2xx was expected")

    def alive(self, turn: Turn) -> None:
        return None

    def stop(self, turn: Turn) -> None:
        """What was posted cannot be taken back."""


def _local(url: str) -> tuple[str, SplitResult]:
    """Return the address to connect to; refuse what is not on this machine."""
    try:
        parts = urlsplit(url)
        host = "127.0.0.1" if parts.hostname == "localhost" else parts.hostname or ""
        if parts.scheme == "http" and ipaddress.ip_address(host).is_loopback and parts.port != 0:
            return host, parts
    except ValueError:
        pass
    raise WakeFailed(f"a webhook is on this machine: http://127.0.0.1:PORT/PATH; found {url!r:.80}")
