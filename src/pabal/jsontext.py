"""JSON as Pabal accepts it, with the same rules for values and for text.

At most 64 levels, integers of 64 bits, finite numbers, no key twice, UTF-8 only, no lone surrogates.
`read` is for text from outside; `decode` is for bytes that this package wrote and whose checksum is right. `convert`,
`decode_as` and `decoder` return values of a type.
"""

import json
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, NoReturn, TypeAlias, TypeVar

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
_SMALL = 2**62
_prepared: set[Any] = set()
_preparing = threading.RLock()
# A fork waits for it: the child would have a type that is prepared in half, and nobody who finishes it.
os.register_at_fork(before=_preparing.acquire, after_in_parent=_preparing.release, after_in_child=_preparing.release)

T = TypeVar("T")

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
    """Return text of an exception or a user in a form that every store and log can write."""
    return text.encode("utf-8", "replace").decode()


def convert(
    value: Any,
    kind: type[T],
    *,
    strict: bool = True,
    str_keys: bool = False,
    dec_hook: Callable[[type, Any], Any] | None = None,
) -> T:
    """Return a JSON value as a value of this type; raise msgspec.ValidationError if it does not fit."""
    _prepare(kind)
    return msgspec.convert(value, kind, strict=strict, str_keys=str_keys, dec_hook=dec_hook)


def decode_as(data: bytes | str, kind: type[T]) -> T:
    """Return JSON text as a value of this type; raise msgspec.DecodeError or its ValidationError."""
    _prepare(kind)
    return msgspec.json.decode(data, type=kind)


def decoder(kind: type[T], *, strict: bool = True) -> Callable[[bytes | str], T]:
    """Return the function that does `decode_as` with this type, faster."""
    _prepare(kind)
    return msgspec.json.Decoder(kind, strict=strict).decode


def _prepare(kind: Any) -> None:
    """Let msgspec read the fields of a type in one thread.

    It remembers them with the type before they are complete: a thread that used the type meanwhile would follow a null
    pointer, and end the process.
    """
    try:
        if kind in _prepared:
            return
    except TypeError:  # its metadata have no hash: it is prepared each time
        pass
    with _preparing:
        msgspec.msgpack.Decoder(kind)
        with suppress(TypeError):
            _prepared.add(kind)


def check(value: Any, depth: int = MAX_DEPTH) -> None:
    """Raise the error that names what makes this value no JSON value of ours."""
    kind = type(value)
    if kind is dict or kind is list:
        if depth <= 0:
            raise TooDeep(f"{MAX_DEPTH} levels at most")
        try:
            for item in value.values() if kind is dict else value:
                # Most items are text or small numbers: they are passed without a call.
                if type(item) is not str and not (type(item) is int and -_SMALL < item < _SMALL):
                    check(item, depth - 1)
            if kind is dict:
                for key in value:
                    if type(key) is not str:
                        raise InvalidBody(f"object keys must be text; found {key!r:.80}")
        except InvalidBody as exc:
            if depth < MAX_DEPTH:
                raise
            # The place is searched only here, so that it costs valid values nothing.
            raise InvalidBody(f"{exc}; it is at {next(_unfit(value, '$')):.120}") from None
    elif kind is int:
        if not _INT_MIN <= value <= _INT_MAX:
            raise NumberOutOfRange("integers must fit in 64 bits")
    elif kind is float:
        if not math.isfinite(value):
            raise InvalidNumber(f"{value!r} is not a JSON number")
    elif kind is bytes:
        raise InvalidBody("bytes cannot stand inside a JSON value: send base64 text, or a body of bytes alone")
    elif kind is not str and value is not None and kind is not bool:
        raise InvalidBody(f"a body is a JSON value or bytes; found {kind.__name__}")


def _unfit(value: Any, place: str) -> Iterator[str]:
    """Yield the places of the values that `check` refuses as InvalidBody, in the order in which it finds them."""
    kind = type(value)
    if kind is dict:
        for key, item in value.items():
            yield from _unfit(item, f"{place}.{key}")
        if any(type(key) is not str for key in value):
            yield place
    elif kind is list:
        for number, item in enumerate(value):
            yield from _unfit(item, f"{place}[{number}]")
    elif kind not in (str, int, float, bool, type(None)):
        yield place


def read(data: bytes, depth: int = MAX_DEPTH) -> Any:
    """Parse JSON text from outside; raise the InvalidInput that names what is wrong with it."""
    try:
        value = decode(data)
        if b"\\" not in data and encode(value).count(b'"') == data.count(b'"'):
            # No key occurs twice, or its quotes would be missing. Without escapes there is no lone surrogate.
            check(value, depth)
            return value
    except (InvalidInput, ValueError, OverflowError, RecursionError):
        pass  # the slow way below gives the better error
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
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKey(f"{key!r:.80} is there twice in one object")
            seen.add(key)
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
