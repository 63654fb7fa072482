"""Watches folders: a file that comes, changes or goes becomes a message.

A file is told of when it has not changed for a moment, so that nobody reads half of it. What lies there when the watch
begins is where it starts from, and no news.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec

from pabal.errors import InvalidConfig, WatchFailed
from pabal.ignite.watchers.contract import Event, Found, Look
from pabal.ignite.watchers.sanitising import one_line
from pabal.jsontext import Json

MOST = 100_000  # files below the folders; more than this is a mistake in the settings
_MARK = "files"


class FilesSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which folders, which names in them, and what to say of a file that comes: `{path}`, `{name}` and `{change}`."""

    folders: tuple[str, ...]
    pattern: str = "*"
    changes: tuple[str, ...] = ("created", "changed")
    settle: float = 1.0  # seconds without a change before a file is told of
    type: str = "user_goal"
    goal: str = "See to the file {path} ({change})"
    priority: str = "normal"


class FilesWatcher:
    """Compares the folders with what they held at the last look."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings

    @classmethod
    def made(cls, options: Mapping[str, Any], folder: Path) -> FilesWatcher:
        """Make one from its options; folders are meant from this one."""
        settings = msgspec.convert(options, FilesSettings)
        if not settings.folders:
            raise InvalidConfig("folders: at least one is needed")
        folders = tuple(str(folder / each) for each in settings.folders)
        return cls(msgspec.structs.replace(settings, folders=folders))

    def poll(self, look: Look) -> Iterator[Found]:
        found = {path: _mark(stat) for path, stat in self._listed(look.now)}
        before = look.cursor.get(_MARK)
        if not isinstance(before, dict):
            yield Found((), {_MARK: dict(found)})
            return
        for path, mark in before.items():
            if path not in found and os.path.lexists(path):
                found[path] = mark  # it is being written: what was known of it stands until it rests
        changes = list(_changes(before, found))
        events = [self._event(path, change, found.get(path), look.now) for path, change in changes]
        yield Found(tuple(event for event in events if event is not None), {_MARK: dict(found)})

    def _listed(self, now: float) -> Iterator[tuple[str, os.stat_result]]:
        count = 0
        for folder in self._settings.folders:
            if not os.path.isdir(folder):
                raise WatchFailed(f"{folder} is no folder: make it, or take it out of the watcher's folders")
            for entry in _walk(folder):
                count += 1
                if count > MOST:
                    raise WatchFailed(f"more than {MOST} files below {folder}: watch a smaller folder")
                if fnmatch(entry.name, self._settings.pattern):
                    stat = entry.stat(follow_symlinks=False)
                    if now - stat.st_mtime >= self._settings.settle:
                        yield entry.path, stat

    def _event(self, path: str, change: str, mark: Json, now: float) -> Event | None:
        if change not in self._settings.changes:
            return None
        words = {"path": one_line(path, 4096), "name": one_line(os.path.basename(path)), "change": change}
        goal = self._settings.goal
        for name, word in words.items():
            goal = goal.replace(f"{{{name}}}", word)
        key = f"{change}_{path}_{mark if mark else now}"
        # The goal may be pasted anywhere; the path must be the real one to be of use, and is data of its own.
        body: dict[str, Json] = {"goal": goal, "file": path if path.isprintable() else words["path"], "change": change}
        return Event(key=key, type=self._settings.type, body=body, at=now, priority=self._settings.priority)


def _walk(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry


def _mark(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


def _changes(before: Mapping[str, Json], found: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for path, mark in found.items():
        if path not in before:
            yield path, "created"
        elif before[path] != mark:
            yield path, "changed"
    for path in before:
        if path not in found:
            yield path, "removed"
