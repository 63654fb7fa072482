"""The headers of a message file as lines: split from the body, read under our own checks, changed one at a time.

Python's `email` lets through what we refuse (CVE-2024-6923), so it is not used. At most 1 MiB, 128 headers, 8 KiB in a
line; no header twice. A change touches the lines of that header and no other byte.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from pabal.codecs.mime.words import check_value, encoded
from pabal.errors import (
    DuplicateHeader,
    InvalidHeader,
    NotMime,
    NotUtf8,
    TooLarge,
    TooManyHeaders,
)

MAX_HEAD = 1 << 20
MAX_LINES = 128  # the 100 that a message may bring, and ours
MAX_LINE_READ = 8192
_blank = re.compile(rb"\r?\n(\r?\n)").search
_name = re.compile(r"[!-9;-~]{1,200}", re.ASCII).fullmatch
_LAST = frozenset({"content-type", "content-transfer-encoding"})  # headers that are added stand before these


class Field(NamedTuple):
    """A header: its name as written, its value unfolded but not decoded, and all its lines as they stand."""

    name: str
    raw: str
    lines: str


class Head(NamedTuple):
    fields: tuple[Field, ...]
    newline: str
    size: int  # where the body begins

    def get(self, name: str) -> str | None:
        """Return the value of a header, not decoded; None if it is not there."""
        wanted = name.lower()
        return next((field.raw for field in self.fields if field.name.lower() == wanted), None)


def read_head(data: bytes) -> Head:
    """Read the headers of a message file; raise the InvalidInput that names what is wrong with them."""
    end = _blank(data, 0, MAX_HEAD + 4)
    if end is None:
        if len(data) > MAX_HEAD:
            raise TooLarge(f"headers have at most {MAX_HEAD} bytes; found no end of them")
        raise NotMime("no blank line after the headers: is it cut short?")
    try:
        text = data[: end.start(1)].decode()
    except UnicodeDecodeError as exc:
        raise NotUtf8(f"headers must be UTF-8: {exc.reason} at byte {exc.start}") from exc
    newline = "\r\n" if end[1] == b"\r\n" else "\n"
    return Head(tuple(_fields(text)), newline, end.end())


def _fields(text: str) -> Iterator[Field]:
    lines = text.split("\n")
    lines.pop()
    if len(lines) > MAX_LINES and sum(line[:1] not in (" ", "\t") for line in lines) > MAX_LINES:
        raise TooManyHeaders(f"{MAX_LINES} headers at most")
    seen: set[str] = set()
    count = 0
    while count < len(lines):
        begin = count
        count += 1
        while count < len(lines) and lines[count][:1] in (" ", "\t"):
            count += 1
        field = _field(lines[begin:count])
        if field.name.lower() in seen:
            raise DuplicateHeader(f"{field.name} is there twice; keep one")
        seen.add(field.name.lower())
        yield field


def _field(lines: list[str]) -> Field:
    name, colon, value = lines[0].partition(":")
    if not colon or not _name(name):
        raise InvalidHeader(f"a header is written Name: value; found {lines[0]!r:.60}")
    longest = max(map(len, lines))
    if longest > MAX_LINE_READ:
        raise TooLarge(f"{name:.80}: a line has at most {MAX_LINE_READ} characters; found {longest}")
    raw = "".join(line.removesuffix("\r") for line in (value, *lines[1:])).replace("\t", " ").strip(" ")
    return Field(name, check_value(name, raw), "\n".join([*lines, ""]))


def header_line(name: str, value: str) -> str:
    """Return a header as its lines stand in a file; raise InvalidHeader if it could not be read back."""
    if not _name(name):
        raise InvalidHeader(f"a header's name is of printable ASCII without spaces and colons; found {name!r:.60}")
    check_value(name, value)
    return f"{name}: {encoded(value)}\n" if value else f"{name}:\n"


def edited(data: bytes, changes: Mapping[str, str | None]) -> bytes:
    """Return the file with some headers set, or taken out where the value is None; the body stays byte for byte."""
    head = read_head(data)
    wanted = {name.lower(): (name, value) for name, value in changes.items()}
    lines: list[str] = []
    for field in head.fields:
        if field.name.lower() not in wanted:
            lines.append(field.lines)
            continue
        name, value = wanted.pop(field.name.lower())
        if value is not None:
            lines.append(_line(name, value, head.newline))
    place = _place(lines)
    lines[place:place] = [_line(name, value, head.newline) for name, value in wanted.values() if value is not None]
    return "".join([*lines, head.newline]).encode() + data[head.size :]


def _line(name: str, value: str, newline: str) -> str:
    return header_line(name, value).replace("\n", newline)


def _place(lines: list[str]) -> int:
    return next((at for at, line in enumerate(lines) if line.partition(":")[0].lower() in _LAST), len(lines))
