"""Rules for the fields of a body, as operators write them: required, type, minLength, pattern, enum and others.

A field is named by its path (`device.id`). Only `required` checks whether a field is there. A rule about lengths or
values ignores values of another type: `type` is the rule for that.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from pabal.errors import InvalidPolicy
from pabal.jsontext import Json

Kind = Literal["required", "type", "minLength", "maxLength", "minValue", "maxValue", "pattern", "enum", "custom"]
TypeName = Literal["string", "number", "boolean", "array", "object", "null"]
Validator = Callable[[Any], bool]

_MISSING = object()
MAX_MATCHED = 10_000  # characters of a text that a pattern is tried on: many patterns take quadratic time
_parser: Any = re._parser  # type: ignore[attr-defined]  # the tree of a pattern has no public name


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, rename="camel"):
    """One rule: `value` for lengths, values and patterns, `values` for enum, `validator` the name of a custom one."""

    field: str
    type: Kind
    expected_type: TypeName | None = None
    value: Json = None
    values: list[Json] | None = None
    validator: str = ""
    error_message: str = ""

    def __post_init__(self) -> None:
        if not self.field:
            raise InvalidPolicy("a rule needs the name of a field")
        needed = _NEEDS[self.type]
        given = {
            "expectedType": self.expected_type is not None,
            "value": self.value is not None,
            "values": self.values is not None,
            "validator": bool(self.validator),
        }
        for name, there in given.items():
            if there != (name == needed):
                raise InvalidPolicy(f"rule {self.type} of {self.field} {'has no' if there else 'needs'} `{name}`")
        if self.type in ("minLength", "maxLength") and not (type(self.value) is int and self.value >= 0):
            raise InvalidPolicy(f"{self.type} of {self.field} must be a whole number from 0; found {self.value!r:.40}")
        if self.type in ("minValue", "maxValue") and not _is_number(self.value):
            raise InvalidPolicy(f"{self.type} of {self.field} must be a number; found {self.value!r:.40}")
        if self.type == "pattern":
            check_pattern(_compiled(self).pattern, self.field)


class MessageSchema(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A named list of rules."""

    name: str = ""
    description: str = ""
    rules: list[Rule] = []


def complaints(schema: MessageSchema, body: object, validators: dict[str, Validator]) -> list[str]:
    """Return one line for each rule that a body breaks, with the name of the field."""
    found = []
    for rule in schema.rules:
        value = _at(body, rule.field)
        if value is _MISSING and rule.type != "required":
            continue
        wrong = f"{rule.field}: it is missing" if value is _MISSING else _complaint(rule, value, validators)
        if wrong:
            found.append(rule.error_message or wrong)
    return found


def _complaint(rule: Rule, value: Any, validators: dict[str, Validator]) -> str:
    if rule.type == "custom":
        said = "" if validators[rule.validator](value) else f"must be {rule.validator}"
    else:
        said = _SAYS[rule.type](rule, rule.value, value)
    # The type of the value, not the value: contents of messages do not belong in errors and logs.
    return f"{rule.field}: {said}; found {_kind(value)}" if said else ""


def _at(body: object, path: str) -> object:
    if isinstance(body, dict) and path in body:
        return body[path]
    for step in path.split("."):
        if not isinstance(body, dict) or step not in body:
            return _MISSING
        body = body[step]
    return body


def _compiled(rule: Rule) -> re.Pattern[str]:
    try:
        return re.compile(rule.value)  # type: ignore[arg-type]  # not text: that is the TypeError
    except (re.error, TypeError, RecursionError, OverflowError) as exc:
        raise InvalidPolicy(f"pattern of {rule.field} is no regular expression: {exc}") from exc


def check_pattern(pattern: str, field: str) -> None:
    """Raise InvalidPolicy for a repeated group of nothing but repeats, as in `(a+)+`.

    Python tries all ways to divide a text among them, whose number doubles with each character: 40 characters that a
    stranger sends would block the process for hours.
    """
    if _divides(_parser.parse(pattern)):
        raise InvalidPolicy(
            f"pattern of {field} repeats a group of repeats, as in (a+)+, which takes exponential time: write a+"
        )


_REPEATS = (_parser.MAX_REPEAT, _parser.MIN_REPEAT)  # possessive ones are not tried again


def _divides(items: Any, repeated: bool = False) -> bool:
    """Return whether a group of repeats only stands in a repeat without an end; `repeated`: these items do."""
    unbounded = fixed = False
    for kind, value in items:
        if kind in _REPEATS:
            least, most, inner = value
            endless = most == _parser.MAXREPEAT
            if _divides(inner, repeated or endless):
                return True
            unbounded = unbounded or endless
            fixed = fixed or not endless and least > 0
        elif kind is _parser.SUBPATTERN:
            if _divides(value[-1], repeated and len(items) == 1):
                return True
            fixed = fixed or value[-1].getwidth()[0] > 0 and len(items) > 1
        elif kind is _parser.BRANCH:
            if any(_divides(branch, repeated and len(items) == 1) for branch in value[1]):
                return True
            fixed = fixed or len(items) > 1
        elif kind not in (_parser.AT, _parser.ASSERT, _parser.ASSERT_NOT):
            fixed = True
    return repeated and unbounded and not fixed


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _kind(value: object) -> str:
    return next(name for name, fits in _TYPES.items() if fits(value)) if not isinstance(value, bytes) else "bytes"


def _unlike_type(rule: Rule, limit: Any, value: Any) -> str:
    return "" if _TYPES[rule.expected_type or "null"](value) else f"must be {rule.expected_type}"


def _too_short(rule: Rule, limit: Any, value: Any) -> str:
    return f"must have {limit} characters at least" if isinstance(value, str) and len(value) < limit else ""


def _too_long(rule: Rule, limit: Any, value: Any) -> str:
    return f"must have {limit} characters at most" if isinstance(value, str) and len(value) > limit else ""


def _too_small(rule: Rule, limit: Any, value: Any) -> str:
    return f"must be {limit} at least" if _is_number(value) and value < limit else ""


def _too_large(rule: Rule, limit: Any, value: Any) -> str:
    return f"must be {limit} at most" if _is_number(value) and value > limit else ""


def _unlike_pattern(rule: Rule, limit: Any, value: Any) -> str:
    if isinstance(value, str) and len(value) > MAX_MATCHED:
        return f"must have {MAX_MATCHED} characters at most, because it must match {limit}"
    return f"must match {limit}" if isinstance(value, str) and not _compiled(rule).search(value) else ""


def _not_listed(rule: Rule, limit: Any, value: Any) -> str:
    values = rule.values or []
    if any(_same(value, one) for one in values):
        return ""
    return f"must be one of {', '.join(repr(one) for one in values[:10])}{', …' if len(values) > 10 else ''}"


_NEEDS: dict[str, str] = {
    "required": "",
    "type": "expectedType",
    "enum": "values",
    "custom": "validator",
    **dict.fromkeys(("minLength", "maxLength", "minValue", "maxValue", "pattern"), "value"),
}
_TYPES: dict[str, Callable[[object], bool]] = {
    "string": lambda value: isinstance(value, str),
    "number": _is_number,
    "boolean": lambda value: isinstance(value, bool),
    "array": lambda value: isinstance(value, list),
    "object": lambda value: isinstance(value, dict),
    "null": lambda value: value is None,
}
_SAYS: dict[str, Callable[[Rule, Any, Any], str]] = {
    "required": lambda rule, limit, value: "",
    "type": _unlike_type,
    "minLength": _too_short,
    "maxLength": _too_long,
    "minValue": _too_small,
    "maxValue": _too_large,
    "pattern": _unlike_pattern,
    "enum": _not_listed,
}
