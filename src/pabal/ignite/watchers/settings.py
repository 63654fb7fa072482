"""What the team file says of a watcher, and the watcher that this makes.

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

from pabal.errors import InvalidConfig, InvalidInput
from pabal.ignite.team import Team
from pabal.ignite.watchers.command import CommandWatcher
from pabal.ignite.watchers.contract import Watcher
from pabal.ignite.watchers.files import FilesWatcher
from pabal.ignite.watchers.github import TOKEN, GithubWatcher

GROUP = "pabal.ignite.watchers"
_USUAL = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE")
_name = re.compile(r"[a-z_][a-z0-9_]*", re.ASCII).fullmatch
Maker: TypeAlias = Callable[[Mapping[str, Any], Path, Mapping[str, str]], Watcher]

_KINDS: dict[str, Maker] = {
    "files": lambda options, folder, variables: FilesWatcher.made(options, folder),
    "github": lambda options, folder, variables: GithubWatcher.made(options, variables),
    "command": CommandWatcher.made,
}


class WatcherSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What every watcher has; what is its own kind's alone stands beside these in the file."""

    kind: str
    interval: float = 60.0  # seconds between looks
    enabled: bool = True
    auto_start: bool = True  # with `pabal ignite up`
    description: str = ""
    to: str = ""  # who hears of it; the leader unless said
    variables: tuple[str, ...] = ()  # names of variables that it may see


def read_settings(team: Team, name: str) -> WatcherSettings:
    """Return what the team file says of a watcher; raise InvalidConfig if it cannot be used."""
    if name not in team.watchers:
        there = ", ".join(team.watchers) or "none"
        raise InvalidConfig(f"no watcher {name!r:.80} in the team file; there are {there}")
    if not _name(name):
        raise InvalidConfig("watchers", (f"{name!r:.80}: a name is of small letters, digits and '_'",))
    try:
        settings = msgspec.convert(team.watchers[name], WatcherSettings)
    except msgspec.ValidationError as exc:
        raise InvalidConfig(f"watchers.{name}", (str(exc),)) from exc
    if not 0.05 <= settings.interval <= 86400:
        raise InvalidConfig(f"watchers.{name}", (f"interval: 0.05 to 86400 seconds; found {settings.interval:g}",))
    return msgspec.structs.replace(settings, to=team.name_of(settings.to or team.leader))


def make_watcher(team: Team, name: str, *, folder: Path, variables: Mapping[str, str]) -> Watcher:
    """Make the watcher of this name; relative paths are meant from `folder`, secrets come from `variables`."""
    settings = read_settings(team, name)
    common = frozenset(WatcherSettings.__struct_fields__)
    options = {key: value for key, value in team.watchers[name].items() if key not in common}
    try:
        return _maker(settings.kind)(options, folder, allowed(team, name, variables))
    except (InvalidInput, msgspec.ValidationError) as exc:
        raise InvalidConfig(f"watchers.{name}", (str(exc),)) from exc


def allowed(team: Team, name: str, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a watcher may see: the usual ones, its token's, and those its settings name."""
    settings = read_settings(team, name)
    token = str(team.watchers[name].get("token_variable", TOKEN)) if settings.kind == "github" else ""
    wanted = (*_USUAL, token, *settings.variables)
    return {each: variables[each] for each in wanted if each in variables}


def _maker(kind: str) -> Maker:
    if kind in _KINDS:
        return _KINDS[kind]
    for point in entry_points(group=GROUP, name=kind):
        maker: Maker = point.load()
        return maker
    raise InvalidConfig(f"kind: {', '.join(_KINDS)} or an entry point of {GROUP}; found {kind!r:.80}")
