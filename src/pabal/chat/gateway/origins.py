"""Who may talk to a gateway at all: the hosts it answers to, the pages that may call it, the addresses it binds.

A browser sends every page's requests to any address, loopback too, and a name may be pointed at ours at any moment. So
the Host must be one of ours, and the Origin, where a browser names it, must be this host or one that is listed.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from pabal.errors import InvalidInput

LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Origins:
    """What Host and Origin may say. Hosts are names without a port, origins are written `https://chat.example.org`."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for origin in self.origins:
            parts = urlsplit(origin)
            if (
                parts.scheme not in ("http", "https")
                or not parts.netloc
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise InvalidInput(f"an origin is written https://chat.example.org; found {origin!r:.80}")

    def host_allowed(self, host: str) -> bool:
        """Say whether we are who a request's Host names."""
        return _name(host) in (*LOOPBACK, *(_name(known) for known in self.hosts))

    def origin_allowed(self, origin: str | None, host: str) -> bool:
        """Say whether a page may call us. Who is no browser names no origin."""
        return origin is None or origin in self.origins or origin.partition("://")[2] == host


def check_bind(host: str, *, behind_proxy: bool, tls: bool) -> None:
    """Refuse an address that others can reach, unless what goes over the wire is encrypted."""
    if not (behind_proxy or tls or is_loopback(host)):
        raise InvalidInput(
            f"{host} can be reached from elsewhere, where passwords would travel in the clear: "
            "give --tls-cert and --tls-key, or --behind-proxy ADDRESS if a proxy in front does TLS"
        )


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _name(host: str) -> str:
    """Return a Host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower()
