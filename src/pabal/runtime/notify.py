"""Notifications to systemd: ready, alive, stopping. Does nothing if no socket was given."""

from __future__ import annotations

import socket
from contextlib import suppress


class Notifier:
    """The notify protocol, over the socket that systemd names in NOTIFY_SOCKET."""

    def __init__(self, address: str = "") -> None:
        # A leading @ stands for the abstract namespace.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def stopping(self) -> None:
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if self._address:
            with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
                to.sendto(text.encode(), self._address)
