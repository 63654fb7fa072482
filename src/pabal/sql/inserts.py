"""Inserts of many rows: twenty to a statement, which then finds its place in each tree once for all of them."""

from typing import Any

from pabal.sql.writer import Transaction

_TOGETHER = 20


class Insert:
    """An insert into some columns of a table."""

    def __init__(self, table: str, columns: str) -> None:
        self._width = columns.count(",") + 1
        row = f"({', '.join('?' * self._width)})"
        self._one = f"insert into {table} ({columns}) values {row}"
        self._many = f"{self._one}{f', {row}' * (_TOGETHER - 1)}"

    def run(self, tx: Transaction, values: list[Any]) -> None:
        """Store the rows whose values stand here one after the other."""
        if len(values) == self._width:
            tx.run(self._one, values)
            return
        start, wide = 0, self._width * _TOGETHER
        while len(values) - start >= wide:
            tx.run(self._many, values[start : (start := start + wide)])
        while start < len(values):
            tx.run(self._one, values[start : (start := start + self._width)])
