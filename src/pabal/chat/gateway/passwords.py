"""Passwords, kept as argon2 hashes. Hashing is slow on purpose: it has threads of its own, and not many."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error, InvalidHashError

_THREADS = 2  # each takes a core and the memory of one hash


class Passwords:
    """Makes and checks hashes off the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, "pabal-chat-password")
        self._hasher = PasswordHasher()
        # Checked when there is no such user, so that the time of an answer does not tell whether there is.
        self._nobody = self._pool.submit(self._hasher.hash, "nobody's password")

    async def hash(self, password: str) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._hasher.hash, password)

    async def matches(self, known: str | None, password: str) -> bool:
        """Say whether this is the password behind a hash; with None it takes as long and is False."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._matches, known, password)

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _matches(self, known: str | None, password: str) -> bool:
        try:
            self._hasher.verify(known or self._nobody.result(), password)
        except (Argon2Error, InvalidHashError):
            return False
        return known is not None
