"""Parsers for values on the command line: durations, priorities, pairs, JSON."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import click

from pabal import jsontext
from pabal.errors import InvalidInput, NotJson
from pabal.jsontext import Json
from pabal.message import MAX_PRIORITY, MIN_PRIORITY, PRIORITIES
from pabal.names import may_hold_password, shown_url

_DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|[smhd]?)", re.ASCII)
_SECONDS = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LEAST_MS = 100  # no answer of a manager can be expected earlier: a smaller number was meant as seconds
_MOST_SECONDS = 10_000  # a larger number without a unit was meant as milliseconds
_LONGEST = 100 * 366 * 86400.0
FOREVER = float("inf")


class ExistingPath(click.Path):
    """The path of a store or of a copy, which exists. A URL given instead is refused without its password."""

    def __init__(self, *, dir_okay: bool = True) -> None:
        super().__init__(path_type=Path, exists=True, dir_okay=dir_okay)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not os.path.lexists(value) and may_hold_password(str(value)):
            self.fail(f"a path was expected; found {shown_url(str(value))}", param, ctx)
        return super().convert(value, param, ctx)


def duration(text: str) -> float:
    """Read seconds, or a number with s, m, h or d."""
    found = _DURATION.fullmatch(text)
    seconds = float(found[1]) * _SECONDS[found[2]] if found else -1.0
    if not 0 <= seconds <= _LONGEST:
        raise click.BadParameter(f"a duration is seconds or like 500ms, 30s, 5m, 2h, 7d; found {text!r:.40}")
    return seconds


def lasting(text: str) -> float:
    """Read a duration above 0."""
    seconds = duration(text)
    if not seconds:
        raise click.BadParameter(f"a duration above 0 is needed; found {text!r:.40}")
    return seconds


def milliseconds(text: str) -> int:
    """Read milliseconds, or a number with a unit."""
    plain = re.fullmatch(r"\d{1,15}", text, re.ASCII)
    try:
        return int(text) if plain else round(duration(text if text[-1:].isalpha() else "") * 1000)
    except click.BadParameter:
        raise click.BadParameter(f"expected milliseconds, or a time like 500ms, 30s, 5m; found {text!r:.40}") from None


def answer_timeout(text: str) -> int:
    """Read milliseconds for an answer. A small number without a unit is refused: it was meant as seconds."""
    found = milliseconds(text)
    if found < _LEAST_MS and text.isdigit():
        raise click.BadParameter(
            f"{text} is {text} milliseconds: write {text}s for seconds, or {text}ms if it is meant"
        )
    if not found:
        raise click.BadParameter(f"a time above 0 is needed; found {text!r:.40}")
    return found


def run_timeout(text: str) -> float:
    """Read seconds for a command to run. A large number without a unit is refused: it was meant as milliseconds."""
    found = lasting(text)
    if found >= _MOST_SECONDS and text.isdigit():
        raise click.BadParameter(
            f"{text} is {text} seconds: write {text}ms for milliseconds, or {text}s if it is meant"
        )
    return found


def patience(text: str) -> float:
    """Read a duration, or `forever`."""
    return FOREVER if text == "forever" else duration(text)


def priority(text: str) -> int:
    """Read a whole number or one of the named priorities."""
    if text in PRIORITIES:
        return PRIORITIES[text]
    if re.fullmatch(r"[+-]?\d{1,3}", text, re.ASCII) and MIN_PRIORITY <= int(text) <= MAX_PRIORITY:
        return int(text)
    names = ", ".join(PRIORITIES)
    raise click.BadParameter(f"priority is {MIN_PRIORITY} to {MAX_PRIORITY} or one of {names}; found {text!r:.40}")


def pair(text: str) -> tuple[str, str]:
    """Read KEY=VALUE, the value as text."""
    key, equals, rest = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"write KEY=VALUE; found {text!r:.40}")
    return key, rest


def unique(pairs: tuple[tuple[str, str], ...], option: str) -> dict[str, str]:
    """Return the pairs as a dict; a key given twice is refused."""
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise click.UsageError(f"{option} {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def loose_json(text: str) -> Json:
    """Read a value typed on the command line: JSON if it is JSON, plain text if it does not look like JSON."""
    try:
        value: Json = jsontext.read(text.encode("utf-8", "surrogateescape"))
    except NotJson:
        if looks_like_json(text):
            raise
        return text
    return value


def looks_like_json(text: str) -> bool:
    """Return whether this was meant as JSON: it begins like a JSON value, or is a number that JSON does not have."""
    text = text.strip()
    return text[:1] in set('{["-0123456789') or text in {"true", "false", "null", "NaN", "Infinity"}


def with_hint(exc: InvalidInput, hint: str) -> InvalidInput:
    """Return the same kind of error with a hint at its end."""
    return type(exc)(f"{exc}; {hint}")
