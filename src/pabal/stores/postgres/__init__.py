"""The store on a PostgreSQL server: a row for each message, for many machines."""

from pabal.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
