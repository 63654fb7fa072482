"""The socket of a server: bound before its address is announced, and closed for clients that read nothing."""

from __future__ import annotations

import socket

from pabal.errors import InvalidInput

_STUCK = 60  # seconds after which a client that reads nothing is gone, even if its machine still answers


def bound_socket(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that the number of port 0 is known before it is announced."""
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        bound = socket.socket(family, kind, protocol)  # asyncio sets TCP_NODELAY only if the protocol is given
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STUCK * 1000)
            bound.bind(address)
        except BaseException:
            bound.close()
            raise
    except OSError as exc:
        raise InvalidInput(f"cannot serve at {host} port {port}: {exc.strerror}") from exc
    return bound


def address_of(scheme: str, host: str, bound: socket.socket) -> str:
    """Return the URL under which a bound socket is served."""
    shown = f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{bound.getsockname()[1]}"
