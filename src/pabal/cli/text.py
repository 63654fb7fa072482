"""Text for people: nothing a message holds can move the cursor, and columns line up in any script."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from unicodedata import combining, east_asian_width

from pabal import jsontext
from pabal.jsontext import Json

_NARROW = 24  # columns; a last column with less room than this goes on a line of its own
_GLANCE = 200  # columns of a body in a list, also where no terminal cuts it
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SPANS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def clean(text: str) -> str:
    """Return the text with every control, format and separator character spelt out."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _spelt(c) for c in text)


def json_text(value: object) -> str:
    """Return the value as one line of JSON in which every character that is not printable is escaped."""
    text = jsontext.encode(value).decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else _escaped(c) for c in text)


def json_lines(value: object) -> str:
    """Return the value as indented JSON, escaped likewise, without a final newline."""
    lines = jsontext.pretty(value).decode().rstrip("\n").split("\n")
    return "\n".join("".join(c if c.isprintable() else _escaped(c) for c in line) for line in lines)


def body_text(body: Json | bytes) -> str:
    """Return a body on one line: JSON, or bytes as Python writes them."""
    return repr(body) if isinstance(body, bytes) else json_text(body)


def glance(body: Json | bytes) -> str:
    """Return the beginning of a body, for a list: whoever wants it whole asks for JSON."""
    if isinstance(body, bytes) and len(body) > _GLANCE:
        return f"{body[:_GLANCE]!r:.{_GLANCE}}…"
    return clip(body_text(body), _GLANCE)


def width(text: str) -> int:
    """Return how many columns a terminal gives this text."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(c) else 2 if east_asian_width(c) in "WF" else 1 for c in text)


def clip(text: str, room: int) -> str:
    """Return the text cut to fit `room` columns."""
    if width(text) <= room:
        return text
    while text and width(text) > room - 1:
        text = text[: max(0, len(text) - max(1, (width(text) - room) // 2))]
    return text + "…"


def screen_width() -> int | None:
    """Return the columns of the terminal that stdout is, or None: then nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> list[str]:
    """Lay out rows under their heads; a column whose place in `right` holds `r` leans right.

    Columns that say nothing are left out. On a terminal the last is cut to fit, or put below where little room is left.
    """
    said = [column for column in range(len(head)) if any(row[column] for row in rows)]
    lines = [[line[column] for column in said] for line in (head, *rows)]
    leans = [right[column : column + 1] == "r" for column in said]
    widths = [max(width(line[column]) for line in lines) for column in range(len(said))]
    screen = screen_width()
    room = widths[-1] if screen is None else screen - sum(widths[:-1]) - 2 * (len(said) - 1)
    if room >= min(widths[-1], _NARROW):
        widths[-1] = min(widths[-1], room)
        return [_joined(line, widths, leans) for line in lines]
    below = [[], *([f"    {clip(line[-1], (screen or 0) - 4)}"] for line in lines[1:])]
    return [
        text for line, more in zip(lines, below, strict=True) for text in (_joined(line, widths[:-1], leans), *more)
    ]


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """Lay out what a store says of itself, one fact per line."""
    room = max(map(len, facts), default=0) + 2
    return [clean(f"{name:<{room}}{value}") for name, value in facts.items()]


def _joined(line: Sequence[str], widths: Sequence[int], leans: Sequence[bool]) -> str:
    cells = []
    for text, room, right in zip(line, widths, leans, strict=False):
        text = clip(text, room)
        gap = " " * (room - width(text))
        cells.append(gap + text if right else text + gap)
    return "  ".join(cells).rstrip()


def span(seconds: float) -> str:
    """Return a length of time as people say it: 0.4s, 12s, 1m59s, 15m, 3h20m, 2d."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    for (size, unit), (part, smaller) in pairwise(_SPANS):
        if whole >= size:
            count, rest = whole // size, whole % size // part
            return f"{count}{unit}{rest}{smaller}" if rest and count < 10 else f"{count}{unit}"
    return f"{whole}s"


def ago(at: float) -> str:
    """Say how far an instant is from now."""
    away = time.time() - at
    return f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"


def _spelt(char: str) -> str:
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else _escaped(char))


def _escaped(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
