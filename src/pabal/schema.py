"""Checks a body against a msgspec type or a JSON Schema and says which field is wrong."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pabal.errors import ExtraMissing, InvalidPolicy, ValidationFailed
from pabal.jsontext import Json

Check = Callable[[Any], Any]


def checker(expected: type | Mapping[str, Json]) -> Check:
    """Return a function that gives back the body, converted if a type was named, or raises ValidationFailed."""
    return _schema_checker(expected) if isinstance(expected, Mapping) else _type_checker(expected)


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
        validate = fastjsonschema.compile(dict(schema), use_default=False)
    except Exception as exc:  # the compiler raises whatever the broken schema runs into
        raise InvalidPolicy(f"schema: {exc}") from exc

    def check(body: Any) -> Any:
        try:
            return validate(body)
        except fastjsonschema.JsonSchemaValueException as exc:
            raise ValidationFailed(exc.message.replace("data", "body", 1)) from exc

    return check
