"""From a URL to the ledger that it names."""

from __future__ import annotations

from urllib.parse import urlsplit

from pabal.chat.ledger.contract import Ledger
from pabal.chat.ledger.ledger import SqlLedger
from pabal.chat.ledger.session import Engine
from pabal.clock import Clock, SystemClock
from pabal.connect import database_path
from pabal.errors import InvalidUrl, Outage, StoreRefused


def open_ledger(url: str, *, clock: Clock | None = None) -> Ledger:
    """Open the chat's database: sqlite:///path.db or postgresql://…, with ?schema= for another schema than `chat`.

    Tables are made or brought up to date. A database that does not answer is no error here: calls say Outage until it
    does. InvalidUrl, StoreRefused: it never will.
    """
    ledger = SqlLedger(_engine(url), clock or SystemClock())
    try:
        ledger.health()
    except Outage as exc:
        if isinstance(exc.__cause__, StoreRefused):
            ledger.close()
            raise exc.__cause__ from exc
    return ledger


def _engine(url: str) -> Engine:
    scheme = urlsplit(url).scheme
    if scheme == "sqlite":
        from pabal.chat.ledger.sqlite import SqliteEngine

        return SqliteEngine(database_path(url))
    if scheme in ("postgresql", "postgres"):
        from pabal.chat.ledger.postgres import PostgresEngine

        return PostgresEngine(url)
    raise InvalidUrl(f"the chat's database is sqlite:///path.db or postgresql://…; found {scheme!r:.40}")
