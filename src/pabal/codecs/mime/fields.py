"""Headers of message files: names and order, lines, values, dates.

A header of the message has its own name in the file if that name is not one of ours and its value comes back unchanged;
all others are together, as JSON, in X-Pabal-Headers.

Python's `email` accepts input that is refused here (CVE-2024-6923), so it is not used. Limits: 1 MiB, 128 headers,
8 KiB in a line; no header twice. Changing a header touches its lines and no other byte.

Values are ASCII, except names in From, To and Cc (RFC 6532), which people and models must be able to read. A value is
plain if it is printable ASCII that fits on one line. Any other value, also one with spaces at its ends, is written as
RFC 2047 encoded words, so that every text comes back unchanged.
"""

import re
from base64 import b64decode, b64encode
from binascii import a2b_qp
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pabal.errors import (
    DuplicateHeader,
    InvalidDate,
    InvalidEncoding,
    InvalidHeader,
    NotMime,
    NotUtf8,
    TooLarge,
    TooManyHeaders,
)

REQUIRED = (
    "MIME-Version",
    "Message-ID",
    "From",
    "To",
    "Date",
    "X-IGNITE-Type",
    "X-IGNITE-Priority",
    "Content-Type",
    "Content-Transfer-Encoding",
)
STATUS = "X-IGNITE-Status"
PROCESSED_AT = "X-IGNITE-Processed-At"
RETRY_COUNT = "X-IGNITE-Retry-Count"
LAST_RETRY_AT = "X-IGNITE-Last-Retry-At"
NEXT_RETRY_AFTER = "X-IGNITE-Next-Retry-After"
ERROR_REASON = "X-IGNITE-Error-Reason"
ERROR_AT = "X-IGNITE-Error-At"
# Fields of the delivery, which change; they are not part of the message.
MOVING = (STATUS, PROCESSED_AT, RETRY_COUNT, LAST_RETRY_AT, NEXT_RETRY_AFTER, ERROR_REASON, ERROR_AT)
THREAD_ID = "X-IGNITE-Thread-ID"
IN_REPLY_TO = "In-Reply-To"
REPOSITORY = "X-IGNITE-Repository"
ISSUE = "X-IGNITE-Issue"
DELIVERED_TO = "Delivered-To"  # the agent whose copy this is, of a message for several
# Headers of the message that come before all others.
PLACED = (DELIVERED_TO, IN_REPLY_TO, REPOSITORY, ISSUE)

# Text fields of a message, and the headers for those that are not empty.
TEXTS: Mapping[str, str] = {
    "reply_to": "Reply-To",
    "target": "X-Pabal-Target",
    "group": "X-Pabal-Group",
    "dedup_key": "X-Pabal-Dedup-Key",
    "unique": "X-Pabal-Unique-Key",
    "trace_id": "X-Pabal-Trace-ID",
}
MICROSECONDS = "X-Pabal-Microseconds"
EXPIRES_AT = "X-Pabal-Expires-At"
VERSION = "X-Pabal-Version"
ATTRIBUTES = "X-Pabal-Attributes"
HEADERS = "X-Pabal-Headers"

_OURS = (*REQUIRED, *MOVING, *TEXTS.values(), THREAD_ID, MICROSECONDS, EXPIRES_AT, VERSION, ATTRIBUTES, HEADERS, "Cc")
OURS = frozenset(name.lower() for name in _OURS)
_known = {name.lower(): name for name in (*PLACED, "Subject", "References")}
_simple = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,75}", re.ASCII).fullmatch


def name_of(written: str) -> str:
    """Return the name of a header in the message, whatever its case in the file."""
    return _known.get(written.lower(), written)


def sorted_out(headers: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the headers that can have their own names in the file, in order, and the rest."""
    own: dict[str, str] = {name: headers[name] for name in PLACED if name in headers}
    rest: dict[str, str] = {}
    seen = {name.lower() for name in own}
    for name, value in headers.items():
        if name in own:
            continue
        low = name.lower()
        if low in OURS or low in seen or name_of(name) != name or not _simple(name):
            rest[name] = value
        else:
            own[name] = value
            seen.add(low)
    return own, rest


# Lines

MAX_HEAD = 1 << 20
MAX_LINES = 128  # the 100 of the message, and ours
MAX_LINE_READ = 8192
_blank = re.compile(rb"\r?\n(\r?\n)").search
_name = re.compile(r"[!-9;-~]{1,200}", re.ASCII).fullmatch
_ADDRESSES = frozenset({"From", "To", "Cc"})
_LAST = frozenset({"content-type", "content-transfer-encoding"})  # added headers go before these


class Field(NamedTuple):
    """A header: its name as written, its value unfolded but not decoded, and its lines unchanged."""

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
    """Return a header as lines of a file; raise InvalidHeader if it could not be read back."""
    if not _name(name):
        raise InvalidHeader(f"a header's name is of printable ASCII without spaces and colons; found {name!r:.60}")
    check_value(name, value)
    plain = name in _ADDRESSES and len(value) <= _LONGEST_PLAIN and value.isprintable() and "=?" not in value
    return f"{name}: {value if plain else encoded(value)}\n" if value else f"{name}:\n"


def edited(data: bytes, changes: Mapping[str, str | None]) -> bytes:
    """Return the file with some headers set, or removed where the value is None; the body is unchanged."""
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


# Values

_LONGEST_PLAIN = 900  # leaves space for any name before it
_WORD_BYTES = 45  # bytes of UTF-8 in one encoded word of 75 characters
_plain = re.compile(r"(?! )[ -~]*(?<! )").fullmatch
_control = re.compile(r"[\x00-\x1f\x7f]").search
_word = re.compile(r"=\?([^?\s]{1,40})\?([bBqQ])\?([^?\s]*)\?=", re.ASCII)
_between = re.compile(r"(\?=)[ \t]+(?==\?[^?\s]{1,40}\?[bBqQ]\?[^?\s]*\?=)", re.ASCII)
_CHARSETS = frozenset({"utf-8", "us-ascii"})


def check_value(name: str, value: str) -> str:
    """Return a header's value if it is one line of text; raise InvalidHeader if not."""
    if not value.isprintable() and _control(value):
        raise InvalidHeader(f"{name} holds a line break or another control character, which no header may hold")
    return value


def encoded(value: str) -> str:
    """Return the value as it is written to a file; continuation lines begin with a space."""
    if len(value) <= _LONGEST_PLAIN and _plain(value) and "=?" not in value:
        return value
    return "\n ".join(f"=?utf-8?b?{b64encode(part).decode()}?=" for part in _parts(value))


def decoded(name: str, raw: str) -> str:
    """Return the value of a header from its raw text, which is unfolded and stripped."""
    if "=?" not in raw:
        return check_value(name, raw)
    return check_value(name, _word.sub(lambda found: _decoded_word(name, *found.groups()), _between.sub(r"\1", raw)))


def _parts(value: str) -> list[bytes]:
    parts = [b""]
    for char in value:
        byte = char.encode()
        if len(parts[-1]) + len(byte) > _WORD_BYTES:
            parts.append(b"")
        parts[-1] += byte
    return parts


def _decoded_word(name: str, charset: str, kind: str, text: str) -> str:
    charset = charset.partition("*")[0].lower()
    if charset not in _CHARSETS:
        raise InvalidEncoding(f"{name}: an encoded word must be of utf-8; found {charset:.40}")
    try:
        data = b64decode(text, validate=True) if kind in "bB" else a2b_qp(text, header=True)
        return data.decode(charset)
    except ValueError as exc:  # of base64, of characters that are no ASCII, of UTF-8
        raise InvalidEncoding(f"{name}: an encoded word that is not {charset} in {kind.upper()}") from exc


# Dates in the form of RFC 2822: written in UTC with seconds, read in any zone. The name of the day is not checked.

_DAYS = "Mon Tue Wed Thu Fri Sat Sun".split()
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec".split()
_NUMBERS = {name.lower(): number for number, name in enumerate(_MONTHS, 1)}
_ZONES = {"gmt": 0, "ut": 0, "utc": 0, "z": 0}
_date = re.compile(
    r"(?:[A-Za-z]{3},\s*)?(\d{1,2})\s+([A-Za-z]{3})\s+(\d{4})\s+(\d{2}):(\d{2})(?::(\d{2}))?"
    r"\s+(?:([+-])(\d{2})(\d{2})|([A-Za-z]{1,3}))(?:\s*\([^()]*\))?",
    re.ASCII,
).fullmatch


def date_text(instant: datetime) -> str:
    """Return an instant as `Tue, 10 Feb 2026 03:00:00 +0000`."""
    day, month = _DAYS[instant.weekday()], _MONTHS[instant.month - 1]
    return f"{day}, {instant.day:02} {month} {instant.year:04} {instant:%H:%M:%S} +0000"


def read_date(text: str) -> datetime:
    """Return the instant of a date; raise InvalidDate if it is not one."""
    found = _date(text)
    try:
        if found is None:
            raise ValueError
        day, month, year, hour, minute, second, sign, hours, minutes, zone = found.groups()
        offset = _ZONES[zone.lower()] if zone else int(hours) * 60 + int(minutes)
        local = datetime(int(year), _NUMBERS[month.lower()], int(day), int(hour), int(minute), int(second or 0), 0, UTC)
        return local - timedelta(minutes=-offset if sign == "-" else offset)
    except (ValueError, KeyError, OverflowError) as exc:
        raise InvalidDate(f"Date must be like Tue, 10 Feb 2026 12:00:00 +0900; found {text!r:.60}") from exc
