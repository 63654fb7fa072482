"""Group commit: callers that write at the same time share one commit; a lone caller commits in its own thread.

Exactly one thread leads at a time. When it has finished, it hands the lead to the first caller that arrived in the
meantime, and that caller takes all waiting jobs into its commit. No caller leads twice for one call, and no thread is
kept only for writing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import msgspec

from pabal.errors import Uncertain


class Job(msgspec.Struct, eq=False):
    """The work of one caller and its outcome: a result or an error."""

    work: Callable[..., Any]
    durable: bool
    essential: bool
    result: Any = None
    error: BaseException | None = None
    turn: threading.Lock | None = None  # released when this job leads or is done


class Group:
    """Runs `commit` with the jobs of all concurrent callers. `commit` leaves a result or an error in each job."""

    def __init__(self, commit: Callable[[list[Job]], None]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._leader: Job | None = None
        self._batch: list[Job] = []
        self._waiting: list[Job] = []

    def write(self, work: Callable[..., Any], *, durable: bool, essential: bool = False) -> Any:
        """Run the work in a transaction and return its result once it is committed, synced if `durable`.

        Raises the error of the work. Essential work may use up the ballast when the disk is full.
        """
        # A lone caller passes straight through here. One more step would cost it several times as much as it seems,
        # since every sync leaves the processor's caches cold.
        job = Job(work, durable, essential)
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
            # A signal handler raised in this thread. The other callers must not wait for ever, and their outcome is
            # unknown.
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
                    self._leave(job)  # interrupted again: a lead that is never handed on would block every caller
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
            # The same as _wake, without a call: if a signal handler raised inside a call, all callers would sleep on.
            turn, leader.turn = leader.turn, None
            if turn is not None:
                turn.release()


def fail(jobs: list[Job], error: BaseException) -> None:
    """Give each of these callers the error."""
    for job in jobs:
        job.error = _copy(error) if len(jobs) > 1 else error


def _copy(error: BaseException) -> BaseException:
    # Each caller raises its own copy: a traceback belongs to one thread.
    twin = type(error)(*error.args)
    twin.__cause__ = error.__cause__
    return twin


def _wake(job: Job) -> None:
    turn, job.turn = job.turn, None
    if turn is not None:
        turn.release()
