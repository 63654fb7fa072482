"""Check a body with a msgspec type, a JSON Schema or a list of rules; the error names the field."""

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from ipaddress import ip_address
from typing import Any
from uuid import UUID

from pabal.errors import ExtraMissing, InvalidPolicy, ValidationFailed
from pabal.jsontext import Json
from pabal.policy.bodies import check_type, convert
from pabal.policy.rules import MessageSchema, Validator, check_pattern, complaints

Check = Callable[[Any], Any]
_ELSEWHERE = ("http", "https", "ftp", "file", "data")  # the compiler would fetch these, each time and from anywhere
VALIDATORS = "pabal.validators"  # the entry points with which an installed package adds custom validators


def checker(expected: type | Mapping[str, Json]) -> Check:
    """Return a function that returns the body, converted if a type is given, or raises ValidationFailed."""
    if isinstance(expected, Mapping):
        return _schema_checker(expected)
    check_type(expected)
    return lambda body: convert(body, expected)


def schema_fault(schema: object) -> str:
    """Return why a JSON Schema from a store cannot be used, or ''; also if it cannot be told here."""
    if schema is None:
        return ""
    if not isinstance(schema, Mapping):
        return f"schema: an object is expected; found {schema!r:.40}"
    try:
        checker(schema)
    except InvalidPolicy as exc:
        return str(exc)
    except ExtraMissing:
        pass  # nobody uses it here
    return ""


def rule_checker(schema: MessageSchema) -> Check:
    """Return a function that returns the body, or raises ValidationFailed with every rule that it breaks."""
    validators = {rule.validator: validator(rule.validator) for rule in schema.rules if rule.validator}

    def check(body: Any) -> Any:
        wrong = complaints(schema, body, validators)
        if wrong:
            raise ValidationFailed("; ".join(wrong))
        return body

    return check


def validator(name: str) -> Validator:
    """Return the custom validator of this name: a built-in one, or one of an installed package."""
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


def _schema_checker(schema: Mapping[str, Json]) -> Check:
    try:
        import fastjsonschema
    except ImportError as exc:
        raise ExtraMissing(
            "JSON Schema needs fastjsonschema: install Pabal with its extra 'schema' (README, Extras)"
        ) from exc
    try:
        _check_patterns(schema)
        validate = fastjsonschema.compile(dict(schema), handlers=dict.fromkeys(_ELSEWHERE, _refuse), use_default=False)
    except InvalidPolicy:
        raise
    except Exception as exc:  # the compiler raises many kinds of errors for a broken schema
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


def _check_patterns(schema: object) -> None:
    """Raise InvalidPolicy if a pattern of the schema takes exponential time."""
    found = [schema]
    while found:
        part = found.pop()
        if isinstance(part, Mapping):
            patterns = part.get("patternProperties")
            for pattern in (part.get("pattern"), *(patterns if isinstance(patterns, Mapping) else ())):
                if isinstance(pattern, str):
                    check_pattern(pattern, "the schema")
            found += part.values()
        elif isinstance(part, list):
            found += part


def _refuse(uri: str) -> None:
    raise InvalidPolicy(f"$ref must lead to a place in the schema itself; found {uri!r:.80}")
