"""What the ledger's statements need of a database: a transaction that runs SQL, and an engine that commits it.

SQL is written once for both databases: `pabal.users` is the table of users, `?` is a parameter, and `LOCK` marks where
rows are locked until the transaction ends, if the database has several writers at once. `NOW` is the server's clock in
milliseconds; null for a database without a server, where the clock of the process counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
LOCK = "for update"
NOW = "pabal.now"


class Session(Protocol):
    """A transaction. `fts5` tells which index the database has for search: FTS5, else tsvector."""

    fts5: bool

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return its rows."""
        ...

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        """Run a statement once for each row."""
        ...


class Engine(Protocol):
    """A database. It raises Outage when it does not answer, and StoreFailed for values that it refuses."""

    def write(self, work: Callable[[Session], T], *, durable: bool = True) -> T:
        """Run the work in a transaction, which may be repeated; return its result after the commit."""
        ...

    def read(self, work: Callable[[Session], T]) -> T:
        """Run work that only reads."""
        ...

    def close(self) -> None: ...


def parameters(rows: int, width: int) -> str:
    """Return parameters for this many rows, to be used after `in`."""
    row = f"({', '.join('?' * width)})"
    return f"(values {', '.join([row] * rows)})"


def flat(rows: Sequence[Row]) -> list[Any]:
    """Return the values for `parameters`."""
    return [value for row in rows for value in row]
