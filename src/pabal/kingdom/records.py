"""What a role remembers between its lives: one JSON file, replaced whole, read as one value.

A file that is not there, is empty or is damaged is the default: it says less than it could, and stops nobody.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from pabal import jsontext
from pabal.durable import make_dirs, read_plain, replace_whole, translated
from pabal.errors import InvalidInput

T = TypeVar("T", bound=msgspec.Struct)


class Record(Generic[T]):
    """The file of one value. Only one thread of one process writes it."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self.path = path
        self._kind = kind
        self.value: T = self.read()

    def read(self) -> T:
        """Return what the file says."""
        try:
            return msgspec.convert(jsontext.read(read_plain(self.path)), self._kind)
        except (OSError, InvalidInput, msgspec.ValidationError):
            return self._kind()

    def save(self, value: T) -> None:
        """Remember durably; nothing is written if nothing changed."""
        if value == self.value and self.path.exists():
            return
        with translated(f"writing {self.path}"):
            make_dirs(self.path.parent)
            replace_whole(self.path, jsontext.pretty(msgspec.to_builtins(value)))
        self.value = value
