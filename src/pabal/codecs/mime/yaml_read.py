"""Reads YAML from outside as JSON and nothing else.

null, true, false and JSON's numbers mean what they say; all else is text: `yes`, `012`, `1:30`, `2001-01-01`. Keys are
text as written. One document; no aliases, no tags, no key twice, as deep as JSON may be, 4 MiB at most.
"""

import re
from contextlib import suppress
from typing import Any, NoReturn

import yaml

from pabal import jsontext
from pabal.errors import (
    AliasNotAllowed,
    DuplicateKey,
    InvalidInput,
    InvalidKey,
    NotJson,
    NotUtf8,
    NotYaml,
    TooDeep,
    TooLarge,
    UnsafeTag,
)
from pabal.jsontext import MAX_DEPTH, Json

MAX_YAML = 4 << 20
_number = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", re.ASCII).fullmatch
_NUMERIC = frozenset("-0123456789")
_WORDS: dict[str, Json] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# The same events from both; the one in C is ten times as fast.
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read(data: bytes, loader: Any = _Loader) -> Json:
    """Parse YAML; raise the InvalidInput that names what is wrong with it."""
    if len(data) > MAX_YAML:
        raise TooLarge(f"YAML has at most {MAX_YAML} bytes; found {len(data)}")
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise NotUtf8(f"YAML must be UTF-8: {exc.reason} at byte {exc.start}") from exc
    if text[:1] in ("{", "["):
        # Most likely JSON, which is YAML but for its surrogate pairs, and read in no time.
        with suppress(NotJson):
            found: Json = jsontext.read(data)
            return found
    if "\ufeff" in text[1:]:
        raise NotYaml("a byte order mark is allowed at the beginning only")  # readers disagree on others
    try:
        value = _document(loader(text).get_event)
    except yaml.YAMLError as exc:
        raise NotYaml(_told(exc)) from exc
    if "\\" in text:
        jsontext.encode(value)  # an escape is the only way for a lone surrogate to get here
    return value


def _document(get: Any) -> Json:
    get()
    begin = get()
    if type(begin) is yaml.StreamEndEvent:
        return None
    value = _value(get(), get, MAX_DEPTH)
    get()
    after = get()
    if type(after) is not yaml.StreamEndEvent:
        raise NotYaml(f"one document expected; another begins at line {after.start_mark.line + 1}")
    return value


def _value(event: Any, get: Any, depth: int) -> Json:
    kind = type(event)
    if kind is yaml.AliasEvent or event.anchor is not None:
        _refuse(AliasNotAllowed, event, "anchors and aliases are refused: write the value out")
    if event.tag is not None:
        _refuse(UnsafeTag, event, "tags are refused: leave it out")
    if kind is yaml.ScalarEvent:
        return event.value if event.style else _plain(event)
    if not depth:
        _refuse(TooDeep, event, f"{MAX_DEPTH} levels at most")
    if kind is yaml.SequenceStartEvent:
        items = []
        while type(event := get()) is not yaml.SequenceEndEvent:
            items.append(_value(event, get, depth - 1))
        return items
    return _mapping(get, depth)


def _mapping(get: Any, depth: int) -> Json:
    found: dict[str, Json] = {}
    while type(event := get()) is not yaml.MappingEndEvent:
        key = _key(event)
        if key in found:
            _refuse(DuplicateKey, event, f"{key!r:.80} is there already")
        found[key] = _value(get(), get, depth - 1)
    return found


def _key(event: Any) -> str:
    if type(event) is yaml.ScalarEvent and event.anchor is None and event.tag is None:
        key: str = event.value
        if key or event.style:
            return key
    elif type(event) is yaml.AliasEvent or event.anchor is not None:
        _refuse(AliasNotAllowed, event, "anchors and aliases are refused: write the key out")
    elif event.tag is not None:
        _refuse(UnsafeTag, event, "tags are refused: leave it out")
    _refuse(InvalidKey, event, "a key must be text")


def _plain(event: Any) -> Json:
    text: str = event.value
    if text[:1] in _NUMERIC and _number(text):
        try:
            number: Json = jsontext.read(text.encode())
            return number
        except InvalidInput as exc:
            _refuse(type(exc), event, f"{exc}: quote it if it is text")
    return _WORDS.get(text, text)


def _refuse(error: type[InvalidInput], event: Any, reason: str) -> NoReturn:
    raise error(f"line {event.start_mark.line + 1}: {reason}")


def _told(exc: yaml.YAMLError) -> str:
    # Never the parser's own snippet: it shows the body.
    mark = getattr(exc, "problem_mark", None)
    problem = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "it cannot be read"
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)
