"""Checks a body against a msgspec type, a JSON Schema or a list of rules, and says which field is wrong."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any
from uuid import UUID

import msgspec

from pabal.errors import ExtraMissing, InvalidPolicy, ValidationFailed
from pabal.jsontext import Json
from pabal.rules import MessageSchema, Validator, complaints

Check = Callable[[Any], Any]
_ELSEWHERE = ("http", "https", "ftp", "file", "data")  # what the compiler would fetch, each time and from anybody
VALIDATORS = "pabal.validators"  # the entry points with which an installed package adds custom validators


def checker(expected: type | Mapping[str, Json]) -> Check:
    """Return a function that gives back the body, converted if a type was named, or raises ValidationFailed."""
    return _schema_checker(expected) if isinstance(expected, Mapping) else _type_checker(expected)


def rule_checker(schema: MessageSchema) -> Check:
    """Return a function that gives back the body or raises ValidationFailed with every rule that it breaks."""
    validators = {rule.validator: validator(rule.validator) for rule in schema.rules if rule.validator}

    def check(body: Any) -> Any:
        wrong = complaints(schema, body, validators)
        if wrong:
            raise ValidationFailed("; ".join(wrong))
        return body

    return check


def validator(name: str) -> Validator:
    """Return the custom validator of this name: one of ours, or one that an installed package brings."""
    if name in _FORMATS:
        return _FORMATS[name]
    from importlib.metadata import entry_points  # slow to import, and seldom needed

    for found in entry_points(group=VALIDATORS, name=name):
        loaded: Validator = found.load()
        return loaded
    known = ", ".join(_FORMATS)
    raise InvalidPolicy(f"no validator {name!r:.80}: there are {known}, and what packages add as {VALIDATORS}")


def _parses(parse: Callable[[str], object]) -> Validator:
    def valid(value: object) -> bool:
        try:
            return isinstance(value, str) and bool(parse(value))
        except ValueError:
            return False

    return valid


_FORMATS: dict[str, Validator] = {
    "uuid": _parses(UUID),
    "date-time": _parses(datetime.fromisoformat),
    "ip": _parses(ip_address),
    "email": _parses(re.compile(r"[^@\s]{1,64}@[^@\s.]+(\.[^@\s.]+)+").fullmatch),
    "integer": lambda value: type(value) is int or (type(value) is float and value.is_integer()),
    "nonempty": lambda value: value not in (None, "", [], {}),
}


def _type_checker(expected: type) -> Check:
    def check(body: Any) -> Any:
        try:
            return msgspec.convert(body, expected)
        except msgspec.ValidationError as exc:
            raise ValidationFailed(f"body: {exc}") from exc

    return check


def _schema_checker(schema: Mapping[str, Json]) -> Check:
    try:
        import fastjsonschema
    except ImportError as exc:
        raise ExtraMissing("JSON Schema needs fastjsonschema: pip install 'pabal[schema]'") from exc
    try:
        validate = fastjsonschema.compile(dict(schema), handlers=dict.fromkeys(_ELSEWHERE, _refuse), use_default=False)
    except Exception as exc:  # the compiler raises whatever the broken schema runs into
        which = f" {exc.__cause__}" if isinstance(exc.__cause__, KeyError) else ""  # of an unknown type, its name
        raise InvalidPolicy(f"schema: {exc}{which}") from exc

    def check(body: Any) -> Any:
        try:
            return validate(body)
        except fastjsonschema.JsonSchemaValueException as exc:
            raise ValidationFailed(exc.message.replace("data", "body", 1)) from exc
        except RecursionError as exc:
            raise ValidationFailed("the schema refers to itself without end") from exc

    return check


def _refuse(uri: str) -> None:
    raise InvalidPolicy(f"$ref must lead to a place in the schema itself; found {uri!r:.80}")
