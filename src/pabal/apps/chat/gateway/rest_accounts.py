"""The REST endpoints of accounts: registration, login, the user's name and password, and the list of sessions."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pabal.apps.chat.errors import UserUnknown
from pabal.apps.chat.gateway.answers import RequestRefused, answer, body_of, too_often
from pabal.apps.chat.gateway.auth import Login
from pabal.apps.chat.gateway.bodies import (
    Credentials,
    LoginOut,
    NewName,
    NewPassword,
    Registration,
    SessionsOut,
    Success,
    UserOut,
    session_out,
    user_out,
)
from pabal.apps.chat.gateway.context import Context, Rates
from pabal.apps.chat.gateway.presence import Ended, record_of
from pabal.apps.chat.gateway.rest import Door, address_of, invalid, uuid_in
from pabal.apps.chat.gateway.sockets import Sockets
from pabal.apps.chat.ledger.names import checked_name
from pabal.apps.chat.ledger.values import User
from pabal.clock import iso_stamp
from pabal.errors import InvalidInput, Outage

_AGENT = 200  # characters of the name of a browser that are kept


class AccountEndpoints:
    def __init__(self, context: Context, rates: Rates, sockets: Sockets) -> None:
        self._context, self._rates, self._sockets = context, rates, sockets
        self._calls, self._ledger = context.calls, context.calls.ledger

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/auth/register", self.register, methods=["POST"]),
            Route("/auth/login", self.login, methods=["POST"]),
            Route("/auth/logout", door(self.logout), methods=["POST"]),
            Route("/auth/renew", door(self.renew), methods=["POST"]),
            Route("/me", door(self.me), methods=["GET"]),
            Route("/me/name", door(self.rename), methods=["POST"]),
            Route("/me/password", door(self.change_password), methods=["POST"]),
            Route("/sessions", door(self.sessions), methods=["GET"]),
            Route("/sessions/{session_id}/end", door(self.end), methods=["POST"]),
        ]

    async def register(self, request: Request) -> Response:
        if wait := self._rates.registrations.take(address_of(request)):
            raise too_often(wait)
        asked = await body_of(request, Registration, self._context.limits.frame)
        name = None if asked.name is None else _name(asked.name)
        hashed = await self._context.passwords.hash(asked.password)
        return answer(user_out(await self._calls(self._ledger.register, asked.email, hashed, name)), 201)

    async def login(self, request: Request) -> Response:
        asked = await body_of(request, Credentials, self._context.limits.frame)
        address, email = address_of(request), asked.email.casefold()
        for bucket, key in (
            (self._rates.logins, (address, email)),
            (self._rates.logins_per_address, address),
            (self._rates.logins_per_email, email),
        ):
            if wait := bucket.take(key):
                raise too_often(wait)
        user = await self._calls(self._ledger.user_by_email, asked.email)
        if not await self._context.passwords.matches(user and user.password_hash, asked.password) or user is None:
            raise RequestRefused(401, "WrongCredentials", "email or password is wrong")
        return self._logged_in(user, await self._open_session(request, user.id))

    async def logout(self, request: Request, login: Login) -> Response:
        """End the session of this token, on all gateways and in all tabs."""
        await self._calls(self._ledger.end_session, login.user_id, login.session)
        await self._ended([login.session])
        return answer(Success())

    async def renew(self, request: Request, login: Login) -> Response:
        """Return a new token of the same session."""
        user, lifetime = await self._user(login), self._context.tokens.lifetime
        if not await self._calls(self._ledger.renew_session, login.session, lifetime=lifetime):
            raise RequestRefused(401, "NotAuthenticated", "this session was ended: log in again")
        return self._logged_in(user, login.session)

    async def me(self, request: Request, login: Login) -> Response:
        try:
            return answer(user_out(await self._user(login)))
        except Outage:
            return answer(UserOut(id=login.user_id, email=login.email, name=None))

    async def rename(self, request: Request, login: Login) -> Response:
        asked = await body_of(request, NewName, self._context.limits.frame)
        await self._calls(self._ledger.rename_user, login.user_id, _name(asked.name))
        return answer(user_out(await self._user(login)))

    async def change_password(self, request: Request, login: Login) -> Response:
        """Change the password and end all other sessions."""
        asked = await body_of(request, NewPassword, self._context.limits.frame)
        if wait := self._rates.logins.take((address_of(request), login.user_id)):
            raise too_often(wait)
        user = await self._user(login)
        if not await self._context.passwords.matches(user.password_hash, asked.password):
            raise RequestRefused(403, "WrongPassword", "the old password is wrong")
        hashed = await self._context.passwords.hash(asked.new_password)
        await self._ended(await self._calls(self._ledger.set_password, user.id, hashed, keep=login.session))
        return answer(Success())

    async def sessions(self, request: Request, login: Login) -> Response:
        found = await self._calls(self._ledger.sessions_of, login.user_id)
        return answer(SessionsOut(sessions=[session_out(session, login.session) for session in found]))

    async def end(self, request: Request, login: Login) -> Response:
        session = uuid_in(request, "session_id")
        if not await self._calls(self._ledger.end_session, login.user_id, session):
            raise RequestRefused(404, "SessionUnknown", "you have no such session")
        await self._ended([session])
        return answer(Success())

    def _logged_in(self, user: User, session: str) -> Response:
        token, ends = self._context.tokens.login(user.id, user.email, session)
        return answer(LoginOut(access_token=token, expires_at=iso_stamp(ends), user=user_out(user)))

    async def _open_session(self, request: Request, user_id: str) -> str:
        opened = await self._calls(
            self._ledger.open_session,
            user_id,
            lifetime=self._context.tokens.lifetime,
            address=address_of(request),
            agent=request.headers.get("user-agent", "")[:_AGENT],
        )
        self._context.sessions.learn(opened.id, True)
        await self._ended(opened.ended)
        return opened.id

    async def _user(self, login: Login) -> User:
        user = await self._calls(self._ledger.user, login.user_id)
        if user is None:
            raise UserUnknown("there is no such user: register")
        return user

    async def _ended(self, sessions: list[str]) -> None:
        """Disconnect the sockets of sessions here at once, and on the other gateways through the presence topic."""
        if sessions:
            self._context.announcements.append_later(record_of(Ended(sessions)))
            await self._sockets.end(sessions)


def _name(text: str) -> str:
    try:
        return checked_name(text)
    except InvalidInput as exc:
        raise invalid("name", str(exc)) from exc
