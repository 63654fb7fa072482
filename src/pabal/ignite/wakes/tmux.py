"""tmux: types the path of the message, and only the path, into the pane where an agent reads."""

from __future__ import annotations

import shutil
import subprocess

from pabal.errors import WakeFailed
from pabal.ignite.wakes import Surroundings, Turn

_PATIENCE = 5.0  # seconds


class TmuxWake:
    def __init__(self, place: Surroundings) -> None:
        self._variables = {
            name: place.variables[name] for name in ("PATH", "HOME", "TMUX_TMPDIR", "LANG") if name in place.variables
        }

    def wake(self, turn: Turn) -> None:
        pane = turn.about.pane
        if not pane or pane.startswith("-"):
            raise WakeFailed("the team file names no pane for this agent: pane: session:window.pane")
        # Typed as it is (-l), then Enter by its name: one command to tmux, so that nothing comes in between.
        self._tmux("send-keys", "-t", pane, "-l", f"new message: {turn.path}", ";", "send-keys", "-t", pane, "Enter")

    def alive(self, turn: Turn) -> bool | None:
        try:
            return self._tmux("display-message", "-p", "-t", turn.about.pane, "#{pane_dead}").strip() == "0"
        except WakeFailed:
            return False

    def stop(self, turn: Turn) -> None:
        """What was typed cannot be taken back."""

    def _tmux(self, *arguments: str) -> str:
        program = shutil.which("tmux", path=self._variables.get("PATH"))
        if program is None:
            raise WakeFailed("tmux is not installed")
        try:
            done = subprocess.run(
                [program, *arguments],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PATIENCE,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            raise WakeFailed(f"tmux does not answer: {exc}") from exc
        if done.returncode:
            raise WakeFailed(f"tmux: {done.stderr.decode(errors='replace').strip()[:200]}")
        return done.stdout.decode(errors="replace")
