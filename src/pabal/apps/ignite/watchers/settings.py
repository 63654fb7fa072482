"""The watchers of the team file: their settings, and the watcher that each kind makes.

`kind` is files, github or command, or the name of an entry point in the group `pabal.ignite.watchers`: a function that
takes (options, folder, variables) and returns a Watcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from pabal import jsontext
from pabal.apps.ignite.team import Team
from pabal.apps.ignite.watchers.events import Rules, asks_for_work, file_event, github_events
from pabal.errors import InvalidConfig, InvalidInput
from pabal.watchers import Event, Look, Watcher
from pabal.watchers.command import CommandWatcher, find_program
from pabal.watchers.files import FilesWatcher
from pabal.watchers.github import API, LISTS, REVIEWS, TOKEN, RepositoryWatcher

GROUP = "pabal.ignite.watchers"
_USUAL = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
_name = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII).fullmatch
_repository = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", re.ASCII).fullmatch
Maker: TypeAlias = Callable[[Mapping[str, Any], Path, Mapping[str, str]], Watcher[Event]]


class WatcherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that every watcher has; the options of its kind stand beside them in the file."""

    kind: str
    interval: float = 60.0  # seconds between looks
    enabled: bool = True
    auto_start: bool = True  # with `pabal ignite up`
    description: str = ""
    to: str = ""  # the recipient of its events; by default the leader
    variables: tuple[str, ...] = ()  # names of variables that it may see


class FilesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which folders, which names in them, and the message. The goal may hold `{path}`, `{name}` and `{change}`."""

    folders: tuple[str, ...]
    pattern: str = "*"
    changes: tuple[str, ...] = ("created", "changed")
    settle: float = 1.0  # seconds without a change before a file is reported
    type: str = "user_goal"
    goal: str = "See to the file {path} ({change})"
    priority: str = "normal"


class GithubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to watch, and what asks for work. The token is read from a variable and never written anywhere."""

    repositories: tuple[str, ...]
    watch: tuple[str, ...] = (*LISTS, REVIEWS)
    mention: str = "@ignite"
    labels: tuple[str, ...] = ("ignite",)
    allowed_users: tuple[str, ...] = ()  # the users that may ask for work; empty: every user
    ignore_bots: bool = True
    api: str = API
    token_variable: str = TOKEN


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to run."""

    command: tuple[str, ...]


def read_settings(team: Team, name: str) -> WatcherSettings:
    """Return the settings of a watcher; raise InvalidConfig if they cannot be used."""
    if name not in team.watchers:
        there = ", ".join(team.watchers) or "none"
        raise InvalidConfig(f"no watcher {name!r:.80} in the team file; there are {there}")
    if not _name(name):
        raise InvalidConfig("watchers", (f"{name!r:.80}: a name is of small letters, digits and '_'",))
    try:
        settings = jsontext.convert(team.watchers[name], WatcherSettings)
    except msgspec.ValidationError as exc:
        raise InvalidConfig(f"watchers.{name}", (str(exc),)) from exc
    if not 0.05 <= settings.interval <= 86400:
        raise InvalidConfig(f"watchers.{name}", (f"interval: 0.05 to 86400 seconds; found {settings.interval:g}",))
    return msgspec.structs.replace(settings, to=team.name_of(settings.to or team.leader))


def make_watcher(team: Team, name: str, *, folder: Path, variables: Mapping[str, str]) -> Watcher[Event]:
    """Make the watcher of this name; relative paths start at `folder`, secrets come from `variables`."""
    settings = read_settings(team, name)
    common = frozenset(WatcherSettings.__struct_fields__)
    options = {key: value for key, value in team.watchers[name].items() if key not in common}
    try:
        return _maker(settings.kind)(options, folder, allowed_variables(team, name, variables))
    except (InvalidInput, msgspec.ValidationError) as exc:
        raise InvalidConfig(f"watchers.{name}", (str(exc),)) from exc


def allowed_variables(team: Team, name: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a watcher may see: the usual ones, its token, and those that its settings name."""
    settings = read_settings(team, name)
    token = str(team.watchers[name].get("token_variable", TOKEN)) if settings.kind == "github" else ""
    wanted = (*_USUAL, token, *settings.variables)
    return {each: variables[each] for each in wanted if each in variables}


def files_watcher(options: Mapping[str, Any], folder: Path, variables: Mapping[str, str]) -> FilesWatcher[Event]:
    settings = jsontext.convert(options, FilesSettings)
    if not settings.folders:
        raise InvalidConfig("folders: at least one is needed")
    return FilesWatcher(
        [str(folder / each) for each in settings.folders],
        pattern=settings.pattern,
        settle=settings.settle,
        event=lambda change: (
            file_event(change, type=settings.type, goal=settings.goal, priority=settings.priority)
            if change.change in settings.changes
            else None
        ),
    )


def github_watcher(options: Mapping[str, Any], folder: Path, variables: Mapping[str, str]) -> RepositoryWatcher[Event]:
    settings = jsontext.convert(options, GithubSettings)
    wrong = [name for name in settings.repositories if not _repository(name)]
    if wrong or not settings.repositories:
        raise InvalidConfig(f"repositories: each is owner/name; found {', '.join(wrong) or 'none'}")
    if unknown := set(settings.watch) - {*LISTS, REVIEWS}:
        raise InvalidConfig(f"watch: some of {', '.join(LISTS)}, reviews; found {', '.join(sorted(unknown))}")
    rules = Rules(
        mention=settings.mention,
        labels=frozenset(settings.labels),
        allowed=frozenset(name.lower() for name in settings.allowed_users),
        ignore_bots=settings.ignore_bots,
    )
    return RepositoryWatcher(
        settings.api,
        variables.get(settings.token_variable, ""),
        repositories=settings.repositories,
        kinds=settings.watch,
        events=lambda kind, repository, raw: github_events(kind, repository, raw, rules),
        wants_issue=lambda kind, raw: asks_for_work(kind, raw, rules),
    )


def command_watcher(options: Mapping[str, Any], folder: Path, variables: Mapping[str, str]) -> CommandWatcher[Event]:
    argv = find_program(jsontext.convert(options, CommandSettings).command, folder, variables.get("PATH", ""))

    def variables_of(look: Look) -> dict[str, str]:
        return {
            **variables,
            "WATCH_SINCE": f"{look.since:.6f}",
            "WATCH_LAST": f"{look.last:.6f}",
            "WATCH_CURSOR": jsontext.encode(dict(look.cursor)).decode(),
        }

    return CommandWatcher(argv, folder, variables=variables_of, cursor_word="cursor", event=_event_of_line)


_KINDS: dict[str, Maker] = {"files": files_watcher, "github": github_watcher, "command": command_watcher}


def _event_of_line(value: Any, now: float) -> Event:
    if isinstance(value, dict):
        value.setdefault("at", now)
    try:
        return jsontext.convert(value, Event)
    except msgspec.ValidationError as exc:
        raise InvalidInput(str(exc)) from exc


def _maker(kind: str) -> Maker:
    if kind in _KINDS:
        return _KINDS[kind]
    for point in entry_points(group=GROUP, name=kind):
        maker: Maker = point.load()
        return maker
    raise InvalidConfig(f"kind: {', '.join(_KINDS)} or an entry point of {GROUP}; found {kind!r:.80}")
