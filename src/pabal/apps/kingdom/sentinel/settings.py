"""`config/sentinel.yaml`: under `polling:`, a key for each watcher. One that cannot be used is skipped and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, NamedTuple

import msgspec

from pabal import jsontext
from pabal.apps.kingdom.config import read_config
from pabal.apps.kingdom.documents import Event
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.sentinel.events import line_event, notification_event, read_notification, ticket_event
from pabal.errors import ExtraMissing, InvalidConfig, InvalidInput
from pabal.runtime.wake import FdWatch
from pabal.watchers import Look, Watcher
from pabal.watchers.command import Collected, CommandWatcher, find_program
from pabal.watchers.github import API, TOKEN, NotificationWatcher
from pabal.watchers.jira import JiraWatcher

FILE = "config/sentinel.yaml"
PROBLEMS = "state/sentinel/problems.json"
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,40}", re.ASCII)
_SHORTEST = 0.1  # seconds between two looks


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    polling: dict[str, dict[str, Any]] = {}


class GithubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`polling: github:`. An empty list is no filter."""

    interval_seconds: float = 60.0
    api: str = API
    token_variable: str = TOKEN
    repos: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    mark_read: bool = True
    per_page: int = 50


class JiraSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`polling: jira:`. `jql` selects the tickets; the time is added to it."""

    url: str
    interval_seconds: float = 300.0
    jql: str = "assignee = currentUser()"
    user_variable: str = "JIRA_USER_EMAIL"
    token_variable: str = "JIRA_API_TOKEN"
    page_size: int = 20

    def __post_init__(self) -> None:
        if re.search(r"\border\s+by\b", self.jql, re.IGNORECASE):
            raise InvalidConfig(f"jql: leave the order out, it is added; found {self.jql!r:.120}")


class CommandSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`polling: NAME:` with a command, an argument vector."""

    command: tuple[str, ...]
    interval_seconds: float = 60.0
    timeout_seconds: float = 60.0


class Problems(msgspec.Struct, frozen=True):
    """The file of current problems: the watchers that cannot look, and why."""

    watchers: dict[str, str] = {}


class Made(NamedTuple):
    """A watcher, and the seconds between two of its looks."""

    watcher: Watcher[Event]
    interval: Callable[[], float]


def make_watchers(home: Home, watch: FdWatch, stack: ExitStack) -> tuple[dict[str, Made], dict[str, str]]:
    """Make the watchers of the configuration; return them and the problems of the others. `stack` closes them."""
    found: dict[str, Made] = {}
    problems: dict[str, str] = {}
    for name, options in read_config(home.root / FILE, Settings).polling.items():
        try:
            if not _NAME.fullmatch(name):
                raise InvalidConfig(f"the name of a watcher is of small letters and digits; found {name!r:.60}")
            made = _make(home, name, options, watch, stack)
            if not made.interval() >= _SHORTEST:
                raise InvalidConfig(f"interval_seconds must be at least {_SHORTEST}; found {made.interval()!r:.40}")
            found[name] = made
        except (InvalidInput, ExtraMissing, msgspec.ValidationError) as exc:
            problems[name] = f"watcher skipped: {' '.join(str(exc).split())}"
    return found, problems


def _make(home: Home, name: str, options: dict[str, Any], watch: FdWatch, stack: ExitStack) -> Made:
    if name == "github":
        return _github(home, jsontext.convert(options, GithubSettings), stack)
    if name == "jira":
        return _jira(home, jsontext.convert(options, JiraSettings), stack)
    return _command(home, jsontext.convert(options, CommandSettings), watch)


def _github(home: Home, settings: GithubSettings, stack: ExitStack) -> Made:
    def event(item: Any) -> Event | None:
        found = read_notification(item)
        wanted = (not settings.repos or found.repository.full_name in settings.repos) and (
            not settings.reasons or found.reason in settings.reasons
        )
        return notification_event(found) if wanted else None

    watcher = NotificationWatcher(
        settings.api,
        home.variables.get(settings.token_variable, ""),
        per_page=settings.per_page,
        mark_read=settings.mark_read,
        event=event,
    )
    stack.callback(watcher.close)
    # GitHub may ask for a longer interval.
    return Made(watcher, lambda: max(settings.interval_seconds, watcher.poll_interval))


def _jira(home: Home, settings: JiraSettings, stack: ExitStack) -> Made:
    user, token = (home.variables.get(name, "") for name in (settings.user_variable, settings.token_variable))
    auth = (user, token) if user else None
    watcher = JiraWatcher(settings.url, auth, jql=settings.jql, page_size=settings.page_size, event=ticket_event)
    stack.callback(watcher.close)
    return Made(watcher, lambda: settings.interval_seconds)


def _command(home: Home, settings: CommandSettings, watch: FdWatch) -> Made:
    def variables_of(look: Look) -> dict[str, str]:
        return {**home.variables, "WATCH_STATE": jsontext.encode(dict(look.cursor)).decode()}

    watcher = CommandWatcher(
        find_program(settings.command, home.root, home.variables.get("PATH", "")),
        home.root,
        variables=variables_of,
        cursor_word="state",
        event=line_event,
        collected=Collected(settings.timeout_seconds, home.clock, watch),
    )
    return Made(watcher, lambda: settings.interval_seconds)
