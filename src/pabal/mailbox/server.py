"""The manager's side of a mailbox: takes the requests that arrived, runs them, answers them.

Exactly once without stored answers: every effect is named by its request, so running a request again changes nothing.
A request file is in `processing/` from before it is read until after its answer is written. What a crash left there is
run again at the next start.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from pabal.clock import Clock
from pabal.errors import PabalError, Refused, SenderMismatch, StoreFailed, Uncertain
from pabal.mailbox.commands import COMMANDS, STORE_COMMANDS
from pabal.mailbox.commands.batch import Job, run
from pabal.mailbox.commands.context import NO_MESSAGE, Command, Connection, Context, Extras, Later, secret_at
from pabal.mailbox.folders import Cleaner, Folders
from pabal.mailbox.inbox import ClaimedFile, Inbox
from pabal.mailbox.protocol import Code, Problem, Request, answer_of, code_of, refusal_of
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.stats import Answered, Observe, RequestStats
from pabal.mailbox.wakeups import LongPolls, WakeupFiles, Watches
from pabal.names import check_name
from pabal.policy.policy import Policy

DEFAULT_POLICY = Policy()
log = logging.getLogger("pabal")

_COMMANDS: dict[str, Command] = {**COMMANDS, **STORE_COMMANDS}


class _Task(Job):
    """A job with the file that its answer belongs to."""

    __slots__ = ("file", "index", "queue", "started", "until")

    def __init__(self, request: Request, command: Command, file: ClaimedFile, index: int) -> None:
        super().__init__(request, command)
        self.file = file
        self.index = index
        self.started = time.monotonic()
        self.queue = ""  # of a long poll: the queue it waits for
        self.until = float("inf")  # of a long poll: when it is answered with no message, on the boot clock


class MailboxServer:
    """One mailbox over one store. One thread calls `step` for all work; `watch` wakes it when there is some."""

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
        self.stats = RequestStats(clock)
        self._wakeup_files = WakeupFiles(self._folders.wakeups, shared=settings.clients is not None)
        self._inbox = Inbox(self._folders, clock)
        self.watch = Watches(self._inbox.arrivals.inotify)
        self._context = Context(
            connection,
            clock=clock,
            settings=settings,
            secret=secret_at(root / ".secret"),
            register_wakeup=self.register_wakeup,
            stats=self.stats,
            archive=self._folders.archive,
            extras=extras,
        )
        self._cleaner = Cleaner(self._folders, clock)
        self._long_polls = LongPolls[_Task](self._context.store, self.watch, clock)
        self.broken: PabalError | None = None  # set once the store handle failed and must be opened again
        for queue in self._wakeup_files.left_over():
            with suppress(PabalError):
                self.register_wakeup(check_name(queue))

    def step(self) -> int:
        """Do all work that is due; return how many requests were answered."""
        before = self.stats.answered
        changed = self.watch.changed()
        self._inbox.send_again()
        tasks = self._long_polls.take(changed)
        for task in tasks:
            task.started = time.monotonic()  # a long poll that waits costs nothing
        for file in self._inbox.collect():
            tasks.extend(self._tasks_of(file))
        run(self._context, tasks)
        for task in tasks:
            self._conclude(task)
        for queue in changed:
            self._wakeup_files.wake(queue)
        if self._cleaner.clean():
            self._inbox.rescan()
        return self.stats.answered - before

    def next_due(self) -> float | None:
        """Return the seconds until `step` has something to do although `watch` reports nothing."""
        if self._inbox.waiting:
            return 0.0
        found = [self._cleaner.next_due(), self._inbox.next_due(), self._long_polls.next_due()]
        if self._inbox.arrivals.inotify is None:
            found.append(self._folders.settings.poll_seconds)
        return min((max(0.0, due) for due in found if due is not None), default=None)

    def close(self) -> None:
        """Answer the requests that were taken, then close everything but the store."""
        for task in self._long_polls.take_all():
            task.result = NO_MESSAGE
            self._conclude(task)
        self._inbox.send_again()
        self._inbox.close()
        self.watch.close()

    def allow(self, queues: frozenset[str] | None, new_queue: Policy = DEFAULT_POLICY) -> None:
        """Let commands name only these queues from now on; None allows any queue, and `new_queue` is their policy."""
        self._context.settings = msgspec.structs.replace(self._context.settings, queues=queues, new_queue=new_queue)

    def register_wakeup(self, queue: str) -> str:
        """Wake the clients that watch this queue from now on; return the name of its wake-up file."""
        self._wakeup_files.register(queue)
        self.watch.add(self._context.store, queue)
        return queue

    def _tasks_of(self, file: ClaimedFile) -> Iterable[_Task]:
        for index, found in enumerate(file.requests):
            if isinstance(found, Problem):
                self._count(found.command, found.error, 0.0)
                file.answer(index, refusal_of(found.id, found.error))
                continue
            command = _COMMANDS.get(found.command)
            if command is not None:
                yield _Task(found, command, file, index)
            else:
                unknown = Refused(Code.UNKNOWN_COMMAND, f"no command {found.command!r:.80}", kind="InvalidRequest")
                self._count("", unknown, 0.0)
                file.answer(index, refusal_of(found.id, unknown))
        if file.open == 0:
            self._inbox.send(file)

    def _conclude(self, task: _Task) -> None:
        if isinstance(task.result, Later) and self._keep_waiting(task, task.result):
            return
        file, result = task.file, task.result
        error = result if isinstance(result, PabalError) else None
        if error is None:
            file.answer(task.index, answer_of(task.request.id, result))
        else:
            file.answer(task.index, refusal_of(task.request.id, error))
        if isinstance(error, StoreFailed | Uncertain):
            self.broken = error
        self._count(task.request.command, error, time.monotonic() - task.started)
        if file.open == 0:
            self._inbox.send(file)

    def _keep_waiting(self, task: _Task, later: Later) -> bool:
        """Keep a long poll; return False if its time is over or a message came, and then its result is set."""
        now = self._clock.boot()
        if task.until == float("inf"):
            task.queue = later.queue
            deadline = task.request.deadline
            task.until = min(later.until, now + deadline - self._clock.now()) if deadline else later.until
            if self.watch.add(self._context.store, later.queue):
                # The queue is watched from now on: check once more for a message that came before.
                run(self._context, [task])
                if not isinstance(task.result, Later):
                    return False
        if task.until <= now:
            task.result = later.empty
            return False
        self._long_polls.add(task)
        return True

    def _count(self, command: str, error: PabalError | None, seconds: float) -> None:
        code = "" if error is None else str(error.code if isinstance(error, Refused) else code_of(error))
        known = command if command in _COMMANDS else "unknown"
        if isinstance(error, SenderMismatch):
            log.warning("sender refused: %(command)s: %(reason)s", {"command": known, "reason": str(error)})
        answered = Answered(known, code, seconds)
        self.stats.add(answered)
        self._observe(answered)
