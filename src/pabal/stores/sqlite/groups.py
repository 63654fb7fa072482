"""Groups, ordered by `seq`: only the smallest live member may be ready; the others are held until it has left."""

from collections.abc import Iterable
from typing import Any

from pabal.sql.writer import Transaction
from pabal.stores.sqlite.rows import HELD, READY

_HEAD = "select seq, state from messages where queue_id = ? and grp = ? and state < 4 order by seq limit 1"


def head(tx: Transaction, number: int, group: str) -> tuple[Any, ...] | None:
    """Return (seq, state) of the member whose turn it is, or None if there is none."""
    return next(iter(tx.run(_HEAD, (number, group)).fetchall()), None)


def release(tx: Transaction, number: int, queue: str, groups: Iterable[str | None]) -> None:
    """Let the next of each group come up after one of its members has left."""
    for group in groups:
        if group is not None:
            found = head(tx, number, group)
            if found is not None and found[1] == HELD:
                tx.change("update messages set state = 0 where seq = ?", (found[0],))
                tx.rings[queue] = number


def turn_of(tx: Transaction, number: int, seq: int, group: str | None) -> int:
    """Return READY, or HELD for a member that is not the head of its group."""
    if group is None:
        return READY
    found = head(tx, number, group)
    return READY if found is None or found[0] >= seq else HELD
