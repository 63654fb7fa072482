"""Small files of a role: what it remembers between two starts, and readings for others.

A state file holds one JSON value and is replaced whole and durably. A file that is missing, empty or damaged reads as
the default: the role then knows less, and still works.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from pabal import jsontext
from pabal.durable import make_dirs, replace_whole, translated
from pabal.errors import InvalidInput
from pabal.filesystem import read_plain

T = TypeVar("T")

DAMAGED = (OSError, InvalidInput, msgspec.ValidationError)


class StateFile(Generic[T]):
    """The file of one value. Only one thread of one process writes it.

    `default` makes the value of a file that is missing. `damaged` is called with the error of a file that cannot be
    read: it may note the error or raise one of its own.
    """

    def __init__(
        self,
        path: Path,
        kind: type[T],
        *,
        default: Callable[[], T] | None = None,
        damaged: Callable[[Exception], None] = lambda exc: None,
    ) -> None:
        self.path = path
        self._kind = kind
        self._default = default or kind
        self._damaged = damaged
        self.value: T = self.read()

    def read(self) -> T:
        """Return the value that the file holds."""
        try:
            return read_state(self.path, self._kind)
        except FileNotFoundError:
            return self._default()
        except DAMAGED as exc:
            self._damaged(exc)
            return self._default()

    def save(self, value: T) -> None:
        """Write the value durably, unless it is the one that the file holds."""
        if value == self.value and self.path.exists():
            return
        write_state(self.path, value)
        self.value = value


def read_state(path: Path, kind: type[T]) -> T:
    """Read the JSON value of a file; raise one of DAMAGED if that is not possible."""
    return jsontext.convert(jsontext.read(read_plain(path)), kind)


def write_state(path: Path, value: object) -> None:
    """Write a value as JSON, whole and durably."""
    with translated(f"writing {path}"):
        make_dirs(path.parent)
        replace_whole(path, jsontext.pretty(msgspec.to_builtins(value)))


def write_reading(path: Path, data: bytes) -> None:
    """Replace a file whole, without a sync: it is out of date after a restart anyway.

    A failure is ignored, because a full disk must not stop the loop that writes readings.
    """
    with suppress(OSError):
        replace_whole(path, data, synced=False)
