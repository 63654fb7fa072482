"""The team file: the agents, how each is woken and by which command, and the limits of the team.

Commands come from this file and never from a message.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import msgspec

from pabal import jsontext
from pabal.apps.ignite.types import TYPES, OwnTypes
from pabal.codecs import yaml
from pabal.errors import InvalidConfig, InvalidInput, QueueUnknown
from pabal.filesystem import read_plain
from pabal.names import ascii_name, check_name, shown_name
from pabal.policy.policy import DEFAULT_MAX_BYTES, Backoff, DeadLetterPolicy, Policy, RetryPolicy
from pabal.policy.validation import checker

FILE = "team.yaml"
USER, SYSTEM, MONITOR, GITHUB = "user", "system", "queue_monitor", "github_watcher"
_SENDERS = (USER, SYSTEM, MONITOR, GITHUB)
_DATABASES = ("sqlite:", "postgresql:")
_LEASE = 30 * 86400.0  # seconds: the monitor ends turns itself, so the lease is only a safety net
_DAY = 86400.0
_type_name = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII).fullmatch


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a team. Times are in seconds; 0 waiting messages means no limit."""

    parallel: int = 9
    turn: float = 1800.0  # without a sign of life
    run: float = 21600.0  # of one command
    grace: float = 10.0
    waiting: int = 10_000
    bytes: int = DEFAULT_MAX_BYTES
    starts: int = 3  # restarts in a row of an agent's process


class Tries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a message is tried again, and the pause before: random up to base, then twice that, … up to cap."""

    limit: int = 3  # retries; the first attempt is none
    base: float = 5.0
    cap: float = 300.0


class Keep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many days finished and dead messages are kept, and all messages in the archive; 0 there: for ever."""

    done: float = 1.0
    dead: float = 14.0
    archive: float = 365.0


class Agent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent: how it is woken, and the settings of that way to wake."""

    wake: str = "hook"
    command: tuple[str, ...] = ()  # exec: run for each message; {path}, {agent} and {id} are replaced
    preset: Literal["", "claude", "codex"] = ""  # exec: the command line of this model, instead of a command
    arguments: tuple[str, ...] = ()  # exec: added to the command line of the preset
    stdin: bool = False  # exec: the message as JSON on stdin
    done: Literal["", "status", "explicit"] = ""  # exec: by the exit status, or only by `pabal ignite done`
    pane: str = ""  # tmux: id, title or address; if empty, the title is the name of the agent
    socket: str = ""  # tmux: the name (-L) or the path (-S) of the server's socket
    line: str = "new message: {path}"  # tmux: typed into the pane
    url: str = ""  # webhook
    options: dict[str, Any] = {}  # for ways to wake that come as plug-ins
    process: tuple[str, ...] = ()  # kept running with the team
    variables: tuple[str, ...] = ()  # names of variables that its commands inherit
    count: int = 0  # make this many agents: name_1, name_2, …

    @property
    def explicit(self) -> bool:
        """Whether only `pabal ignite done` makes a message done, not exit status 0. A preset needs it."""
        return self.done == "explicit" or (bool(self.preset) and not self.done)


class OwnType(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A type of message that only this team has. The schema is JSON Schema, or the path of a file with it."""

    schema: dict[str, Any] | str | None = None


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agents: dict[str, Agent]
    leader: str = "leader"
    queues: str = ""
    senders: tuple[str, ...] = ()
    limits: Limits = Limits()
    retry: Tries = Tries()
    keep: Keep = Keep()
    watchers: dict[str, dict[str, Any]] = {}
    types: dict[str, OwnType | None] = {}
    workers: tuple[str, ...] = ()
    notify: tuple[Literal["tmux", "desktop", "bell"], ...] = ("tmux", "desktop", "bell")


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """The agents by name, with numbered agents expanded, and the settings of the team."""

    agents: Mapping[str, Agent]
    leader: str
    senders: frozenset[str]
    limits: Limits
    retry: Tries
    keep: Keep
    watchers: Mapping[str, Mapping[str, Any]]
    queues: str = ""  # the URL of a database for the mail; empty: the folders
    types: OwnTypes = {}
    workers: tuple[str, ...] = ()  # the agents that the coordinator gives tasks to; none: those of the usual name
    notify: tuple[str, ...] = ()  # how the person is notified
    source: bytes = b""  # the file

    def name_of(self, text: str) -> str:
        """Return the name of an agent; `ignitian-1` and `ignitian_1` are the same. Raise QueueUnknown.

        A name in another script than ASCII is returned in ASCII, as its queue is called.
        """
        for name in (ascii_name(text), ascii_name(text.replace("-", "_"))):
            if name in self.agents:
                return name
        there = [shown_name(name) for name in self.agents]
        near = get_close_matches(text, there, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there[:12])}"
        raise QueueUnknown(f"no agent {text!r:.80}; {hint}")

    @property
    def recipients(self) -> tuple[str, ...]:
        """Everybody who gets mail: the agents, and the person."""
        return (*self.agents, USER)

    def recipient_of(self, text: str) -> str:
        """Return the name of a recipient: an agent, or `user` for the person; raise QueueUnknown."""
        return USER if text == USER else self.name_of(text)

    def sender_of(self, text: str) -> str:
        """Return the name of a sender: an agent, a watcher, user or system; raise QueueUnknown."""
        known = next((name for name in map(ascii_name, (text, text.replace("-", "_"))) if name in self.senders), None)
        return known if known is not None else self.name_of(text)

    def filter_of(self, text: str) -> str:
        """Return the name that mail of somebody has, for filters: also of those who have left the team."""
        try:
            return self.sender_of(text)
        except QueueUnknown:
            return ascii_name(text)

    @property
    def policy(self) -> Policy:
        """The policy of every agent's queue."""
        limits, retry = self.limits, self.retry
        return Policy(
            visibility=_LEASE,
            retry=RetryPolicy(limit=retry.limit + 1, backoff=Backoff.FULL_JITTER, initial=retry.base, max=retry.cap),
            dead_letters=DeadLetterPolicy(retention_days=self.keep.dead),
            done_retention=self.keep.done * _DAY,
            max_bytes=limits.bytes,
            max_waiting=limits.waiting,
        )


def read_team(path: Path) -> Team:
    """Read a team file; raise InvalidConfig that names every mistake."""
    try:
        data = path.read_bytes()
    except OSError as exc:
        raise InvalidConfig(f"{path}: {exc.strerror}; `pabal ignite init` makes one") from exc
    try:
        document = jsontext.convert(yaml.read(data), _Document)
    except (InvalidInput, msgspec.ValidationError) as exc:
        raise InvalidConfig(str(path), (str(exc),)) from exc
    mistakes: list[str] = []
    agents = _numbered(document.agents, mistakes)
    leader = ascii_name(document.leader)
    if leader not in (*agents, USER):
        mistakes.append(f"leader: {document.leader} is none of the agents")
    if document.queues and not document.queues.startswith(_DATABASES):
        mistakes.append(f"queues: sqlite:PATH or postgresql://…; found {document.queues.partition(':')[0]!r:.40}")
    mistakes += [
        f"workers: {name} is none of the agents" for name in document.workers if ascii_name(name) not in agents
    ]
    mistakes += _wrong_limits(document)
    types = _own_types(path.parent, document.types, mistakes)
    senders = frozenset((*_SENDERS, *map(ascii_name, document.senders), *document.watchers))
    team = Team(
        agents=agents,
        leader=leader,
        senders=senders,
        limits=document.limits,
        retry=document.retry,
        keep=document.keep,
        watchers=document.watchers,
        queues=document.queues,
        types=types,
        workers=tuple(map(ascii_name, document.workers)),
        notify=document.notify,
        source=data,
    )
    if not mistakes:
        try:
            team.policy  # noqa: B018  # what a policy refuses is a mistake in the file
        except InvalidInput as exc:
            mistakes.append(str(exc).replace("retry.max", "retry.cap").replace("retry.initial", "retry.base"))
    if mistakes:
        raise InvalidConfig(str(path), tuple(mistakes))
    return team


_NEEDS = {"exec": ("command", "preset"), "webhook": ("url",)}


def _numbered(found: Mapping[str, Agent], mistakes: list[str]) -> dict[str, Agent]:
    agents: dict[str, Agent] = {}
    for name, agent in found.items():
        try:
            check_name(ascii_name(name), "agent")
        except InvalidInput as exc:
            mistakes.append(str(exc))
            continue
        if name in (*_SENDERS, "dead_letter") or "-" in name:
            mistakes.append(f"agents.{name}: this name is kept for others; letters, digits and '_' make one")
        if (needs := _NEEDS.get(agent.wake)) and not any(getattr(agent, need) for need in needs):
            mistakes.append(f"agents.{name}.{' or '.join(needs)}: wake: {agent.wake} needs one")
        if agent.preset and (agent.command or agent.wake != "exec"):
            mistakes.append(f"agents.{name}.preset: it takes the place of command, with wake: exec")
        if agent.arguments and not agent.preset:
            mistakes.append(f"agents.{name}.arguments: they follow those of a preset; write them into command")
        if not agent.line.strip() or not agent.line.isprintable():
            mistakes.append(f"agents.{name}.line: printable text on one line; found {agent.line!r:.40}")
        if agent.pane.startswith("-") or agent.socket.startswith("-"):
            mistakes.append(f"agents.{name}: pane and socket are names; found one that begins with '-'")
        if agent.count < 0 or agent.count > 1000:
            mistakes.append(f"agents.{name}.count: 0 to 1000; found {agent.count}")
            continue
        names = [f"{name}_{number}" for number in range(1, agent.count + 1)] or [name]
        agents.update(dict.fromkeys(map(ascii_name, names), agent))
    if not agents:
        mistakes.append("agents: at least one is needed")
    return agents


def _own_types(folder: Path, found: Mapping[str, OwnType | None], mistakes: list[str]) -> OwnTypes:
    types: dict[str, Any] = {}
    for name, about in found.items():
        if not _type_name(name) or name in TYPES:
            mistakes.append(f"types.{name}: small letters, digits and '_', and no name of a built-in type")
        try:
            types[name] = (
                _schema_check(folder, about.schema) if about is not None and about.schema is not None else None
            )
        except (OSError, ValueError, InvalidInput) as exc:  # a path may hold a null character
            mistakes.append(f"types.{name}.schema: {exc}")
    return types


def _schema_check(folder: Path, schema: Mapping[str, Any] | str) -> Callable[[Any], object]:
    found = yaml.read(read_plain(folder / schema)) if isinstance(schema, str) else schema
    if not isinstance(found, Mapping):
        raise InvalidInput("a schema is an object of JSON Schema")
    return checker(found)


def _wrong_limits(document: _Document) -> list[str]:
    limits, keep = document.limits, document.keep
    ranges: list[tuple[str, float, float, float]] = [
        ("limits.parallel", limits.parallel, 1, 10_000),
        ("retry.limit", document.retry.limit, 0, 999),
        ("limits.turn", limits.turn, 0.1, 30 * _DAY),
        ("limits.run", limits.run, 0.1, 30 * _DAY),
        ("limits.grace", limits.grace, 0, 3600),
        ("limits.starts", limits.starts, 0, 1_000_000),
        ("keep.done", keep.done, 0, 36600),
        ("keep.dead", keep.dead, 0, 36600),
        ("keep.archive", keep.archive, 0, 36600),
    ]
    return [
        f"{what}: {least:g} to {most:g}; found {value:g}"
        for what, value, least, most in ranges
        if not least <= value <= most
    ]
