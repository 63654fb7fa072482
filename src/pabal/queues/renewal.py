"""Lease renewal: extends leases while their messages are being handled.

One thread for each queue handle, running only while leases are held. A lease is extended after a third of its time, so
that two extensions may fail or come late before it is lost. A message that is held for three times the time of its
lease is logged: its handler may never return.
"""

import logging
import os
import threading
from collections.abc import Callable, Sequence

from pabal.store import Outcome, Receipt

log = logging.getLogger("pabal")

_LONG = 3 - 1 / 3  # times of a lease, from its first renewal on
_LINGER = 5.0  # seconds that the thread waits for another lease before it ends
Extend = Callable[[Sequence[Receipt], float], list[Outcome]]


class Renewal:
    _running: bool
    _sleeps_until: float
    _pid: int

    def __init__(self, extend: Extend, now: Callable[[], float]) -> None:
        self._extend = extend
        self._now = now
        self._reset()

    def hold(self, receipt: Receipt, seconds: float) -> None:
        """Extend this lease by `seconds` repeatedly until it is released."""
        due = self._now() + seconds / 3
        if self._pid != os.getpid():
            self._reset()
        with self._changed:
            self._held[receipt] = (due, seconds, due + _LONG * seconds)
            if not self._running:
                threading.Thread(target=self._run, name="pabal-renewal", daemon=True).start()
                self._running = True  # only now: if no thread could be started, the next hold tries again
            elif due < self._sleeps_until:
                self._changed.notify_all()

    def release(self, receipt: Receipt) -> None:
        if self._pid != os.getpid():
            return  # the parent holds it, and a thread of the parent may hold the lock for ever
        with self._changed:
            self._held.pop(receipt, None)

    def _reset(self) -> None:
        # A forked child has copies of the receipts and waiters of its parent, but none of its threads.
        self._changed = threading.Condition()
        # By receipt: the next renewal, the seconds of the lease, and when it has been held for long.
        self._held: dict[Receipt, tuple[float, float, float]] = {}
        self._running = False
        self._sleeps_until = float("inf")
        self._pid = os.getpid()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._held and not self._changed.wait_for(lambda: self._held, timeout=_LINGER):
                    self._running = False  # the next hold starts a new thread
                    return
                self._sleeps_until = min(due for due, _, _ in self._held.values())
                pause = self._sleeps_until - self._now()
                if pause > 0:
                    self._changed.wait(pause)
                self._sleeps_until = float("inf")
                due = self._take_due()
            for seconds, receipts in due.items():
                self._renew(receipts, seconds)

    def _take_due(self) -> dict[float, list[Receipt]]:
        now = self._now()
        due: dict[float, list[Receipt]] = {}
        for receipt, (at, seconds, _) in self._held.items():
            if at <= now:
                due.setdefault(seconds, []).append(receipt)
        for seconds, receipts in due.items():
            for receipt in receipts:
                long_at = self._held[receipt][2]
                if long_at <= now:
                    about = {"queue": receipt.queue, "id": receipt.id, "seconds": round(3 * seconds)}
                    log.warning("%(queue)s/%(id)s is held for more than %(seconds)s s: does its handler end?", about)
                    long_at = float("inf")
                self._held[receipt] = (now + seconds / 3, seconds, long_at)
        return due

    def _renew(self, receipts: list[Receipt], seconds: float) -> None:
        try:
            outcomes = self._extend(receipts, seconds)
        except Exception:
            # The store fails or memory is short: the next round tries again, and settling raises the error.
            return
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if outcome is Outcome.LOST:
                self.release(receipt)
