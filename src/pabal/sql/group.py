"""Group commit: callers that come at once share one commit; a caller alone works in its own thread.

Exactly one thread leads at a time. Who finishes hands the lead to the first of those who came meanwhile, and that one
takes everybody waiting into its commit: nobody leads twice for one call, and no thread is kept only for writing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from pabal.errors import Uncertain


class Job:
    """One caller's work on its way through a commit: what to do, and what became of it."""

    __slots__ = ("durable", "error", "essential", "result", "turn", "work")

    def __init__(self, work: Callable[..., Any], durable: bool, essential: bool) -> None:
        self.work = work
        self.durable = durable
        self.essential = essential
        self.result: Any = None
        self.error: BaseException | None = None
        self.turn: threading.Lock | None = None  # released when this job leads or is done


class Group:
    """Runs `commit` with the jobs of all who came at once. `commit` leaves a result or an error in each job."""

    def __init__(self, commit: Callable[[list[Job]], None]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._leader: Job | None = None
        self._batch: list[Job] = []
        self._waiting: list[Job] = []

    def run(self, job: Job) -> Any:
        """Return what the job's work returned, once it is committed; raise what it raised."""
        # A caller alone passes straight through here: a step more costs it several times its weight, since every sync
        # leaves the processor's caches cold.
        try:
            with self._mutex:
                if self._leader is None:
                    self._leader, self._batch = job, [job]
                else:
                    self._queue_up(job)
            if (turn := job.turn) is not None:
                turn.acquire()
            if self._leader is job:
                self._commit(self._batch)
        except BaseException as exc:
            # A signal handler raised in this thread: the others must not wait for ever, nor hear more than is known.
            if self._leader is job:
                for other in self._batch:
                    other.error = other.error or Uncertain(f"the commit was interrupted by {type(exc).__name__}")
            raise
        finally:
            try:
                with self._mutex:
                    if self._leader is job and len(self._batch) == 1 and not self._waiting:
                        self._leader = None
                    else:
                        self._leave(job)
            except BaseException:
                with self._mutex:
                    self._leave(job)  # interrupted in its turn: whoever keeps the lead keeps everybody out
                raise
        if job.error is not None:
            raise job.error
        return job.result

    def _queue_up(self, job: Job) -> None:
        job.turn = threading.Lock()
        job.turn.acquire()
        self._waiting.append(job)

    def _leave(self, job: Job) -> None:
        if job in self._waiting:
            self._waiting.remove(job)  # it gave up waiting
        if self._leader is not job:
            return
        for other in self._batch:
            if other is not job:
                _wake(other)
        self._batch, self._waiting = self._waiting, []
        self._leader = leader = self._batch[0] if self._batch else None
        if leader is not None:
            # As _wake does, and without a call of it: a signal handler that raised there would leave them all asleep.
            turn, leader.turn = leader.turn, None
            if turn is not None:
                turn.release()


def fail(jobs: list[Job], error: BaseException) -> None:
    """Let every one of these callers hear of the error."""
    for job in jobs:
        job.error = _copy(error) if len(jobs) > 1 else error


def _copy(error: BaseException) -> BaseException:
    # Each caller raises its own: a traceback belongs to one thread.
    twin = type(error)(*error.args)
    twin.__cause__ = error.__cause__
    return twin


def _wake(job: Job) -> None:
    turn, job.turn = job.turn, None
    if turn is not None:
        turn.release()
