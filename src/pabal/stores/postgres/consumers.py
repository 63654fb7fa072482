"""The register of the consumers of a PostgreSQL store, in a table of the store. All times are those of the server."""

from collections.abc import Callable
from contextlib import suppress

from pabal.clock import Clock
from pabal.errors import StoreFull
from pabal.sql.postgres import Server
from pabal.sql.schema import Schema
from pabal.store import Consumer
from pabal.stores.consumers import LATELY, Register

_SEE = "select pabal.see_consumer(%s, %s, %s, %s)"
_TOUCH = "update pabal.consumers set seen = pabal.wall() where tag = %s"
_READ = """
select tag, name, host, pid, since, seen, seen > pabal.wall() - %s from pabal.consumers"""
_FORGET = "select pabal.forget_consumers(%s)"


class PostgresRegister(Register):
    """The table of consumers."""

    def __init__(self, server: Server, schema: Schema, clock: Clock) -> None:
        super().__init__(clock)
        self._server = server
        self._sql = schema

    def _keep(self, tag: str, consumer: Consumer) -> None:
        values = (tag, consumer.name, consumer.host, consumer.pid)
        with suppress(StoreFull):
            self._server.run(lambda link: link.execute(self._sql(_SEE), values))

    def _touch(self, tag: str, seen: float) -> None:
        with suppress(StoreFull):
            self._server.run(lambda link: link.execute(self._sql(_TOUCH), (tag,)))

    def _read(self) -> dict[str, tuple[Consumer, bool]]:
        rows = self._server.read(lambda link: link.execute(self._sql(_READ), (LATELY,)).fetchall())
        return {tag: (Consumer(*fields), lately) for tag, *fields, lately in rows}

    def _sweep(self, held: Callable[[], set[str]]) -> None:
        self._server.run(lambda link: link.execute(self._sql(_FORGET), (LATELY,)))
