"""The person: what waits for the person, and the notices about it.

A notice is a line in every tmux client, a message of the desktop, or a bell. It is a hint only: what waits is in the
records, and `pabal needs-you` lists it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from html import escape
from itertools import islice
from pathlib import Path
from typing import Any

from pabal.apps.ignite import mail
from pabal.apps.ignite.archive import item_of, text_of
from pabal.apps.ignite.conversation import reply
from pabal.apps.ignite.health import report_of
from pabal.apps.ignite.inbox import inbox
from pabal.apps.ignite.questions import FOLDER, Questions
from pabal.apps.ignite.team import USER
from pabal.apps.ignite.workspace import Workspace
from pabal.apps.needs import Need, in_order
from pabal.durable import make_dirs
from pabal.errors import PabalError, StoreError
from pabal.message import PRIORITIES, Message
from pabal.names import shown_name
from pabal.policy.retention import RetentionClock
from pabal.runtime.wake import FdWatch, PollableWatch
from pabal.store import State
from pabal.watch import ARRIVALS, MOVED_TO, Inotify

log = logging.getLogger("pabal.ignite")

_EVERY = 30.0  # seconds between two looks if nothing wakes the monitor
_FORGET_EVERY = 3600.0  # seconds
_REMEMBERED = 30 * 86400.0  # seconds for which the same thing is notified only once
_SHOWN = 10_000  # milliseconds that tmux shows a notice
_LONGEST = 160  # characters of a notice
_LONGEST_BODY = 2000  # characters of mail in the list
_TIMEOUT = 5.0  # seconds
MOST = 1000  # messages that are looked through at once; the first in the order in which mail is given out
_LONGEST_PAUSE = 5.0  # seconds between two looks, however long one takes
_VARIABLES = (
    *("PATH", "HOME", "LANG", "TMUX_TMPDIR", "DISPLAY", "WAYLAND_DISPLAY", "XDG_RUNTIME_DIR"),
    "DBUS_SESSION_BUS_ADDRESS",
)


def needs_of(workspace: Workspace, *, options: str = "") -> list[Need]:
    """Return the questions and the mail that wait for the person. `options` are those of the commands that answer."""
    questions = [
        Need(
            source="ignite",
            kind="question",
            id=question.id,
            sender=question.asker,
            text=question.text,
            at=question.asked_at,
            answer=f"pabal ignite reply{options} {question.id} TEXT",
            options=("yes", "no") if question.kind == "confirm" else question.options,
            urgent=question.urgent,
            expires_at=question.expires_at,
        )
        for question in Questions(workspace).open(USER)
    ]
    messages = [
        Need(
            source="ignite",
            kind="mail",
            id=item.id,
            sender=item.sender,
            text=item.subject,
            at=item.at,
            answer=f"pabal ignite read{options} {item.id}",
            urgent=item.priority >= PRIORITIES["critical"],
            body=text_of(item.body)[:_LONGEST_BODY],
        )
        for item in inbox(workspace, USER, limit=MOST)
    ]
    return in_order([*questions, *messages])


def count_more(workspace: Workspace, needs: Sequence[Need]) -> int:
    """Return how many messages wait for the person beside those in a list."""
    load = workspace.mail.load(USER)
    return max(0, load.ready + load.delayed - sum(need.kind == "mail" for need in needs))


class TeamPlace:
    """A team, as `pabal needs-you` and the dashboard see it. `options` are those of the commands that answer.

    A mistake in the team file is passed to `warn`, and the team is shown as it is served.
    """

    source = "ignite"

    def __init__(self, root: Path, *, options: str = "", warn: Callable[[str], None] = lambda text: None) -> None:
        self.path = str(root)
        self._options = options
        self._warn = warn

    def needs(self) -> tuple[list[Need], int]:
        with self._open() as workspace:
            found = needs_of(workspace, options=self._options)
            return found, count_more(workspace, found)

    def answer(self, id: str, text: str, *, person: str, via: str) -> str:
        """Answer as the person of the team, whose name is the same for everybody."""
        with self._open() as workspace:
            questions = Questions(workspace)
            if questions.has(id):
                return questions.answer(id, text, responder=USER).answer
            reply(workspace, id, text, sender=USER)
            return text

    def report(self) -> dict[str, Any]:
        with self._open() as workspace:
            return report_of(workspace).document()

    def _open(self) -> Workspace:
        return Workspace.open(Path(self.path), warn=self._warn)


class Desk:
    """A task of the service: notifies the person, archives the person's mail, and closes questions that expired."""

    def __init__(
        self,
        workspace: Workspace,
        *,
        watch: FdWatch,
        tell: Callable[[str], None],
        escalate: Callable[[str, str, str, str], None],
    ) -> None:
        self._workspace = workspace
        self._watch = watch
        self._tell = tell
        self._escalate = escalate
        self._clock = workspace.clock
        self._questions = Questions(workspace)
        self._retention = RetentionClock(self._clock)
        self._due = self._forget_at = self._not_before = float("-inf")
        self._changed = False
        self._told: set[str] = set()
        self._inotify: Inotify | None = None
        self._store: PollableWatch | None = workspace.mail.watch([USER])
        if self._store is not None:
            watch.add(self._store.fileno())
        make_dirs(workspace.root / FOLDER)
        with suppress(OSError):  # without inotify it polls
            self._inotify = Inotify()
            watch.add(self._inotify.fd)
            self._inotify.add(workspace.folders.queue(USER), ARRIVALS)
            self._inotify.add(workspace.root / FOLDER, MOVED_TO)

    def step(self) -> None:
        changed = bool(self._inotify is not None and list(self._inotify.events()))
        changed |= self._store is not None and self._store.wait(0.0)
        self._changed |= changed
        began = self._clock.boot()
        if began >= self._due or (self._changed and began >= self._not_before):
            self._changed, self._due = False, began + _EVERY
            self._look()
            # A long list, and agents that write again and again, must not hold up the mail of others.
            ended = self._clock.boot()
            self._not_before = ended + min(_LONGEST_PAUSE, ended - began)

    def next_due(self) -> float | None:
        return max(0.0, (self._not_before if self._changed else self._due) - self._clock.boot())

    def close(self) -> None:
        if self._inotify is not None:
            self._watch.remove(self._inotify.fd)
            self._inotify.close()
        if self._store is not None:
            self._watch.remove(self._store.fileno())
            self._store.close()

    def _look(self) -> None:
        self._questions.sweep()
        self._forget()
        self._distribute()
        found = needs_of(self._workspace)
        new = self._new([need for need in found if need.id not in self._told])
        self._told = {need.id for need in found}
        self._archive(need.id for need in new if need.kind == "mail")
        if new:
            more = f" and {len(new) - 1} more" if len(new) > 1 else ""
            self._tell(f"{shown_name(new[0].sender)}: {new[0].text}{more}; pabal needs-you")

    def _forget(self) -> None:
        """Remove old questions, from time to time."""
        keep, at = self._workspace.team.keep.archive * 86400, self._retention.now()
        if keep and at is not None and self._clock.boot() >= self._forget_at:
            self._forget_at = self._clock.boot() + _FORGET_EVERY
            self._questions.forget(at - keep)

    def _distribute(self) -> None:
        """Replace a message that a program put here, and that names several, by a copy for each.

        The copies have fixed ids: after a crash in between they are published again, and the store keeps one of each.
        """
        for entry in list(islice(self._workspace.queue(USER).entries(State.READY), MOST)):
            message = entry.message
            if message is None:
                continue
            try:
                self._replace(message)
            except StoreError:
                raise
            except PabalError as exc:  # it stays in the inbox, and holds up no other mail
                self._report_undelivered(message, "its other recipients", f"{exc.code}: {exc}")

    def _replace(self, message: Message) -> None:
        drafts, unknown = mail.distribute(self._workspace, USER, message)
        for name in unknown:
            self._report_undelivered(message, name, f"there is no agent {name} in the team; {message.id} names it")
        if drafts:
            self._workspace.store.publish(drafts)
            self._workspace.store.purge(USER, State.READY, ids=[message.id], limit=1)

    def _report_undelivered(self, message: Message, name: str, reason: str) -> None:
        key, title = f"recipient/{USER}/{message.id}/{name}", f"{message.type} for {name} not delivered"
        self._escalate(key, title, name, reason)

    def _new(self, needs: Sequence[Need]) -> list[Need]:
        """Return what the person was not notified of."""
        try:
            keys = [f"notice/{need.id}" for need in needs]
            first = set(self._workspace.memory.new(keys, self._clock.now(), _REMEMBERED))
        except StoreError:
            return list(needs)
        return [need for need in needs if f"notice/{need.id}" in first]

    def _archive(self, ids: Iterable[str]) -> None:
        entries = [self._workspace.store.find(USER, id) for id in ids]
        items = [item_of(USER, entry.message) for entry in entries if entry is not None and entry.message is not None]
        try:
            self._workspace.archive.add(items)
        except StoreError as exc:
            log.warning("mail of the person not archived: %(error)s", {"error": str(exc)})


class Notices:
    """Shows a line to the person, in a thread of its own, in the ways that the team file lists."""

    def __init__(self, workspace: Workspace, variables: Mapping[str, str], *, terminal: bool = False) -> None:
        self._workspace = workspace
        self._variables = {name: variables[name] for name in _VARIABLES if name in variables}
        self._terminal = terminal  # whether the standard output of this process is a terminal

    def tell(self, text: str) -> None:
        threading.Thread(target=self.show, args=(text,), name="ignite-notice", daemon=True).start()

    def show(self, text: str) -> None:
        """Show a line. A way that is not there is skipped."""
        ways = self._workspace.team.notify
        line = "".join(char if char.isprintable() else " " for char in text)[:_LONGEST]
        if "desktop" in ways:
            self._run("notify-send", "--app-name=pabal", "--", "Pabal", escape(line))
        for server in self._servers() if {"tmux", "bell"} & set(ways) else ():
            # tmux replaces #{…} and #(…), which runs a command, and %…: the text is of agents.
            plain = line.replace("#", "＃").replace("%", "％")
            for client in self._run("tmux", "-u", *server, "list-clients", "-F", "#{client_tty}").splitlines():
                if "tmux" in ways:
                    self._run("tmux", "-u", *server, "display-message", "-c", client, "-d", str(_SHOWN), plain)
                if "bell" in ways:
                    _ring(client)
        if "bell" in ways and self._terminal:
            _ring("/dev/stdout")

    def _servers(self) -> list[Sequence[str]]:
        sockets = dict.fromkeys(["", *(agent.socket for agent in self._workspace.team.agents.values())])
        return [["-S" if "/" in socket else "-L", socket] if socket else [] for socket in sockets]

    def _run(self, program: str, *arguments: str) -> str:
        """Run a program and return its output; nothing if it is not installed or fails."""
        found = shutil.which(program, path=self._variables.get("PATH"))
        if found is None:
            return ""
        try:
            done = subprocess.run(
                [found, *arguments],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as exc:
            log.info("no notice by %(program)s: %(error)s", {"program": program, "error": str(exc)})
            return ""
        return done.stdout.decode(errors="replace")


def _ring(terminal: str) -> None:
    with suppress(OSError):
        fd = os.open(terminal, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            os.write(fd, b"\a")
        finally:
            os.close(fd)
