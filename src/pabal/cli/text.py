"""Text output: control characters in messages cannot move the cursor, and columns align in any script."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from unicodedata import category, east_asian_width

import click

from pabal import jsontext
from pabal.clock import in_calendar
from pabal.jsontext import Json

_NARROW = 24  # columns; a last column with less room is printed on a line of its own
_GLANCE = 200  # columns of a body in a list, also where the output is no terminal
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SPANS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def clean(text: str) -> str:
    """Return the text with every control, format and separator character escaped."""
    return text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)


def json_text(value: object) -> str:
    """Return the value as one line of JSON, with every character that is not printable escaped."""
    text = jsontext.encode(value).decode()
    return text if text.isprintable() else "".join(c if c.isprintable() else _unicode_escape(c) for c in text)


def json_lines(value: object) -> str:
    """Return the value as indented JSON, escaped the same way, without a final newline."""
    lines = jsontext.pretty(value).decode().rstrip("\n").split("\n")
    return "\n".join("".join(c if c.isprintable() else _unicode_escape(c) for c in line) for line in lines)


def body_text(body: Json | bytes) -> str:
    """Return a body on one line: JSON, or bytes as Python writes them."""
    return repr(body) if isinstance(body, bytes) else json_text(body)


def glance(body: Json | bytes) -> str:
    """Return the beginning of a body, for a list; `--json` prints it whole."""
    if isinstance(body, bytes) and len(body) > _GLANCE:
        return f"{body[:_GLANCE]!r:.{_GLANCE}}…"
    return clip(body_text(body), _GLANCE)


def width(text: str) -> int:
    """Return how many columns a terminal gives this text."""
    if text.isascii():
        return len(text)
    return sum(map(_char_width, text))


def _char_width(char: str) -> int:
    if category(char) in ("Mn", "Me") or "\u1160" <= char <= "\u11ff":  # marks, and vowels and finals of Hangul
        return 0
    return 2 if east_asian_width(char) in "WF" else 1


def clip(text: str, room: int) -> str:
    """Return the text cut to fit `room` columns."""
    if width(text) <= room:
        return text
    while text and width(text) > room - 1:
        text = text[: max(0, len(text) - max(1, (width(text) - room) // 2))]
    return text + "…"


def screen_width() -> int | None:
    """Return the width of the terminal, or None if stdout is no terminal: then nothing is cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(line: str) -> str:
    """Return a line cut to the width of the terminal."""
    screen = screen_width()
    return line if screen is None else clip(line, screen)


def redraw_line(text: str) -> None:
    """Write a text over the last line of the terminal."""
    sys.stdout.write(f"\r\x1b[2K{clip(text, shutil.get_terminal_size().columns - 1)}")
    sys.stdout.flush()


class Progress:
    """Prints how far a long step is, on a terminal and at most twice a second."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, text: str) -> None:
        if sys.stderr.isatty() and time.monotonic() - self._printed_at > 0.5:
            self._printed_at = time.monotonic()
            click.echo(text, err=True)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, right: str = "") -> list[str]:
    """Lay out rows under their heads; a column whose place in `right` holds `r` is right-aligned.

    Empty columns are left out, and without rows nothing is returned. On a terminal the last column is cut to fit, or
    printed below if little room is left.
    """
    if not rows:
        return []
    used = [column for column in range(len(head)) if any(row[column] for row in rows)]
    lines = [[line[column] for column in used] for line in (head, *rows)]
    right_aligned = [right[column : column + 1] == "r" for column in used]
    widths = [max(width(line[column]) for line in lines) for column in range(len(used))]
    screen = screen_width()
    room = widths[-1] if screen is None else screen - sum(widths[:-1]) - 2 * (len(used) - 1)
    if room >= min(widths[-1], _NARROW):
        widths[-1] = min(widths[-1], room)
        return [_joined(line, widths, right_aligned) for line in lines]
    found = [_joined(lines[0], widths[:-1], right_aligned)]
    for line in lines[1:]:
        found += [_joined(line, widths[:-1], right_aligned), f"    {clip(line[-1], (screen or 0) - 4)}"]
    return found


def fact_lines(facts: Mapping[str, str]) -> list[str]:
    """Lay out facts, such as those of a store, one per line."""
    room = max(map(len, facts), default=0) + 2
    return [clean(f"{name:<{room}}{value}") for name, value in facts.items()]


def _joined(line: Sequence[str], widths: Sequence[int], right_aligned: Sequence[bool]) -> str:
    cells = []
    for text, room, right in zip(line, widths, right_aligned, strict=False):
        text = clip(text, room)
        gap = " " * (room - width(text))
        cells.append(gap + text if right else text + gap)
    return "  ".join(cells).rstrip()


def short_path(path: Path) -> str:
    """Return a path as a user would type it from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith("../..") or len(relative) > len(str(path)) else relative


def span(seconds: float) -> str:
    """Return a duration in short form: 0.4s, 12s, 1m59s, 15m, 3h20m, 2d."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    for (size, unit), (part, smaller) in pairwise(_SPANS):
        if whole >= size:
            count, rest = whole // size, whole % size // part
            return f"{count}{unit}{rest}{smaller}" if rest and count < 10 else f"{count}{unit}"
    return f"{whole}s"


def ago(at: float) -> str:
    """Return how far an instant is from now, as `5s ago` or `in 5s`."""
    away = time.time() - in_calendar(at)
    return f"{span(away)} ago" if away >= 0 else f"in {span(-away)}"


def _escape(char: str) -> str:
    return _SHORT.get(char) or (f"\\x{ord(char):02x}" if ord(char) < 256 else _unicode_escape(char))


def _unicode_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2))
