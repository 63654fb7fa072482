"""Signed tokens: who is logged in, and who was invited to a room. One is never taken for the other.

Nothing is kept of them: whoever has the secret can check them, so all gateways of a chat share it.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path
from typing import Any, NamedTuple

import jwt

from pabal.clock import Clock
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidInput, StoreMissing, UnsafeMode

DAY = 86_400.0
MIN_SECRET = 32  # bytes
_ALGORITHM = "HS256"
_LOGIN, _INVITATION = "pabal-chat", "pabal-chat-invitation"


class Login(NamedTuple):
    """Who a token speaks for, and until when."""

    user_id: str
    email: str
    expires_at: float


class Tokens:
    """Makes and reads tokens."""

    def __init__(self, secret: bytes, clock: Clock, *, lifetime: float = DAY, invitation_lifetime: float = 7 * DAY):
        if len(secret) < MIN_SECRET:
            raise InvalidInput(f"the secret of a chat has at least {MIN_SECRET} bytes; found {len(secret)}")
        self._secret, self._clock = secret, clock
        self._lifetime, self._invitation_lifetime = lifetime, invitation_lifetime

    def login(self, user_id: str, email: str) -> tuple[str, float]:
        """Return a token for a user, and when it ends."""
        return self._sign({"sub": user_id, "email": email, "aud": _LOGIN}, self._lifetime)

    def read_login(self, token: object) -> Login | None:
        """Return whom a token speaks for; None if it is not ours or its time is over."""
        claims = self._read(token, _LOGIN)
        return None if claims is None else Login(claims["sub"], str(claims.get("email", "")), float(claims["exp"]))

    def invitation(self, room_id: str) -> tuple[str, float]:
        """Return a token that lets whoever has it join a room, and when it ends."""
        return self._sign({"sub": room_id, "aud": _INVITATION}, self._invitation_lifetime)

    def invites(self, token: object, room_id: str) -> bool:
        """Say whether a token is an invitation to this room."""
        claims = self._read(token, _INVITATION)
        return claims is not None and claims["sub"] == room_id

    def _sign(self, claims: dict[str, Any], lifetime: float) -> tuple[str, float]:
        now = int(self._clock.now())
        ends = now + int(lifetime)
        return jwt.encode({**claims, "iat": now, "exp": ends}, self._secret, _ALGORITHM), float(ends)

    def _read(self, token: object, audience: str) -> dict[str, Any] | None:
        # Times are compared with our own clock; the library would ask the system.
        options: Any = {"require": ["sub", "exp", "aud"], "verify_exp": False, "verify_iat": False}
        try:
            claims: dict[str, Any] = jwt.decode(
                token if isinstance(token, str) else "",
                self._secret,
                [_ALGORITHM],
                options=options,
                audience=audience,
            )
        except (jwt.PyJWTError, ValueError):
            return None
        ends = claims["exp"]
        return claims if isinstance(ends, int | float) and ends > self._clock.now() else None


def read_secret(path: Path) -> bytes:
    """Return the secret that lies in a file which only its owner may read."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError as exc:
        raise StoreMissing(f"no secret in {path}: write {MIN_SECRET} random bytes or more there, mode 0600") from exc
    with os.fdopen(fd, "rb") as file:
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if mode & 0o077:
            raise UnsafeMode(f"others may read the secret in {path} (mode {mode:04o}): chmod 600, and make a new one")
        return file.read(4096).strip()


def make_secret(path: Path) -> None:
    """Put a new secret where none is."""
    if not path.exists():
        make_dirs(path.parent)
        replace_whole(path, f"{secrets.token_urlsafe(MIN_SECRET)}\n".encode())
