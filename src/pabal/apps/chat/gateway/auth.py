"""Signed tokens for logins and invitations, and passwords as argon2 hashes.

A login is never accepted as an invitation, nor the other way round. Every gateway that has the secret can check a
token without the database, so all gateways of a chat share it. The ledger holds the sessions of logins and the
invitations, so that they can be ended.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

from pabal.apps.chat.gateway.answers import RequestRefused
from pabal.clock import Clock
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidInput, StoreMissing, UnsafeMode

P = ParamSpec("P")
T = TypeVar("T")

DAY = 86_400.0
MIN_SECRET = 32  # bytes
_ALGORITHM = "HS256"
_LOGIN, _INVITATION = "pabal-chat", "pabal-chat-invitation"


class Login(NamedTuple):
    """The user of a token, when it ends, and the session that it belongs to."""

    user_id: str
    email: str
    expires_at: float
    session: str


class Invited(NamedTuple):
    """What an invitation says: its room, and its id in the ledger."""

    room_id: str
    id: str


class Tokens:
    """Makes and checks tokens."""

    def __init__(self, secret: bytes, clock: Clock, *, lifetime: float = DAY, invitation_lifetime: float = 7 * DAY):
        if len(secret) < MIN_SECRET:
            raise InvalidInput(f"the secret of a chat has at least {MIN_SECRET} bytes; found {len(secret)}")
        self._secret, self._clock = secret, clock
        self._lifetime, self._invitation_lifetime = lifetime, invitation_lifetime

    @property
    def lifetime(self) -> float:
        """How long a login lasts, in seconds."""
        return self._lifetime

    @property
    def invitation_lifetime(self) -> float:
        return self._invitation_lifetime

    def login(self, user_id: str, email: str, session: str) -> tuple[str, float]:
        """Return a token for a user, and when it ends."""
        return self._sign({"sub": user_id, "email": email, "sid": session, "aud": _LOGIN}, self._lifetime)

    def read_login(self, token: object) -> Login | None:
        """Return the login of a token; None if it is not ours or has ended."""
        claims = self._read(token, _LOGIN)
        if claims is None or not claims.get("sid"):
            return None
        return Login(claims["sub"], str(claims.get("email", "")), float(claims["exp"]), str(claims["sid"]))

    def invitation(self, room_id: str, id: str) -> tuple[str, float]:
        """Return an invitation to a room, and when it ends."""
        return self._sign({"sub": room_id, "jti": id, "aud": _INVITATION}, self._invitation_lifetime)

    def read_invitation(self, token: object) -> Invited | None:
        """Return what an invitation says; None if it is not ours or has ended. The ledger knows if it was revoked."""
        claims = self._read(token, _INVITATION)
        return None if claims is None else Invited(claims["sub"], str(claims.get("jti", "")))

    def _sign(self, claims: dict[str, Any], lifetime: float) -> tuple[str, float]:
        now = int(self._clock.now())
        ends = now + int(lifetime)
        return jwt.encode({**claims, "iat": now, "exp": ends}, self._secret, _ALGORITHM), float(ends)

    def _read(self, token: object, audience: str) -> dict[str, Any] | None:
        # Times are compared with the clock that was given; the library would use the system's.
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
    """Return the secret in a file, which only its owner may be able to read."""
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
    """Create a secret file if none exists."""
    if not path.exists():
        make_dirs(path.parent)
        replace_whole(path, f"{secrets.token_urlsafe(MIN_SECRET)}\n".encode())


def password_hash(password: str) -> str:
    """Return the hash of a password, in the time that this takes."""
    return PasswordHasher().hash(password)


_THREADS = 2  # threads; each takes a core and the memory of one hash


class Passwords:
    """Makes and checks hashes in a few threads of its own, since hashing is slow on purpose.

    Only `most` of them at a time: who would wait longer is refused.
    """

    def __init__(self, most: int) -> None:
        self._most, self._waiting = most, 0
        self._pool = ThreadPoolExecutor(_THREADS, "pabal-chat-password")
        self._hasher = PasswordHasher()
        # Checked for an unknown user, so that the response time does not reveal whether the user exists.
        self._nobody = self._pool.submit(self._hasher.hash, "nobody's password")

    async def hash(self, password: str) -> str:
        return await self._run(self._hasher.hash, password)

    async def matches(self, known: str | None, password: str) -> bool:
        """Return whether a password matches a hash; for None it takes as long and returns False."""
        return await self._run(self._matches, known, password)

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._waiting >= self._most:
            raise RequestRefused(503, "TooBusy", "many people log in at the moment: try again in a moment", after=2)
        self._waiting += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, partial(work, *args, **kwargs))
        finally:
            self._waiting -= 1

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _matches(self, known: str | None, password: str) -> bool:
        try:
            self._hasher.verify(known or self._nobody.result(), password)
        except (Argon2Error, InvalidHashError):
            return False
        return known is not None
