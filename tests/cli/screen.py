"""A terminal with `pabal top` in it: tmux shows what a person would see."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from tests.cli.command import COMMAND
from tests.waiting import until

TOP = shlex.join([*COMMAND, "top"])


class Screen:
    """A terminal of 80 columns and 24 rows with a shell in it."""

    def __init__(self, place: Path, env: dict[str, str]) -> None:
        self._socket = str(place / "tmux")
        self._env = {**env, "TERM": "xterm-256color"}
        self._tmux("-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "-c", str(place), "sh")
        self.type('PS1="pro""mpt> "')
        self.press("Enter")
        self.until("prompt>")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-S", self._socket, *arguments]
        return subprocess.run(command, env=self._env, check=True, capture_output=True, text=True, timeout=60).stdout

    def press(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)

    def start(self, command: str = TOP, shows: str = "queue") -> None:
        self.type(f"clear; {command}")
        self.press("Enter")
        self.until(shows)

    def lines(self, *, styled: bool = False) -> list[str]:
        return self._tmux("capture-pane", "-p", *["-e"] * styled).split("\n")

    def text(self) -> str:
        return "\n".join(self.lines())

    def until(self, *words: str, without: str = "\0") -> str:
        """Wait until the screen has these words, and not that one."""

        def found() -> str:
            text = self.text()
            return text if all(word in text for word in words) and without not in text else ""

        try:
            return until(found)
        except AssertionError:
            raise AssertionError(f"{words} did not come, or {without!r} did not go:\n{self.text()}") from None

    def resize(self, columns: int, rows: int) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def is_other(self) -> bool:
        """Return whether the screen is the one that full-screen programs have."""
        return self._tmux("display-message", "-p", "#{alternate_on}").strip() == "1"

    def has_cursor(self) -> bool:
        return self._tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"

    def pid(self, name: str = "python") -> int:
        """Return the process that runs in the shell."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        return int(until(lambda: Path(f"/proc/{shell}/task/{shell}/children").read_text().split())[0])

    def close(self) -> None:
        subprocess.run(["tmux", "-S", self._socket, "kill-server"], env=self._env, capture_output=True, check=False)


def row(text: str, queue: str) -> list[str]:
    """Return the words of a queue's row."""
    return next(line for line in text.split("\n") if re.match(rf"[ >][ !]{queue} ", line))[2:].split()
