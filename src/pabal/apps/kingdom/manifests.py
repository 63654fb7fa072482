"""The manifests of generals: subscriptions, schedules and the commands of soldiers. Installs and removes generals.

Commands come from these files and never from an event. A manifest that cannot be used is named. A running role goes on
with the version before; a role that never read a usable one skips it, and events that nobody else subscribes to wait.

An event goes to the general with the most specific pattern: `github.pr.assigned` before `github.pr.*` before `*`. If
two manifests subscribe to the same pattern, the first one by file name keeps it, and the other is a problem.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from pabal.apps.kingdom.config import Retry, check_least, parse_config
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import OPEN_STATES, TASKS
from pabal.apps.kingdom.outside_tasks import outside_tasks
from pabal.durable import replace_whole, translated
from pabal.errors import InvalidConfig, InvalidInput, NameTaken, QueueUnknown
from pabal.filesystem import read_plain
from pabal.queues import cron

FOLDER = "config/generals"
MANIFEST = "manifest.yaml"  # in the folder of a package
_NAME = re.compile(r"gen-[a-z0-9][a-z0-9-]{0,60}", re.ASCII)
_TYPE = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*(\.\*)?|\*", re.ASCII)
_LEAST_TIMEOUT = 30


class Schedule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A task at given times. `catch_up` decides what happens to missed occurrences."""

    name: str
    cron: str
    task_type: str
    payload: dict[str, Any] = {}
    repo: str | None = None
    timezone: str = ""  # empty: that of the machine
    catch_up: Literal["once", "skip"] = "once"


class Harness(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    profile: str = ""
    phases: tuple[str, ...] = ()


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of a soldier; 0 means no limit."""

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
    max_soldiers: int = 1  # that work at the same time
    external: bool = False  # another program takes its tasks; the kingdom starts no process for it
    variables: tuple[str, ...] = ()  # variables that its soldiers inherit, beside those of config/system.yaml

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidConfig(f"name must be gen- and small letters, digits or hyphens; found {self.name!r:.80}")
        if not self.timeout_seconds >= _LEAST_TIMEOUT:
            raise InvalidConfig(f"timeout_seconds must be at least {_LEAST_TIMEOUT}; found {self.timeout_seconds!r}")
        check_least("max_soldiers", self.max_soldiers, 1)
        for type in self.subscribes:
            if not _TYPE.fullmatch(type):
                raise InvalidConfig(f"subscribes: a type is like github.pr.assigned or github.pr.*; found {type!r:.80}")
        for plugin in self.cc_plugins:
            if "/" in plugin or plugin.startswith(".") or not plugin:
                raise InvalidConfig(f"cc_plugins: a plugin is the name of a folder in plugins/; found {plugin!r:.80}")

    def engine_of(self, kingdoms: str) -> str:
        """Return the engine of its soldiers, if it has no command; empty if it does not support the kingdom's."""
        engine = self.engine or kingdoms
        return engine if not self.supported_engines or engine in self.supported_engines else ""


class Loaded(NamedTuple):
    """The usable manifests, in the order of file names, and the problems of the others."""

    manifests: tuple[Manifest, ...]
    problems: tuple[str, ...]
    unusable: tuple[str, ...] = ()  # the names of the files that stand for no general now
    files: Mapping[str, Manifest] = {}  # the usable ones by the names of their files


def read_manifest(path: Path) -> Manifest:
    """Read one manifest; raise InvalidConfig with its mistake."""
    try:
        return parse_config(read_plain(path), Manifest, path.name)
    except OSError as exc:
        raise InvalidConfig(f"{path}: {exc.strerror}") from exc


def load(folder: Path, before: Mapping[str, Manifest] | None = None) -> Loaded:
    """Read every manifest of a folder.

    `before` has the last usable version of files: it counts as long as a file cannot be read.
    """
    found: dict[str, Manifest] = {}
    files: dict[str, Manifest] = {}
    problems: list[str] = []
    unusable: list[str] = []
    for path in sorted(folder.glob("*.yaml")):
        try:
            manifest = read_manifest(path)
        except InvalidConfig as exc:
            known = (before or {}).get(path.name)
            text = " ".join(str(exc).split())
            problems.append(f"{text}: the version before counts" if known else f"skipped: {text}")
            if known is None:
                unusable.append(path.name)
                continue
            manifest = known
        if manifest.name in found:
            problems.append(f"skipped: {path.name}: there is a {manifest.name} already")
            unusable.append(path.name)
            continue
        valid, mistakes = _valid_schedules(manifest)
        problems += [f"{path.name}: {mistake}" for mistake in mistakes]
        found[manifest.name] = files[path.name] = msgspec.structs.replace(manifest, schedules=tuple(valid))
    return Loaded(tuple(found.values()), tuple(problems), tuple(unusable), files)


def _valid_schedules(manifest: Manifest) -> tuple[list[Schedule], list[str]]:
    valid: list[Schedule] = []
    mistakes: list[str] = []
    for schedule in manifest.schedules:
        try:
            cron.check(schedule.cron, schedule.timezone, schedule.name)
        except InvalidInput as exc:
            mistakes.append(f"schedule skipped: {exc}")
            continue
        if any(schedule.name == other.name for other in valid):
            mistakes.append(f"schedule skipped: there is a {schedule.name} already")
            continue
        valid.append(schedule)
    return valid, mistakes


def signature(folder: Path) -> tuple[tuple[str, int, int, int], ...]:
    """Return a value that changes whenever a manifest does."""
    try:
        with os.scandir(folder) as entries:
            stats = [(entry.name, entry.stat()) for entry in entries if entry.name.endswith(".yaml")]
    except FileNotFoundError:
        return ()
    return tuple(sorted((name, about.st_mtime_ns, about.st_size, about.st_ino) for name, about in stats))


class Table:
    """Patterns and the generals that subscribe to them."""

    def __init__(self, loaded: Loaded, engine: str = "") -> None:
        self.problems = list(loaded.problems)
        self.unusable = loaded.unusable
        self._claims: dict[str, Manifest] = {}
        self.generals = {manifest.name: manifest for manifest in loaded.manifests}
        for manifest in loaded.manifests:
            if engine and not manifest.command and not manifest.engine_of(engine):
                supported = ", ".join(manifest.supported_engines)
                self.problems.append(f"{manifest.name} supports {supported}, not {engine}: it gets no events")
                continue
            self._claim(manifest)

    def find(self, type: str) -> Manifest | None:
        """Return the general that takes events of this type."""
        found = self.route(type)
        return found[0] if found else None

    def route(self, type: str) -> tuple[Manifest, str] | None:
        """Return the general that takes events of this type, and the pattern by which it does."""
        parts = type.split(".")
        wild = (".".join([*parts[:size], "*"]) for size in range(len(parts) - 1, -1, -1))
        return next(((self._claims[each], each) for each in (type, *wild) if each in self._claims), None)

    def claims(self) -> list[tuple[str, Manifest]]:
        """Return every pattern with the general that has it."""
        return sorted(self._claims.items())

    def _claim(self, manifest: Manifest) -> None:
        for pattern in manifest.subscribes:
            owner = self._claims.setdefault(pattern, manifest)
            if owner is not manifest:
                self.problems.append(f"{pattern} is claimed by {owner.name}; {manifest.name} does not get it")


def external_problems(home: Home, table: Table) -> list[str]:
    """Name the external generals of a kingdom whose queues are no files."""
    names = [each.name for each in table.generals.values() if each.external and not home.on_files]
    reason = "its program takes tasks from files, and the queues are in a database: it gets none"
    return [f"{name}: {reason}; set queues back, or let the kingdom run it" for name in names]


class Routing:
    """The table of a kingdom, which is read again when a manifest changes. A mistake keeps the version before."""

    def __init__(self, root: Path, engine: str = "") -> None:
        self._folder = root / FOLDER
        self._engine = engine
        self._signature: object = None
        self.loaded = Loaded((), ())
        self.table = Table(self.loaded)

    def refresh(self) -> bool:
        """Read the manifests again if one changed; True if so."""
        found = signature(self._folder)
        if found == self._signature:
            return False
        self._signature = found
        self.loaded = load(self._folder, self.loaded.files)
        self.table = Table(self.loaded, self._engine)
        return True


def install(home: Home, source: Path, *, force: bool = False) -> Manifest:
    """Install a general: a folder with a `manifest.yaml`, or a manifest alone.

    Raise NameTaken if another general has its name or subscribes to one of its patterns.
    """
    path = source / MANIFEST if source.is_dir() else source
    manifest = read_manifest(path)
    for schedule in manifest.schedules:
        cron.check(schedule.cron, schedule.timezone, schedule.name)
    others = load(home.root / FOLDER).manifests
    if not force and any(other.name == manifest.name for other in others):
        raise NameTaken(f"there is a {manifest.name} already: --force puts this one in its place")
    check_claims(manifest, others)
    with translated(f"installing {manifest.name}"):
        if source.is_dir():
            _copy(source, home.root / "generals" / manifest.name)
        # Last, because from here on the King dispatches events to it.
        replace_whole(home.root / FOLDER / f"{manifest.name}.yaml", path.read_bytes())
    return manifest


def check_claims(manifest: Manifest, others: Iterable[Manifest]) -> None:
    """Raise NameTaken if another general subscribes to one of its patterns."""
    for other in others:
        if other.name != manifest.name and (both := set(manifest.subscribes) & set(other.subscribes)):
            raise NameTaken(
                f"{', '.join(sorted(both))} is claimed by {other.name}: remove it from one of the two manifests"
            )


def _copy(source: Path, target: Path) -> None:
    draft = target.with_name(f".{target.name}.new")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft)  # which makes the folder, so a link of this name is an error
    shutil.rmtree(target, ignore_errors=True)
    draft.rename(target)


def remove(home: Home, name: str) -> None:
    """Remove a general that has no open tasks; raise QueueUnknown if there is none of this name."""
    paths = [path for path in (home.root / FOLDER).glob("*.yaml") if _name_in(path) == name]
    if not paths:
        raise QueueUnknown(f"no general {name!r:.80}; `pabal kingdom status` lists those there are")
    entries = (entry for state in OPEN_STATES for entry in home.queue(TASKS).entries(state))
    left = [entry.id for entry in entries if entry.message is not None and entry.message.target == name]
    left += [id for id, task in outside_tasks(home).items() if task.target_general == name]
    if left:
        advice = f"let it finish, or `pabal kingdom cancel {left[0]}`"
        raise InvalidConfig(f"{name} has {len(left)} tasks to do, {left[0]} first: {advice}")
    with translated(f"removing {name}"):
        for path in paths:
            path.unlink()
        shutil.rmtree(home.root / "generals" / name, ignore_errors=True)


def _name_in(path: Path) -> str:
    try:
        return read_manifest(path).name
    except InvalidConfig:
        return path.stem
