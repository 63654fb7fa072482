"""The live view: what each agent does, shown in a real terminal without flicker."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.apps.ignite.activity import Activities, last_line, last_text
from pabal.apps.ignite.conversation import say
from tests.apps.ignite.conftest import Lay
from tests.apps.ignite.table import COMMAND, soon
from tests.apps.ignite.test_wakes import needs_tmux, tmux

TEAM = """
agents:
  leader: {wake: tmux, pane: team}
  worker: {wake: hook}
  away: {wake: tmux, pane: nowhere}
"""
PROGRAM = r"printf '\033]2;fix login\033\\'; echo 'Tests: 12 passed'; printf '╭────╮\n│    │\n'; touch ready; cat"


@pytest.mark.parametrize(
    ("screen", "line"),
    [
        ("", ""),
        ("one\ntwo\n\n", "two"),
        ("thinking\n╭───╮\n│ > │\n╰───╯\n", "thinking"),
        ("10%\r50%\r100% 완료", "100% 완료"),
    ],
)
def test_the_last_line_with_text_counts(screen: str, line: str, tmp_path: Path) -> None:
    assert last_text(screen) == line
    (tmp_path / "log").write_text("x" * 10_000 + f"\n\x1b[1m\x1b]0;t\x07{screen}\x1b[0m")
    assert last_line(tmp_path / "log") == (line or "x" * len(last_line(tmp_path / "log")))
    assert last_line(tmp_path / "none") == ""


@needs_tmux
def test_the_view_shows_titles_last_lines_and_what_waits(lay: Lay, tmp_path: Path) -> None:
    with tmux(tmp_path, PROGRAM) as variables:
        table = lay(TEAM)
        assert soon((tmp_path / "ready").exists)
        (table.root / "logs/worker.log").write_text("step 1\nstep 2 of 9\n")
        say(table.workspace, sender="user", to="worker", text="배포 준비")
        table.hand()
        say(table.workspace, sender="leader", to="worker", text="stop", urgent=True)
        say(table.workspace, sender="worker", to="user", text="ready?")
        report, found = Activities(table.workspace, variables).look()
        assert [load.name for load in report.loads] == ["leader", "worker", "away"]
        assert found["leader"][1:3] == ("fix login", "Tests: 12 passed")
        assert found["worker"][1:] == ("", "step 2 of 9", "배포 준비", 1)
        assert found["away"][1:] == ("", "", "", 0)
        marks = subprocess.run(
            ["tmux", "list-panes", "-a", "-F", "#{@pabal_agent}"], env=variables, capture_output=True, text=True
        )
        assert marks.stdout.strip() == ""  # looking changes nothing
        command = [*COMMAND, "ignite", "--root", str(table.root), "top", "--once"]
        shown = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60).stdout
        assert "fix login  Tests: 12 passed" in shown and "1 for you, the oldest" in shown
        [row] = [line for line in shown.splitlines() if line.startswith("worker")]
        assert "1!" in row and row.endswith("step 2 of 9") and "배포 준비" in row


@needs_tmux
def test_the_view_is_drawn_in_place(lay: Lay, tmp_path: Path) -> None:
    """What the command writes is recorded by tmux; after the first picture the screen is never cleared."""
    table = lay(serve=False)
    run = f'{sys.executable} -c "from pabal.cli.main import main; main()" ignite --root {table.root} top --every 0.1'
    with tmux(tmp_path, f"cat > start && {run}; touch ended; cat") as variables:

        def call(*arguments: str) -> str:
            done = subprocess.run(["tmux", *arguments], env=variables, capture_output=True, text=True, timeout=60)
            return done.stdout

        raw = tmp_path / "raw"
        call("pipe-pane", "-t", "team", f"cat > {raw}")
        call("resize-window", "-t", "team", "-x", "60", "-y", "20")
        call("send-keys", "-t", "team", "C-d")
        assert soon(lambda: "q ends" in call("capture-pane", "-p", "-t", "team"))
        (table.root / "logs/worker.log").write_text(f"a line that is longer than {'the screen ' * 9}\n")
        assert soon(lambda: "a line that" in call("capture-pane", "-p", "-t", "team"))
        picture = call("capture-pane", "-p", "-t", "team").splitlines()
        assert len(picture) <= 20 and all(len(line) <= 60 for line in picture)
        call("send-keys", "-t", "team", "q")
        assert soon((tmp_path / "ended").exists)
        drawn = raw.read_bytes().split(b"\x1b[?1049h")[1]
        assert b"\x1b[2J" not in drawn and b"\x1b[H\x1b[J" not in drawn and drawn.count(b"\x1b[H") > 1
        assert os.path.exists(tmp_path / "start")
