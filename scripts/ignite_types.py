"""Prints docs/reference/ignite-types.md, the page of message types, from the types themselves."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec

from pabal.apps.ignite.bodies import Body
from pabal.apps.ignite.types import TYPES, MessageType

_OPENING = """\
# Types of IGNITE messages

Made from the code by `python scripts/ignite_types.py`; a test holds the two together.

`X-IGNITE-Type` names one of these. A body is an object with at least the fields in **bold**; whatever else it holds is
kept as it is, and a field that is null counts as not there. A body without a needed field, or with one of the wrong
kind, is refused when it is sent, and set aside with its reason when somebody else put it there. Who sends what to whom
is the custom, not a rule.
"""
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", type(None): "null", Any: "anything"}


def page() -> str:
    """Return the whole page."""
    return "\n".join([_OPENING, *(line for known in TYPES.values() for line in _section(known))])


def _section(known: MessageType) -> Iterator[str]:
    yield f"## {known.name}\n"
    yield f"{known.usual}: {known.means}.\n"
    yield "| field | holds |"
    yield "|---|---|"
    for field in msgspec.structs.fields(known.body):
        name = f"**`{field.encode_name}`**" if field.required else f"`{field.encode_name}`"
        yield f"| {name} | {_words(field.type)} |"
    yield ""


def _words(kind: Any) -> str:
    """Describe in words the values of a field."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _words(inner[0]) + _limits(inner[1])
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inner)
    if origin is list:
        return "list" if inner[0] is Any else f"list of {_words(inner[0])}"
    if inner:
        parts = [part for part in inner if part is not type(None) and not (part is int and float in inner)]
        return " or ".join(map(_words, parts))
    if isinstance(kind, type) and issubclass(kind, Body):
        return f"object ({_names(kind)})"
    return _WORDS[kind]


def _names(kind: type[Body]) -> str:
    fields = msgspec.structs.fields(kind)
    return ", ".join(f"**`{one.encode_name}`**" if one.required else f"`{one.encode_name}`" for one in fields)


def _limits(meta: msgspec.Meta) -> str:
    if meta.min_length:
        return ", not empty"
    if meta.le is not None:
        return f", {meta.ge} to {meta.le}"
    return f", at least {meta.ge}"


if __name__ == "__main__":
    import sys

    sys.stdout.write(page())
