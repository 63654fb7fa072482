"""The generals' manifests: what each subscribes to, when it works by itself, and what its soldiers are.

Commands come from these files and never from an event. One that cannot be used is skipped and named; all else works.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from pabal.durable import read_plain
from pabal.errors import InvalidConfig, InvalidInput
from pabal.kingdom import cron
from pabal.kingdom.config import Retry, parse_config

FOLDER = "config/generals"
_NAME = re.compile(r"gen-[a-z0-9][a-z0-9-]{0,60}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?|\*", re.ASCII)
_LEAST_TIMEOUT = 30


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task that comes with the time. `catch_up` says what becomes of occurrences that were missed."""

    name: str
    cron: str
    task_type: str
    payload: dict[str, Any] = {}
    repo: str | None = None
    timezone: str = ""  # that of the machine
    catch_up: Literal["once", "skip"] = "once"


class Harness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    profile: str = ""
    phases: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a soldier may use; 0 is no limit."""

    cpu_seconds: int = 0
    memory_bytes: int = 0
    open_files: int = 0


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config/generals/<name>.yaml`."""

    name: str
    description: str
    timeout_seconds: float
    subscribes: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    cc_plugins: tuple[str, ...] = ()
    mode: Literal["automation", "harnessed_dev"] = "automation"
    supported_engines: tuple[str, ...] = ()
    default_repo: str | None = None
    harness: Harness | None = None
    command: tuple[str, ...] = ()
    engine: str = ""
    retry: Retry | None = None
    limits: Limits = Limits()
    variables: tuple[str, ...] = ()  # that its soldiers inherit, beside those of config/system.yaml

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidConfig(f"name must be gen- and small letters, digits or hyphens; found {self.name!r:.80}")
        if not self.timeout_seconds >= _LEAST_TIMEOUT:
            raise InvalidConfig(f"timeout_seconds must be at least {_LEAST_TIMEOUT}; found {self.timeout_seconds!r}")
        for type in self.subscribes:
            if not _TYPE.fullmatch(type):
                raise InvalidConfig(f"subscribes: a type is like github.pr.assigned or github.pr.*; found {type!r:.80}")
        for plugin in self.cc_plugins:
            if "/" in plugin or plugin.startswith(".") or not plugin:
                raise InvalidConfig(f"cc_plugins: a plugin is the name of a folder in plugins/; found {plugin!r:.80}")

    def engine_of(self, kingdoms: str) -> str:
        """Return the engine that runs its soldiers, unless it has a command; empty if it supports none there is."""
        engine = self.engine or kingdoms
        return engine if not self.supported_engines or engine in self.supported_engines else ""


class Loaded(NamedTuple):
    """The manifests that can be used, by file name, and what is wrong with the others."""

    manifests: tuple[Manifest, ...]
    problems: tuple[str, ...]


def read_manifest(path: Path) -> Manifest:
    """Read one manifest; raise InvalidConfig that says what is wrong with it."""
    try:
        return parse_config(read_plain(path), Manifest, path.name)
    except OSError as exc:
        raise InvalidConfig(f"{path}: {exc.strerror}") from exc


def load(folder: Path) -> Loaded:
    """Read every manifest of a folder; what cannot be used is a problem that is told."""
    found: dict[str, Manifest] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            manifest = read_manifest(path)
        except InvalidConfig as exc:
            problems.append(f"skipped: {' '.join(str(exc).split())}")
            continue
        if manifest.name in found:
            problems.append(f"skipped: {path.name}: there is a {manifest.name} already")
            continue
        sound, mistakes = _sound_schedules(manifest)
        problems += [f"{path.name}: {mistake}" for mistake in mistakes]
        found[manifest.name] = msgspec.structs.replace(manifest, schedules=tuple(sound))
    return Loaded(tuple(found.values()), tuple(problems))


def _sound_schedules(manifest: Manifest) -> tuple[list[Schedule], list[str]]:
    sound: list[Schedule] = []
    mistakes: list[str] = []
    for schedule in manifest.schedules:
        try:
            check_schedule(schedule)
        except InvalidInput as exc:
            mistakes.append(f"schedule skipped: {exc}")
            continue
        if any(schedule.name == other.name for other in sound):
            mistakes.append(f"schedule skipped: there is a {schedule.name} already")
            continue
        sound.append(schedule)
    return sound, mistakes


def check_schedule(schedule: Schedule) -> None:
    """Raise InvalidConfig if a schedule can never come."""
    cron.check(schedule.cron, schedule.timezone, schedule.name)


def signature(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return what changes whenever a manifest does."""
    try:
        with os.scandir(folder) as entries:
            stats = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".yaml")]
    except FileNotFoundError:
        return ()
    return tuple(sorted((name, about.st_mtime_ns, about.st_size, about.st_ino) for name, about in stats))
