"""Bodies of Python types: what a publisher gives becomes a JSON value, and a consumer gets the type that it asks for.

Types are those of msgspec (Structs, dataclasses, TypedDicts, attrs, datetime, UUID, Decimal, Enum, tuples, sets, unions
of them) and pydantic models, which convert themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from pabal import jsontext
from pabal.errors import InvalidBody, InvalidInput, ValidationFailed
from pabal.jsontext import Json, check, encode

_PLAIN = (dict, list, tuple)


def json_body(body: Any) -> Json | bytes:
    """Return a body as it is stored. Raise InvalidBody if it, or a value in it, has no form in JSON."""
    if type(body) is bytes:
        return body
    try:
        check(body)
    except InvalidBody:
        body = _converted(body)
        check(body)
    stored: Json | bytes = body
    return stored


def check_many(bodies: object, call: str) -> None:
    """Refuse one body where many are expected: its keys or letters would become messages."""
    if isinstance(bodies, (Mapping, str, bytes, bytearray)):
        raise InvalidInput(f"{call}_many takes a list of bodies; found one {type(bodies).__name__}: use {call} for it")


def _converted(body: Any) -> Any:
    # Bytes become base64 text only where a type says that they are bytes, and can be read back.
    kept = (bytes, bytearray, memoryview) if isinstance(body, _PLAIN) else ()
    try:
        return _with_lists(msgspec.to_builtins(body, builtin_types=kept, str_keys=not kept, enc_hook=_dumped))
    except InvalidBody:
        raise
    except (TypeError, ValueError) as exc:
        raise InvalidBody(f"a body is a JSON value, bytes, or of a type that msgspec or pydantic knows: {exc}") from exc


def _with_lists(value: Any) -> Any:
    if type(value) is dict:
        return {key: _with_lists(item) for key, item in value.items()}
    return [_with_lists(item) for item in value] if isinstance(value, (tuple, list)) else value


def _dumped(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return _dumped_model(value)
    raise InvalidBody(
        f"a body is a JSON value, bytes, or of a type that msgspec or pydantic knows; found {_name(value)}"
    )


def _dumped_model(model: Any) -> Any:
    """Return the JSON value of a pydantic model, which must be able to read it again: a consumer cannot help it."""
    dumped = model.model_dump(mode="json", by_alias=True, round_trip=True)
    try:
        convert(dumped, type(model))
    except ValidationFailed as exc:
        raise InvalidBody(
            f"{_name(model)} does not accept what it writes: {exc}; its aliases, serializers and validators must fit"
        ) from exc
    return dumped


def convert(body: Any, expected: Any) -> Any:
    """Return a stored body as the expected type; raise ValidationFailed if it does not fit."""
    try:
        if _is_model(expected):  # from JSON, in which a strict model takes a date as text
            return expected.model_validate(body) if type(body) is bytes else expected.model_validate_json(encode(body))
        return jsontext.convert(body, expected, str_keys=True, dec_hook=_loaded)
    except (msgspec.ValidationError, ValueError) as exc:  # pydantic's error is a ValueError
        raise ValidationFailed(f"body: {' '.join(str(exc).split())}") from exc


def check_type(expected: Any) -> None:
    """Raise InvalidInput if bodies cannot be converted to this type: when it is given, not when a message is read."""
    if _is_model(expected):
        return
    try:
        found = list(_custom(msgspec.inspect.type_info(expected), set()))
    except Exception as exc:  # what is no type at all
        raise InvalidInput(f"body must be a type; found {expected!r:.80}: {exc}") from exc
    wrong = [kind for kind in found if not _is_model(kind)]
    if wrong:
        raise InvalidInput(
            f"bodies cannot be converted to {_name(wrong[0])}: use a msgspec Struct, a dataclass, a TypedDict, a"
            " pydantic model or a type made of these"
        )


def _loaded(expected: type, value: Any) -> Any:
    return convert(value, expected)


def _is_model(expected: Any) -> bool:
    return isinstance(expected, type) and hasattr(expected, "model_validate")


def _custom(info: Any, seen: set[int]) -> Iterator[type]:
    """Yield the types inside a type that msgspec does not convert by itself."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, (tuple, list)):
        for part in info:
            yield from _custom(part, seen)
    elif isinstance(info, msgspec.Struct) and id(info) not in seen:
        seen.add(id(info))
        for field in info.__struct_fields__:
            yield from _custom(getattr(info, field), seen)


def _name(value: Any) -> str:
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"
