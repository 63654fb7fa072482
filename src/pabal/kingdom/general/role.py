"""A general as a process: takes its own tasks, one at a time, keeps the lease while its soldier works, and reports.

The lease is kept by the loop itself. So a general that hangs loses it, and one that dies leaves a task that comes back.
"""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Protocol, runtime_checkable

from pabal.delivery import Delivery
from pabal.errors import InvalidConfig, InvalidInput, LeaseLost
from pabal.kingdom.config import Retry
from pabal.kingdom.documents import SoldierResult, Task, document_of, read, result_of, stamp
from pabal.kingdom.general.prompt import remember
from pabal.kingdom.general.results import keep_checkpoint, keep_failure, session_of
from pabal.kingdom.general.soldier import Files
from pabal.kingdom.general.work import Work, work
from pabal.kingdom.home import Home
from pabal.kingdom.layout import TASKS
from pabal.kingdom.manifests import FOLDER, Manifest, load
from pabal.kingdom.reclaiming import reclaim
from pabal.kingdom.serving import role_lock, serve
from pabal.kingdom.sessions import Sessions
from pabal.runtime.wake import FdWatch
from pabal.store import FailureCode, Watch

IDLE = 10.0  # seconds: the slow poll beneath the wake-up
_POLL = 1.0  # seconds between looks at a running soldier
_SOLDIERS_GRACE = 5.0  # seconds that a soldier has to end when its general must


@runtime_checkable
class _Audible(Protocol):
    """A watch that a loop over descriptors can hear."""

    def fileno(self) -> int: ...


def run(home: Home, name: str) -> None:
    """Serve until told to stop; a soldier that does not end in time is ended and its task given back."""
    with closing(role_lock(home, name)):
        for session in Sessions(home.root).end_left_behind(name):
            home.journal.note("system.session_orphaned", name, soldier=session.id, task=session.task_id)
        reclaim(home, TASKS, name)
        watch = FdWatch()
        with closing(home.watch(TASKS)) as arrivals:
            general = General(home, name, watch, arrivals)
            try:
                serve(home, name, watch, general)
            finally:
                general.finish()


def manifest_of(home: Home, name: str) -> Manifest:
    """Return the manifest of a general; raise InvalidConfig if there is none that can be used."""
    loaded = load(home.root / FOLDER)
    for manifest in loaded.manifests:
        if manifest.name == name:
            return manifest
    problems = "; ".join(loaded.problems)
    raise InvalidConfig(f"no general {name}: install it, or mend its manifest{f' ({problems})' if problems else ''}")


class General:
    """A task of the general's service."""

    def __init__(self, home: Home, name: str, watch: FdWatch, arrivals: Watch) -> None:
        self._home = home
        self._name = name
        self._watch = watch
        self._arrivals = arrivals
        if isinstance(arrivals, _Audible):
            watch.add(arrivals.fileno())
        self._queue = home.queue(TASKS, name)
        self._manifest = manifest_of(home, name)
        self._held: tuple[Delivery, Task, Work] | None = None
        self._extended = 0.0

    def step(self) -> None:
        self._arrivals.wait(0.0)
        if self._held is None:
            self._take()
        if self._held is not None:
            self._go_on()

    def next_due(self) -> float:
        return IDLE if self._held is None else min(_POLL, self._home.config.lease_seconds / 4)

    def finish(self) -> None:
        """Give the soldier a little time, then end it and give its task back."""
        end = self._home.clock.boot() + _SOLDIERS_GRACE
        waiting = FdWatch()
        while self._held is not None and self._home.clock.boot() < end:
            waiting.wait(0.1)
            self._go_on()
        waiting.close()
        if self._held is not None:
            delivery, _, going = self._held
            self._held = None
            going.close()
            with suppress(LeaseLost):
                delivery.release()

    def _take(self) -> None:
        found = self._queue.lease(1, self._home.config.lease_seconds)
        if not found:
            return
        [delivery] = found
        try:
            task = read(Task, delivery.message.body)
        except InvalidInput as exc:
            delivery.fail(FailureCode.VALIDATION_ERROR, f"{exc.code}: {exc}", final=True)
            return
        self._manifest = manifest_of(self._home, self._name)  # as it is now
        self._home.journal.note("task.started", self._name, task=task.id, attempt=delivery.attempt)
        self._held = (delivery, task, work(self._home, self._manifest, task, self._watch))
        self._extended = self._home.clock.boot()

    def _go_on(self) -> None:
        assert self._held is not None
        delivery, task, going = self._held
        try:
            if not self._keep(delivery):
                going.close()
                self._held = None
                return
            next(going)
        except StopIteration as over:
            self._held = None
            self._report(delivery, task, over.value)
            self._watch.wake()  # there may be another

    def _keep(self, delivery: Delivery) -> bool:
        """Keep the lease; False if it is lost."""
        seconds = self._home.config.lease_seconds
        if self._home.clock.boot() - self._extended >= seconds / 3:
            self._extended = self._home.clock.boot()
            try:
                delivery.extend(seconds)
            except LeaseLost:
                return False
        return True

    def _report(self, delivery: Delivery, task: Task, said: SoldierResult) -> None:
        """Acknowledge the task with its result, or let it come back if it may be tried again."""
        retry: Retry = self._manifest.retry or self._home.king.retry
        try:
            if said.status in ("failed", "killed"):
                tries = keep_failure(self._home, task, said)
                if tries <= retry.max_attempts:
                    delivery.nack(delay=retry.backoff_seconds, reason=said.error)
                    return
            self._acknowledge(delivery, task, said)
        except LeaseLost:
            return  # somebody else has it by now, and reports

    def _acknowledge(self, delivery: Delivery, task: Task, said: SoldierResult) -> None:
        files = Files.of(self._home, task.id)
        document = document_of(said)
        if said.status == "needs_human":
            document["checkpoint_path"] = keep_checkpoint(self._home, files, task, said)
        more = {
            "session_id": said.session_id or session_of(files),
            "attempts": delivery.attempt,
            "completed_at": stamp(self._home.clock.now()),
        }
        delivery.ack(then=[self._home.draft(result_of(task, document, **more))])
        remember(self._home, self._name, said.memory_updates)
