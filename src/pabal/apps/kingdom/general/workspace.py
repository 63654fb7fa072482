"""The folder of a soldier: `workspace/<general>/`, or a worktree of its own, `workspace/<general>/<repo>@<task>/`.

`workspace/<general>/<repo>` is the clone that the worktrees share. A worktree is removed when its task is over. It is
kept while a question is open or a conversation may go on, and the task that resumes the work finds it as it was left,
at each of its tries. If that task fails in the end, it stays for a retry by hand until the daily cleaning.
"""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from pabal.apps.kingdom.documents import Task
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.manifests import Manifest
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidConfig, InvalidInput
from pabal.runtime.process import Command

PLUGINS = ".claude/plugins"
_REPO = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*){0,3}", re.ASCII)
_WORKTREE = re.compile(r"@task-\d{8}-\d{3,}\Z", re.ASCII)  # after the name of the repository
_PARTIAL = ".partial"
_ORIGIN = "refs/remotes/origin/HEAD"  # a clone of an empty repository has none, and is cloned again
_TIP = "refs/kingdom/tip"  # the HEAD of the remote, whatever its branches are called now
_FETCHED = (f"+HEAD:{_TIP}", "+refs/heads/*:refs/remotes/origin/*")
_EXCLUDED = f"/{PLUGINS}/\n"


class Clones:
    """The clones of a general that are in use: by tasks, and by git commands, of which one runs at a time."""

    def __init__(self) -> None:
        self.tasks: Counter[Path] = Counter()
        self.busy: set[Path] = set()


class Workspace:
    """The folder for one task."""

    def __init__(self, home: Home, manifest: Manifest, task: Task, clones: Clones) -> None:
        self._home = home
        self._manifest = manifest
        self._task = task
        self._clones = clones
        self._own = home.root / "workspace" / manifest.name
        self._repo = checked_repo(task.repo) if task.repo else ""
        self._clone = self._own / self._repo
        self.name = self._kept() or (f"{self._repo}@{task.id}" if self._repo else "")
        self.is_kept = bool(self._repo) and (self._own / self.name / ".git").exists() and self.name == self._kept()
        self.folder = self._own / self.name
        self._begun = False

    def _kept(self) -> str:
        """Return the name of the worktree that a task left behind and this one resumes; empty if there is none."""
        name = self._task.payload.get("workspace")
        if self._task.type != "resume" or not self._repo or not isinstance(name, str):
            return ""
        # The name may come from outside: it must be one that is made here.
        known = name.startswith(self._repo) and _WORKTREE.fullmatch(name[len(self._repo) :])
        return name if known and (self._own / name / ".git").exists() else ""

    def begin(self) -> bool:
        """Begin to prepare the folder; False if git commands of another task work on the same clone."""
        if self._repo and self._clone in self._clones.busy:
            return False
        if self._repo:
            self._clones.busy.add(self._clone)
            self._clones.tasks[self._clone] += 1
        self._begun = True
        return True

    def prepared(self) -> None:
        self._clones.busy.discard(self._clone)

    def commands(self) -> Iterator[Command]:
        """Yield the commands that clone or update the repository and make the worktree, each after the one before."""
        make_dirs(self.folder.parent if self._repo else self.folder)
        if not self._repo:
            return
        if self._clones.tasks[self._clone] == 1:
            _remove_stale_locks(self._clone / ".git")
        _remove_half_made_worktrees(self._clone / ".git")
        if self.is_kept:
            return
        git = ("-C", str(self._clone))
        tip = _TIP
        if (self._clone / ".git" / _ORIGIN).exists():
            yield self._git(*git, "fetch", "--quiet", "--prune", "origin", *_FETCHED)
        else:
            shutil.rmtree(self._partial, ignore_errors=True)
            yield self._git("clone", "--quiet", "--no-checkout", "--", self._url, str(self._partial))
            shutil.rmtree(self._clone, ignore_errors=True)
            self._partial.rename(self._clone)
            tip = _ORIGIN
        shutil.rmtree(self.folder, ignore_errors=True)  # of an earlier try
        if not (self._clone / ".git" / _ORIGIN).exists():  # the repository is empty
            yield self._git("clone", "--quiet", "--", self._url, str(self.folder))
            return
        yield self._git(*git, "worktree", "prune")
        # Forced twice: git holds a worktree locked while it makes it, and for ever if it is killed then.
        yield self._git(*git, "worktree", "add", "--quiet", "--force", "--force", "--detach", str(self.folder), tip)

    def plug_in(self) -> None:
        """Link the plugins of the general."""
        for name in self._manifest.cc_plugins:
            source = self._home.root / "plugins" / name
            if not source.is_dir():
                raise InvalidConfig(f"plugin {name} of {self._manifest.name} is not there: put it into {source}")
            link = self.folder / PLUGINS / name
            make_dirs(link.parent)
            with suppress(FileExistsError):
                link.symlink_to(source, target_is_directory=True)
        if self._manifest.cc_plugins and self._repo:
            self._exclude_plugins()

    def _exclude_plugins(self) -> None:
        """Keep the links out of what git shows as untracked."""
        own = self.folder / ".git"  # a file in a worktree, which shares the settings of its clone
        path = (own if own.is_dir() else self._clone / ".git") / "info/exclude"
        before = path.read_text(errors="replace") if path.exists() else ""
        if _EXCLUDED not in before:
            make_dirs(path.parent)
            replace_whole(path, f"{before}{_EXCLUDED}".encode(errors="replace"), mode=0o644, synced=False)

    def end(self, *, keep: bool) -> None:
        """Remove the worktree, unless it is kept for the next try or for the task that resumes the work."""
        if self._repo and self._begun:
            self._clones.tasks[self._clone] -= 1
            self._begun = False
        if self._repo and not keep:
            shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def _url(self) -> str:
        return self._home.config.repositories.format(repo=self._repo)

    @property
    def _partial(self) -> Path:
        return self._clone.with_name(f"{self._clone.name}{_PARTIAL}")

    def _git(self, *arguments: str) -> Command:
        env = {"GIT_TERMINAL_PROMPT": "0", **inherited(self._home, self._manifest)}
        return Command(argv=(program(self._home, "git"), *arguments), cwd=self._home.root, env=env)


def _remove_stale_locks(git: Path) -> None:
    """Remove the locks that a killed git left, because git refuses to work while they are there.

    The caller makes sure that nobody else works in the clone: a general ends orphaned soldiers before its first task.
    """
    for directory, directories, names in os.walk(git):
        if "objects" in directories:
            directories.remove("objects")  # large, and written without these locks
        for name in names:
            if name.endswith(".lock"):  # no ref may be called so
                Path(directory, name).unlink()


def _remove_half_made_worktrees(git: Path) -> None:
    """Remove the records of worktrees that a killed git had begun: their HEAD may be no commit, and fail every fetch.

    Such a record is locked by git itself and has no index. The caller makes sure that no git makes a worktree now.
    """
    for record in (git / "worktrees").glob("*"):
        if _WORKTREE.search(record.name) and (record / "locked").exists() and not (record / "index").exists():
            shutil.rmtree(record, ignore_errors=True)


def checked_repo(repo: str) -> str:
    """Return the name of a repository; raise InvalidInput if it could lead out of the workspace."""
    if not _REPO.fullmatch(repo) or ".." in repo or repo.endswith((".partial", ".git")):
        raise InvalidInput(f"a repository is like owner/name; found {repo!r:.80}")
    return repo


def inherited(home: Home, manifest: Manifest) -> dict[str, str]:
    """Return the variables of a soldier: the few that every program needs, and those that the settings name."""
    names = ("PATH", "HOME", "LANG", "TERM", *home.config.variables, *manifest.variables)
    variables: Mapping[str, str] = home.variables
    return {name: variables[name] for name in names if name in variables}


def program(home: Home, name: str) -> str:
    """Return the full path of a program."""
    found = shutil.which(name, path=home.variables.get("PATH", os.defpath))
    if found is None:
        raise InvalidConfig(f"there is no program {name!r:.80}: install it, or name another in the manifest's command")
    return os.path.abspath(found)
