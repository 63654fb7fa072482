"""systemd is told over its socket, and nobody where there is none."""

import socket
from pathlib import Path

from pabal.runtime.notify import Notifier


def test_it_says_ready_alive_and_stopping(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(tmp_path / "notify"))
        notifier = Notifier(str(tmp_path / "notify"))
        notifier.ready("serving")
        notifier.alive()
        notifier.stopping()
        told = [heard.recv(100) for _ in range(3)]
    assert told == [b"READY=1\nSTATUS=serving", b"WATCHDOG=1", b"STOPPING=1"]


def test_without_a_socket_or_a_listener_nothing_happens(tmp_path: Path) -> None:
    Notifier().alive()
    Notifier(str(tmp_path / "nobody")).alive()
