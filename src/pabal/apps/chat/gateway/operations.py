"""What operators ask a gateway: whether it is ready for users, and its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from pabal.apps.chat.gateway.answers import RequestRefused, answer
from pabal.apps.chat.gateway.context import Context
from pabal.apps.chat.gateway.rest import address_of
from pabal.errors import Outage
from pabal.runtime.origins import is_loopback


class State(NamedTuple):
    """What a gateway knows of itself. `reading`: it follows the topics."""

    name: str
    reading: bool
    sockets: int
    users: int
    cut_off: int


class Operations:
    def __init__(self, context: Context, state: Callable[[], State], metrics_from: tuple[str, ...]) -> None:
        self._context, self._state, self._metrics_from = context, state, metrics_from

    def routes(self) -> list[Route]:
        return [
            Route("/ready", self.ready, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
        ]

    async def ready(self, request: Request) -> Response:
        """Answer 200 if database and topics answer, else 503: a load balancer then sends new users elsewhere."""
        database, state = await self._database(), self._state()
        appending = not self._context.messages.failing
        found = {"database": _word(database), "reading": _word(state.reading), "appending": _word(appending)}
        return answer(found, 200 if database and state.reading and appending else 503)

    async def metrics(self, request: Request) -> Response:
        address = address_of(request)
        if not (is_loopback(address) or address in self._metrics_from):
            raise RequestRefused(403, "MetricsRefused", "metrics are for this machine: start with --metrics-from")
        state, messages = self._state(), self._context.messages
        gauges = {
            "sockets": ("Connections of clients.", state.sockets),
            "users": ("Users with a connection here.", state.users),
            "database_up": ("1 if the database answers.", int(await self._database())),
            "topics_up": ("1 if the topics are read and take messages.", int(state.reading and not messages.failing)),
            "waiting": ("Messages that wait to be appended.", messages.waiting),
        }
        counters = {
            "appended": ("Messages that were accepted.", messages.appended),
            "cut_off": ("Clients that were cut off because they did not read.", state.cut_off),
        }
        lines = [line for name, found in gauges.items() for line in _family(f"pabal_chat_{name}", "gauge", *found)]
        for name, found in counters.items():
            lines += _family(f"pabal_chat_{name}_total", "counter", *found)
        return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")

    async def _database(self) -> bool:
        if self._context.calls.down:
            return False
        try:
            await self._context.calls(self._context.calls.ledger.health)
        except Outage:
            return False
        return True


def _word(good: bool) -> str:
    return "ok" if good else "down"


def _family(name: str, kind: str, words: str, value: int) -> list[str]:
    return [f"# HELP {name} {words}", f"# TYPE {name} {kind}", f"{name} {value}"]
