"""Groups, ordered by `seq`: only the first live member may be ready; the others are held until it has left."""

from collections.abc import Iterable

from pabal.sql.writer import Transaction
from pabal.stores.rows import HELD, READY, Row

_HEAD = "select seq, state from messages where queue_id = ? and grp = ? and state < 4 order by seq limit 1"


def head(tx: Transaction, number: int, group: str) -> Row | None:
    """Return (seq, state) of the first live member, or None if the group is empty."""
    return next(iter(tx.run(_HEAD, (number, group)).fetchall()), None)


def release(tx: Transaction, number: int, queue: str, groups: Iterable[str | None]) -> None:
    """Make the first member of each group ready, after the member before it has left."""
    for group in groups:
        if group is not None:
            found = head(tx, number, group)
            if found is not None and found[1] == HELD:
                tx.change("update messages set state = 0 where seq = ? and state = 3", (found[0],))
                tx.wakeups[queue] = number


def turn_of(tx: Transaction, number: int, seq: int, group: str | None) -> int:
    """Return READY for a message without a group and for the first member of one, else HELD."""
    if group is None:
        return READY
    found = head(tx, number, group)
    return READY if found is None or found[0] >= seq else HELD
