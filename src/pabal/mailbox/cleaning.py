"""Removes what nobody will come for any more: old answers and their folders, old dead requests, unfinished drafts."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress

from pabal.clock import Clock
from pabal.mailbox.folders import Folders
from pabal.mailbox.intake import is_draft
from pabal.mailbox.spares import SPARE

EVERY = 10.0  # seconds
_DRAFTS_KEPT = 3600.0


class Cleaner:
    """Goes by the times that files carry, so it waits when the wall clock was stepped: they may all look old."""

    def __init__(self, folders: Folders, clock: Clock, wall: Callable[[], float] = time.time) -> None:
        self._folders = folders
        self._clock = clock
        self._wall = wall
        self._due = clock.boot() + EVERY
        self._offset = clock.now() - clock.boot()

    def next_due(self) -> float:
        return max(0.0, self._due - self._clock.boot())

    def clean(self) -> bool:
        """Clean if it is time; True if it was."""
        if self._clock.boot() < self._due:
            return False
        self._due = self._clock.boot() + EVERY
        settings = self._folders.settings
        if self._is_stepped():
            self._due += settings.answers_kept
            return True
        self._remove_old(self._folders.dead, settings.dead_kept)
        self._remove_old(self._folders.requests, _DRAFTS_KEPT, drafts_only=True)
        with os.scandir(self._folders.responses) as clients:
            for client in clients:
                with suppress(FileNotFoundError):  # removed meanwhile, by its client or whoever
                    if client.is_dir(follow_symlinks=False):
                        self._clean_client(client)
        return True

    def _clean_client(self, client: os.DirEntry[str]) -> None:
        kept, spare = self._folders.settings.answers_kept, f"{client.path}/{SPARE}"
        used = _changed(client.path)
        with suppress(FileNotFoundError):
            used = max(used, _changed(spare))
        self._remove_old(client.path, kept)
        with suppress(FileNotFoundError):
            self._remove_old(spare, kept)
        if used < self._wall() - kept and client.name not in (self._folders.settings.clients or ()):
            # Many clients live for one request. One that comes back makes its folder anew.
            for path in (spare, client.path):
                with suppress(OSError):  # not there, or something came
                    os.rmdir(path)

    def _is_stepped(self) -> bool:
        before, self._offset = self._offset, self._clock.now() - self._clock.boot()
        return abs(self._offset - before) > EVERY

    def _remove_old(self, folder: str, age: float, *, drafts_only: bool = False) -> None:
        before = self._wall() - age
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # gone meanwhile, or not ours to remove
                    if entry.name == SPARE or (drafts_only and not is_draft(entry.name)):
                        continue
                    # When it came here, not when its writer says it was written.
                    if _changed(entry.path) < before:
                        _remove(entry)


def _changed(path: str) -> float:
    about = os.lstat(path)
    return max(about.st_ctime, about.st_mtime)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        os.unlink(entry.path)
