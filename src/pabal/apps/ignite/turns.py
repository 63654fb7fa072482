"""The turns of one agent: how a turn begins, lives and ends.

A turn is one message given to one agent: it is leased, the agent is woken, and then the message is done, failed or
lost. A turn ends with one verdict of the queue's policy, however it ended: by an exit status, a command of the agent,
a removed file or silence.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace as replace_turn
from functools import partial
from typing import TypeVar

from pabal.apps.ignite import mail, readers, types
from pabal.apps.ignite.archive import item_of
from pabal.apps.ignite.errors import WakeFailed
from pabal.apps.ignite.layout import iso_time
from pabal.apps.ignite.mail_store import TurnOutcome, over_limit
from pabal.apps.ignite.memory import Fact, FactWriter
from pabal.apps.ignite.team import USER, Agent
from pabal.apps.ignite.wakes import Ending, Probing, Running, Turn, Wake
from pabal.apps.ignite.workspace import Held, Workspace, counted
from pabal.codecs.mime import fields
from pabal.codecs.mime.fields import edited
from pabal.durable import write_new
from pabal.errors import InvalidInput, StoreError
from pabal.filesystem import UNREADABLE, exchange, read_whole
from pabal.ids import new_tag
from pabal.message import replace
from pabal.queues.delivery import Delivery
from pabal.runtime.wake import FdWatch
from pabal.store import Failure, FailureCode, Outcome, Retry, Settlement, Verdict, Watch

log = logging.getLogger("pabal.ignite")

SLOW_POLL = 5.0  # seconds between polls of a queue when nothing wakes the monitor
_PROBE_EVERY = 5.0  # seconds between looks whether an agent that cannot be woken is there again
_FIRST_REST, _LONGEST_REST = 1.0, 60.0  # seconds between wakes of an agent that cannot be woken, doubled each time
GIVEN_BACK = "GIVEN_BACK"  # stands in the place of a failure: its attempt is not counted
_LEAST_PAUSE = 0.005
_THREADS = 4

A = TypeVar("A")
R = TypeVar("R")


class AgentRunner:
    """An agent, its queue and its current turn, if it has one. Only the monitor's thread uses it."""

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        about: Agent,
        wake: Wake,
        *,
        facts: FactWriter,
        watch: FdWatch,
        threads: WakeThreads,
        escalate: Callable[[str, str, str, str], None],
    ) -> None:
        self.name, self.about, self.wake = name, about, wake
        self._changed: tuple[Agent, Wake] | None = None  # the entry in the team file that counts after this turn
        self._wake_anew = False
        self.queue = workspace.queue(name)
        self.turn: Turn | None = None
        self.look_at = float("-inf")
        self.served_at = float("-inf")
        self.since = self.sign_at = 0.0
        self.successes = 0
        self.rest_until = float("-inf")  # while its agent cannot be woken
        self.away_reason = ""  # why the agent could not be woken the last time
        self._rests = 0
        self._probe: Future[bool] | None = None
        self._probe_at = 0.0
        self._was_gone = False  # whether a probe has not found the agent since it could not be woken
        self._signed = False
        self._woken_at: float | None = None  # in the current turn, the last time
        self._silences = 0  # how often the agent was woken again since its last sign of life
        self._given: tuple[int, ...] = ()
        self._workspace, self._facts, self._watch, self._threads = workspace, facts, watch, threads
        self._escalate = escalate
        self._clock = workspace.clock
        self._delivery: Delivery | None = None
        self._waking: Future[None] | None = None
        self._watched = -1

    @property
    def runs_commands(self) -> bool:
        """Whether its turns count for `limits.parallel`."""
        return isinstance(self.wake, Running)

    def change(self, about: Agent, wake: Wake) -> None:
        """Apply a changed entry of the team file: now, or when a command that runs has ended.

        A message in hand is told again in the new way: the old one may be what was wrong. A command gets a message that
        nobody has looked at; any other is finished first.
        """
        if self.turn is not None and isinstance(wake, Running) and not self.runs_commands and not self.looked:
            self._return("the entry of its agent was changed")
        if self.turn is not None and (self.runs_commands or isinstance(wake, Running)):
            self._changed = (about, wake)
            return
        if self.turn is not None:
            self.wake.stop(self.turn)
        self.about, self.wake, self._changed = about, wake, None
        self.rest_until, self._rests = float("-inf"), 0
        if self.turn is not None:
            self.turn = replace_turn(self.turn, about=about)
            if self._waking is None:
                self._waking = self._threads.run(wake.wake, self.turn)
            else:
                self._wake_anew = True

    # The beginning of a turn

    def look(self) -> bool:
        """Take the next message and begin a turn; if there is none, set when to look again."""
        now = self._clock.boot()
        found = self.queue.lease(1, visibility=self._workspace.team.policy.visibility)
        if not found:
            due = self._workspace.store.next_due(self.name)
            self.look_at = now + (SLOW_POLL if due is None else min(SLOW_POLL, max(due, _LEAST_PAUSE)))
            return False
        self.served_at = now
        path = self._workspace.mail.hand_over(found[0])
        if path is not None:
            self._begin(found[0], path, found[0].attempt)
            self._wake()
        return self.turn is not None

    def adopt(self, held: Held, *, woken_at: float | None = None, signed_at: float | None = None) -> None:
        """Continue a turn of the monitor before this one. A command that ran for it died with that monitor.

        The times are those of the wall clock: when the agent was woken, and its last sign of life after that.
        """
        self._begin(self._workspace.delivery(held), held.path, held.attempt)
        if isinstance(self.wake, Running):
            self._fail(FailureCode.HANDLER_ERROR, "the monitor ended while its command ran", delay=0.0)
        elif woken_at is None:
            self._wake()
        else:
            readers.deliver(self._workspace, held.receipt)
            boot, now = self._clock.boot(), self._clock.now()
            self._woken_at = boot - max(0.0, now - woken_at)
            self._signed = signed_at is not None
            self.sign_at = boot - max(0.0, now - (signed_at or woken_at))

    def _begin(self, delivery: Delivery, path: str, attempt: int) -> None:
        message = delivery.message
        about = {"queue": self.name, "id": message.id}
        self._delivery = delivery
        self.turn = Turn(self.name, self.about, path, delivery.receipt, message, attempt)
        self.since = self.sign_at = self._clock.boot()
        self._signed, self._given = False, _identity(path)
        self._woken_at, self._silences = None, 0
        self._note(type=message.type, delivered_at=self._clock.now(), wake=self.about.wake)
        try:
            self._workspace.archive.add([item_of(self.name, message)])
        except StoreError as exc:
            log.warning("not archived: %(queue)s/%(id)s: %(error)s", {**about, "error": str(exc)})

    def _wake(self) -> None:
        assert self.turn is not None
        try:
            self._check_size()
            types.check(self.turn.message.type, self.turn.message.body, self._workspace.team.types)
        except InvalidInput as exc:
            self._fail(FailureCode.VALIDATION_ERROR, f"{exc.code}: {exc}")
            return
        if self._distributed():
            return
        if not isinstance(self.wake, Running):
            if not self._reached_reader(own=True):
                self._waking = self._threads.run(self.wake.wake, self.turn)
            return
        try:
            self.wake.wake(self.turn)
        except WakeFailed as exc:
            self._fail(FailureCode.HANDLER_ERROR, f"not woken: {exc}")
            return
        self._watched = self.wake.descriptor(self.turn)
        self._watch.add(self._watched)
        self._woken()

    def _reached_reader(self, *, own: bool) -> bool:
        """Deliver the message to a process that waits for the agent's mail, if there is one.

        It looks once more after it has let go of its lock. So if it waits still, it finds the message.
        """
        root = self._workspace.root
        if not readers.is_awaited(root, self.name, own=own):
            return False
        self._woken()
        return readers.is_awaited(root, self.name, own=own)

    def _check_size(self) -> None:
        """Raise TooLarge for a message that a program put here and that is larger than `send` would take."""
        assert self.turn is not None
        limit = self._workspace.team.limits.bytes
        if (self._given[2] if self._given else 0) > limit:  # with the headers of its delivery: look closer
            size = len(self._workspace.layout.codec.encode(self.turn.message, queue=self.name))
            if size > limit:
                raise over_limit(limit, size)

    def _distributed(self) -> bool:
        """Replace a message that a program put here, and that names several agents, by a copy for each; in one step."""
        assert self.turn is not None
        message, receipt = self.turn.message, self.turn.receipt
        try:
            drafts, unknown = mail.distribute(self._workspace, self.name, message)
            for name in unknown:
                key, title = f"recipient/{self.name}/{message.id}/{name}", f"{message.type} for {name} not delivered"
                self._escalate(key, title, name, f"there is no agent {name} in the team; {message.id} names it")
            if not drafts:
                return False
            [applied] = self._workspace.store.settle([Settlement(receipt, self.queue.settler.done(drafts))])
        except InvalidInput as exc:
            self._fail(FailureCode.VALIDATION_ERROR, f"no copies could be made: {exc.code}: {exc}", final=True)
            return True
        if applied is Outcome.LOST:
            self._settled_elsewhere()
        else:
            names = ", ".join(draft.queue for draft in drafts)
            log.info("distributed: %(queue)s/%(id)s: %(to)s", {"queue": self.name, "id": message.id, "to": names})
            self._over("distributed", "")
        return True

    def _woken(self) -> None:
        assert self.turn is not None
        self._note(woken_at=self._clock.now())
        self._signed = self.looked and self._woken_at is not None
        readers.deliver(self._workspace, self.turn.receipt)
        edit_headers(self._workspace, self.turn.receipt.queue, self.turn.path, {fields.STATUS: "delivered"})
        self._given = _identity(self.turn.path)
        self._woken_at = self._clock.boot()
        self.rest_until, self.away_reason, self._rests = float("-inf"), "", 0

    # The life and the end of a turn

    def check(self) -> None:
        """End the turn if it is over, or if the agent was silent for too long."""
        turn, now = self.turn, self._clock.boot()
        if turn is None or (self._waking is not None and not self._is_woken()):
            return
        limits = self._workspace.team.limits
        if isinstance(self.wake, Running):
            ending = self.wake.ending(turn)
            if ending is not None:
                self._ended(ending)
            elif now - self.since > limits.run:
                self._fail(FailureCode.HANDLER_TIMEOUT, f"its command ran for more than {limits.run:g} seconds")
        elif not os.path.lexists(turn.path):
            self._settled_elsewhere()
        elif now > self._wake_again_at:
            self._wake_again(turn)

    @property
    def _wake_again_at(self) -> float:
        """When an agent that gives no sign of life is woken again; earlier if the last try has failed."""
        pause = self._pause if self._rests else self._workspace.team.limits.turn
        return max(self.sign_at, self._woken_at or self.sign_at) + pause

    def _wake_again(self, turn: Turn) -> None:
        """Wake an agent that was silent for too long. That is no failed attempt: it may not be there, or still work.

        Its message stays in its hand, so it may finish late. If it has looked and is silent again and again, the leader
        is told, once.
        """
        limits, team = self._workspace.team.limits, self._workspace.team
        if self.looked and not self._workspace.is_message(turn.path):
            self._fail(
                FailureCode.HANDLER_TIMEOUT, "its file is no message any more, and its agent gives no sign of life"
            )
            return
        self._silences += not self._rests
        if self.looked and self._silences == max(1, team.retry.limit) and self.name not in (team.leader, USER):
            key, title = f"silent/{self.name}/{turn.message.id}", f"{turn.message.type} is not finished"
            for_long = f"for {self._silences * limits.turn:g} seconds"
            reason = (
                f"{self.name} looked at {turn.message.id} and gives no sign of life {for_long}; it is still in its hand"
            )
            self._escalate(key, title, self.name, reason)
        self._woken_at = self._clock.boot()
        self._waking = self._threads.run(self.wake.wake, turn)

    def sign(self) -> None:
        """Note a sign of life from the agent."""
        self.sign_at = self._clock.boot()
        self._signed = True
        self.rest_until = float("-inf")  # it is back
        if self._woken_at is not None:
            self.away_reason, self._rests, self._silences = "", 0, 0

    def probe(self) -> None:
        """Look whether an agent that cannot be woken is there again, and then do not wait any longer.

        An agent that was there all the time, and could not be woken for another reason, is tried at the usual pauses.
        """
        now = self._clock.boot()
        if self._probe is not None:
            if not self._probe.done():
                return
            found = self._probe.exception() is None and self._probe.result()
            self._probe, self._probe_at = None, now + _PROBE_EVERY
            if found and self._was_gone and self._rests:
                self.rest_until, self._rests = float("-inf"), int(self.turn is not None)
                self.away_reason = self.away_reason if self._rests else ""
            self._was_gone = not found
        elif self.probes and now >= self._probe_at and isinstance(self.wake, Probing):
            self._probe = self._threads.run(partial(self.wake.is_there, self.name), self.about)

    @property
    def probes(self) -> bool:
        """Whether it is looked for its agent from time to time."""
        return bool(self._rests) and self._waking is None and isinstance(self.wake, Probing)

    @property
    def due_at(self) -> float:
        """When to look for the next message."""
        return max(self.look_at, self.rest_until)

    @property
    def looked(self) -> bool:
        """Whether the agent gave a sign of life since it got its message, or changed the file."""
        return self._signed or (self.turn is not None and _identity(self.turn.path) != self._given)

    def next_due(self) -> float | None:
        """Return the seconds until the turn must be checked even if nothing wakes the monitor."""
        if self.turn is None:
            due = self.probes and self._probe is None  # the end of a probe wakes the monitor
            return max(_LEAST_PAUSE, self._probe_at - self._clock.boot()) if due else None
        limits = self._workspace.team.limits
        if isinstance(self.wake, Running):
            end = self.since + limits.run
        else:
            end = min(self._wake_again_at, self._clock.boot() + SLOW_POLL)
        return max(_LEAST_PAUSE, end - self._clock.boot())

    def withdraw(self) -> None:
        """Give back a message that cannot be finished: its command must end, or its agent was not woken yet."""
        told = self._woken_at is not None
        if self.turn is not None and (self.runs_commands or (self._waking is not None and not told)):
            self._return("the team was stopped")

    def _return(self, reason: str) -> None:
        assert self._delivery is not None and self.turn is not None
        delivery, path = self._delivery, self.turn.path
        self._clear()
        give_back(self._workspace, delivery, path, reason)

    @property
    def running(self) -> bool:
        """Whether a command runs that may still end by itself."""
        return self.turn is not None and self.runs_commands

    def _is_woken(self) -> bool:
        assert self._waking is not None
        if not self._waking.done():
            return False
        failed, self._waking = self._waking.exception(), None
        anew, self._wake_anew = self._wake_anew, False
        if failed is None:
            self._woken()
            if anew:
                assert self.turn is not None
                self._waking = self._threads.run(self.wake.wake, self.turn)
            return True
        if self._woken_at is None and self._reached_reader(own=False):
            return True
        reason = str(failed) if isinstance(failed, WakeFailed) else f"{type(failed).__name__}: {failed}"
        self._rest(reason)
        return False

    def _rest(self, reason: str) -> None:
        """Let mail wait for an agent that cannot be woken: no attempt has failed. The pauses become longer.

        A message that the agent was told of stays in its hand.
        """
        assert self._delivery is not None and self.turn is not None
        self._rests += 1
        if self._rests == 1:
            self._was_gone, self._probe_at = False, self._clock.boot() + _FIRST_REST
        if reason != self.away_reason:
            log.warning("%(agent)s is away, its mail waits: %(error)s", {"agent": self.name, "error": reason})
        self.rest_until, self.away_reason = self._clock.boot() + self._pause, reason
        self._note(outcome="away", error=f"not woken: {reason}")
        if self._woken_at is not None:
            self._woken_at = self._clock.boot()
            return
        self._return("the agent could not be woken")

    @property
    def _pause(self) -> float:
        return min(_LONGEST_REST, _FIRST_REST * 2.0 ** min(self._rests - 1, 10))

    def _ended(self, ending: Ending) -> None:
        assert self.turn is not None
        if not os.path.lexists(self.turn.path):
            outcome = self._workspace.mail.outcome(self.turn.receipt)
            if outcome is not TurnOutcome.HELD:
                self._settled_elsewhere(outcome)
                return
        if ending.kind == "done":
            self._settle(self.queue.settler.done(), "done", "")
        elif ending.kind == "retry":
            self._fail(FailureCode.NACKED, ending.reason)
        elif ending.kind == "bury":
            self._fail(FailureCode.NACKED, ending.reason, final=True)
        else:
            self._fail(FailureCode.HANDLER_ERROR, ending.reason)

    def _fail(self, code: FailureCode, reason: str, *, delay: float | None = None, final: bool = False) -> None:
        assert self._delivery is not None and self.turn is not None
        delivery = self._delivery
        failure = self.queue.settler.failure(
            code, reason, counted(delivery.attempt, delivery.failure), delivery.failure
        )
        verdict = self.queue.settler.judge(delivery.message, failure, delay=delay, final=final)
        if isinstance(verdict, Retry):
            again = iso_time(self._clock.now() + verdict.delay)
            edit_headers(self._workspace, self.name, self.turn.path, {fields.NEXT_RETRY_AFTER: again})
        self._settle(verdict, "retry" if isinstance(verdict, Retry) else "dead", f"{code}: {reason}")

    def _settle(self, verdict: Verdict, outcome: str, error: str) -> None:
        assert self.turn is not None
        receipt, settle = self.turn.receipt, self._workspace.store.settle
        try:
            [applied] = settle([Settlement(receipt, verdict)])
        except InvalidInput as exc:  # a dead letter that its queue refuses must not hold back the verdict
            fields = {"queue": receipt.queue, "id": receipt.id, "error": str(exc)}
            log.warning("%(queue)s/%(id)s: no dead letter: %(error)s", fields)
            [applied] = settle([Settlement(receipt, verdict._replace(then=()))])
        if applied is Outcome.LOST:
            self._settled_elsewhere()
            return
        if outcome != "done":
            about = {"queue": receipt.queue, "id": receipt.id, "error": error, "outcome": outcome}
            level = logging.WARNING if outcome == "dead" else logging.INFO
            log.log(level, "turn ended: %(queue)s/%(id)s: %(error)s, %(outcome)s", about)
        self._over(outcome, error)

    def _settled_elsewhere(self, outcome: TurnOutcome | None = None) -> None:
        """End a turn whose message the agent, or a command, has settled."""
        assert self.turn is not None
        outcome = outcome or self._workspace.mail.outcome(self.turn.receipt)
        if outcome in (TurnOutcome.MOVING, TurnOutcome.HELD):
            return  # between two folders, or under another name: a later check finds how it ends
        if outcome is TurnOutcome.DEAD:
            about = {"queue": self.name, "id": self.turn.receipt.id}
            log.warning("turn ended: %(queue)s/%(id)s: its agent gave it up, dead", about)
        done = outcome in (TurnOutcome.DONE, TurnOutcome.REMOVED)
        self._over("done" if done else outcome.value, "")

    def _over(self, outcome: str, error: str) -> None:
        done = outcome == "done"
        self.successes += done
        self.rest_until, self.away_reason, self._rests = float("-inf"), "", 0  # it is there
        self._note(done_at=self._clock.now() if done else None, outcome=outcome, error=error)
        self._clear()

    def _clear(self) -> None:
        assert self.turn is not None
        if self._watched >= 0:
            self._watch.remove(self._watched)
            self._watched = -1
        self.wake.stop(self.turn)
        self.turn = self._delivery = self._waking = None
        self._wake_anew = False
        self.look_at = float("-inf")
        if self._changed is not None:
            self.change(*self._changed)

    def _note(
        self,
        *,
        type: str = "",
        delivered_at: float | None = None,
        woken_at: float | None = None,
        done_at: float | None = None,
        wake: str = "",
        outcome: str = "",
        error: str = "",
    ) -> None:
        assert self.turn is not None
        where = (self.name, self.turn.receipt.id, self.turn.attempt)
        self._facts.add(Fact(*where, type, delivered_at, woken_at, None, done_at, wake, outcome, error))


class WakeThreads:
    """A few threads for wakes that may take long. The monitor's loop goes on and is woken when one is done.

    The threads are made when the first one is needed.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._pool: ThreadPoolExecutor | None = None

    def run(self, function: Callable[[A], R], argument: A) -> Future[R]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="ignite-wake")
        future = self._pool.submit(function, argument)
        future.add_done_callback(lambda done: self._watch.wake())
        return future

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def edit_headers(workspace: Workspace, queue: str, path: str, changes: Mapping[str, str | None]) -> None:
    """Change the headers of a held file, if it is still there. They inform readers and decide nothing."""
    draft = f"{workspace.folders.private(queue, 'tmp')}/{new_tag()}~restated"
    with suppress(OSError, InvalidInput, *UNREADABLE):
        text = edited(read_whole(path)[0], changes)
        try:
            os.close(write_new(draft, text))
            exchange(draft, path)  # fails if the file is gone; then nothing changes
        finally:
            os.unlink(draft)


def _identity(path: str) -> tuple[int, ...]:
    """Return what changes when another file takes this path or the file is written; nothing if there is none."""
    try:
        about = os.lstat(path)
    except OSError:
        return ()
    return (about.st_ino, about.st_mode, about.st_size, about.st_mtime_ns)


def give_back(workspace: Workspace, delivery: Delivery, path: str, reason: str) -> None:
    """Make a message that nobody began, or could finish, ready again; the attempt is not counted."""
    # Its status does not say that it is tried again. Files alone keep a status while they wait.
    edit_headers(workspace, delivery.receipt.queue, path, {fields.STATUS: "queued", fields.PROCESSED_AT: None})
    before = delivery.failure or Failure(GIVEN_BACK, reason, workspace.clock.now())
    before = replace(before, attempt=counted(delivery.attempt, delivery.failure) - 1)
    workspace.store.settle([Settlement(delivery.receipt, Retry(0.0, before))])
