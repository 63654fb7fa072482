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

import msgspec

from pabal.clock import Clock
from pabal.errors import PabalError, Refused, StoreFailed, Uncertain
from pabal.mailbox.bells import Bells
from pabal.mailbox.cleaning import Cleaner
from pabal.mailbox.commands import COMMANDS, LIBRARY_COMMANDS
from pabal.mailbox.commands.command import NO_MESSAGE, Command, Later
from pabal.mailbox.commands.context import Connection, Context, Extras, secret_at
from pabal.mailbox.commands.running import Job, run
from pabal.mailbox.folders import Folders
from pabal.mailbox.letters import Letter
from pabal.mailbox.parking import Parking
from pabal.mailbox.post import PostRoom
from pabal.mailbox.protocol import Code, Problem, Request, answer_of, code_of, refusal_of
from pabal.mailbox.settings import Answered, MailboxSettings, Observe
from pabal.mailbox.tally import Tally
from pabal.mailbox.watches import Watches
from pabal.names import check_name

_COMMANDS: dict[str, Command] = {**COMMANDS, **LIBRARY_COMMANDS}


class _Task(Job):
    """A job of a letter."""

    __slots__ = ("index", "letter", "queue", "started", "until")

    def __init__(self, request: Request, command: Command, letter: Letter, index: int) -> None:
        super().__init__(request, command)
        self.letter = letter
        self.index = index
        self.started = time.monotonic()
        self.queue = ""  # of a parked one: what it waits for
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
        observe: Observe = lambda answered: None,
        extras: Extras | None = None,
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
        self._context = Context(
            connection,
            clock=clock,
            settings=settings,
            secret=secret_at(root / ".secret"),
            hang_bell=self.hang_bell,
            tally=self.tally,
            archive=self._folders.archive,
            extras=extras,
        )
        self._cleaner = Cleaner(self._folders, clock)
        self._parked = Parking[_Task](self._context.store, self.watch, clock)
        self.broken: PabalError | None = None  # set once the store promises nothing more: reopen it
        for queue in self._bells.hung():
            with suppress(PabalError):
                self.hang_bell(check_name(queue))

    def step(self) -> int:
        """Do what there is to do; return how many requests were answered."""
        before = self.tally.answered
        rung = self.watch.rung()
        self._post.send_again()
        tasks = self._parked.take(rung)
        for letter in self._post.collect():
            tasks.extend(self._open(letter))
        run(self._context, tasks)
        for task in tasks:
            self._conclude(task)
        for queue in rung:
            self._bells.ring(queue)
        if self._cleaner.clean():
            self._post.look()
        return self.tally.answered - before

    def next_due(self) -> float | None:
        """Return the seconds until something is to be done though nothing rings."""
        if self._post.waiting:
            return 0.0
        found = [self._cleaner.next_due(), self._post.next_due(), self._parked.next_due()]
        if self._post.intake.inotify is None:
            found.append(self._folders.settings.poll_seconds)
        return min((max(0.0, due) for due in found if due is not None), default=None)

    def close(self) -> None:
        """Answer what was taken, then let go of everything but the store."""
        for task in self._parked.take_all():
            task.result = NO_MESSAGE
            self._conclude(task)
        self._post.send_again()
        self._post.close()
        self.watch.close()

    def allow(self, queues: frozenset[str] | None) -> None:
        """Let the commands that name a queue name these only, from now on; None lets them name any."""
        self._context.settings = msgspec.structs.replace(self._context.settings, queues=queues)

    def hang_bell(self, queue: str) -> str:
        """Ring for this queue from now on; return the name of its bell."""
        self._bells.hang(queue)
        self.watch.add(self._context.store, queue)
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
            task.queue = later.queue
            deadline = task.request.deadline
            task.until = min(later.until, now + deadline - self._clock.now()) if deadline else later.until
            if self.watch.add(self._context.store, later.queue):
                # Heard from now on: look once more for what came before.
                run(self._context, [task])
                if not isinstance(task.result, Later):
                    return False
        if task.until <= now:
            task.result = NO_MESSAGE
            return False
        self._parked.add(task)
        return True

    def _tell(self, command: str, error: PabalError | None, seconds: float) -> None:
        code = "" if error is None else str(error.code if isinstance(error, Refused) else code_of(error))
        known = command if command in _COMMANDS else "unknown"
        answered = Answered(known, code, seconds)
        self.tally.add(answered)
        self._observe(answered)
