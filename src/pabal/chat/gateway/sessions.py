"""The sockets that are logged in, and how many each user has."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from pabal.chat.gateway.answers import RequestRefused
from pabal.chat.gateway.limits import Limits
from pabal.chat.gateway.tokens import Login


@dataclass
class Session:
    """One socket. `joining` are the rooms whose missed messages it is given, `sending` keeps its sends in order."""

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
    """All sockets of this gateway that are logged in."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._by_sid: dict[str, Session] = {}
        self._by_user: dict[str, dict[str, Session]] = {}

    def add(self, session: Session) -> None:
        """Let a socket in, unless its user has as many as allowed."""
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
        """Forget a socket, and all that was planned for it."""
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

    def all(self) -> list[Session]:
        return list(self._by_sid.values())
