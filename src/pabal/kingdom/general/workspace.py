"""The folder a soldier works in: `workspace/<general>/`, or a clone of the task's repository below it.

A resumed task finds it as it was left; for a new one the repository is brought up to date first.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pabal.durable import make_dirs
from pabal.errors import InvalidConfig, InvalidInput
from pabal.kingdom.documents import Task
from pabal.kingdom.home import Home
from pabal.kingdom.manifests import Manifest
from pabal.runtime.process import Command

PLUGINS = ".claude/plugins"
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,3}", re.ASCII)
_PARTIAL = ".partial"
_HEAD = ".git/refs/remotes/origin/HEAD"  # a clone of a repository that was empty has none, and is made anew
_TIP = "refs/kingdom/tip"  # the other side's HEAD, whatever its branches are called by now
_FETCHED = (f"+HEAD:{_TIP}", "+refs/heads/*:refs/remotes/origin/*")


class Workspace:
    """The folder for one task."""

    def __init__(self, home: Home, manifest: Manifest, task: Task) -> None:
        self._home = home
        self._manifest = manifest
        self._task = task
        own = home.root / "workspace" / manifest.name
        self.folder = own / checked_repo(task.repo) if task.repo else own

    def commands(self) -> list[Command]:
        """Return what brings the repository here or up to date, to be run one after the other."""
        make_dirs(self.folder.parent if self._task.repo else self.folder)
        if not self._task.repo:
            return []
        is_there = (self.folder / ".git").exists()
        if is_there and self._task.type == "resume":
            return []
        if not is_there or not (self.folder / _HEAD).exists():
            return [self._clone()]
        there = ("-C", str(self.folder))
        return [
            self._git(*there, "fetch", "--quiet", "--prune", "origin", *_FETCHED),
            self._git(*there, "checkout", "--quiet", "--force", "--detach", _TIP),
            self._git(*there, "clean", "--quiet", "-fd"),
        ]

    def _clone(self) -> Command:
        shutil.rmtree(self._partial, ignore_errors=True)
        url = self._home.config.repositories.format(repo=self._task.repo)
        return self._git("clone", "--quiet", "--", url, str(self._partial))

    def finish(self) -> Path:
        """Put a whole clone in its place, make the plugins available, and return the folder."""
        if self._partial.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            self._partial.rename(self.folder)
        for name in self._manifest.cc_plugins:
            self._plug_in(name)
        return self.folder

    @property
    def _partial(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}{_PARTIAL}")

    def _plug_in(self, name: str) -> None:
        source = self._home.root / "plugins" / name
        if not source.is_dir():
            raise InvalidConfig(f"plugin {name} of {self._manifest.name} is not there: put it into {source}")
        link = self.folder / PLUGINS / name
        make_dirs(link.parent)
        with suppress(FileExistsError):
            link.symlink_to(source, target_is_directory=True)

    def _git(self, *arguments: str) -> Command:
        env = {"GIT_TERMINAL_PROMPT": "0", **inherited(self._home, self._manifest)}
        return Command(argv=(program(self._home, "git"), *arguments), cwd=self._home.root, env=env)


def checked_repo(repo: str) -> str:
    """Return the name of a repository if it cannot lead out of the workspace; it came from outside."""
    if not _REPO.fullmatch(repo) or ".." in repo or repo.endswith((".partial", ".git")):
        raise InvalidInput(f"a repository is like owner/name; found {repo!r:.80}")
    return repo


def inherited(home: Home, manifest: Manifest) -> dict[str, str]:
    """Return the variables that a soldier may see: the few that every program needs, and those that are named."""
    names = ("PATH", "HOME", "LANG", "TERM", *home.config.variables, *manifest.variables)
    variables: Mapping[str, str] = home.variables
    return {name: variables[name] for name in names if name in variables}


def program(home: Home, name: str) -> str:
    """Return where a program is."""
    found = shutil.which(name, path=home.variables.get("PATH", os.defpath))
    if found is None:
        raise InvalidConfig(f"there is no program {name!r:.80}: install it, or name another in the manifest's command")
    return os.path.abspath(found)
