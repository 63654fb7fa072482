"""Cursors of browse: what `after` takes, apart from what a store puts into it."""

from collections.abc import Callable
from typing import TypeVar

from pabal.errors import InvalidInput

T = TypeVar("T")


def split_cursor(cursor: str, parts: int) -> list[str]:
    """Take a cursor apart; raise InvalidInput if it is none."""
    found = cursor.split("~")
    if len(found) != parts:
        raise _no_cursor(cursor)
    return found


def number_in(text: str, read: Callable[[str], T]) -> T:
    """Read a number that stands in a cursor; raise InvalidInput if it is none."""
    try:
        return read(text)
    except ValueError as exc:
        raise _no_cursor(text) from exc


def _no_cursor(found: str) -> InvalidInput:
    return InvalidInput(f"`after` takes the cursor of an entry; found {found!r:.80}")
