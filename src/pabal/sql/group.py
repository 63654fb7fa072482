"""Group commit: callers that come at once share one commit; a caller alone works in its own thread.

Exactly one thread leads at a time. Who finishes hands the lead to the first of those who came meanwhile, and that one
takes everybody waiting into its commit: nobody leads twice for one call, and no thread is kept only for writing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class Job:
    """One caller's work on its way through a commit: what to do, and what became of it."""

    result: Any = None
    error: BaseException | None = None
    settled = False
    leads = False
    turn: threading.Lock | None = None

    def __init__(self, work: Callable[..., Any], durable: bool, essential: bool) -> None:
        self.work = work
        self.durable = durable
        self.essential = essential


class Group:
    """Runs `commit` with the jobs of all who came at once. `commit` leaves a result or an error in each job."""

    def __init__(self, commit: Callable[[list[Job]], None]) -> None:
        self._commit = commit
        self._mutex = threading.Lock()
        self._busy = False
        self._waiting: list[Job] = []

    def run(self, job: Job) -> Any:
        """Return what the job's work returned, once it is committed; raise what it raised."""
        with self._mutex:
            if follows := self._busy:
                job.turn = threading.Lock()
                job.turn.acquire()
                self._waiting.append(job)
            self._busy = True
        if follows:
            self._follow(job)
        else:
            self._lead([job])
        if job.error is not None:
            raise job.error
        return job.result

    def _follow(self, job: Job) -> None:
        assert job.turn is not None
        try:
            job.turn.acquire()
        except BaseException:
            self._abandon(job)
            raise
        if not job.settled:
            with self._mutex:
                jobs, self._waiting = self._waiting, []
            self._lead(jobs)

    def _lead(self, jobs: list[Job]) -> None:
        try:
            self._commit(jobs)
        except BaseException as exc:
            # An interrupt in the leader's thread must not leave the others waiting for ever.
            for job in jobs:
                job.error = job.error or exc
            raise
        finally:
            for job in jobs:
                job.settled = True
                if job.turn is not None and not job.leads:
                    job.turn.release()
            with self._mutex:
                self._pass_on()

    def _abandon(self, job: Job) -> None:
        with self._mutex:
            if job in self._waiting:
                self._waiting.remove(job)
                if job.leads:
                    self._pass_on()

    def _pass_on(self) -> None:
        if self._waiting:
            first = self._waiting[0]
            first.leads = True
            assert first.turn is not None
            first.turn.release()
        else:
            self._busy = False
