"""`config/sentinel.yaml`: under `polling:`, a key for each watcher. One that cannot be used is skipped and named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from pabal.errors import ExtraMissing, InvalidConfig, InvalidInput
from pabal.kingdom.config import read_config
from pabal.kingdom.home import Home
from pabal.kingdom.sentinel.command import CommandSettings, CommandWatcher
from pabal.kingdom.sentinel.contract import Watcher
from pabal.kingdom.sentinel.github import GithubSettings, GithubWatcher
from pabal.kingdom.sentinel.jira import JiraSettings, JiraWatcher
from pabal.runtime.wake import FdWatch

FILE = "config/sentinel.yaml"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}", re.ASCII)
_SHORTEST = 0.1  # seconds between two looks


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    polling: dict[str, dict[str, Any]] = {}


class Closing(Watcher, Protocol):
    """A watcher that holds something open."""

    def close(self) -> None: ...


class Watchers(NamedTuple):
    """Those that can be used, and what is wrong with the others."""

    found: dict[str, Closing]
    problems: dict[str, str]


def watchers_of(home: Home, watch: FdWatch) -> Watchers:
    """Make the watchers that the configuration names."""
    found: dict[str, Closing] = {}
    problems: dict[str, str] = {}
    for name, options in read_config(home.root / FILE, Settings).polling.items():
        try:
            if not _NAME.fullmatch(name):
                raise InvalidConfig(f"the name of a watcher is of small letters and digits; found {name!r:.60}")
            watcher = _watcher(home, name, options, watch)
            if not watcher.interval >= _SHORTEST:
                raise InvalidConfig(f"interval_seconds must be at least {_SHORTEST}; found {watcher.interval!r:.40}")
            found[name] = watcher
        except (InvalidInput, ExtraMissing, msgspec.ValidationError) as exc:
            problems[name] = f"watcher skipped: {' '.join(str(exc).split())}"
    return Watchers(found, problems)


def _watcher(home: Home, name: str, options: dict[str, Any], watch: FdWatch) -> Closing:
    variables: Mapping[str, str] = home.variables
    if name == "github":
        github = msgspec.convert(options, GithubSettings)
        return GithubWatcher(github, variables.get(github.token_variable, ""))
    if name == "jira":
        jira = msgspec.convert(options, JiraSettings)
        return JiraWatcher(jira, variables.get(jira.user_variable, ""), variables.get(jira.token_variable, ""))
    return CommandWatcher(msgspec.convert(options, CommandSettings), home.root, variables, home.clock, watch)
