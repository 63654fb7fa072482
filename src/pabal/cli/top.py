"""`pabal top`: the overview of a store in the terminal, and a look into its queues.

One thread talks to the store; the main thread draws, and never waits for it. So keys work while the store hangs, and
a call that hangs costs one thread and one connection.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol

import click

from pabal.cli.queues import entry_cells
from pabal.cli.session import command, current_url, opened
from pabal.cli.terminal import Ended, Line, Span, Style, Terminal
from pabal.cli.text import clean, clip, json_lines, json_text, span, width
from pabal.cli.verbs import paused_line
from pabal.clock import SystemClock
from pabal.connect import Connection, connect, parse_url
from pabal.errors import PabalError, StoreError
from pabal.names import shown_url
from pabal.queues.documents import entry_document, instant
from pabal.queues.overview import LOOK_SECONDS, PATIENCE, Overview, OverviewReader, QueueRow, severity, silence_fault
from pabal.store import Entry, State

_LONGEST_REST = 10.0  # seconds between two looks
_JOIN = 1.0  # seconds for a call of the store to end when the program does
_REDRAW = 0.5
_STEP, _STEPS = 5.0, 60  # of the line of each queue: five minutes
_PAGE = 100  # messages that are read at a time
_MOST_ROWS = 2000  # of a list of messages
_BODY = 64 << 10  # characters of a body that are shown
_BYTES = 4096  # of a body of bytes
_STATES = (State.READY, State.INFLIGHT, State.DELAYED, State.DEAD, State.CORRUPT, State.DONE)
_STATE_WORDS = {State.INFLIGHT: "in flight"}
_SORTS = ("attention", "queue", "ready", "in flight", "dead", "oldest", "in", "out")
_FIELDS = (
    "type version sender target priority group dedup_key unique thread_id trace_id reply_to attributes headers".split()
)
_BLOCKS, _ASCII_BLOCKS = "▁▂▃▄▅▆▇█", ".:-=+*%#"

KEYS = (
    ("Up, Down, j, k", "move; Page Up, Page Down, Home, End move farther"),
    ("Enter", "look into the queue, or show the message"),
    ("Tab", "in a queue: messages of the next state; Shift-Tab: of the one before"),
    ("Esc", "go back"),
    ("s", "sort by attention, name, ready, in flight, dead, oldest, in, out"),
    ("/", "show only queues whose name has this text; Enter keeps it, Esc removes it"),
    ("p", "pause the queue, or let it run again; asks before"),
    ("r", "in a queue: read its messages again"),
    ("?", "show these keys"),
    ("q", "quit; Ctrl-C too"),
)


Apply = Callable[[], None]
Job = Callable[[Connection], Apply]


class StoreThread(threading.Thread):
    """Reads the overview once a second, and does jobs. What it finds is applied by the main thread."""

    def __init__(self, mq: Connection, url: str) -> None:
        super().__init__(name="pabal-top", daemon=True)  # it may hang in a call of the store when the program ends
        self._mq: Connection | None = mq
        self._url = url
        self._files = _identity(url)
        self._jobs: deque[Job] = deque()
        self._wanted = threading.Event()
        self._ending = False
        self.reader = OverviewReader(SystemClock(), step=_STEP, steps=_STEPS)
        self.found: deque[Apply] = deque()
        self.woken: Callable[[], None] = lambda: None  # called when something was found
        self.shown: Callable[[Overview], None] = lambda overview: None
        self.failed: Callable[[PabalError], None] = lambda error: None

    def do(self, job: Job) -> None:
        self._jobs.append(job)
        self._wanted.set()

    def end(self) -> None:
        self._ending = True
        self._wanted.set()
        self.join(_JOIN)

    def run(self) -> None:
        while not self._ending:
            self._wanted.clear()
            while self._jobs and not self._ending:
                job = self._jobs.popleft()
                self._try(lambda mq, job=job: self.reader.ask(lambda: job(mq)))  # type: ignore[misc]  # binds the job
            answered = self._try(self._overview)
            self._wanted.wait(min(self.reader.rest, _LONGEST_REST) if answered else LOOK_SECONDS)
        self._close()

    def _close(self) -> None:
        mq, self._mq = self._mq, None
        if mq is not None:
            with suppress(PabalError):
                mq.close()

    def _overview(self, mq: Connection) -> Apply:
        found = self.reader.read(mq)
        return lambda: self.shown(found)

    def _try(self, job: Job) -> bool:
        """Do a job, and pass on what it found, or its error. A store that failed, or was replaced, is opened anew."""
        if self._mq is not None and _identity(self._url) != self._files:
            self._close()
        try:
            if self._mq is None:
                self._mq = self.reader.ask(lambda: connect(self._url, create=False))
                self._files = _identity(self._url)
            found, answered = job(self._mq), True
        except PabalError as exc:
            error = exc
            found, answered = lambda: self.failed(error), False
            if isinstance(exc, StoreError):
                self._close()
        self.found.append(found)
        self.woken()
        return answered


def _identity(url: str) -> tuple[int, int] | None:
    """Return the device and inode of a store, which differ if it was replaced; None on a server."""
    try:
        found = os.stat(parse_url(url)[1])
    except (OSError, PabalError):
        return None
    return found.st_dev, found.st_ino


class View(Protocol):
    """What is shown between the title and the hint."""

    @property
    def hint(self) -> str: ...
    def key(self, key: str) -> None: ...
    def lines(self, columns: int, rows: int) -> list[Line]: ...
    def figures_changed(self) -> None: ...


class Chosen:
    """Which row of a list is chosen, and which rows are on the screen."""

    def __init__(self) -> None:
        self.at = 0
        self._top = 0

    def move(self, key: str, rows: int, page: int) -> bool:
        """Follow a key; return whether it was one that moves."""
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -page, "page down": page, "home": -rows, "end": rows}
        if key not in steps:
            return False
        self.at = max(0, min(rows - 1, self.at + steps[key]))
        return True

    def window(self, rows: int, room: int) -> range:
        """Return the rows that are shown, with the chosen one among them."""
        self.at = max(0, min(rows - 1, self.at))
        self._top = max(min(self._top, self.at, max(0, rows - room)), self.at - room + 1)
        return range(self._top, min(rows, self._top + room))


class App:
    """The program: its views, the last figures, and what it says at the bottom."""

    def __init__(self, store: StoreThread, place: str, *, blocks: bool) -> None:
        self.store = store
        self.place = place
        self.blocks = _BLOCKS if blocks else _ASCII_BLOCKS
        self.overview = Overview(at="", queues=[], consumers=0, fault=None, manager=None)
        self.views: list[View] = [QueuesView(self)]
        self.ended = False
        self._note = Span("")
        self._fault = ""
        self._question: Callable[[], None] | None = None
        store.shown, store.failed = self._show, self._fail

    def key(self, key: str) -> None:
        if self._question is not None:
            question, self._question = self._question, None
            self.say("", "plain")
            if key in ("y", "Y"):
                question()
            return
        view = self.views[-1]
        if isinstance(view, QueuesView) and view.typing:
            view.key(key)
        elif key == "q":
            self.ended = True
        elif key in ("escape", "left", "backspace") and len(self.views) > 1 and not isinstance(view, MessagesView):
            self.views.pop()
        elif key == "?":
            self.views.append(HelpView())
        else:
            self.say("", "plain")
            view.key(key)

    def say(self, words: str, style: Style = "good") -> None:
        self._note = Span(clean(words), style)

    def ask(self, words: str, act: Callable[[], None]) -> None:
        """Ask before something is changed."""
        self.say(f"{words} y/n", "warn")
        self._question = act

    def ask_pause(self, name: str) -> None:
        row = self.row(name)
        if row is None or row["paused"] is None:
            self.say(f"{name}: its policy cannot be read", "bad")
            return
        pauses = not row["paused"]
        words = f"Pause {name}? Consumers get no messages until it runs again." if pauses else f"Let {name} run again?"

        def change(mq: Connection) -> Apply:
            queue = mq.queue(name)
            queue.pause() if pauses else queue.resume()
            return lambda: self.say(paused_line(name, pauses))

        self.ask(words, lambda: self.store.do(change))

    def row(self, name: str) -> QueueRow | None:
        return next((row for row in self.overview["queues"] if row["queue"] == name), None)

    def lines(self, columns: int, rows: int) -> list[Line]:
        """Return the screen."""
        view = self.views[-1]
        fault = self._fault
        if (silent := self.store.reader.silent()) >= PATIENCE:
            fault = silence_fault(silent)
        clock = f"{self.overview['at'][11:19]} UTC" if self.overview["at"] else "reading …"
        room = columns - width(clock) - 1
        title = clip(f"pabal top  {self.place}", room) if room > 8 else ""
        head: list[Line] = [[Span(title + " " * (room - width(title)), "bold"), Span(" " + clock, "soft")]]
        if fault:
            head.append([Span(f"! {clean(fault)}", "bad")])
        note = self._note if self._note.text else Span(view.hint, "soft")
        body = view.lines(columns, max(1, rows - len(head) - 1))
        return [*head, *body, *[[]] * (rows - len(head) - len(body) - 1), [note]]

    def apply_found(self) -> None:
        while self.store.found:
            self.store.found.popleft()()

    def _show(self, found: Overview) -> None:
        self.overview, self._fault = found, ""
        for view in self.views:
            view.figures_changed()

    def _fail(self, error: PabalError) -> None:
        if isinstance(error, StoreError):
            self._fault = f"{error.code}: {error}"
        else:
            self.say(f"{error.code}: {error}", "bad")


class Column(NamedTuple):
    """A column of the overview. Those with the highest `rank` are left out first if the screen is narrow."""

    head: str
    rank: int
    cell: Callable[[QueueRow], str]


def _count(name: str) -> Callable[[QueueRow], str]:
    return lambda row: str(row[name] or "·")  # type: ignore[literal-required]  # a name of a figure


_COLUMNS = (
    Column("READY", 0, _count("ready")),
    Column("IN FLIGHT", 2, _count("inflight")),
    Column("DELAYED", 5, _count("delayed")),
    Column("DEAD", 0, _count("dead")),
    Column("OLDEST", 1, lambda row: "·" if (age := row["oldest_ready_seconds"]) is None else span(age)),
    Column("IN/S", 3, lambda row: rate_text(row["in_rate"])),
    Column("OUT/S", 4, lambda row: rate_text(row["out_rate"])),
    Column("HELD BY", 6, _count("consumers")),
)


def rate_text(rate: float) -> str:
    return "·" if not rate else f"{rate:.1f}" if rate < 10 else f"{rate:.0f}"


def sparkline(values: Sequence[int], blocks: str) -> str:
    """Draw values as blocks of eight heights; only 0 is the lowest."""
    most = max(values, default=0)
    return "".join(blocks[0 if not value else max(1, round(value / most * 7))] for value in values)


class QueuesView:
    """All queues; what needs attention comes first."""

    _NAME = 12  # columns that the name has at least

    def __init__(self, app: App) -> None:
        self._app = app
        self._chosen = Chosen()
        self._name = ""  # of the chosen queue, which stays chosen when rows move
        self._sort = 0
        self._filter = ""
        self.typing = False
        self._page = 10

    @property
    def hint(self) -> str:
        if self.typing:
            return f"/{clean(self._filter)}_   Enter keeps it, Esc removes it"
        shown = f"/{clean(self._filter)}  " if self._filter else ""
        return f"{shown}? keys  q quit  Enter look  / find  p pause  s sort: {_SORTS[self._sort]}"

    def figures_changed(self) -> None: ...

    def key(self, key: str) -> None:
        if self.typing:
            self._type(key)
            return
        rows = self._rows()
        if self._chosen.move(key, len(rows), self._page):
            self._name = rows[self._chosen.at]["queue"] if rows else ""
        elif key == "s":
            self._sort = (self._sort + 1) % len(_SORTS)
        elif key == "/":
            self.typing = True
        elif key == "escape":
            self._filter = ""
        elif rows and key in ("enter", "right"):
            self._app.views.append(MessagesView(self._app, rows[self._chosen.at]["queue"]))
        elif rows and key == "p":
            self._app.ask_pause(rows[self._chosen.at]["queue"])

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self.typing = False
            self._filter = self._filter if key == "enter" else ""
        elif key == "backspace":
            self._filter = self._filter[:-1]
        elif len(key) == 1:
            self._filter += key

    def _rows(self) -> list[QueueRow]:
        """Return the queues that are shown, in their order, and find the chosen one among them."""
        wanted = self._filter.casefold()
        rows = [row for row in self._app.overview["queues"] if wanted in row["queue"].casefold()]
        rows.sort(key=lambda row: (-self._weight(row), row["queue"]))
        names = [row["queue"] for row in rows]
        if self._name in names:
            self._chosen.at = names.index(self._name)
        return rows

    def _weight(self, row: QueueRow) -> float:
        return {
            "attention": severity(row),
            "queue": 0,
            "ready": row["ready"],
            "in flight": row["inflight"],
            "dead": row["dead"],
            "oldest": -1.0 if row["oldest_ready_seconds"] is None else row["oldest_ready_seconds"],
            "in": row["in_rate"],
            "out": row["out_rate"],
        }[_SORTS[self._sort]]

    def lines(self, columns: int, rows: int) -> list[Line]:
        shown = self._rows()
        if not shown:
            if not self._app.overview["at"]:
                return []
            words = (
                "no queue has this text in its name" if self._filter else "no queues yet; the first message makes one"
            )
            return [[], [Span(f"  {words}", "soft")]]
        totals = self._totals()
        details = rows >= 10
        self._page = max(1, rows - 2 - 3 * details)
        window = self._chosen.window(len(shown), self._page)
        self._name = shown[self._chosen.at]["queue"]
        found = [[Span(clip(totals, columns), "soft")], *self._table(shown, window, columns)]
        if details:
            found += [[]] * (rows - 3 - len(found))
            found += [[], *self._details(shown[self._chosen.at], columns)]
        return found

    def _totals(self) -> str:
        overview = self._app.overview
        queues = overview["queues"]
        needing = sum(1 for row in queues if row["attention"])
        rates = [rate_text(sum(row[name] for row in queues)) for name in ("in_rate", "out_rate")]
        words = [_many(len(queues), "queue"), f"{needing} need{'s' * (needing == 1)} attention"]
        consumers = _many(overview["consumers"], "consumer")
        return "  ".join([*words, f"in {rates[0]}/s", f"out {rates[1]}/s", consumers])

    def _table(self, shown: Sequence[QueueRow], window: range, columns: int) -> Iterator[Line]:
        names = max(self._NAME, *(width(clean(row["queue"])) for row in shown))
        cells = {column: [column.cell(row) for row in shown] for column in _COLUMNS}
        widths = {column: max(len(column.head), *map(len, found)) for column, found in cells.items()}
        kept = list(_COLUMNS)

        def room() -> int:
            return columns - 2 - sum(widths[column] + 2 for column in kept)

        while kept and room() < min(names, self._NAME + 8):
            worst = max(kept, key=lambda column: column.rank)
            if worst.rank == 0 and room() >= self._NAME:
                break
            kept.remove(worst)
        names = max(1, min(names, room()))
        rest = room() - names - 2
        line = _STEPS if rest >= _STEPS + 26 else rest if rest < 24 else rest // 2  # the line, and what is wrong
        line = line if line >= 10 else 0
        heads = "".join(f"  {column.head:>{widths[column]}}" for column in kept)
        yield [Span(f"  {_padded('QUEUE', names)}{heads}{'  LAST 5 MIN' if line else ''}", "soft")]
        for at in window:
            row = shown[at]
            chosen = at == self._chosen.at
            style: Style = "chosen" if chosen else "plain"
            name = clip(clean(row["queue"]), names)
            marks = f"{'>' if chosen else ' '}{'!' if row['attention'] else ' '}"
            kind = row["attention"][0]["kind"] if row["attention"] and not chosen else style
            spans = [Span(marks, kind), Span(_padded(name, names), style)]
            for column in kept:
                cell = f"  {cells[column][at]:>{widths[column]}}"
                bad = column.head == "DEAD" and row["dead"] and not chosen
                spans.append(Span(cell, "bad" if bad else style))
            left = rest
            if line:
                drawn = sparkline([came for came, _ in row["line"]][-line:], self._app.blocks)
                spans.append(Span("  " + _padded(drawn, line), style if chosen else "good"))
                left -= line + 2
            if left > 8:
                spans += _troubles(row, left, style if chosen else None)
            yield spans

    def _details(self, row: QueueRow, columns: int) -> Iterator[Line]:
        """Say of the chosen queue what is wrong with it, and draw what came and went."""
        yield [Span(clean(row["queue"]), "bold"), *(_troubles(row, columns) or [Span("  nothing is wrong", "soft")])]
        came, went = ([step[which] for step in row["line"]] for which in (0, 1))
        long = max(5, (columns - 30) // 2)
        parts = []
        for word, values, rate in (("in", came, row["in_rate"]), ("out", went, row["out_rate"])):
            drawn = sparkline(values[-long:], self._app.blocks)
            parts += [
                Span(f"{word} "),
                Span(drawn, "good" if word == "in" else "warn"),
                Span(f" {rate_text(rate)}/s  "),
            ]
        yield [*parts, Span(f"held by {row['consumers']}", "soft")]


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def _padded(text: str, room: int) -> str:
    return text + " " * (room - width(text))


def _troubles(row: QueueRow, room: int, style: Style | None = None) -> list[Span]:
    words = [(each["words"], each["kind"]) for each in row["attention"]]
    spans = [Span(("  " if not at else ", ") + text, style or kind) for at, (text, kind) in enumerate(words)]
    return spans if sum(width(each.text) for each in spans) <= room else spans[:1]


class MessageCells(NamedTuple):
    """A message in a list: only what is shown is kept, and not its body."""

    id: str
    cells: list[str]


class MessagesView:
    """The messages of a queue, by state. Nothing is taken."""

    hint = "Esc back  Enter show  Tab next state  p pause  r read again  ? keys  q quit"

    def __init__(self, app: App, queue: str) -> None:
        self._app = app
        self._queue = queue
        self._state = State.READY
        self._chosen = Chosen()
        self._messages: list[MessageCells] = []
        self._next: str | None = ""
        self._reading = False
        self._seen: QueueRow | None = None  # the figures when the list was read
        self._page = 10
        row = app.row(queue)
        if row is not None and not row["ready"]:
            self._state = next((state for state in _STATES if row[state.value]), State.READY)
        self._read("")

    def key(self, key: str) -> None:
        if self._chosen.move(key, len(self._messages), self._page):
            if self._chosen.at >= len(self._messages) - 1 and self._next and len(self._messages) < _MOST_ROWS:
                self._read(self._next)
        elif key in ("tab", "right", "shift tab", "left"):
            step = 1 if key in ("tab", "right") else -1
            self._state = _STATES[(_STATES.index(self._state) + step) % len(_STATES)]
            self._chosen = Chosen()
            self._messages = []
            self._read("")
        elif key == "r":
            self._read("")
        elif key in ("escape", "backspace"):
            self._app.views.pop()
        elif key == "p":
            self._app.ask_pause(self._queue)
        elif key == "enter" and self._messages:
            self._app.views.append(MessageView(self._app, self._queue, self._messages[self._chosen.at].id))

    def figures_changed(self) -> None:
        """Read the list again if it changed, but not while somebody is in the midst of it."""
        row = self._app.row(self._queue)
        if not self._chosen.at and not self._reading and row is not None and _moved(row) != _moved(self._seen):
            self._read("")

    def _read(self, after: str) -> None:
        queue, state = self._queue, self._state
        self._reading = True
        self._seen = self._app.row(queue)

        def read(mq: Connection) -> Apply:
            page = mq.queue(queue).browse(state, after=after, limit=_PAGE)
            cells = [MessageCells(entry.id, _cells(entry)) for entry in page]
            following = page[-1].cursor if page else None
            return lambda: self._show(state, after, cells, following)

        self._app.store.do(read)

    def _show(self, state: State, after: str, found: list[MessageCells], following: str | None) -> None:
        self._reading = False
        if state is self._state:
            self._messages = found if not after else self._messages + found
            self._next = following

    def lines(self, columns: int, rows: int) -> list[Line]:
        row = self._app.row(self._queue)
        tabs: list[Span] = [Span(clip(clean(self._queue), max(8, columns // 3)), "bold")]
        if row is not None and row["paused"]:
            tabs.append(Span(" paused", "warn"))
        for state in _STATES:
            count = 0 if row is None else row[state.value]
            if state is self._state:
                tabs += [Span("  "), Span(f"[{_STATE_WORDS.get(state, state.value)} {count}]", "chosen")]
            elif columns >= 78:
                tabs.append(
                    Span(
                        f"  {_STATE_WORDS.get(state, state.value)} {count}",
                        "bad" if count and state in (State.DEAD, State.CORRUPT) else "soft",
                    )
                )
        found: list[Line] = [tabs, []]
        if not self._messages:
            words = "reading …" if self._reading else f"no {_STATE_WORDS.get(self._state, self._state.value)} messages"
            return [*found, [Span(f"  {words}", "soft")]]
        self._page = max(1, rows - 3)
        window = self._chosen.window(len(self._messages), self._page)
        heads = (
            "ID",
            "TRIES",
            "WHEN",
            "TYPE",
            "WHY AND BODY" if self._state in (State.DEAD, State.CORRUPT) else "BODY",
        )
        shown = [self._messages[at].cells for at in window]
        widths = [
            max(width(cells[at]) if any(c[at] for c in shown) else 0 for cells in (heads, *shown)) for at in range(4)
        ]
        widths = [min(room, most) for room, most in zip(widths, self._room(columns), strict=True)]
        found.append([Span("  " + _row_text(heads, widths), "soft")])
        for at, cells in zip(window, shown, strict=True):
            chosen = at == self._chosen.at
            found.append(
                [Span(f"{'>' if chosen else ' '} {_row_text(cells, widths)}", "chosen" if chosen else "plain")]
            )
        return found

    def _room(self, columns: int) -> tuple[int, int, int, int]:
        """Return how many columns id, attempts, time and type have at most."""
        if columns >= 120:
            return 36, 5, 12, 24
        return (13, 5, 10, 14) if columns >= 60 else (6, 0, 9, 0)


def _moved(row: QueueRow | None) -> object:
    """Return the figures that change when the messages of a queue do."""
    return None if row is None else [row[state.value] for state in _STATES] + [row["published"], row["acked"]]


def _cells(entry: Entry) -> list[str]:
    id, _, tries, when, kind, body = entry_cells(entry)
    return [id, tries, when, kind, body]


def _row_text(cells: Sequence[str], widths: Sequence[int]) -> str:
    """Lay out id, attempts, time and type in columns, and behind them the rest. Of a long id its end tells more."""
    id, *others, rest = cells
    if width(id) > widths[0]:
        id = "…" + id[-(widths[0] - 1) :]
    return "  ".join(
        [*(_padded(clip(cell, room), room) for cell, room in zip((id, *others), widths, strict=True) if room), rest]
    )


class Pager:
    """A view of text that may be longer than the screen."""

    hint = "Esc back  Up, Down move  q quit"

    def __init__(self) -> None:
        self._top = 0
        self._rows = 10
        self._lines: list[Line] = []

    def figures_changed(self) -> None: ...

    def key(self, key: str) -> None:
        last = max(0, len(self._lines) - self._rows)
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "page up": -self._rows, "page down": self._rows}
        self._top = {"home": 0, "end": last}.get(key, max(0, min(last, self._top + steps.get(key, 0))))

    def lines(self, columns: int, rows: int) -> list[Line]:
        self._rows = rows
        self._lines = self._laid_out(columns)
        self._top = max(0, min(self._top, len(self._lines) - rows))
        return self._lines[self._top : self._top + rows]

    def _laid_out(self, columns: int) -> list[Line]:
        """Return all lines, cut to fit."""
        raise NotImplementedError


class MessageView(Pager):
    """One message: its fields, and the beginning of its body."""

    def __init__(self, app: App, queue: str, id: str) -> None:
        super().__init__()
        self._texts = ["reading …"]

        def read(mq: Connection) -> Apply:
            entry = mq.queue(queue).find(id)
            texts = [f"{clean(queue)} has no message {clean(id)} any more"] if entry is None else message_texts(entry)
            return lambda: self._show(texts)

        app.store.do(read)

    def _show(self, texts: list[str]) -> None:
        self._texts = texts

    def _laid_out(self, columns: int) -> list[Line]:
        return [[Span(part)] for text in self._texts for part in _wrapped(text, columns)]


def _wrapped(text: str, columns: int) -> Iterator[str]:
    """Cut a text into lines that fit."""
    line: list[str] = []
    used = 0
    for char in text:
        room = width(char)
        if used + room > columns and line:
            yield "".join(line)
            line, used = [], 0
        line.append(char)
        used += room
    yield "".join(line)


def message_texts(entry: Entry) -> list[str]:
    """Return a message for the screen: its fields, and its body or the beginning of it."""
    document = entry_document(entry._replace(message=None, data=b""))
    if entry.message is not None:
        message = entry.message
        document |= {name: getattr(message, name) for name in _FIELDS}
    if (failure := entry.failure) is not None:
        document["failure"] = f"{failure.code}: {failure.reason}"
        document["failed"] = f"{instant(failure.at)}, attempt {failure.attempt}, by {failure.consumer}"
        for each in reversed(failure.before):
            document[f"attempt {each.attempt}"] = f"{each.code}: {each.reason}"
    texts = []
    for name, value in document.items():
        if value not in (None, "", {}):
            texts.append(f"{name:<11}{clean(value if isinstance(value, str) else json_text(value))}"[:_BODY])
    if entry.message is None:
        return [*texts, "", *_bytes_texts(entry.data)] if entry.data else texts
    return [*texts, "", *_body_texts(entry.message.body)]


def _body_texts(body: object) -> list[str]:
    if isinstance(body, bytes):
        return _bytes_texts(body)
    text = json_text(body)
    if len(text) <= _BODY:
        return json_lines(body).split("\n")
    return [text[:_BODY], "", f"… the body has {len(text):,} characters; `pabal show ID` prints all of it"]


def _bytes_texts(data: bytes) -> list[str]:
    texts = []
    for at in range(0, min(len(data), _BYTES), 16):
        part = data[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        texts.append(f"{at:06x}  {part.hex(' '):<47}  {plain}")
    return texts if len(data) <= _BYTES else [*texts, "", f"… {len(data):,} bytes; the first {_BYTES:,} are shown"]


class HelpView(Pager):
    """The keys."""

    def _laid_out(self, columns: int) -> list[Line]:
        room = max(len(keys) for keys, _ in KEYS) + 2
        found: list[Line] = [[]]
        for keys, words in KEYS:
            first, *more = textwrap.wrap(words, max(10, columns - room - 2))
            found.append([Span(f"  {keys:<{room}}", "bold"), Span(first)])
            found += [[Span(" " * (room + 2) + text)] for text in more]
        return found


@command("top")
def top() -> None:
    """Watch the queues in the terminal, and look into them.

    Shows what the dashboard shows: every queue with its figures, what needs attention first. The figures are those of
    `pabal status`; rates are of the last 5 seconds, lines of the time since it was started. The key ? lists all keys.

    \b
    Examples:
      pabal top
      pabal top --url sqlite:jobs.db
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError(
            "pabal top needs a terminal: `pabal status` prints the figures once, --watch again and again"
        )
    with opened() as mq:
        mq.queues()
    number = _run(connect(current_url(), create=False), current_url())
    if number:  # as if it had not been caught, but with the terminal as it was
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _run(mq: Connection, url: str) -> int:
    """Run until a key or a signal ends it; return the number of the signal."""
    store = StoreThread(mq, url)
    try:
        with Terminal(os.environ) as terminal:
            app = App(store, shown_url(url).strip("'"), blocks=terminal.draws_blocks)
            store.woken = terminal.wake
            store.start()
            while not app.ended:
                app.apply_found()
                terminal.draw(app.lines(*terminal.size))
                for key in terminal.keys(_REDRAW):
                    app.key(key)
    except Ended as ended:
        return ended.number
    except KeyboardInterrupt:
        return 0
    finally:
        store.end()
    return 0
