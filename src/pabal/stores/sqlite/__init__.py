"""The store in one SQLite file: a row for each message."""

from pabal.stores.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
