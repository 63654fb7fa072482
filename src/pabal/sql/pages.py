"""Reads rows straight from the pages of a SQLite file, for one whose trees are damaged.

SQLite finds a row through the pages above it. If one of these is destroyed, the rows below it are whole and cannot be
reached any more. Here every page is looked at by itself. Format: https://www.sqlite.org/fileformat2.html
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeAlias

_MAGIC = b"SQLite format 3\0"
_USUAL = 4096
_TABLE_LEAF = 0x0D
_WAL_HEADER, _FRAME_HEADER = 32, 24
_MOST = 128 << 20  # bytes of a row
_WIDTHS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}

Value: TypeAlias = None | int | float | str | bytes


class Row(NamedTuple):
    """A row of some table: its id and its columns. A text that is not UTF-8 has replacement characters."""

    id: int
    values: list[Value]


class Read(Protocol):
    """Reads bytes of the database file (0) or of its WAL (1)."""

    def __call__(self, file: int, at: int, many: int, /) -> bytes: ...


class PageFile:
    """A database file that nobody writes meanwhile, with the commits in its WAL.

    `read` reads a file that is open in this process: to open and close it once more would drop the locks of SQLite.
    """

    def __init__(self, path: Path, read: Read | None = None) -> None:
        self._files: list[BinaryIO] = []
        self._read: Read = read or self._read_file
        sizes = [os.path.getsize(name) if os.path.exists(name) else 0 for name in (f"{path}", f"{path}-wal")]
        if read is None:
            self._files += [open(name, "rb") for name in (f"{path}", f"{path}-wal") if os.path.exists(name)]
        head = self._read(0, 0, 100) if sizes[0] >= 100 else b""
        size = int.from_bytes(head[16:18], "big")
        size = 65536 if size == 1 else size
        self._whole = head[:16] == _MAGIC and size >= 512 and size & (size - 1) == 0
        self._size = size if self._whole else _USUAL
        self._usable = self._size - (head[20] if self._whole and head[20] <= 32 else 0)
        self._frames = _committed(self._read, sizes[1], self._size)
        self._pages_in_file = sizes[0] // self._size
        self.pages = max([self._pages_in_file, *self._frames])
        self.free = self._free_pages()

    def close(self) -> None:
        for file in self._files:
            file.close()

    def _read_file(self, file: int, at: int, many: int) -> bytes:
        self._files[file].seek(at)
        return self._files[file].read(many)

    def rows(self) -> Iterator[Row]:
        """Yield the rows that can be read in all leaves of tables, except those in pages that are listed as free."""
        free = self.free or set()
        for number in range(1, self.pages + 1):
            if number not in free:
                yield from self._rows_in(number)

    def _page(self, number: int) -> bytes:
        if number in self._frames:
            return self._read(1, self._frames[number], self._size)
        return self._read(0, (number - 1) * self._size, self._size) if 0 < number <= self._pages_in_file else b""

    def _free_pages(self) -> set[int] | None:
        """Return the pages that no table uses; None if the list of them cannot be read."""
        head = self._page(1)[:100]
        if len(head) < 100 or head[:16] != _MAGIC:
            return None
        trunk, count = struct.unpack(">II", head[32:40])
        free: set[int] = set()
        while trunk:
            page = self._page(trunk)
            if not 1 < trunk <= self.pages or trunk in free or len(page) < self._size:
                return None
            following, many = struct.unpack(">II", page[:8])
            if many > self._size // 4 - 2:
                return None
            leaves = struct.unpack(f">{many}I", page[8 : 8 + 4 * many])
            free |= {trunk, *leaves}
            trunk = following
        return free if len(free) == count and all(1 < number <= self.pages for number in free) else None

    def _rows_in(self, number: int) -> Iterator[Row]:
        page = self._page(number)
        start = 100 if page[:16] == _MAGIC else 0
        if len(page) < self._size or page[start] != _TABLE_LEAF:
            return
        many = int.from_bytes(page[start + 3 : start + 5], "big")
        for cell in range(min(many, self._size // 4)):
            at = start + 8 + 2 * cell
            with suppress(IndexError, ValueError, struct.error, OverflowError):
                yield self._row(page, int.from_bytes(page[at : at + 2], "big"))

    def _row(self, page: bytes, at: int) -> Row:
        length, at = _varint(page, at)
        id, at = _varint(page, at)
        if length > _MOST:
            raise ValueError("a row cannot be so long")
        id = id - (1 << 64) if id >= 1 << 63 else id
        # How much of a row is in its own page is a rule of the format.
        most, least = self._usable - 35, (self._usable - 12) * 32 // 255 - 23
        local = length
        if length > most:
            local = least + (length - least) % (self._usable - 4)
            local = local if local <= most else least
        data = page[at : at + local]
        if len(data) < local:
            raise ValueError("a row ends behind its page")
        if local < length:
            data += self._overflow(int.from_bytes(page[at + local : at + local + 4], "big"), length - local)
        return Row(id, _record(data))

    def _overflow(self, number: int, length: int) -> bytes:
        parts: list[bytes] = []
        seen: set[int] = set()
        while length > 0:
            page = self._page(number) if 1 < number <= self.pages and number not in seen else b""
            if len(page) < self._size:
                raise ValueError("a part of a row is missing")
            seen.add(number)
            part = page[4 : 4 + min(length, self._usable - 4)]
            parts.append(part)
            length -= len(part)
            number = int.from_bytes(page[:4], "big")
        return b"".join(parts)


def _record(data: bytes) -> list[Value]:
    size, at = _varint(data, 0)
    if size > len(data):
        raise ValueError("a row has no header")
    kinds = []
    while at < size:
        kind, at = _varint(data, at)
        kinds.append(kind)
    values: list[Value] = []
    at = size
    for kind in kinds:
        value, at = _value(data, kind, at)
        values.append(value)
    if at != len(data):
        raise ValueError("a row has another length than its columns")
    return values


def _value(data: bytes, kind: int, at: int) -> tuple[Value, int]:
    if kind in (0, 10, 11):  # the last two are reserved, and SQLite reads them as null
        return None, at
    if kind in _WIDTHS or kind == 7:
        width = _WIDTHS.get(kind, 8)
        part = _part(data, at, width)
        number = struct.unpack(">d", part)[0] if kind == 7 else int.from_bytes(part, "big", signed=True)
        return number, at + width
    if kind in (8, 9):
        return kind - 8, at
    width = (kind - 12) // 2
    part = _part(data, at, width)
    return (part.decode("utf-8", "replace") if kind % 2 else part), at + width


def _part(data: bytes, at: int, width: int) -> bytes:
    part = data[at : at + width]
    if len(part) < width:
        raise ValueError("a column ends behind its row")
    return part


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for _ in range(8):
        byte = data[at]
        at += 1
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at
    return value << 8 | data[at], at + 1


def _committed(read: Read, length: int, size: int) -> dict[int, int]:
    """Return, by page number, where its last version is in the WAL, up to the last commit that is whole."""
    head = read(1, 0, _WAL_HEADER) if length >= _WAL_HEADER else b""
    if head[:4] not in (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"):
        return {}
    order = ">" if head[3] & 1 else "<"
    sums = _checksum(order, head[:24], (0, 0))
    if sums != struct.unpack(">II", head[24:32]) or int.from_bytes(head[8:12], "big") != size:
        return {}
    found: dict[int, int] = {}
    pending: dict[int, int] = {}
    for at in range(_WAL_HEADER, length - _FRAME_HEADER - size + 1, _FRAME_HEADER + size):
        frame = read(1, at, _FRAME_HEADER + size)
        if frame[8:16] != head[16:24]:
            break
        sums = _checksum(order, frame[_FRAME_HEADER:], _checksum(order, frame[:8], sums))
        if sums != struct.unpack(">II", frame[16:24]):
            break
        number, commit = struct.unpack(">II", frame[:8])
        pending[number] = at + _FRAME_HEADER
        if commit:
            found |= pending
            pending.clear()
    return found


def _checksum(order: str, data: bytes, before: tuple[int, int]) -> tuple[int, int]:
    first, second = before
    numbers = struct.unpack(f"{order}{len(data) // 4}I", data)
    for at in range(0, len(numbers), 2):
        first = (first + numbers[at] + second) & 0xFFFFFFFF
        second = (second + numbers[at + 1] + first) & 0xFFFFFFFF
    return first, second
