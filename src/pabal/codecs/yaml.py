"""Read YAML from outside as JSON values only, and write JSON values as YAML.

Reading: null, true, false and numbers in the form of JSON are values; all else is text: `yes`, `012`, `1:30`,
`2001-01-01`. Keys are text as written. One document; no aliases, no tags, no `%TAG` line, no key twice, the depth limit
of JSON, 4 MiB at most.

Writing: block style, readable with `cat`. Text is written plain if every YAML reader, old or new, takes it for text,
else in double quotes; text of several lines is a literal block. Control characters are always escaped.
"""

import json
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
_tag_line = re.compile(r"(?:\A\ufeff?|[\n\r\x85\u2028\u2029])%TAG").search  # after each line break that YAML knows
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
        # Most likely JSON, which is YAML except for its surrogate pairs, and fast to read.
        with suppress(NotJson):
            found: Json = jsontext.read(data)
            return found
    if "\ufeff" in text[1:]:
        raise NotYaml("a byte order mark is allowed at the beginning only")  # readers disagree about others
    if _tag_line(text):  # the parser compares each of them with all before: 4 MiB of them take it minutes
        raise UnsafeTag("tags are refused: leave the lines out that begin with %TAG")
    try:
        value = _document(loader(text).get_event)
    except yaml.YAMLError as exc:
        raise NotYaml(_reason(exc)) from exc
    if "\\" in text:
        jsontext.encode(value)  # refuses lone surrogates, which only escapes can make
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


def _reason(exc: yaml.YAMLError) -> str:
    # Not the parser's snippet: it shows the body.
    mark = getattr(exc, "problem_mark", None)
    problem = getattr(exc, "problem", None) or getattr(exc, "reason", None) or "it cannot be read"
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


# Writing

_UNSEEN = r"\x00-\x1f\x7f-\xa0\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff"
# Begins with a letter, so that it is no number, date or indicator; no ': ' and no ' #', which would end it.
_plain_text = re.compile(rf"[^\W\d](?:[^:#{_UNSEEN}]|:(?=[^ {_UNSEEN}])|(?<! )#)*(?<! )").fullmatch
_unseen = re.compile(f"[{_UNSEEN}]")
_unfit = re.compile(f"[{_UNSEEN}]".replace(r"\x00-\x1f", r"\x00-\x08\x0b-\x1f")).search
# Words that readers of YAML 1.1 or 1.2 take for a boolean or null, in any case.
_WRITTEN_WORDS = frozenset("y n yes no on off true false null".split())
_LONGEST_WORD = 5
_LONGEST_KEY = 500  # a key of more than 1024 characters needs a `?`


def write(value: Json) -> str:
    """Return the value as YAML, with one final newline."""
    lines: list[str] = []
    if value and type(value) in (dict, list):
        _collection(value, "", "", lines)
    else:
        lines.append(_scalar(value, "  "))
    lines.append("")
    return "\n".join(lines)


def _collection(value: Json, first: str, pad: str, lines: list[str]) -> None:
    """Write the entries of an object or list; the first continues the line `first`, the others begin with `pad`."""
    if isinstance(value, dict):
        for key, item in value.items():
            name = _text(key, "", many_lines=False)
            if len(name) > _LONGEST_KEY:
                lines.append(f"{first}? {name}")
                name, first = "", pad
            if item and type(item) in (dict, list):
                lines.append(f"{first}{name}:")
                _collection(item, f"{pad}  ", f"{pad}  ", lines)
            else:
                lines.append(f"{first}{name}: {_scalar(item, pad + '  ')}")
            first = pad
    elif isinstance(value, list):
        for item in value:
            if item and type(item) in (dict, list):
                _collection(item, f"{first}- ", f"{pad}  ", lines)
            else:
                lines.append(f"{first}- {_scalar(item, pad + '  ')}")
            first = pad


def _scalar(value: Json, pad: str) -> str:
    if type(value) is str:
        return _text(value, pad)
    if type(value) is float:
        text = repr(value)
        # Readers of YAML 1.1 know no exponent without a point.
        return text if "." in text else text.replace("e", ".0e")
    return json.dumps(value)


def _text(text: str, pad: str, *, many_lines: bool = True) -> str:
    if _plain_text(text) and not (len(text) <= _LONGEST_WORD and text.lower() in _WRITTEN_WORDS):
        return text
    if many_lines and "\n" in text and text.strip(" \t\n") and not _unfit(text):
        return _literal(text, pad)
    quoted = json.dumps(text, ensure_ascii=False)
    return quoted if quoted.isprintable() else _unseen.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _literal(text: str, pad: str) -> str:
    lines = text.split("\n")
    keep = "-"
    if not lines[-1]:
        lines.pop()
        keep = "" if lines[-1] else "+"
    indent = "2" if text[0] in " \t\n" else ""
    return "\n".join([f"|{indent}{keep}", *(pad + line if line else "" for line in lines)])
