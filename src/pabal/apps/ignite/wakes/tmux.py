"""tmux: types one line into the pane where an agent reads. The agent settles the message itself.

The text is typed literally. Enter follows as a key of its own, once the text shows in the pane: a program in raw mode
takes text and Enter that come together for a paste, and does not submit it.

A pane is known by its id (`%2`), which tmux never changes. It is found by its title, by the name of the agent or by its
address, and then marked with the agent, because an address leads to another pane after windows are closed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.team import Agent
from pabal.apps.ignite.wakes import Turn, WakeContext
from pabal.names import shown_name

_TIMEOUT = 5.0  # seconds
_SHOWN_WITHIN = 3.0  # seconds until typed text must show in the pane
_PAUSE = 0.1  # seconds between the text and Enter, and between looks at the pane
_COMPARED = 40  # characters at the end of the line that must show
MARK = "@pabal_agent"  # an option of the pane
SHELLS = frozenset({"bash", "zsh", "sh", "fish", "dash", "ksh", "tmux"})
_VARIABLES = ("PATH", "HOME", "TMUX_TMPDIR", "LANG")
# Names may contain anything, so they are cut out by their lengths.
_FORMAT = (
    "#{pane_id} #{pid} #{pane_pid} #{pane_dead} #{pane_in_mode} #{window_index} #{pane_index} #{window_panes}"
    " #{?@pabal_agent,#{@pabal_agent},-}"
    " #{n:session_name} #{n:window_name} #{n:pane_current_command}"
    " #{session_name}#{window_name}#{pane_current_command}#{pane_title}"
)


class Pane(NamedTuple):
    """A pane of a tmux server."""

    id: str
    server: str
    dead: bool
    in_mode: bool
    mark: str
    title: str
    addresses: frozenset[str]
    window: str = ""  # the name of its window, if it is alone there
    command: str = ""  # the program that runs in it
    pid: int = 0  # of its first process

    def check(self) -> None:
        """Raise WakeFailed if no agent runs in the pane: a shell would run the line that is typed as a command."""
        if self.dead:
            raise WakeFailed(f"the program in pane {self.id} has ended")
        if _is_prompt(self.pid):
            raise WakeFailed(f"pane {self.id} shows the prompt of {self.command}: start the agent in it")


class TmuxWake:
    """Types the configured line into the pane of an agent."""

    def __init__(self, context: WakeContext) -> None:
        self._variables = context.variables
        self._root = context.root
        self._found: dict[str, tuple[str, str]] = {}  # by mark: the server and the id of the pane

    def wake(self, turn: Turn) -> None:
        line = turn.filled_in(turn.about.line)
        if not line.isprintable():  # the store names files so that only the folder of the workspace can be the cause
            raise WakeFailed(f"the line has characters that cannot be typed: {line!r:.200}")
        pane = self._pane(turn)
        pane.check()
        if pane.in_mode:
            self._tmux(turn, "send-keys", "-t", pane.id, "-X", "cancel")  # else the keys would move its cursor
        before = self._screen(turn, pane)
        if not self._is_typed(turn, pane, line):
            self._tmux(turn, "send-keys", "-t", pane.id, "-l", "--", line)
            if not self._shows(turn, pane, line, before):
                # Only what was typed here: a person may have begun to write before it.
                self._tmux(turn, "send-keys", "-t", pane.id, "-N", str(len(line)), "BSpace")
                raise WakeFailed(f"pane {pane.id} does not show the line that was typed: its program reads no input")
            time.sleep(_PAUSE)
        self._tmux(turn, "send-keys", "-t", pane.id, "Enter")

    def stop(self, turn: Turn) -> None:
        """Do nothing: typed text cannot be taken back."""

    def is_there(self, agent: str, about: Agent) -> bool:
        try:
            pane, _ = find_pane(panes(self._variables, about.socket), self._root, agent, about)
            pane.check()
        except WakeFailed:
            return False
        return True

    def shown(self, turn: Turn) -> tuple[str, str]:
        """Return the title and the text of an agent's pane, without marking it."""
        pane, _ = find_pane(self._panes(turn), self._root, turn.agent, turn.about)
        return pane.title, self._tmux(turn, "capture-pane", "-p", "-J", "-t", pane.id)

    def _shows(self, turn: Turn, pane: Pane, line: str, before: str) -> bool:
        """Wait until the end of the line shows once more than before, or in a pane that was drawn anew."""
        wanted = _solid(line)[-_COMPARED:]
        last, end = before, time.monotonic() + _SHOWN_WITHIN
        while time.monotonic() < end:
            screen = self._screen(turn, pane)
            if screen.count(wanted) > before.count(wanted) or (before != screen == last and wanted in screen):
                return True
            last = screen
            time.sleep(_PAUSE)
        return False

    def _is_typed(self, turn: Turn, pane: Pane, line: str) -> bool:
        """Return whether the line stands before the cursor: the monitor that typed it was killed before Enter."""
        place = self._tmux(turn, "display-message", "-p", "-t", pane.id, "#{cursor_x} #{cursor_y}")
        column, row = map(int, place.split())
        lines = self._tmux(turn, "capture-pane", "-p", "-t", pane.id, "-E", str(row)).split("\n")[: row + 1]
        lines[-1] = lines[-1][:column]
        return bool(lines[-1].strip()) and _solid("\n".join(lines)).endswith(_solid(line)[-_COMPARED:])

    def _screen(self, turn: Turn, pane: Pane) -> str:
        return _solid(self._tmux(turn, "capture-pane", "-p", "-t", pane.id))

    def _pane(self, turn: Turn) -> Pane:
        """Return the pane of an agent, marked as such; raise WakeFailed if there is none, or more than one."""
        mark = mark_of(self._root, turn.agent, turn.about)
        pane, by_address = find_pane(self._panes(turn), self._root, turn.agent, turn.about)
        if pane.mark != mark:
            server, before = self._found.get(mark, ("", ""))
            if by_address and server == pane.server and before != pane.id:
                wanted = turn.about.pane
                raise WakeFailed(
                    f"pane {before} is gone and {wanted} leads to {pane.id} now, perhaps that of another agent;"
                    f" `tmux select-pane -t {pane.id} -T {turn.agent}` and `pane: {turn.agent}` name it by its title"
                )
            self._tmux(turn, "set-option", "-p", "-t", pane.id, MARK, mark)
        self._found[mark] = (pane.server, pane.id)
        return pane

    def _panes(self, turn: Turn) -> list[Pane]:
        return panes(self._variables, turn.about.socket)

    def _tmux(self, turn: Turn, *arguments: str) -> str:
        return run_tmux(self._variables, turn.about.socket, *arguments)


def find_pane(found: Sequence[Pane], root: Path, agent: str, about: Agent) -> tuple[Pane, bool]:
    """Return the pane of an agent, and whether it was found by its address, which may lead to another pane later."""
    wanted = about.pane or shown_name(agent)
    known = [pane for pane in found if pane.mark == mark_of(root, agent, about)]
    if len(known) == 1:
        return known[0], False
    some = [pane for pane in found if wanted == pane.id] or [pane for pane in found if wanted == pane.title]
    by_address = not some
    some = some or [pane for pane in found if wanted in pane.addresses]
    if not some:
        raise WakeFailed(f"tmux has no pane with the id, title or address {wanted!r:.80}")
    if len(some) > 1:
        listed = ", ".join(pane.id for pane in some)
        raise WakeFailed(f"tmux has several panes {wanted!r:.80}: {listed}; name one by its id or title")
    [pane] = some
    if pane.mark != "-" and not pane.mark.startswith(f"{_own_mark(root, agent)}-"):
        raise WakeFailed(f"{wanted} leads to pane {pane.id}, which is that of another agent")
    return pane, by_address


def mark_of(root: Path, agent: str, about: Agent) -> str:
    """Return the mark of the pane of an agent; it changes with the agent's entry in the team file."""
    wanted = about.pane or shown_name(agent)
    return f"{_own_mark(root, agent)}-{sha256(wanted.encode()).hexdigest()[:8]}"


def agent_of_pane(root: Path, agents: Iterable[str], variables: Mapping[str, str]) -> str:
    """Return the agent of the pane in which this process runs; empty if it is none's."""
    own = variables.get("TMUX_PANE", "")
    socket = variables.get("TMUX", "").partition(",")[0]
    if not own or not socket:
        return ""
    try:
        mark = run_tmux(variables, socket, "display-message", "-p", "-t", own, f"#{{{MARK}}}").strip()
    except WakeFailed:
        return ""
    return agent_of_mark(root, agents, mark)


def agent_of_mark(root: Path, agents: Iterable[str], mark: str) -> str:
    """Return the agent of this workspace whose pane has the mark; empty if it is none's."""
    return next((name for name in agents if mark and mark.startswith(f"{_own_mark(root, name)}-")), "")


def panes(variables: Mapping[str, str], socket: str) -> list[Pane]:
    """Return all panes of a tmux server; raise WakeFailed if there is none."""
    return [_read(line) for line in run_tmux(variables, socket, "list-panes", "-a", "-F", _FORMAT).splitlines() if line]


def run_tmux(variables: Mapping[str, str], socket: str, *arguments: str) -> str:
    """Run a command of tmux, and return what it prints; raise WakeFailed with its error."""
    program = shutil.which("tmux", path=variables.get("PATH"))
    if program is None:
        raise WakeFailed("tmux is not installed")
    server = ["-S" if "/" in socket else "-L", socket] if socket else []
    try:
        done = subprocess.run(
            [program, "-u", *server, *arguments],
            env={name: variables[name] for name in _VARIABLES if name in variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise WakeFailed(f"tmux does not answer: {exc}") from exc
    if done.returncode:
        raise WakeFailed(f"tmux: {done.stderr.decode(errors='replace').strip()[:200]}")
    return done.stdout.decode(errors="replace")


def _own_mark(root: Path, agent: str) -> str:
    return sha256(f"{root}\0{agent}".encode()).hexdigest()[:16]


def _is_prompt(pid: int) -> bool:
    """Return whether a shell reads commands in the foreground of the terminal of a process. A script is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        foreground = int(stat.rpartition(b")")[2].split()[5])
        program, *arguments = Path(f"/proc/{foreground}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except (OSError, ValueError, IndexError):
        return False
    name = os.path.basename(os.fsdecode(program)).removeprefix("-")
    options = [each for each in arguments if each.startswith(b"-")]
    reads_script = len(options) < len(arguments) or any(b"c" in each for each in options if each[:2] != b"--")
    return name in SHELLS and not reads_script


def _solid(text: str) -> str:
    """Return the text without spaces and line breaks, because a program wraps its input as it likes."""
    return "".join(text.split())


def _read(line: str) -> Pane:
    id, server, pid, dead, in_mode, window, index, count, mark, *sizes, names = line.split(" ", 12)
    text, parts, begin = names.encode(), [], 0
    for size in map(int, sizes):
        parts.append(text[begin : begin + size].decode(errors="replace"))
        begin += size
    session, name, command = parts
    windows = (f"{session}:{window}", f"{session}:{name}")
    addresses = frozenset((session, *windows, *(f"{each}.{index}" for each in windows)))
    title = text[begin:].decode(errors="replace")
    alone = name if count == "1" else ""
    return Pane(
        id, server, dead == "1", in_mode not in ("", "0"), mark, title, addresses, alone, command, int(pid or 0)
    )
