"""What the statements of the ledger need of a database: a transaction that runs SQL, and somebody who commits it.

SQL is written once: `pabal.users` is the table of users whatever the database calls it, `?` is a parameter, and
`LOCK` stands where rows are locked until the transaction ends, if the database has several writers at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
Row = tuple[Any, ...]
LOCK = "for update"


class Session(Protocol):
    """A transaction."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Run a statement and return what it answers."""
        ...

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        """Run a statement once for each row."""
        ...


class Engine(Protocol):
    """A database. A call that it cannot answer raises Outage; values that it refuses raise StoreFailed."""

    def write(self, work: Callable[[Session], T], *, durable: bool = True) -> T:
        """Run the work in a transaction, which may be repeated; return what it returned once it is committed."""
        ...

    def read(self, work: Callable[[Session], T]) -> T:
        """Run work that changes nothing."""
        ...

    def close(self) -> None: ...


def parameters(rows: int, width: int) -> str:
    """Return parameters for so many rows, to stand behind `in`."""
    row = f"({', '.join('?' * width)})"
    return f"(values {', '.join([row] * rows)})"


def flat(rows: Sequence[Row]) -> list[Any]:
    """Return the values for `parameters`."""
    return [value for row in rows for value in row]
