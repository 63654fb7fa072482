"""The ledger's database as a SQLite file, which queues and topics may share.

After an I/O error the next call opens the database again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from pabal.apps.chat.ledger.database import LOCK, NOW, Row, Session
from pabal.errors import Outage, StoreClosed, StoreError, StoreFailed
from pabal.sql.connection import Connection, enforce_keys, refused_values
from pabal.sql.handle import Handle
from pabal.sql.migrate import migrate
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction

T = TypeVar("T")

BUSY_SECONDS = 2.0


class SqliteSession:
    fts5 = True

    def __init__(self, run: Callable[..., Any], many: Callable[..., Any]) -> None:
        self._run = run
        self._many = many

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        found: list[Row] = self._run(_here(statement), tuple(values)).fetchall()
        return found

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        if rows:
            self._many(_here(statement), rows)


class SqliteEngine:
    def __init__(self, path: Path) -> None:
        self._db = Handle(path, partial(Database, prepare=_prepare, committed=lambda queues: None, busy=BUSY_SECONDS))

    def write(self, work: Callable[[Session], T], *, durable: bool = True) -> T:
        def run(tx: Transaction) -> T:
            return work(SqliteSession(tx.run, tx.many))

        # A transaction that need not be durable only frees space.
        return self._answer(lambda: self._db.write(run, durable=durable, essential=not durable))

    def read(self, work: Callable[[Session], T]) -> T:
        def run(connection: Connection) -> T:
            return work(SqliteSession(connection.execute, connection.executemany))

        return self._answer(lambda: self._db.read(run))

    def close(self) -> None:
        self._db.close()

    def _answer(self, ask: Callable[[], T]) -> T:
        try:
            return ask()
        except StoreError as exc:
            if isinstance(exc, StoreClosed) or refused_values(exc):
                raise
            raise Outage(f"the chat's database does not answer: {exc}") from exc
        except Exception as exc:
            if refused_values(exc):
                raise StoreFailed(f"{exc} in {self._db.path}") from exc
            raise


def _prepare(connection: Connection) -> None:
    enforce_keys(connection)
    migrate(connection, "chat_sqlite", "pabal.apps.chat.ledger")


@lru_cache(1000)
def _here(statement: str) -> str:
    return statement.replace(NOW, "null").replace("pabal.", "chat_").replace(LOCK, "")
