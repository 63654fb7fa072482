"""Ways to wake an agent: each one passes the path of the held file to the agent, and nothing else.

A way to wake is a small class with two methods. Other packages add theirs by the entry point group
`pabal.ignite.wakes`; the name of the entry point is the `wake` in the team file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, runtime_checkable

from pabal.apps.ignite.team import Agent
from pabal.errors import ExtraMissing, InvalidConfig
from pabal.message import Message
from pabal.names import shown_name
from pabal.store import Receipt

GROUP = "pabal.ignite.wakes"
_BUILT_IN = {
    "exec": "pabal.apps.ignite.wakes.exec:ExecWake",
    "tmux": "pabal.apps.ignite.wakes.tmux:TmuxWake",
    "hook": "pabal.apps.ignite.wakes.notify:HookWake",
    "webhook": "pabal.apps.ignite.wakes.notify:WebhookWake",
    "claude-hook": "pabal.apps.ignite.wakes.notify:ClaudeHookWake",
    "codex-hook": "pabal.apps.ignite.wakes.notify:CodexHookWake",
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

    def filled_in(self, text: str) -> str:
        """Return a text of the team file with `{path}`, `{agent}` and `{id}` replaced."""
        for name, value in (("path", self.path), ("agent", shown_name(self.agent)), ("id", self.message.id)):
            text = text.replace(f"{{{name}}}", value)
        return text


@dataclass(frozen=True)
class WakeContext:
    """The place where ways to wake work."""

    root: Path
    folder: Path  # the working directory of commands
    variables: Mapping[str, str] = field(default_factory=dict)


class Ending(NamedTuple):
    """How the command of a message ended: `done`, `retry`, `bury` or `failed`, and why."""

    kind: str
    reason: str = ""


class Wake(Protocol):
    """A way to wake. `wake` may take long: it has a thread of its own, except in ways that run a command."""

    def wake(self, turn: Turn) -> None:
        """Notify the agent; raise WakeFailed if that is not possible."""
        ...

    def stop(self, turn: Turn) -> None:
        """Clean up, as far as possible: the turn is over."""
        ...


@runtime_checkable
class Running(Protocol):
    """A way to wake that runs a command for each message; its end settles the message."""

    def descriptor(self, turn: Turn) -> int:
        """Return a descriptor that is readable once the command has ended."""
        ...

    def ending(self, turn: Turn) -> Ending | None:
        """Return how the command ended; None while it runs."""
        ...


@runtime_checkable
class Probing(Protocol):
    """A way to wake that can tell whether an agent is there, without waking it."""

    def is_there(self, agent: str, about: Agent) -> bool: ...


@runtime_checkable
class Showing(Protocol):
    """A way to wake whose agents have a screen."""

    def shown(self, turn: Turn) -> tuple[str, str]:
        """Return the title and the text of an agent's screen, changing nothing; raise WakeFailed if there is none."""
        ...


MakeWake: TypeAlias = Callable[[WakeContext], Wake]


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
