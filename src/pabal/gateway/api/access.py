"""Who may call the HTTP interface: the token of a gateway without keys, or a key with its secret, and the cookie.

A browser gives the token in the URL that the gateway prints, or a key in the form of the page, and gets a cookie: the
name of its key and an end, signed with its secret. So any gateway with the same keys knows it.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Mapping, Sequence
from urllib.parse import parse_qs

from pabal.clock import Clock
from pabal.gateway.signature import Key

LOCAL = "local"  # the key of a gateway without keys; its secret is the token
_SESSION = 30 * 86400  # seconds


class Access:
    """Finds the key of a request."""

    def __init__(self, keys: Sequence[Key], clock: Clock) -> None:
        self._keys = {key.access_key: key for key in keys}
        self._clock = clock

    @property
    def local(self) -> bool:
        """Whether the gateway has no keys, but one token."""
        return LOCAL in self._keys

    def key_of(self, headers: Mapping[str, str], cookie: str) -> Key | None:
        """Return the key of a request, by its Authorization or by the cookie of this name; None if it has none."""
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            name, _, secret = given.strip().partition(":")
            return self.key(LOCAL, given.strip()) or self.key(name, secret)
        if kind.lower() == "basic":
            try:
                name, _, secret = b64decode(given).decode().partition(":")
            except ValueError:
                return None
            return self.key(name, secret)
        return self._by_cookie(headers.get("cookie", ""), cookie)

    def key(self, name: str, secret: str) -> Key | None:
        """Return the key of this name, if this is its secret."""
        key = self._keys.get(name)
        known = key.secret if key is not None else "-" * 40
        return key if hmac.compare_digest(known.encode(), secret.encode()) else None

    def key_in_query(self, query: str) -> Key | None:
        """Return the key that the token of a URL stands for."""
        found = parse_qs(query).get("token", [])
        return self.key(LOCAL, found[0]) if found else None

    def cookie(self, key: Key, name: str, *, secure: bool) -> str:
        """Return the header that keeps a browser signed in."""
        text = f"{key.access_key}.{int(self._clock.now()) + _SESSION}"
        value = f"{text}.{_signed(key, text)}"
        return f"{name}={value}; Path=/; Max-Age={_SESSION}; HttpOnly; SameSite=Strict{'; Secure' if secure else ''}"

    def _by_cookie(self, text: str, name: str) -> Key | None:
        # Read by hand: http.cookies drops all cookies behind one of another program that it cannot read.
        pairs = (part.strip().partition("=") for part in text.split(";"))
        # A browser may have two cookies of this name, one of them set for a domain above or by a gateway before.
        keys = (self._signed_in(value) for found, _, value in pairs if found == name)
        return next((key for key in keys if key is not None), None)

    def _signed_in(self, value: str) -> Key | None:
        try:
            access_key, end, signature = value.rsplit(".", 2)
            key = self._keys[access_key]
            valid = hmac.compare_digest(_signed(key, f"{access_key}.{end}").encode(), signature.encode())
            return key if valid and int(end) > self._clock.now() else None
        except (KeyError, ValueError):
            return None


def _signed(key: Key, text: str) -> str:
    return hmac.new(key.secret.encode(), f"pabal session {text}".encode(), "sha256").hexdigest()
