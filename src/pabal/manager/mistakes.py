"""Finds every mistake in a configuration, not only the first: one line for each, with its place and what was wanted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from pabal.errors import InvalidPolicy, PabalError
from pabal.names import suggestion
from pabal.policy import policy_from
from pabal.schema import checker, rule_checker

_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "object": "a table"}
_YEAR = 366 * 86400


def mistakes(document: object, expected: type[msgspec.Struct], place: str = "") -> Iterator[str]:
    """Go through a document field by field and say what is not as the structure wants it."""
    if not isinstance(document, dict):
        yield f"{place or 'the configuration'}: expected a table; found {_kind(document)}"
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(expected)}
    for key, value in document.items():
        where = f"{place}.{key}" if place else str(key)
        field = fields.get(key)
        if field is None:
            yield unknown(where, key, list(fields))
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from mistakes(value, field.type, where)
        else:
            yield from _wrong(value, field.type, where)
    for name, field in fields.items():
        if field.required and name not in document:
            yield f"{place}.{name}: it is missing"


def _wrong(value: object, expected: object, where: str) -> Iterator[str]:
    inner = getattr(expected, "__args__", (None,))[0]
    if getattr(expected, "__origin__", None) is list and isinstance(inner, type) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from mistakes(item, inner, f"{where}[{number}]")
        return
    try:
        msgspec.convert(value, expected)
    except msgspec.ValidationError as exc:
        wanted = _wanted(expected) or _plain(str(exc).partition(" - at `$")[0])
        yield f"{where}: {wanted}; found {_shown(value)}"


def _wanted(expected: object) -> str:
    """Say what a value should be, where the structure says it better than the decoder."""
    for one in get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,):
        if get_origin(one) is Literal:
            return f"expected one of {', '.join(map(str, get_args(one)))}"
        for note in getattr(one, "__metadata__", ()):
            if note.description:
                return f"expected {note.description}"
    return ""


def policy_mistakes(document: object, place: str) -> list[str]:
    """Say what is wrong with a policy, value by value. That it is a table at all, `mistakes` has looked at."""
    found = _policy_mistake(document) if isinstance(document, dict) else ""
    if not found or not isinstance(document, dict):
        return []
    each = [said for leaf in _leaves(document) if (said := _policy_mistake(leaf))]
    if isinstance(schema := document.get("messageSchema"), dict) and isinstance(schema.get("rules"), list):
        each += _rule_mistakes(schema["rules"])
    return [f"{place}.{said}" for said in dict.fromkeys(each)] or [f"{place}: {found}"]


def _rule_mistakes(rules: list[Any]) -> Iterator[str]:
    for number, rule in enumerate(rules):
        if said := _policy_mistake({"messageSchema": {"rules": [rule]}}):
            field = said.removeprefix("messageSchema.rules[0]").partition(": ")[0] if said.startswith("message") else ""
            yield f"messageSchema.rules[{number}]{field}: {said.rpartition('rules[0]' + field + ': ')[2]}"


def _policy_mistake(document: Mapping[str, Any]) -> str:
    try:
        policy = policy_from(document)
        if policy.body_schema is not None:
            checker(policy.body_schema)
        if policy.message_schema is not None:
            rule_checker(policy.message_schema)
    except InvalidPolicy as exc:
        said, _, where = str(exc).removeprefix("policy: ").partition(" - at `$.")
        return f"{where.rstrip('`')}: {_plain(said)}" if where else said
    except PabalError as exc:
        return f"schema: {exc}"
    return ""


def _leaves(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Take a policy apart into documents with one value each, and what that value cannot do without."""
    for key, value in document.items():
        if key == "retry" and isinstance(value, dict):
            for name, one in value.items():
                beside = {"initialDelaySec": {"maxDelaySec": _YEAR}, "maxDelaySec": {"initialDelaySec": 0}}
                yield {"retry": {**beside.get(name, {}), name: one}}
        elif key == "dlq" and isinstance(value, dict):
            yield from ({"dlq": {name: one}} for name, one in value.items())
        elif key == "messageSchema" and isinstance(value, dict) and isinstance(value.get("rules"), list):
            yield {key: {**value, "rules": []}}
        elif key == "onInvalid":
            yield {key: value, **({"dlq": {"queue": "any"}} if document.get("dlq") else {})}
        else:
            yield {key: value}


def unknown(where: str, key: str, known: list[str]) -> str:
    return f"{where}: no such key; {suggestion(key, known)}"


def _plain(said: str) -> str:
    """Put what the decoder says into the words of the manual."""
    said = re.sub(r", got `\w+`$", "", said).replace("Expected", "expected")
    said = re.sub(r"`(int|float|str|bool|object)`", lambda kind: _KINDS[kind[1]], said)
    if said.startswith("Invalid enum value"):
        said = said.replace("Invalid enum value", "there is no")
    return re.sub(r" \| null", "", said).replace("`", "")


def _shown(value: object) -> str:
    return _kind(value) if isinstance(value, dict | list) else f"{value!r:.60}"


def _kind(value: object) -> str:
    names = {dict: "a table", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")
