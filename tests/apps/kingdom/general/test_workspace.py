"""The clone and the worktrees of a general, when git is killed at any of its steps."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pabal.apps.kingdom.documents import Task
from pabal.apps.kingdom.general.role import manifest_of
from pabal.apps.kingdom.general.workspace import Clones, Workspace
from pabal.runtime.process import Command
from tests.apps.kingdom.realm import Realm, commit, git
from tests.crash.conftest import need

CALLS = "mkdir,mkdirat,rename,renameat,renameat2,unlink,unlinkat,link,linkat,write"
STRACE = ("strace", "-f", "-qq", "-o", os.devnull, "-e", f"trace={CALLS}", "-e")


@pytest.fixture
def upstream(realm: Realm, tmp_path: Path) -> Path:
    place = tmp_path / "upstream/our/repo"
    place.mkdir(parents=True)
    git(place, "init", "-q", "-b", "main")
    commit(place, "one")
    realm.system(repositories=f"{tmp_path}/upstream/{{repo}}")
    realm.general()
    return place


def workspace(realm: Realm, number: int, clones: Clones) -> Workspace:
    task = Task(
        id=f"task-20260207-{number:03}", event_id="evt-1", target_general="gen-pr", type="github.pr", repo="our/repo"
    )
    made = Workspace(realm.home, manifest_of(realm.home, "gen-pr"), task, clones)
    assert made.begin()
    return made


def prepare(made: Workspace) -> None:
    for command in made.commands():
        run(command)
    made.prepared()


def run(command: Command, *before: str) -> bool:
    """Run a command of git; return whether it came to its end, and not to a signal."""
    ran = subprocess.run([*before, *command.argv], env=dict(command.env), cwd=command.cwd, capture_output=True)
    assert before or ran.returncode == 0, ran.stderr
    return ran.returncode == 0


def killed(made: Workspace, verb: str, call: int) -> bool:
    """Prepare a workspace, and kill a command of git at one of its calls; return False if it makes fewer."""
    for command in made.commands():
        if verb not in command.argv:
            run(command)
        elif not run(command, *STRACE, f"inject={CALLS}:signal=KILL:when={call}"):
            return True
    return False


@pytest.mark.parametrize("kind", ["files"], indirect=True)
@pytest.mark.parametrize("verb", ["fetch", "add"])
def test_a_git_that_is_killed_at_any_step_fails_no_later_task(
    realm: Realm, upstream: Path, tmp_path: Path, verb: str
) -> None:
    need("strace", shutil.which("strace") is not None)
    prepare(workspace(realm, 1, Clones()))
    own = realm.root / "workspace/gen-pr"
    shutil.copytree(own, tmp_path / "before", symlinks=True)
    commit(upstream, "two")
    for call in range(1, 200):
        shutil.rmtree(own)
        shutil.copytree(tmp_path / "before", own, symlinks=True)
        if not killed(workspace(realm, 2, Clones()), verb, call):
            break
        clones = Clones()  # of the general that is started next
        for number in (3, 2):  # another task of this repository, and the same one again
            made = workspace(realm, number, clones)
            prepare(made)
            assert sorted(os.listdir(made.folder)) == [".git", "one", "two"], call
    assert call > 5
