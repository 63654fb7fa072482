"""The whole screen of a terminal: keys come in, lines go out, and the terminal is as it was when the program ends.

Only sequences that every terminal of today, screen and tmux know are written, each line on its own: a character that
the terminal draws wider than expected does not move the others.
"""

from __future__ import annotations

import codecs
import errno
import os
import re
import select
import signal
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Literal, NamedTuple

from pabal.cli.text import clip, width

Style = Literal["plain", "bold", "soft", "good", "warn", "bad", "chosen"]

_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J"  # another screen, no cursor, no wrapping
_LEAVE = "\x1b[0m\x1b[?7h\x1b[?25h\x1b[?1049l"
_COLOURS: dict[Style, str] = {"bold": "1", "soft": "2", "good": "32", "warn": "33", "bad": "1;31", "chosen": "7"}
_COLOURLESS: dict[Style, str] = {"bold": "1", "warn": "1", "bad": "1", "chosen": "7"}
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[@-~])")
_UNFINISHED = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|O)?\Z")
_REST_SECONDS = 0.1  # in which the rest of a key comes; else it was Escape
_KEYS = {
    **dict.fromkeys(("[A", "OA"), "up"),
    **dict.fromkeys(("[B", "OB"), "down"),
    **dict.fromkeys(("[C", "OC"), "right"),
    **dict.fromkeys(("[D", "OD"), "left"),
    **dict.fromkeys(("[H", "OH", "[1~", "[7~"), "home"),
    **dict.fromkeys(("[F", "OF", "[4~", "[8~"), "end"),
    "[5~": "page up",
    "[6~": "page down",
    "[Z": "shift tab",
}
_PLAIN_KEYS = {"\n": "enter", "\r": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}


class Span(NamedTuple):
    """A text in one style. It has no control characters."""

    text: str
    style: Style = "plain"


Line = Sequence[Span]


class Ended(BaseException):
    """The program shall end: by this signal, or by 0 because the terminal is gone."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Terminal:
    """The terminal of this process, as a context. Only the main thread may use it; any thread may wake it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._encoding = sys.stdout.encoding or "utf-8"
        self._styles = _COLOURS
        if environment.get("NO_COLOR"):
            self._styles = _COLOURLESS
        if environment.get("TERM", "dumb") == "dumb":
            self._styles = {}
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drawn: list[str] = []
        self._size = (0, 0)
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Terminal:
        self._saved = termios.tcgetattr(self._in)
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGTERM: self._end,
            signal.SIGHUP: self._end,
            signal.SIGTSTP: self._stop,
            signal.SIGCONT: self._go_on,
            signal.SIGWINCH: lambda number, frame: self.wake(),
        }
        try:
            self._handlers = {number: signal.signal(number, handler) for number, handler in handlers.items()}
            self._take()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._leave()
        os.close(self._wakes)
        os.close(self._wake)

    @property
    def draws_blocks(self) -> bool:
        """Whether the terminal's encoding has block elements, of which lines of figures are made."""
        return codecs.lookup(self._encoding).name == "utf-8"

    @property
    def size(self) -> tuple[int, int]:
        """The columns and rows of the screen."""
        found = os.get_terminal_size(self._out)
        return (found.columns or 80, found.lines or 24)

    def wake(self) -> None:
        """Let `keys` return."""
        with suppress(OSError):  # there are bytes enough in it, or it is closed
            os.write(self._wake, b"\0")

    def keys(self, seconds: float) -> list[str]:
        """Return the keys that were pressed: characters, or names as `up`. Wait for one, a wake, or this long."""
        ready, _, _ = select.select([self._in, self._wakes], [], [], seconds)
        if self._wakes in ready:
            os.read(self._wakes, 4096)
        if self._in not in ready:
            return []
        text = self._read()
        while _UNFINISHED.search(text) and select.select([self._in], [], [], _REST_SECONDS)[0]:
            text += self._read()
        found, at = [], 0
        while at < len(text):
            if (match := _SEQUENCE.match(text, at)) is not None:
                at = match.end()
                if (key := _KEYS.get(match[0][1:])) is not None:
                    found.append(key)
                continue
            key = _PLAIN_KEYS.get(text[at], text[at])
            at += 1
            if key.isprintable():
                found.append(key)
        return found

    def draw(self, lines: Sequence[Line]) -> None:
        """Show these lines; only those that changed are written."""
        columns, rows = self.size
        texts = [self._rendered(line, columns) for line in lines[:rows]]
        texts += [""] * (rows - len(texts))
        clear = ""
        if (columns, rows) != self._size or len(self._drawn) != rows:
            clear, self._drawn, self._size = "\x1b[2J", [""] * rows, (columns, rows)
        changed = [
            f"\x1b[{row};1H\x1b[2K{text}"
            for row, (text, before) in enumerate(zip(texts, self._drawn, strict=True), 1)
            if text != before
        ]
        if clear or changed:
            self._write(clear + "".join(changed))
            self._drawn = texts

    def _rendered(self, line: Line, columns: int) -> str:
        parts, room = [], columns
        for text, style in line:
            shown = text.encode(self._encoding, "backslashreplace").decode(self._encoding)
            shown = clip(shown, room) if room > 0 else ""
            room -= width(shown)
            code = self._styles.get(style)
            parts.append(f"\x1b[{code}m{shown}\x1b[0m" if code and shown else shown)
        return "".join(parts)

    def _take(self) -> None:
        """Take the terminal: another screen, and keys as they are pressed."""
        found: list[Any] = termios.tcgetattr(self._in)
        found[3] &= ~(termios.ICANON | termios.ECHO)
        found[6][termios.VMIN], found[6][termios.VTIME] = 1, 0
        termios.tcsetattr(self._in, termios.TCSADRAIN, found)
        self._write(_ENTER)
        self._drawn = []

    def _leave(self) -> None:
        with suppress(OSError, termios.error, Ended):
            self._write(_LEAVE)
        with suppress(OSError, termios.error):
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._saved)

    def _end(self, number: int, frame: FrameType | None) -> None:
        raise Ended(number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Give the terminal back to the shell, and stop, as Ctrl-Z means it."""
        self._leave()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTSTP, self._stop)
        self._take()
        self.wake()

    def _read(self) -> str:
        try:
            data = os.read(self._in, 4096)
        except OSError as exc:
            if exc.errno != errno.EIO:
                raise
            data = b""
        if not data:  # nobody is there any more
            raise Ended(0)
        return self._decoder.decode(data)

    def _write(self, text: str) -> None:
        data = text.encode(self._encoding, "backslashreplace")
        try:
            while data:
                data = data[os.write(self._out, data) :]
        except OSError as exc:
            if exc.errno not in (errno.EIO, errno.EPIPE):
                raise
            raise Ended(0) from exc
