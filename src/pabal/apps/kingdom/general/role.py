"""A general as a process: takes as many tasks as it may have soldiers, extends their leases, and reports.

The loop itself extends the leases. So a general that hangs loses its tasks, and those of one that dies are ready
again.
"""

from __future__ import annotations

from contextlib import closing, suppress
from dataclasses import dataclass

from msgspec.structs import replace

from pabal.apps.kingdom.config import Retry
from pabal.apps.kingdom.documents import SoldierResult, Task, document_of, read, result_of, stamp
from pabal.apps.kingdom.general.prompt import remember
from pabal.apps.kingdom.general.results import failed, failures_of, keep_checkpoint, keep_failure, session_of
from pabal.apps.kingdom.general.soldier import Files, Soldier, stop_all
from pabal.apps.kingdom.general.work import Work, work_on
from pabal.apps.kingdom.general.workspace import Clones, Workspace
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import TASKS
from pabal.apps.kingdom.manifests import FOLDER, Loaded, Manifest, Routing, load
from pabal.apps.kingdom.operate import CancelMark, cancel_mark, cancelled
from pabal.apps.kingdom.roles import reclaim, role_lock, serve
from pabal.apps.kingdom.sessions import Sessions
from pabal.errors import InvalidConfig, InvalidInput, LeaseLost
from pabal.queues.delivery import Delivery
from pabal.runtime.state_file import DAMAGED, read_state
from pabal.runtime.wake import FdWatch, PollableWatch
from pabal.store import FailureCode, State, Watch

IDLE = 10.0  # seconds: the slow poll
_POLL = 1.0  # seconds between checks of a running soldier
_FINISH_POLL = 0.1  # the same while the general stops


def run(home: Home, name: str) -> None:
    """Run until stopped; a soldier that does not end in time is killed and its task given back."""
    with closing(role_lock(home, name)):
        for session in Sessions(home.root).end_orphans_of(name):
            home.journal.note("system.session_orphaned", name, soldier=session.id, task=session.task_id)
        reclaim(home, TASKS, name)
        watch = FdWatch()
        with closing(home.watch(TASKS)) as arrivals:
            general = General(home, name, watch, arrivals)
            serve(home, name, watch, general, finish=general.finish)


def manifest_of(home: Home, name: str) -> Manifest:
    """Return the manifest of a general; raise InvalidConfig if there is none that can be used."""
    return find_manifest(load(home.root / FOLDER), name)


def find_manifest(loaded: Loaded, name: str) -> Manifest:
    """Return the manifest of a general; raise InvalidConfig if there is none that can be used."""
    for manifest in loaded.manifests:
        if manifest.name == name:
            return manifest
    problems = "; ".join(loaded.problems)
    raise InvalidConfig(f"no general {name}: install it, or mend its manifest{f' ({problems})' if problems else ''}")


@dataclass
class _Held:
    """A task in hand."""

    delivery: Delivery
    task: Task
    workspace: Workspace | None
    work: Work
    soldiers: list[Soldier]  # the one that works on it, as soon as it is started
    extended: float  # when its lease was extended


class General:
    """A task of the general's service."""

    def __init__(self, home: Home, name: str, watch: FdWatch, arrivals: Watch) -> None:
        self._home = home
        self._name = name
        self._watch = watch
        self._arrivals = arrivals
        if isinstance(arrivals, PollableWatch):
            watch.add(arrivals.fileno())
        self._queue = home.queue(TASKS, name)
        self._routing = Routing(home.root, home.config.engine)
        self._refresh()
        self._clones = Clones()
        self._held: list[_Held] = []
        waiting = self._queue.entries(State.DELAYED)
        self._due = [entry.due_at for entry in waiting if entry.message and entry.message.target == name]

    @property
    def soldiers(self) -> int:
        """How many tasks it has in hand."""
        return len(self._held)

    def step(self) -> None:
        self._arrivals.wait(0.0)
        self._due = [at for at in self._due if at > self._home.clock.now()]
        if len(self._held) < self._manifest.max_soldiers:
            self._refresh()
        while len(self._held) < self._manifest.max_soldiers and self._take():
            pass
        self._continue()

    def next_due(self) -> float:
        """Return the time to the next check of the soldiers, and to the next retry, if one comes before the poll."""
        check = min(_POLL, self._home.config.lease_seconds / 4) if self._held else IDLE
        now = self._home.clock.now()
        return max(0.0, min([check, *(at - now for at in self._due)]))

    def finish(self) -> None:
        """Wait for the soldiers for most of the stop time, then end those that still work and give their tasks back.

        That is no failed try of these tasks: they begin again with the next start.
        """
        seconds = self._home.config.stop_seconds
        self._wait_for_soldiers(seconds * 2 / 3)
        stop_all([soldier for held in self._held for soldier in held.soldiers], seconds / 12)
        while self._held:
            held = self._held.pop()
            held.work.close()
            self._give_up(held)
            with suppress(LeaseLost):
                held.delivery.release()
            self._home.journal.note("task.given_back", self._name, task=held.task.id)

    def _wait_for_soldiers(self, seconds: float) -> None:
        """Wait until all soldiers have ended and their results are reported, for so long at most."""
        end = self._home.clock.boot() + seconds
        with closing(FdWatch()) as waiting:
            for _ in range(int(seconds / _FINISH_POLL)):
                if not self._held or self._home.clock.boot() >= end:
                    return
                waiting.wait(_FINISH_POLL)
                self._continue()

    def _refresh(self) -> None:
        """Read the manifest again if one changed."""
        if self._routing.refresh():
            self._manifest = find_manifest(self._routing.loaded, self._name)

    def _take(self) -> bool:
        found = self._queue.lease(1, visibility=self._home.config.lease_seconds)
        if not found:
            return False
        [delivery] = found
        try:
            task = read(Task, delivery.message.body)
        except InvalidInput as exc:
            delivery.fail(FailureCode.VALIDATION_ERROR, f"{exc.code}: {exc}", final=True)
            return True
        tries = len(failures_of(self._home, task.id).value)
        task = replace(task, retry_count=tries, status="in_progress")
        self._home.journal.note("task.started", self._name, task=task.id, attempt=tries + 1)
        workspace, soldiers = None, list[Soldier]()
        try:
            workspace = Workspace(self._home, self._manifest, task, self._clones)
            work = work_on(self._home, workspace, self._manifest, task, self._watch, soldiers)
        except InvalidInput as exc:
            work = _refused(task, f"the soldier could not be started: {exc}")
        self._held.append(_Held(delivery, task, workspace, work, soldiers, self._home.clock.boot()))
        return True

    def _continue(self) -> None:
        for held in list(self._held):
            try:
                if (mark := self._mark_of(held.task)) is not None:
                    held.work.close()
                    self._held.remove(held)
                    self._cancel(held, mark)
                    continue
                if self._extend(held):
                    next(held.work)
                    continue
                held.work.close()
                self._held.remove(held)
                self._give_up(held)
            except StopIteration as over:
                self._held.remove(held)
                self._report(held, over.value)
                self._watch.wake()  # there may be another task

    def _mark_of(self, task: Task) -> CancelMark | None:
        """Return the mark of a task that is not to be worked on any more; None if there is none."""
        try:
            return read_state(cancel_mark(self._home, task.id), CancelMark)
        except DAMAGED:
            return None

    def _cancel(self, held: _Held, mark: CancelMark) -> None:
        if mark.instead:  # which reports
            self._give_up(held)
            with suppress(LeaseLost):
                held.delivery.ack()
        else:
            self._report(held, read(SoldierResult, {"task_id": held.task.id, **cancelled(mark.person)}))

    def _extend(self, held: _Held) -> bool:
        """Extend the lease in time; False if it is lost."""
        seconds = self._home.config.lease_seconds
        if self._home.clock.boot() - held.extended >= seconds / 3:
            held.extended = self._home.clock.boot()
            try:
                held.delivery.extend(seconds)
            except LeaseLost:
                return False
        return True

    def _report(self, held: _Held, result: SoldierResult) -> None:
        """Acknowledge the task with its result, or retry it if its tries are not used up."""
        retry: Retry = self._manifest.retry or self._home.king.retry
        resumes = held.workspace is not None and held.workspace.is_kept
        keep = resumes  # until the task is over
        try:
            has_failed = result.status in ("failed", "killed")
            if has_failed and keep_failure(self._home, held.task, result) <= retry.max_attempts:
                held.delivery.nack(delay=retry.backoff_seconds, reason=result.error)
                self._due.append(self._home.clock.now() + retry.backoff_seconds)
                return
            goes_on = result.status == "needs_human" or (result.status == "success" and _is_chat(held.task))
            self._acknowledge(held, result, keep=goes_on)
            keep = goes_on or (resumes and has_failed)  # for the task that resumes it, or a retry by hand
        except LeaseLost:
            return  # another general has the task by now, and reports
        finally:
            if held.workspace is not None:
                held.workspace.end(keep=keep)

    def _give_up(self, held: _Held) -> None:
        """Leave the folder of a task that is not over: the work that it resumes stays for its next try."""
        if held.workspace is not None:
            held.workspace.end(keep=held.workspace.is_kept)

    def _acknowledge(self, held: _Held, result: SoldierResult, *, keep: bool) -> None:
        task, files = held.task, Files.of(self._home, held.task.id)
        document = document_of(result)
        workspace = held.workspace.name if held.workspace is not None and keep else ""
        if result.status == "needs_human":
            document["checkpoint_path"] = keep_checkpoint(self._home, files, task, result, workspace)
        more = {
            "session_id": result.session_id or session_of(files),
            "attempts": task.retry_count + 1,
            "workspace": workspace,
            "completed_at": stamp(self._home.clock.now()),
        }
        held.delivery.ack(then=[self._home.draft(result_of(task, document, **more))])
        remember(self._home, self._name, result.memory_updates)


def _is_chat(task: Task) -> bool:
    """Return whether a conversation about the task may go on: its soldier then needs the folder of its session."""
    payload = task.payload
    return bool(payload.get("channel") and (payload.get("thread_ts") or payload.get("message_ts")))


def _refused(task: Task, reason: str) -> Work:
    """Return the work on a task that cannot be begun."""
    yield from ()
    return failed(task, reason)
