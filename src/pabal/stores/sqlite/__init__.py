"""The store in one SQLite file: a row for each message."""

from pabal.stores.sqlite.backup import backup_database, restore_database, restore_hybrid, salvage_store
from pabal.stores.sqlite.bodies import BodyFolder, body_files
from pabal.stores.sqlite.seed import Tables
from pabal.stores.sqlite.store import SqliteStore
from pabal.stores.sqlite.takeover import read_database

__all__ = [
    "BodyFolder",
    "SqliteStore",
    "Tables",
    "backup_database",
    "body_files",
    "read_database",
    "restore_database",
    "restore_hybrid",
    "salvage_store",
]
