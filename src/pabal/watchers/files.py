"""Folders: a watcher that reports files that come, change or go.

A file is reported once it has not changed for a moment, so that nobody reads half of it. The files that are there at
the first look are the starting point and are not reported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from typing import Generic, NamedTuple, TypeVar

from pabal.errors import WatchFailed
from pabal.jsontext import Json
from pabal.watchers.contract import Found, Look

MOST = 100_000  # files below the folders; more than this is a mistake in the settings
_CURSOR = "files"

E = TypeVar("E")


class FileChange(NamedTuple):
    """A file that was `created`, `changed` or `removed`; `key` identifies this change."""

    path: str
    change: str
    key: str
    at: float


class FilesWatcher(Generic[E]):
    """Compares folders with what they held at the last look.

    `settle` are the seconds without a change after which a file is reported; `event` makes the event of a change, or
    None if the change is not wanted.
    """

    def __init__(
        self, folders: Sequence[str], *, pattern: str, settle: float, event: Callable[[FileChange], E | None]
    ) -> None:
        self._folders = folders
        self._pattern = pattern
        self._settle = settle
        self._make = event

    def poll(self, look: Look) -> Iterator[Found[E]]:
        found: dict[str, Json] = {path: _version(stat) for path, stat in self._listed(look.now)}
        before = look.cursor.get(_CURSOR)
        if not isinstance(before, dict):
            yield Found((), {_CURSOR: found})
            return
        for path, version in before.items():
            if path not in found and os.path.lexists(path):
                found[path] = version  # it is being written: the known version stays until the file has settled
        changes = [
            FileChange(path, change, f"{change}_{path}_{found.get(path) or look.now}", look.now)
            for path, change in _changes(before, found)
        ]
        events = [self._make(change) for change in changes]
        yield Found(tuple(event for event in events if event is not None), {_CURSOR: found})

    def _listed(self, now: float) -> Iterator[tuple[str, os.stat_result]]:
        count = 0
        for folder in self._folders:
            if not os.path.isdir(folder):
                raise WatchFailed(f"{folder} is no folder: make it, or take it out of the watcher's folders")
            for entry in _walk(folder):
                count += 1
                if count > MOST:
                    raise WatchFailed(f"more than {MOST} files below {folder}: watch a smaller folder")
                if fnmatch(entry.name, self._pattern):
                    stat = entry.stat(follow_symlinks=False)
                    if now - stat.st_mtime >= self._settle:
                        yield entry.path, stat


def _walk(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                yield from _walk(entry.path)
            elif entry.is_file(follow_symlinks=False):
                yield entry


def _version(stat: os.stat_result) -> str:
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


def _changes(before: Mapping[str, Json], found: Mapping[str, Json]) -> Iterator[tuple[str, str]]:
    for path, version in found.items():
        if path not in before:
            yield path, "created"
        elif before[path] != version:
            yield path, "changed"
    for path in before:
        if path not in found:
            yield path, "removed"
