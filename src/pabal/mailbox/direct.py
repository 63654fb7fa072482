"""The commands of the mailbox without a mailbox: run at once on a store that the caller has opened."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pabal.clock import Clock, SystemClock
from pabal.errors import PabalError, Refused
from pabal.ids import IdMaker
from pabal.mailbox.commands import COMMANDS
from pabal.mailbox.commands.command import NO_MESSAGE, Later
from pabal.mailbox.commands.context import Connection, Context
from pabal.mailbox.commands.running import Job, run
from pabal.mailbox.protocol import ALIASES, Code, Request, code_of
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.tally import Tally
from pabal.names import check_name

_SLOW_POLL = 1.0  # seconds between looks when nothing rings
_LEAST_PAUSE = 0.01  # seconds: what is due for somebody else, or in a paused queue, must not keep us busy


class DirectMailbox:
    """Answers like the manager of a mailbox would, in the caller's own thread."""

    def __init__(self, connection: Connection, client: str, *, archive: Path, clock: Clock | None = None) -> None:
        self.client = check_name(client, "client")
        self._clock = clock or SystemClock()
        self._ids = IdMaker(self._clock)
        self._context = Context(
            connection,
            clock=self._clock,
            settings=MailboxSettings(),
            secret=os.urandom(32),
            archive=str(archive),
            hang_bell=lambda queue: queue,
            tally=Tally(self._clock),
        )

    def ask(self, command: str, payload: Mapping[str, Any] | None = None, *, timeout: float = 30.0) -> Any:
        """Return the data of the answer; raise Refused if it is no."""
        name = ALIASES.get(command.lower(), command.lower())
        if name not in COMMANDS:
            raise Refused(Code.UNKNOWN_COMMAND, f"no command {command!r:.80}", kind="InvalidRequest")
        request = Request(self._ids(), self.client, name, dict(payload or {}))
        job = Job(request, COMMANDS[name])
        run(self._context, [job])
        if isinstance(job.result, Later):
            self._wait(job, job.result, timeout)
        if isinstance(job.result, Refused):
            raise job.result
        if isinstance(job.result, PabalError):
            error = job.result
            raise Refused(str(code_of(error)), str(error), kind=type(error).__name__) from error
        return job.result

    def _wait(self, job: Job, later: Later, timeout: float) -> None:
        deadline = min(later.until, self._clock.boot() + timeout)
        queue = self._context.any_queue(later.queue)
        watch = queue.watch()
        try:
            while isinstance(job.result, Later):
                run(self._context, [job])
                left = deadline - self._clock.boot()
                if left <= 0 and isinstance(job.result, Later):
                    job.result = NO_MESSAGE
                elif isinstance(job.result, Later):
                    due = queue.store.next_due(queue.name)
                    pause = min(left, _SLOW_POLL, _SLOW_POLL if due is None else max(due, _LEAST_PAUSE))
                    time.sleep(pause) if watch is None else watch.wait(pause)
        finally:
            if watch is not None:
                watch.close()
