"""Groups, ordered by `seq`: only the first live member may be ready, and only while no member is in flight.

The other members that are due are held. Several are in flight if they were leased together, or if their time to live
is over and a consumer judges them.
"""

from collections.abc import Iterable

from pabal.sql.connection import damaged_index
from pabal.sql.writer import Transaction
from pabal.stores.rows import HELD, READY, Row

_HEAD = "select seq, state from messages where queue_id = ? and grp = ? and state < 4 order by seq limit 1"
_COME_UP = "update messages set state = 0 where seq = ? and queue_id = ? and grp = ? and state = 3"
_IN_FLIGHT = "select 1 from messages where queue_id = ? and grp = ? and state = 2 limit 1"


def head(tx: Transaction, number: int, group: str) -> Row | None:
    """Return (seq, state) of the first live member, or None if the group is empty."""
    return next(iter(tx.run(_HEAD, (number, group)).fetchall()), None)


def stuck(tx: Transaction, number: int, group: str) -> int | None:
    """Return the number of the first member if it is held for no reason, else None."""
    found = head(tx, number, group)
    return found[0] if found is not None and found[1] == HELD and not _is_in_flight(tx, number, group) else None


def release(tx: Transaction, number: int, queue: str, groups: Iterable[str | None]) -> None:
    """Make the first member of each group ready, if no member is in flight any more."""
    for group in groups:
        if group is not None and (seq := stuck(tx, number, group)) is not None:
            if not tx.change(_COME_UP, (seq, number, group)):
                raise damaged_index(tx.connection)
            tx.wakeups[queue] = number


def turn_of(tx: Transaction, number: int, seq: int, group: str | None) -> int:
    """Return READY for a message without a group and for the first member of one with none in flight, else HELD."""
    if group is None:
        return READY
    found = head(tx, number, group)
    first = found is None or found[0] >= seq
    return READY if first and not _is_in_flight(tx, number, group) else HELD


def _is_in_flight(tx: Transaction, number: int, group: str) -> bool:
    return bool(tx.run(_IN_FLIGHT, (number, group)).fetchall())
