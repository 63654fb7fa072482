"""The manager's end of the mailbox: takes what arrived, runs it, answers it.

Exactly once without stored answers: every effect is named by its request, so running a request again changes nothing.
A request lies in `processing/` from before it is read until after its answer is there; what a crash left there is run
again at the next start.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pabal.clock import Clock
from pabal.errors import PabalError, Refused, StoreFailed, Uncertain
from pabal.mailbox.bells import Bells
from pabal.mailbox.calls import CALLS
from pabal.mailbox.cleaning import Cleaner
from pabal.mailbox.command import Command
from pabal.mailbox.commands import COMMANDS
from pabal.mailbox.desk import Connection, Desk, Later, secret_at
from pabal.mailbox.folders import Folders
from pabal.mailbox.post import Letter, PostRoom
from pabal.mailbox.protocol import Code, Problem, Request, answer_of, code_of, refusal_of
from pabal.mailbox.rounds import Job, run
from pabal.mailbox.settings import MailboxSettings, Observation, Observe
from pabal.mailbox.tally import Tally
from pabal.mailbox.watches import Watches
from pabal.names import check_name

__all__ = ["MailboxServer", "MailboxSettings", "Observation"]

_COMMANDS: dict[str, Command] = {**COMMANDS, **CALLS}


class _Task(Job):
    """A job of a letter."""

    __slots__ = ("index", "letter", "started", "until")

    def __init__(self, request: Request, command: Command, letter: Letter, index: int) -> None:
        super().__init__(request, command)
        self.letter = letter
        self.index = index
        self.started = time.monotonic()
        self.until = float("inf")  # on the boot clock: when a parked one is answered with nothing


class MailboxServer:
    """One mailbox over one store. Everything is done in `step`, by one thread; `watch` says when there is something."""

    def __init__(
        self,
        root: Path,
        connection: Connection,
        *,
        clock: Clock,
        settings: MailboxSettings | None = None,
        observe: Observe = lambda told: None,
    ) -> None:
        settings = settings or MailboxSettings()
        self._folders = Folders(root, settings)
        self._folders.prepare()
        self._clock = clock
        self._observe = observe
        self.tally = Tally(clock)
        self._bells = Bells(self._folders.bells, shared=settings.clients is not None)
        self._post = PostRoom(self._folders, clock)
        self.watch = Watches(self._post.intake.inotify)
        self.desk = Desk(
            connection,
            clock=clock,
            settings=settings,
            observe=observe,
            secret=secret_at(root / ".secret"),
            hang_bell=self.hang_bell,
            tally=self.tally,
            archive=self._folders.archive,
        )
        self._cleaner = Cleaner(self._folders, clock)
        self._parked: list[_Task] = []
        self.broken: PabalError | None = None  # set once the store promises nothing more: reopen it
        for queue in self._bells.hung():
            with suppress(PabalError):
                self.hang_bell(check_name(queue))

    def step(self) -> int:
        """Do what there is to do; return how many requests were answered."""
        before = self.tally.answered
        rung = self.watch.rung()
        self._post.send_again()
        tasks = self._ready(rung)
        for letter in self._post.collect():
            tasks.extend(self._open(letter))
        run(self.desk, tasks)
        for task in tasks:
            self._conclude(task)
        for queue in rung:
            self._bells.ring(queue)
        if self._cleaner.clean():
            self._post.look()
        return self.tally.answered - before

    def next_due(self) -> float | None:
        """Return the seconds until something is to be done though nothing rings."""
        if self._post.intake.waiting:
            return 0.0
        now = self._clock.boot()
        found = [self._cleaner.next_due(), self._post.next_due()]
        found += [max(0.0, task.until - now) for task in self._parked]
        found += [self.desk.store.next_due(queue) for queue in {_queue(task) for task in self._parked}]
        if self._post.intake.inotify is None:
            found.append(self._folders.settings.poll_seconds)
        return min((max(0.0, due) for due in found if due is not None), default=None)

    def close(self) -> None:
        """Answer what was taken, then let go of everything but the store."""
        parked, self._parked = self._parked, []
        for task in parked:
            task.result = {"message": None, "lease": None}
            self._conclude(task)
        self._post.send_again()
        self._post.intake.close()
        self.watch.close()
        self._bells.close()

    def hang_bell(self, queue: str) -> str:
        """Ring for this queue from now on; return the name of its bell."""
        self._bells.hang(queue)
        self.watch.add(self.desk.store, queue)
        return queue

    # Below the surface

    def _open(self, letter: Letter) -> Iterable[_Task]:
        for index, found in enumerate(letter.requests):
            if isinstance(found, Problem):
                self._tell(found.command, found.error, 0.0)
                letter.answer(index, refusal_of(found.id, found.error))
                continue
            command = _COMMANDS.get(found.command)
            if command is not None:
                yield _Task(found, command, letter, index)
            else:
                unknown = Refused(Code.UNKNOWN_COMMAND, f"no command {found.command!r:.80}", kind="InvalidRequest")
                self._tell("", unknown, 0.0)
                letter.answer(index, refusal_of(found.id, unknown))
        if letter.open == 0:
            self._post.send(letter)

    def _ready(self, rung: Iterable[str]) -> list[_Task]:
        """Take out the parked tasks whose queue rang, whose time is over, or whose queue time alone has changed."""
        if not self._parked:
            return []
        now = self._clock.boot()
        due = {queue for queue in {_queue(task) for task in self._parked} if self._is_due(queue)}.union(rung)
        ready = [task for task in self._parked if _queue(task) in due or task.until <= now]
        self._parked = [task for task in self._parked if task not in ready]
        return ready

    def _is_due(self, queue: str) -> bool:
        due = self.desk.store.next_due(queue)
        return due is not None and due <= 0

    def _conclude(self, task: _Task) -> None:
        if isinstance(task.result, Later) and self._park(task, task.result):
            return
        letter, result = task.letter, task.result
        error = result if isinstance(result, PabalError) else None
        if error is None:
            letter.answer(task.index, answer_of(task.request.id, result))
        else:
            letter.answer(task.index, refusal_of(task.request.id, error))
        if isinstance(error, StoreFailed | Uncertain):
            self.broken = error
        self._tell(task.request.command, error, time.monotonic() - task.started)
        if letter.open == 0:
            self._post.send(letter)

    def _park(self, task: _Task, later: Later) -> bool:
        """Keep a task for later; False if its time is over, and then its result is nothing."""
        now = self._clock.boot()
        if task.until == float("inf"):
            deadline = task.request.deadline
            task.until = min(later.until, now + deadline - self._clock.now()) if deadline else later.until
            if self.watch.add(self.desk.store, later.queue):
                # Heard from now on: look once more for what came before.
                run(self.desk, [task])
                if not isinstance(task.result, Later):
                    return False
        if task.until <= now:
            task.result = {"message": None, "lease": None}
            return False
        self._parked.append(task)
        return True

    def _tell(self, command: str, error: PabalError | None, seconds: float) -> None:
        code = "" if error is None else str(error.code if isinstance(error, Refused) else code_of(error))
        known = command if command in _COMMANDS else "unknown"
        self.tally.add(known, code, seconds)
        self._observe(Observation("request", known, ok=error is None, code=code, seconds=seconds))


def _queue(task: _Task) -> str:
    return task.result.queue if isinstance(task.result, Later) else ""
