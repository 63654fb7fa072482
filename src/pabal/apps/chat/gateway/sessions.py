"""The logged-in sockets, and how many each user has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pabal.apps.chat.gateway.answers import RequestRefused
from pabal.apps.chat.gateway.auth import Login
from pabal.apps.chat.gateway.limits import Limits


@dataclass
class Session:
    """One socket. `joining` holds the catch-up of each room, `sending` keeps its sends in order."""

    sid: str
    login: Login
    rooms: set[str] = field(default_factory=set)
    joining: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    end: asyncio.TimerHandle | None = None

    @property
    def user(self) -> str:
        return self.login.user_id


class Sessions:
    """All logged-in sockets of this gateway."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_sid: dict[str, Session] = {}
        self._by_user: dict[str, dict[str, Session]] = {}

    def add(self, session: Session) -> None:
        """Add a socket, unless its user has reached the limit."""
        mine = self._by_user.setdefault(session.user, {})
        if len(mine) >= self._limits.sockets_per_user:
            most = self._limits.sockets_per_user
            raise RequestRefused(429, "TooManySockets", f"a user has at most {most} sockets: close one")
        self._by_sid[session.sid] = mine[session.sid] = session

    def get(self, sid: str) -> Session | None:
        return self._by_sid.get(sid)

    def of_user(self, user: str) -> list[Session]:
        return list(self._by_user.get(user, {}).values())

    def remove(self, sid: str) -> Session | None:
        """Remove a socket and cancel its timers and tasks."""
        session = self._by_sid.pop(sid, None)
        if session is None:
            return None
        mine = self._by_user[session.user]
        del mine[sid]
        if not mine:
            del self._by_user[session.user]
        if session.end is not None:
            session.end.cancel()
        for task in session.joining.values():
            task.cancel()
        return session

    @property
    def users(self) -> int:
        """How many users have a socket here."""
        return len(self._by_user)

    def all(self) -> list[Session]:
        return list(self._by_sid.values())
