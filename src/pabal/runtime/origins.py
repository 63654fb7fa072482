"""Access to a gateway: the hosts it answers to, the pages that may call it, the addresses it may bind.

A browser sends the requests of any page to any address, loopback included, and an attacker may point a host name at
ours (DNS rebinding). So the Host must be a known one, and the Origin, if there is one, this host or a listed one.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from pabal.errors import InvalidInput
from pabal.names import shown_url, split_url

LOOPBACK = ("localhost", "127.0.0.1", "::1")
TOKEN_LENGTH = 16  # characters at least of a token that nobody can guess


@dataclass(frozen=True, kw_only=True)
class Origins:
    """The allowed values of Host and Origin. Hosts are names without a port; origins look like `https://chat.example.org`."""

    hosts: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    any_host: bool = False  # requests are signed, and so is their Host

    def __post_init__(self) -> None:
        for origin in self.origins:
            parts = split_url(origin)
            if (
                parts.scheme not in ("http", "https")
                or not parts.netloc
                or origin != f"{parts.scheme}://{parts.netloc}"
            ):
                raise InvalidInput(f"an origin is written https://chat.example.org; found {shown_url(origin)}")

    def refusal(self, headers: Mapping[bytes, bytes]) -> tuple[str, str]:
        """Return the code and the reason to refuse a request with these headers; two empty texts if there is none."""
        host, origin = headers.get(b"host", b"").decode("latin-1"), headers.get(b"origin")
        if not self.any_host and not self.host_allowed(host):
            return "HostRefused", f"nothing here is called {host!r:.80}: start with --allow-host"
        if not self.origin_allowed(None if origin is None else origin.decode("latin-1"), host):
            return "OriginRefused", "pages of other sites may not call"
        return "", ""

    def host_allowed(self, host: str) -> bool:
        """Return whether the Host of a request is one of ours."""
        return _name(host) in self._names

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset((*LOOPBACK, *map(_name, self.hosts)))

    def origin_allowed(self, origin: str | None, host: str) -> bool:
        """Return whether a page may call us. Clients that are no browsers send no Origin."""
        return origin is None or origin in self.origins or origin.partition("://")[2] == host


def check_bind(host: str, *, behind_proxy: bool, tls: bool) -> None:
    """Refuse an address that other machines can reach, unless the connection is encrypted."""
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
