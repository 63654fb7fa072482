"""The team file: who the agents are, how each is woken and by what command, and the limits that hold for all.

Commands come from this file and never from a message.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from pabal.codecs.mime import yaml_read
from pabal.errors import InvalidConfig, InvalidInput, QueueUnknown
from pabal.names import check_name
from pabal.policy import DEFAULT_MAX_BYTES, Backoff, DeadLetterPolicy, Policy, RetryPolicy

FILE = "team.yaml"
USER, SYSTEM, MONITOR, GITHUB = "user", "system", "queue_monitor", "github_watcher"
_SENDERS = (USER, SYSTEM, MONITOR, GITHUB)
_DATABASES = ("sqlite:", "postgresql:")
_LEASE = 30 * 86400.0  # seconds: the monitor judges turns itself, the lease is only the net beneath
_DAY = 86400.0


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a team may use. Times are in seconds, 0 waiting messages is no limit."""

    parallel: int = 9
    turn: float = 1800.0  # without a sign of life
    run: float = 21600.0  # of one command
    grace: float = 10.0
    waiting: int = 10_000
    bytes: int = DEFAULT_MAX_BYTES
    starts: int = 3  # restarts in a row of an agent's process


class Tries(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a message is tried, and the rest in between: at random up to base, twice that, … up to cap."""

    limit: int = 3
    base: float = 5.0
    cap: float = 300.0


class Keep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many days what is over is kept."""

    done: float = 1.0
    dead: float = 14.0


class Agent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One agent: how it is woken, and what that way needs to know."""

    wake: str = "hook"
    command: tuple[str, ...] = ()  # exec: run for each message
    pane: str = ""  # tmux
    url: str = ""  # webhook
    options: dict[str, Any] = {}  # for ways to wake that come as plug-ins
    process: tuple[str, ...] = ()  # kept running beside
    variables: tuple[str, ...] = ()  # names of variables that its commands inherit
    count: int = 0  # so many of them: name_1, name_2, …


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    agents: dict[str, Agent]
    leader: str = "leader"
    queues: str = ""
    senders: tuple[str, ...] = ()
    limits: Limits = Limits()
    retry: Tries = Tries()
    keep: Keep = Keep()
    watchers: dict[str, dict[str, Any]] = {}


class Team(msgspec.Struct, frozen=True, kw_only=True):
    """The agents by name, numbered ones spelt out, and what holds for all of them."""

    agents: Mapping[str, Agent]
    leader: str
    senders: frozenset[str]
    limits: Limits
    retry: Tries
    keep: Keep
    watchers: Mapping[str, Mapping[str, Any]]
    queues: str = ""  # the URL of a database that the mail lies in; else it lies in the folders

    def name_of(self, text: str) -> str:
        """Return the agent that is meant; `ignitian-1` and `ignitian_1` are one. Raise QueueUnknown if none is."""
        for name in (text, text.replace("-", "_")):
            if name in self.agents:
                return name
        near = get_close_matches(text, self.agents, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(list(self.agents)[:12])}"
        raise QueueUnknown(f"no agent {text!r:.80}; {hint}")

    def sender_of(self, text: str) -> str:
        """Return who is meant as a sender: an agent, a watcher, user, system; raise QueueUnknown if nobody is."""
        known = next((name for name in (text, text.replace("-", "_")) if name in self.senders), None)
        return known if known is not None else self.name_of(text)

    @property
    def policy(self) -> Policy:
        """What holds for the queue of every agent."""
        limits, retry = self.limits, self.retry
        return Policy(
            visibility=_LEASE,
            retry=RetryPolicy(limit=retry.limit, backoff=Backoff.FULL_JITTER, initial=retry.base, max=retry.cap),
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
        document = msgspec.convert(yaml_read.read(data), _Document)
    except (InvalidInput, msgspec.ValidationError) as exc:
        raise InvalidConfig(str(path), (str(exc),)) from exc
    mistakes: list[str] = []
    agents = _numbered(document.agents, mistakes)
    if document.leader not in agents:
        mistakes.append(f"leader: {document.leader} is none of the agents")
    if document.queues and not document.queues.startswith(_DATABASES):
        mistakes.append(f"queues: sqlite:PATH or postgresql://…; found {document.queues.partition(':')[0]!r:.40}")
    mistakes += _wrong_limits(document)
    senders = frozenset((*_SENDERS, *document.senders, *document.watchers))
    team = Team(
        agents=agents,
        leader=document.leader,
        senders=senders,
        limits=document.limits,
        retry=document.retry,
        keep=document.keep,
        watchers=document.watchers,
        queues=document.queues,
    )
    if not mistakes:
        try:
            team.policy  # noqa: B018  # what a policy refuses is a mistake in the file
        except InvalidInput as exc:
            mistakes.append(str(exc))
    if mistakes:
        raise InvalidConfig(str(path), tuple(mistakes))
    return team


_NEEDS = {"exec": "command", "tmux": "pane", "webhook": "url"}


def _numbered(found: Mapping[str, Agent], mistakes: list[str]) -> dict[str, Agent]:
    agents: dict[str, Agent] = {}
    for name, agent in found.items():
        try:
            check_name(name, "agent")
        except InvalidInput as exc:
            mistakes.append(str(exc))
            continue
        if name in (*_SENDERS, "dead_letter") or "-" in name:
            mistakes.append(f"agents.{name}: this name is kept for others; letters, digits and '_' make one")
        if (need := _NEEDS.get(agent.wake)) and not getattr(agent, need):
            mistakes.append(f"agents.{name}.{need}: wake: {agent.wake} needs one")
        if agent.count < 0 or agent.count > 1000:
            mistakes.append(f"agents.{name}.count: 0 to 1000; found {agent.count}")
            continue
        names = [f"{name}_{number}" for number in range(1, agent.count + 1)] or [name]
        agents.update(dict.fromkeys(names, agent))
    if not agents:
        mistakes.append("agents: at least one is needed")
    return agents


def _wrong_limits(document: _Document) -> list[str]:
    limits, keep = document.limits, document.keep
    ranges: list[tuple[str, float, float, float]] = [
        ("limits.parallel", limits.parallel, 1, 10_000),
        ("limits.turn", limits.turn, 0.1, 30 * _DAY),
        ("limits.run", limits.run, 0.1, 30 * _DAY),
        ("limits.grace", limits.grace, 0, 3600),
        ("limits.starts", limits.starts, 0, 1_000_000),
        ("keep.done", keep.done, 0, 36600),
        ("keep.dead", keep.dead, 0, 36600),
    ]
    return [
        f"{what}: {least:g} to {most:g}; found {value:g}"
        for what, value, least, most in ranges
        if not least <= value <= most
    ]
