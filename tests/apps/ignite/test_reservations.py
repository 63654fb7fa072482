"""Reservations of files: they overlap as files do, expire, are told to others, and warn before a commit."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest

from pabal.apps.ignite import inbox
from pabal.apps.ignite.reservations import Reservations, check_pattern, overlap, with_hook, without_hook
from pabal.apps.ignite.workspace import Workspace
from pabal.errors import InvalidInput
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import COMMAND

NAMES = ("a", "b", "aa", "ab", "ba", "bb")
PATHS = ["/".join(parts) for depth in (1, 2, 3, 4) for parts in product(NAMES, repeat=depth)]
PATTERNS = "a b a/b ab/a * ** a* *b ?a a/* */b **/b a/** **/a/** a/**/b */*/ab *b/** [ab]/a a/[!b]b ?? a?/*".split()


def matches(pattern: str, path: str) -> bool:
    """Match as the words of the module say, by an expression of its own."""
    if not set("*?[") & set(pattern):
        return path == pattern or path.startswith(f"{pattern}/")
    words = {"**/": "(?:[^/]+/)*", "/**": "(?:/[^/]+)*", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = re.sub(r"\[!", "[^", pattern)
    return re.fullmatch(re.sub(r"\*\*/|/\*\*|\*\*|\*|\?", lambda found: words[found[0]], text), path) is not None


def test_patterns_overlap_if_a_file_matches_both() -> None:
    files = {pattern: {path for path in PATHS if matches(pattern, path)} for pattern in PATTERNS}
    for one, other in product(PATTERNS, repeat=2):
        shared = files[one] & files[other]
        assert overlap(one, other) == overlap(other, one)
        if "[" in one + other:
            assert overlap(one, other) or not shared, (one, other)  # a set of characters counts as any
        else:
            assert overlap(one, other) == bool(shared), (one, other)
    assert not overlap("src/api", "src/apis/x.py") and overlap("src/api/", "src/api/x.py")
    assert overlap("*a" * 120, "a*" * 120)  # in no time


@pytest.mark.parametrize("pattern", ["", " ", "/etc", "../x", "a/../../x", "a\nb", "x" * 501])
def test_a_pattern_stays_in_the_project(pattern: str) -> None:
    with pytest.raises(InvalidInput):
        check_pattern(pattern)


def test_files_are_shared_or_had_alone_and_the_others_are_told(lay: Lay, clock: ManualClock) -> None:
    table = lay("agents: {leader: {}, worker: {}, other: {}}", clock=clock, serve=False)
    kept = Reservations(table.workspace)
    assert kept.all() == [] and not (table.root / "state/reservations.json").exists()
    assert kept.reserve("worker", ["src/api/**", "docs"], seconds=3600, reason="users").granted
    shared = kept.reserve("other", ["src/**/users.py"], seconds=600)
    assert shared.granted and [each.agent for each in shared.overlaps] == ["worker"]
    clock.advance(1)
    for _ in range(2):  # told once, however often it is asked
        refused = kept.reserve("leader", ["src/api/users.py", "x"], seconds=60, exclusive=True)
    assert not refused.granted and [each.agent for each in refused.overlaps] == ["other", "worker"]
    assert not kept.overlapping(["x"])  # all or nothing
    told = [(item.sender, item.subject) for item in inbox.inbox(table.workspace, "worker")]
    assert told == [("other", "overlap: src/**/users.py"), ("leader", "waiting: src/api/users.py, x")]
    assert [item.sender for item in inbox.inbox(table.workspace, "other")] == ["leader"]
    assert kept.reserve("leader", ["x"], seconds=60, exclusive=True).granted
    assert not kept.reserve("other", ["**"], seconds=60).granted  # the exclusive one is that of the other side
    clock.advance(61)
    assert [each.pattern for each in kept.all()] == ["docs", "src/**/users.py", "src/api/**"]
    kept.reserve("worker", ["docs"], seconds=7200)  # renewed
    clock.advance(3600)
    assert [(each.agent, each.pattern) for each in kept.all()] == [("worker", "docs")]
    assert [each.pattern for each in kept.release("worker", ["docs"])] == ["docs"] and kept.release("worker") == []
    (table.root / "state/reservations.json").write_text("{")
    assert kept.all() == [] and kept.reserve("worker", ["."], seconds=1).mine[0].pattern == "**"


def test_files_are_compared_as_they_are_called(lay: Lay) -> None:
    assert overlap("app/[slug]", "app/[slug]/page.tsx") and overlap("app/[slug]", "app/s/page.tsx")
    table = lay(serve=False)
    kept = Reservations(table.workspace)
    patterns = ["app/[slug]", "src/**/*.py", "docs", "**/*a*a*a*a*a*a*b", "[ab]?.c", "**/z/**/z/**/z/**/z/**/y"]
    for pattern in patterns:
        kept.reserve("worker", [pattern], seconds=60)

    def touched(*paths: str) -> set[str]:
        return {each.pattern for each in kept.touched(paths)}

    assert touched("app/[slug]/page.tsx", "docs") == {"app/[slug]", "docs"}
    assert touched("app/x/page.tsx", "docs2/x", "src/x.pyc", "src") == set()
    assert touched("src/x.py") == touched("src/a/b/x.py") == {"src/**/*.py"}
    assert touched("ax.c") == {"[ab]?.c"} and touched("xa.c") == set()
    strange = ["docs/a\nb", "docs/\udcff", "docs/" + "d" * 600]
    assert touched(*strange[:1]) == touched(*strange[1:2]) == touched(*strange[2:]) == {"docs"}
    many = [f"lib/{'a' * 100}/{'z/' * 50}{number}" for number in range(2000)]  # in no time
    assert touched(*many) == set() and kept.touched(["docs/x"], but="worker") == []


def test_of_many_at_once_one_gets_the_files(lay: Lay) -> None:
    names = [f"agent_{number}" for number in range(1, 9)]
    table = lay("leader: agent_1\nagents: {agent: {count: 8}}", serve=False)

    def reserve(name: str) -> bool:
        with Workspace.open(table.root) as workspace:
            return Reservations(workspace).reserve(name, ["src"], seconds=60, exclusive=True).granted

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reserve, names)) == 1


def test_a_hook_is_added_to_what_is_there() -> None:
    own = with_hook("", "/a b/.ignite")
    assert own.startswith("#!/bin/sh\n") and "--root '/a b/.ignite'" in own and without_hook(own) == ""
    there = "#!/usr/bin/env bash\nset -e\nmake lint\nexit 0\n"
    added = with_hook(there, "/x")
    assert added.splitlines()[0] == "#!/usr/bin/env bash" and added.index("pabal") < added.index("set -e")
    assert with_hook(added, "/x") == added and without_hook(added) == there and without_hook(there) == there
    with pytest.raises(InvalidInput, match="no shell script"):
        with_hook("#!/usr/bin/env python3\nprint()\n", "/x")


def test_git_warns_before_a_commit_in_every_worktree(tmp_path: Path) -> None:
    project, tree = tmp_path / "project", tmp_path / "tree"
    bin = tmp_path / "bin/pabal"
    bin.parent.mkdir()
    bin.write_text(f'#!/bin/sh\nexec {sys.executable} -c "from pabal.cli.main import main; main()" "$@"\n')
    bin.chmod(0o755)
    names = {f"GIT_{who}_{what}": "x" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    variables = {**os.environ, **names, "PATH": f"{bin.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(*command: str, folder: Path = project, code: int = 0, **more: str) -> str:
        environment = {**variables, **more}
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done
        return done.stdout + done.stderr

    def ignite(*arguments: str, folder: Path = project, code: int = 0, **more: str) -> str:
        return run(*COMMAND, "ignite", *arguments, folder=folder, code=code, **more)

    project.mkdir()
    run("git", "init", "-q")
    run("git", "commit", "-q", "--allow-empty", "-m", "first")
    run("git", "worktree", "add", "-q", str(tree))
    (project / ".ignite").mkdir()
    (project / ".ignite/team.yaml").write_text("agents: {leader: {}, worker: {}}")
    ignite("init")
    assert "pre-commit" in ignite("reservations", "--install-hook")
    assert "stays as it is" in ignite("reservations", "--install-hook")
    hook = project / ".git/hooks/pre-commit"
    ours = hook.read_text()
    real = project / "scripts/pre-commit"
    real.parent.mkdir()
    real.write_bytes(b"#!/bin/sh\n# \xff\ntrue\n")
    real.chmod(0o750)
    hook.unlink()
    hook.symlink_to("../../scripts/pre-commit")  # as projects keep theirs
    ignite("reservations", "--install-hook")
    assert hook.is_symlink() and real.stat().st_mode & 0o777 == 0o751 and b"# \xff\ntrue\n" in real.read_bytes()
    ignite("reservations", "--remove-hook")
    assert hook.is_symlink() and real.read_bytes() == b"#!/bin/sh\n# \xff\ntrue\n"
    hook.unlink()
    hook.write_text(ours)
    hook.chmod(0o755)
    (project / "src").mkdir()
    assert ignite("reservations", code=1) == ""
    assert "reserved src/api/** for 30m, exclusive" in ignite(
        "reserve", "api/**", "--exclusive", "--ttl", "30m", "--reason", "users", "--root", "../.ignite",
        folder=project / "src", IGNITE_AGENT="worker",
    )  # fmt: skip
    refused = ignite("reserve", "src", "--agent", "leader", code=1)
    assert "worker has reserved src/api/** exclusively" in refused and "not reserved" in refused
    assert "worker  src/api/**  exclusive" in ignite("reservations", "src/api/x.py")
    assert '"agent":"worker"' in ignite("reservations", "--agent", "worker", "--json")
    assert "is not in the project" in ignite("reserve", "../x", code=2)
    for folder in (project, tree):
        (folder / "src/api").mkdir(parents=True)
        (folder / "src/api/users é.py").write_text("x")
        (folder / "other").write_text("x")
        run("git", "add", "src", "other", folder=folder)
        said = run("git", "commit", "-q", "-m", "second", folder=folder)
        assert said.count("pabal: worker has reserved src/api/** (users), and this commit changes it") == 1
    (project / "src/api/users é.py").write_text("y")
    assert run("git", "commit", "-q", "-am", "own", IGNITE_AGENT="worker") == ""
    assert ignite("release", IGNITE_AGENT="worker") == "released src/api/**\n"
    assert "removed" in ignite("reservations", "--remove-hook")
