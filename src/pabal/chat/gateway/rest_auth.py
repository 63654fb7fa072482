"""Registering and logging in."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pabal.chat.gateway.answers import RequestRefused, answer, body_of, too_often
from pabal.chat.gateway.bodies import Credentials, LoginOut, UserOut, instant_at, user_out
from pabal.chat.gateway.parts import Parts, Rates
from pabal.chat.gateway.rest import Door, address_of
from pabal.chat.gateway.tokens import Login


class AuthEndpoints:
    def __init__(self, parts: Parts, rates: Rates) -> None:
        self._parts, self._rates = parts, rates

    def routes(self, door: Door) -> list[Route]:
        return [
            Route("/auth/register", self.register, methods=["POST"]),
            Route("/auth/login", self.login, methods=["POST"]),
            Route("/me", door(self.me), methods=["GET"]),
        ]

    async def register(self, request: Request) -> Response:
        if wait := self._rates.registrations.take(address_of(request)):
            raise too_often(wait)
        asked = await body_of(request, Credentials, self._parts.limits.frame)
        hashed = await self._parts.passwords.hash(asked.password)
        user = await self._parts.calls(self._parts.calls.ledger.add_user, asked.email, hashed)
        return answer(user_out(user), 201)

    async def login(self, request: Request) -> Response:
        asked = await body_of(request, Credentials, self._parts.limits.frame)
        if wait := self._rates.logins.take((address_of(request), asked.email.lower())):
            raise too_often(wait)
        user = await self._parts.calls(self._parts.calls.ledger.user_by_email, asked.email)
        if not await self._parts.passwords.matches(user and user.password_hash, asked.password) or user is None:
            raise RequestRefused(401, "WrongCredentials", "email or password is wrong")
        token, ends = self._parts.tokens.login(user.id, user.email)
        return answer(LoginOut(access_token=token, expires_at=instant_at(ends), user=user_out(user)))

    async def me(self, request: Request, login: Login) -> Response:
        return answer(UserOut(id=login.user_id, email=login.email))
