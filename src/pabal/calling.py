"""What a handler may be: a function that has done its work when it returns.

One that returns before, as a coroutine function does, would have its message acked and its work never begun.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pabal.errors import InvalidInput

_KINDS = (
    (inspect.iscoroutinefunction, "a coroutine function"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)


def check_handler(handler: Callable[..., Any], *, together: bool = False) -> None:
    """Refuse what would not run when it is called. A handler of many may yield what it refuses."""
    if not callable(handler):
        raise InvalidInput(f"a handler is a function; found {handler!r:.80}")
    for is_such, kind in _KINDS[: 2 if together else 3]:
        if is_such(handler) or is_such(type(handler).__call__):
            raise InvalidInput(
                f"a handler is a plain function; found {kind}, {_name(handler):.80}: run it to its end inside one, as"
                " in lambda item: asyncio.run(handle(item))"
            )


def check_returned(result: object) -> None:
    """Raise if a handler returned work that nobody has done yet."""
    if result is not None and hasattr(result, "__await__"):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns of it, later and elsewhere
        kind = type(result).__name__
        raise InvalidInput(f"the handler returned a {kind}, which nobody awaits: have it run by asyncio.run instead")


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", type(handler).__qualname__)
