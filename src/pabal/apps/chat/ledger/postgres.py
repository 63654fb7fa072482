"""The ledger's database on a PostgreSQL server, in a schema of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from pabal.apps.chat.ledger.database import NOW, Row, Session
from pabal.errors import Outage, StoreClosed, StoreError
from pabal.sql.postgres import Server, refused_values
from pabal.sql.postgres_link import Link, for_libpq
from pabal.sql.schema import Schema

T = TypeVar("T")

PATIENCE_SECONDS = 2.0
ANSWER_SECONDS = 10.0
SCHEMA = "chat"
_NOW = "(extract(epoch from clock_timestamp()) * 1000)::bigint"


@lru_cache(1000)
def _here(statement: str) -> str:
    return statement.replace("?", "%s").replace(NOW, _NOW)


class PostgresSession:
    fts5 = False

    def __init__(self, link: Link, schema: Schema) -> None:
        self._link = link
        self._schema = schema

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        cursor = self._link.execute(self._schema(_here(statement)), values)
        return cursor.fetchall() if cursor.description else []

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        if rows:
            self._link.cursor().executemany(self._schema(_here(statement)), rows)


class PostgresEngine:
    def __init__(self, url: str) -> None:
        url, own = for_libpq(url, frozenset({"schema"}))
        self._schema = Schema(own.get("schema", SCHEMA), "chat_postgres")
        self._server = Server(url, patience=PATIENCE_SECONDS, answer=ANSWER_SECONDS)
        self._ready = False

    def write(self, work: Callable[[Session], T], *, durable: bool = True) -> T:
        def run(link: Link) -> T:
            with link.transaction():
                if not durable:
                    link.execute("set local synchronous_commit = off")
                return work(PostgresSession(link, self._schema))

        return self._answer(run)

    def read(self, work: Callable[[Session], T]) -> T:
        return self._answer(lambda link: work(PostgresSession(link, self._schema)))

    def close(self) -> None:
        self._server.close()

    def _answer(self, work: Callable[[Link], T]) -> T:
        try:
            if not self._ready:
                self._server.run(lambda link: self._schema.migrate(link, "pabal.apps.chat.ledger"))
                self._ready = True
            return self._server.run(work)
        except StoreClosed:
            raise
        except StoreError as exc:
            if refused_values(exc):
                raise
            raise Outage(f"the chat's database does not answer: {exc}") from exc
