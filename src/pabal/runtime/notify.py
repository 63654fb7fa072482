"""Tells systemd how a service is: ready, stopping, alive. Does nothing where no socket was given."""

from __future__ import annotations

import socket
from contextlib import suppress


class Notifier:
    """Speaks the notify protocol over the socket that systemd names in NOTIFY_SOCKET."""

    def __init__(self, address: str = "") -> None:
        # A leading @ is how the abstract namespace is written.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def ready(self, status: str) -> None:
        self._tell(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        self._tell("STOPPING=1")

    def _tell(self, text: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.sendto(text.encode(), self._address)
