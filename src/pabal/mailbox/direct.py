"""The commands of the mailbox without a mailbox: run in the caller's thread, on a store that the caller opened."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pabal.clock import SLOW_POLL, Clock, SystemClock
from pabal.errors import PabalError, Refused
from pabal.ids import IdMaker
from pabal.mailbox.commands import COMMANDS
from pabal.mailbox.commands.batch import Job, run
from pabal.mailbox.commands.context import Connection, Context, Later
from pabal.mailbox.protocol import ALIASES, Code, Request, code_of
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.stats import RequestStats
from pabal.names import check_name

_MIN_PAUSE = 0.01  # seconds: a message for another consumer, or in a paused queue, must not keep this loop busy


class DirectMailbox:
    """Answers as the manager of a mailbox would."""

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
            register_wakeup=lambda queue: queue,
            stats=RequestStats(self._clock),
        )

    def ask(self, command: str, payload: Mapping[str, Any] | None = None, *, timeout: float = 30.0) -> Any:
        """Return the data of the answer; raise Refused if the request is refused."""
        [found] = self.ask_many(command, [payload or {}], timeout=timeout)
        if isinstance(found, Refused):
            raise found
        return found

    def ask_many(
        self, command: str, payloads: Sequence[Mapping[str, Any]], *, timeout: float = 30.0
    ) -> list[Any | Refused]:
        """Return the data or the refusal of each request, as `Mailbox.ask_many` does."""
        name = ALIASES.get(command.lower(), command.lower())
        if name not in COMMANDS:
            raise Refused(Code.UNKNOWN_COMMAND, f"no command {command!r:.80}", kind="InvalidRequest")
        requests = [Request(self._ids(), self.client, name, dict(payload)) for payload in payloads]
        jobs = [Job(request, COMMANDS[name]) for request in requests]
        run(self._context, jobs)
        for job in jobs:
            if isinstance(job.result, Later):
                self._wait(job, job.result, timeout)
        return [_answered(job.result) for job in jobs]

    def _wait(self, job: Job, later: Later, timeout: float) -> None:
        deadline = min(later.until, self._clock.boot() + timeout)
        queue = self._context.any_queue(later.queue)
        watch = queue.watch()
        try:
            while isinstance(job.result, Later):
                run(self._context, [job])
                left = deadline - self._clock.boot()
                if left <= 0 and isinstance(job.result, Later):
                    job.result = job.result.empty
                elif isinstance(job.result, Later):
                    due = queue.store.next_due(queue.name)
                    pause = min(left, SLOW_POLL, SLOW_POLL if due is None else max(due, _MIN_PAUSE))
                    time.sleep(pause) if watch is None else watch.wait(pause)
        finally:
            if watch is not None:
                watch.close()


def _answered(result: Any) -> Any | Refused:
    if isinstance(result, PabalError) and not isinstance(result, Refused):
        return Refused(str(code_of(result)), str(result), kind=type(result).__name__)
    return result
