"""Ways to wake an agent: each tells it that a message is in its hands, by the path of the file and nothing else.

A way to wake is a small class with three methods. Those of other packages are found by the entry point group
`pabal.ignite.wakes`, under the name that the team file gives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from pabal.errors import ExtraMissing, InvalidConfig
from pabal.ignite.team import Agent
from pabal.message import Message
from pabal.store import Receipt

GROUP = "pabal.ignite.wakes"
_BUILT_IN = {
    "exec": "pabal.ignite.wakes.exec:ExecWake",
    "tmux": "pabal.ignite.wakes.tmux:TmuxWake",
    "hook": "pabal.ignite.wakes.hook:HookWake",
    "webhook": "pabal.ignite.wakes.webhook:WebhookWake",
}


@dataclass(frozen=True, eq=False)
class Turn:
    """One message given to one agent."""

    agent: str
    about: Agent
    path: str
    receipt: Receipt
    message: Message
    attempt: int


@dataclass(frozen=True)
class Surroundings:
    """What ways to wake may know of the place they work in."""

    root: Path
    folder: Path  # in which commands run
    variables: Mapping[str, str] = field(default_factory=dict)


class Ending(NamedTuple):
    """How a command that was run for a message ended: `done`, `retry`, `bury` or `failed`, and why."""

    kind: str
    reason: str = ""


class Wake(Protocol):
    """A way to wake. `wake` may take its time: except for those that run a command it has a thread of its own."""

    def wake(self, turn: Turn) -> None:
        """Tell the agent; raise WakeFailed if it cannot have heard."""
        ...

    def alive(self, turn: Turn) -> bool | None:
        """Say whether the agent is there; None if this cannot be known."""
        ...

    def stop(self, turn: Turn) -> None:
        """Take it back, as far as that can be done: the turn is over."""
        ...


@runtime_checkable
class Running(Protocol):
    """A way to wake that runs something for each message, whose end settles it."""

    def descriptor(self, turn: Turn) -> int:
        """Return what is readable once it has ended."""
        ...

    def ending(self, turn: Turn) -> Ending | None:
        """Say how it ended; None while it runs."""
        ...


MakeWake: TypeAlias = Callable[[Surroundings], Wake]


def load(kind: str) -> MakeWake:
    """Return the way to wake of this name; raise InvalidConfig if there is none."""
    if kind in _BUILT_IN:
        module, _, name = _BUILT_IN[kind].partition(":")
        made: MakeWake = getattr(import_module(module), name)
        return made
    for found in entry_points(group=GROUP, name=kind):
        try:
            plugin: MakeWake = found.load()
        except ImportError as exc:
            raise ExtraMissing(f"wake {kind!r:.40} of {found.value} cannot be loaded: {exc}") from exc
        return plugin
    raise InvalidConfig(f"no way to wake is called {kind!r:.40}; there are {', '.join(_BUILT_IN)} and plug-ins")
