"""JSON as Pabal accepts it: strict where others guess, the same rules for values and for text.

At most 64 levels, integers of 64 bits, finite numbers, no key twice, UTF-8 only, no lone surrogates.
`read` is for text from outside; `decode` is for bytes that we wrote ourselves and have checked.
"""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeAlias

import msgspec

from pabal.errors import (
    DuplicateKey,
    InvalidBody,
    InvalidInput,
    InvalidNumber,
    InvalidText,
    NotJson,
    NotUtf8,
    NumberOutOfRange,
    TooDeep,
)

Json: TypeAlias = None | bool | int | float | str | list[Any] | dict[str, Any]

MAX_DEPTH = 64
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1

decode: Callable[[bytes], Any] = msgspec.json.decode


def encode(value: object) -> bytes:
    """Return the value as compact JSON. The value has passed `check`, or is one of our own records."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as exc:
        raise InvalidText("text holds a lone surrogate, which UTF-8 cannot carry") from exc


def pretty(value: object) -> bytes:
    """Return the value as JSON for people: indented, one final newline."""
    return msgspec.json.format(encode(value), indent=2) + b"\n"


def storable(text: str) -> str:
    """Return what an exception or a user says as text that every store and log can write."""
    return text.encode("utf-8", "replace").decode()


def check(value: object, depth: int = MAX_DEPTH) -> None:
    """Raise the error that names what makes this value no JSON value of ours."""
    kind = type(value)
    if kind is str or value is None or kind is bool:
        return
    if kind is int:
        if not _INT_MIN <= value <= _INT_MAX:  # type: ignore[operator]  # `kind is int` narrows it for readers only
            raise NumberOutOfRange("integers must fit in 64 bits")
    elif kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]  # likewise
            raise InvalidNumber(f"{value!r} is not a JSON number")
    elif kind is dict:
        _check_items(value, value.values(), depth)  # type: ignore[attr-defined]  # likewise
        for key in value:  # type: ignore[attr-defined]  # likewise
            if type(key) is not str:
                raise InvalidBody(f"object keys must be text; found {key!r:.80}")
    elif kind is list:
        _check_items(value, value, depth)
    elif kind is bytes:
        raise InvalidBody("bytes cannot stand inside a JSON value: send base64 text, or a body of bytes alone")
    else:
        raise InvalidBody(f"a body is a JSON value or bytes; found {kind.__name__}")


def _check_items(whole: object, items: Any, depth: int) -> None:
    if depth <= 0:
        raise TooDeep(f"{MAX_DEPTH} levels at most")
    try:
        for item in items:
            if type(item) is not str:
                check(item, depth - 1)
    except InvalidBody as exc:
        if depth < MAX_DEPTH:
            raise
        # Looked for only here, so that it costs good values nothing.
        raise InvalidBody(f"{exc}; it is at {next(_unfit(whole, '$')):.120}") from None


def _unfit(value: object, place: str) -> Iterator[str]:
    """Yield the places of what `check` refuses as InvalidBody, in the order in which it looks."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]  # as in `check`
            yield from _unfit(item, f"{place}.{key}")
        if any(type(key) is not str for key in value):  # type: ignore[attr-defined]  # likewise
            yield place
    elif kind is list:
        for number, item in enumerate(value):  # type: ignore[arg-type]  # likewise
            yield from _unfit(item, f"{place}[{number}]")
    elif kind not in (str, int, float, bool, type(None)):
        yield place


def read(data: bytes, depth: int = MAX_DEPTH) -> Any:
    """Parse JSON text from outside; raise the InvalidInput that names what is wrong with it."""
    try:
        value = decode(data)
        if b"\\" not in data and encode(value).count(b'"') == data.count(b'"'):
            # No key was named twice, or its quotes would be missing; and nothing was escaped that could be a surrogate.
            check(value, depth)
            return value
    except (InvalidInput, ValueError, OverflowError, RecursionError):
        pass  # whatever it is, what follows says it better
    return _read_slowly(data, depth)


def _read_slowly(data: bytes, depth: int) -> Any:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise NotUtf8(f"JSON must be UTF-8: {exc.reason} at byte {exc.start}") from exc
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_constant=_constant, parse_int=_int, parse_float=_float
        )
    except RecursionError as exc:
        raise TooDeep(f"{MAX_DEPTH} levels at most") from exc
    except InvalidInput:
        raise
    except ValueError as exc:
        raise NotJson(str(exc)) from exc
    check(value, depth)
    if "\\u" in text:
        encode(value)  # escapes are the only way for a lone surrogate to get past UTF-8
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys = [key for key, _ in pairs]
        raise DuplicateKey(next(key for key in keys if keys.count(key) > 1))
    return found


def _constant(text: str) -> NoReturn:
    raise InvalidNumber(f"{text} is not a JSON number")


def _int(text: str) -> int:
    if len(text) > 20:
        raise NumberOutOfRange("integers must fit in 64 bits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidNumber(f"{text:.40} is too large for a number")
    return value
