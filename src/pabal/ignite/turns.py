"""One agent's place at the monitor's table: the turn it has, how a turn begins, lives and ends.

A turn is one message given to one agent: leased, the agent woken, and then done, failed or lost. Its end is one verdict
of the queue's policy, whichever way it came: an exit status, a command of the agent, a removed file, silence.
"""

from __future__ import annotations

import logging
import os
from concurrent.futures import Future
from datetime import UTC, datetime

from pabal.codecs.mime import fields
from pabal.delivery import Delivery
from pabal.errors import InvalidInput, WakeFailed
from pabal.ignite import types
from pabal.ignite.fates import Fate, fate_of, mark
from pabal.ignite.handing import give_back, hand_over
from pabal.ignite.memory import Fact, Ledger
from pabal.ignite.team import Agent
from pabal.ignite.wakes import Ending, Running, Turn, Wake
from pabal.ignite.workers import Elsewhere
from pabal.ignite.workspace import Held, Workspace, counted
from pabal.runtime.wake import FdWatch
from pabal.store import FailureCode, Outcome, Retry, Settlement, Verdict
from pabal.stores.files import FileStore

log = logging.getLogger("pabal.ignite")

SLOW_LOOK = 5.0  # seconds between looks at a queue when nobody rings
_LEAST_PAUSE = 0.005


class Post:
    """An agent, its queue and its turn, if it has one. Used by the monitor's thread alone."""

    def __init__(
        self,
        workspace: Workspace,
        name: str,
        about: Agent,
        wake: Wake,
        *,
        ledger: Ledger,
        watch: FdWatch,
        elsewhere: Elsewhere,
    ) -> None:
        self.name, self.about, self.wake = name, about, wake
        self.queue = workspace.queue(name)
        self.turn: Turn | None = None
        self.look_at = float("-inf")
        self.served_at = float("-inf")
        self.since = self.sign_at = 0.0
        self.successes = 0
        self._workspace, self._ledger, self._watch, self._elsewhere = workspace, ledger, watch, elsewhere
        self._clock = workspace.clock
        self._delivery: Delivery | None = None
        self._waking: Future[None] | None = None
        self._watched = -1

    # Beginning

    def look(self) -> bool:
        """Take the next message, if there is one; say when to look again if not."""
        now = self._clock.boot()
        found = self.queue.lease(1, self._workspace.team.policy.visibility)
        if not found:
            due = self._workspace.store.next_due(self.name)
            self.look_at = now + (SLOW_LOOK if due is None else min(SLOW_LOOK, max(due, _LEAST_PAUSE)))
            return False
        self.served_at = now
        path = hand_over(self._workspace, found[0])
        if path is not None:
            self._begin(found[0], path, found[0].attempt)
            self._wake()
        return self.turn is not None

    def adopt(self, held: Held, *, woken: bool) -> None:
        """Go on with a turn of the monitor before. What ran for it then has died with that monitor."""
        self._begin(self._workspace.delivery(held), held.path, held.attempt)
        if isinstance(self.wake, Running):
            self._fail(FailureCode.HANDLER_ERROR, "the monitor ended while its command ran", delay=0.0)
        elif not woken:
            self._wake()

    def _begin(self, delivery: Delivery, path: str, attempt: int) -> None:
        message = delivery.message
        self._delivery = delivery
        self.turn = Turn(self.name, self.about, path, delivery.receipt, message, attempt)
        self.since = self.sign_at = self._clock.boot()
        self._note(type=message.type, delivered_at=self._clock.now(), wake=self.about.wake)

    def _wake(self) -> None:
        assert self.turn is not None
        try:
            types.check(self.turn.message.type, self.turn.message.body)
        except InvalidInput as exc:
            self._fail(FailureCode.VALIDATION_ERROR, f"{exc.code}: {exc}")
            return
        if not isinstance(self.wake, Running):
            self._waking = self._elsewhere.run(self.wake.wake, self.turn)
            return
        try:
            self.wake.wake(self.turn)
        except WakeFailed as exc:
            self._fail(FailureCode.HANDLER_ERROR, f"not woken: {exc}")
            return
        self._watched = self.wake.descriptor(self.turn)
        self._watch.add(self._watched)
        self._woken()

    def _woken(self) -> None:
        assert self.turn is not None
        self._note(woken_at=self._clock.now())
        mark(self._workspace, self.turn.receipt.queue, self.turn.path, {fields.STATUS: "delivered"})

    # Living and ending

    def check(self) -> None:
        """See whether the turn has ended, or has been silent for too long."""
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
            self._settled_by_others()
        elif now - self.sign_at > limits.turn:
            self._fail(FailureCode.HANDLER_TIMEOUT, f"no sign of life for {limits.turn:g} seconds")

    def sign(self) -> None:
        """Take note that the agent is at work."""
        self.sign_at = self._clock.boot()

    def next_due(self) -> float | None:
        """Return the seconds until the turn must be looked at though nobody rang."""
        if self.turn is None:
            return None
        limits = self._workspace.team.limits
        if isinstance(self.wake, Running):
            end = self.since + limits.run
        else:
            end = min(self.sign_at + limits.turn, self._clock.boot() + SLOW_LOOK)
        return max(_LEAST_PAUSE, end - self._clock.boot())

    def withdraw(self) -> None:
        """Give back what cannot be finished: a message whose command must end, or whose agent was never told."""
        if self.turn is not None and (isinstance(self.wake, Running) or self._waking is not None):
            assert self._delivery is not None
            delivery = self._delivery
            self._clear()
            give_back(self._workspace, delivery)

    @property
    def running(self) -> bool:
        """Say whether a command runs that may still end by itself."""
        return self.turn is not None and isinstance(self.wake, Running)

    def _is_woken(self) -> bool:
        assert self._waking is not None
        if not self._waking.done():
            return False
        failed, self._waking = self._waking.exception(), None
        if failed is None:
            self._woken()
            return True
        told = str(failed) if isinstance(failed, WakeFailed) else f"{type(failed).__name__}: {failed}"
        self._fail(FailureCode.HANDLER_ERROR, f"not woken: {told}")
        return False

    def _ended(self, ending: Ending) -> None:
        assert self.turn is not None
        if not os.path.lexists(self.turn.path) and fate_of(self._workspace, self.turn.receipt) is not Fate.HELD:
            self._settled_by_others()
        elif ending.kind == "done":
            self._settle(self.queue.done(), "done", "")
        elif ending.kind == "retry":
            self._fail(FailureCode.NACKED, ending.reason)
        elif ending.kind == "bury":
            self._fail(FailureCode.NACKED, ending.reason, final=True)
        else:
            self._fail(FailureCode.HANDLER_ERROR, ending.reason)

    def _fail(self, code: FailureCode, reason: str, *, delay: float | None = None, final: bool = False) -> None:
        assert self._delivery is not None and self.turn is not None
        delivery = self._delivery
        failure = self.queue.failure(code, reason, counted(delivery.attempt, delivery.failure), delivery.failure)
        verdict = self.queue.judge(delivery.message, failure, delay=delay, final=final)
        if isinstance(verdict, Retry):
            again = datetime.fromtimestamp(self._clock.now() + verdict.delay, UTC).isoformat(timespec="seconds")
            mark(self._workspace, self.name, self.turn.path, {fields.NEXT_RETRY_AFTER: again})
        self._settle(verdict, "retry" if isinstance(verdict, Retry) else "dead", f"{code}: {reason}")

    def _settle(self, verdict: Verdict, outcome: str, error: str) -> None:
        assert self.turn is not None
        receipt, settle = self.turn.receipt, self._workspace.store.settle
        try:
            [applied] = settle([Settlement(receipt, verdict)])
        except InvalidInput as exc:  # a letter that its queue refuses must not hold back the verdict
            log.warning("%s: no dead letter: %s", receipt, exc)
            [applied] = settle([Settlement(receipt, verdict._replace(then=()))])
        if applied is Outcome.LOST:
            self._settled_by_others()
            return
        if outcome != "done":
            log.info("%s: %s, %s", receipt, error, outcome)
        self._over(outcome, error)

    def _settled_by_others(self) -> None:
        assert self.turn is not None
        fate = fate_of(self._workspace, self.turn.receipt)
        if fate in (Fate.MOVING, Fate.HELD):
            return  # between two folders, or under another name: a later look finds how it ends
        store = self._workspace.store
        if fate is Fate.REMOVED and isinstance(store, FileStore):
            store.forget(self.name, self.turn.receipt.id)
        self._over("done" if fate in (Fate.DONE, Fate.REMOVED) else fate.value, "")

    def _over(self, outcome: str, error: str) -> None:
        done = outcome == "done"
        self.successes += done
        self._note(done_at=self._clock.now() if done else None, outcome=outcome, error=error)
        self._clear()

    def _clear(self) -> None:
        assert self.turn is not None
        if self._watched >= 0:
            self._watch.remove(self._watched)
            self._watched = -1
        self.wake.stop(self.turn)
        self.turn = self._delivery = self._waking = None
        self.look_at = float("-inf")

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
        self._ledger.add(Fact(*where, type, delivered_at, woken_at, None, done_at, wake, outcome, error))
