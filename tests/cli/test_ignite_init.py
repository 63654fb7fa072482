"""A new team: of panes of tmux or of names; what its agents are taught; what `doctor` finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.apps.ignite.table import COMMAND, Served, ignite, soon
from tests.apps.ignite.test_wakes import needs_tmux, tmux

PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def run(folder: Path, *arguments: str, code: int = 0, **variables: str) -> str:
    ran = subprocess.run(
        [*COMMAND, "ignite", *arguments],
        cwd=folder,
        env={**os.environ, "PATH": PATH, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == code, ran
    return ran.stdout + ran.stderr


def asked(folder: Path, variables: dict[str, str], answers: list[str]) -> str:
    """Run `init --tmux` on a terminal, and answer its questions."""
    ours, theirs = os.openpty()
    init = [*COMMAND, "ignite", "init", "--tmux"]
    environment = {**os.environ, "PATH": PATH, **variables}
    child = subprocess.Popen(init, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    out = b""
    while True:
        try:
            out += os.read(ours, 4096)
        except OSError:  # it has ended
            break
        if out.endswith(b"]: ") and answers:
            os.write(ours, f"{answers.pop(0)}\n".encode())
    os.close(ours)
    assert child.wait(timeout=60) == 0, out
    return out.decode()


@needs_tmux
def test_a_team_of_the_panes_that_are_there(tmp_path: Path) -> None:
    with tmux(tmp_path, "exec cat > typed_architect") as variables:

        def call(*arguments: str) -> str:
            done = subprocess.run(["tmux", *arguments], env=variables, cwd=tmp_path, check=True, capture_output=True)
            return done.stdout.decode().strip()

        whoami = f"{sys.executable} -c 'from pabal.cli.main import main; main()' ignite inbox > who; exec cat > typed_2"
        new = ("split-window", "-d", "-P", "-F", "#{pane_id}", "-t", "team:0", "-c", str(tmp_path))
        call("select-pane", "-t", "team:0.0", "-T", "architect")
        call(*new, "exec cat > typed_1")
        asks = call(*new, f"until [ -e go ]; do sleep 0.1; done; {whoami}")
        call(*new, "exec sh")
        assert soon(
            lambda: call("list-panes", "-t", "team:0", "-F", "#{pane_current_command}").split().count("cat") == 2
        )
        where: Any = {"TMUX_TMPDIR": variables["TMUX_TMPDIR"], "TMUX": "", "TMUX_PANE": ""}
        refused = run(tmp_path, "init", "--tmux", code=2, **where)
        assert "--yes" in refused and "architect" in refused and not (tmp_path / ".ignite").exists()
        call("select-pane", "-t", asks, "-T", "painter")
        out = run(tmp_path, "init", "--tmux", "--yes", **where)
        assert "3 agents: " in out and all(name in out for name in ("architect", "painter", "cat"))  # not the shell
        assert "leader: user" in (tmp_path / ".ignite/team.yaml").read_text()
        assert "pane %" in run(tmp_path, "doctor", code=1, **where)
        for pane in ("team:0.0", asks):
            call("select-pane", "-t", pane, "-T", "working on it")  # as a program does all the time
        assert "with 3 agents" in run(tmp_path, "init", "--tmux", "--yes", **where)  # they are known by their marks
        assert "with 3 agents" in asked(tmp_path, where, answers=["", "a-b", "painter", "-", "-"])
        (tmp_path / "go").touch()
        assert soon(lambda: (tmp_path / "who").exists() and (tmp_path / "who").read_text())
        assert (tmp_path / "who").read_text().startswith("painter: ")  # a pane knows its agent
        served = subprocess.Popen(
            [*COMMAND, "ignite", "up"], cwd=tmp_path, env=variables, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
        )
        try:
            run(tmp_path, "send", "--to", "architect", "--type", "user_goal", "--body", "goal: x", **where)
            assert soon(lambda: "new message: " in (tmp_path / "typed_architect").read_text())
        finally:
            served.terminate()
            served.communicate(timeout=60)


def test_a_team_of_names_whose_agents_are_taught(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("# Rules\n\nBe kind.\n")
    out = run(tmp_path, "init", "--agents", "architect, painter,テスター")
    assert "3 agents: architect, painter, テスター" in out
    assert "Bash(pabal ignite done:*)" in out and "prefix_rule" in out
    text = (tmp_path / "AGENTS.md").read_text()
    assert text.startswith("# Rules\n\nBe kind.\n\n<!-- pabal") and "pabal ignite done PATH" in text
    skill = (tmp_path / ".claude/skills/pabal-mail/SKILL.md").read_text()
    assert skill.startswith("---\nname: pabal-mail\n") and "pabal ignite done PATH" in skill
    (tmp_path / "AGENTS.md").write_text(text.replace("pabal ignite beat", "an older text") + "\nEnd.\n")
    assert "wrote AGENTS.md" in run(tmp_path, "init")
    assert (tmp_path / "AGENTS.md").read_text() == f"{text}\nEnd.\n"
    assert "wrote" not in run(tmp_path, "init")
    (tmp_path / "AGENTS.md").write_text("<!-- pabal ignite: begin -->\nmine\n")
    assert "left as it is" in run(tmp_path, "init", code=2)
    assert (tmp_path / "AGENTS.md").read_text() == "<!-- pabal ignite: begin -->\nmine\n"
    assert "add\n  gardener: {wake: hook}" in run(tmp_path, "init", "--agents", "gardener", code=2)
    assert '"null": {wake: hook}' in run(tmp_path, "init", "--agents", "null", code=2)
    for wrong in ("a-b", "a b", "../x"):
        run(tmp_path / ".claude", "init", "--agents", wrong, code=2)
    assert not (tmp_path / ".claude/.ignite").exists()
    run(tmp_path / ".claude", "init", "--agents", "dead_letter", code=2)
    assert not (tmp_path / ".claude/.ignite/team.yaml").exists()


def test_the_doctor_names_each_trouble_and_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run(tmp_path, "init", "--agents", "architect", "--no-teach")
    root = tmp_path / ".ignite"
    (root / "team.yaml").write_text(
        "agents: {a: {wake: exec, command: [/bin/true]}, b: {wake: exec, command: [no-such]}, "
        "c: {wake: tmux, socket: x}, d: {wake: webhook, url: 'http://127.0.0.1:9/'}, e: {wake: claude-hook}, "
        "f: {wake: codex-hook}, g: {wake: smoke}, h: {}}\nleader: h"
    )
    before = sorted(path for path in root.rglob("*"))
    found = {each["about"]: each for each in map(json.loads, run(tmp_path, "doctor", "--json", code=1).splitlines())}
    assert [name for name, each in found.items() if each["ok"]] == ["team.yaml", "pabal", "a", "h"]
    assert all(each["ok"] or each["remedy"] for each in found.values())
    assert "hooks install claude" in found["e"]["text"] and "no-such" in found["b"]["text"]
    assert "pabal ignite up" in found["monitor"]["remedy"] and "init" in found["AGENTS.md"]["remedy"]
    assert sorted(path for path in root.rglob("*")) == before  # it only looks
    (root / "team.yaml").write_text("agents: {leader: {}}")
    run(tmp_path, "init")
    served = Served(root)
    try:
        out = run(tmp_path, "doctor")
        assert "!!" not in out
        (root / "team.yaml").write_text("agents: {leader: {wakes: x}}")
        assert "wakes" in run(tmp_path, "doctor", code=1)
    finally:
        served.stop()
    assert ignite(tmp_path / "nowhere", "doctor").returncode == 3
