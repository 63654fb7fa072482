"""Keeps leases alive while their messages are being worked on.

One thread per queue handle, there only while leases are held. A lease is extended after a third of its time, so two
extensions may fail or come late before it is lost.
"""

import os
import threading
from collections.abc import Callable, Sequence

from pabal.store import Outcome, Receipt

_LINGER = 5.0  # seconds that the thread waits for another lease before it ends
Extend = Callable[[Sequence[Receipt], float], list[Outcome]]


class Renewal:
    _running: bool
    _sleeps_until: float
    _pid: int

    def __init__(self, extend: Extend, now: Callable[[], float]) -> None:
        self._extend = extend
        self._now = now
        self._start_anew()

    def hold(self, receipt: Receipt, seconds: float) -> None:
        """Extend this lease by `seconds` again and again until released."""
        due = self._now() + seconds / 3
        if self._pid != os.getpid():
            self._start_anew()
        with self._changed:
            self._held[receipt] = (due, seconds)
            if not self._running:
                threading.Thread(target=self._run, name="pabal-renewal", daemon=True).start()
                self._running = True  # only now: where no thread is to be had, the next hold tries again
            elif due < self._sleeps_until:
                self._changed.notify_all()

    def release(self, receipt: Receipt) -> None:
        if self._pid != os.getpid():
            return  # held by the parent, and the lock may be its thread's for ever
        with self._changed:
            self._held.pop(receipt, None)

    def _start_anew(self) -> None:
        # A forked child has the parent's receipts in its memory, its waiters in the condition, and none of its threads.
        self._changed = threading.Condition()
        self._held: dict[Receipt, tuple[float, float]] = {}  # receipt: (next renewal, seconds of the lease)
        self._running = False
        self._sleeps_until = float("inf")
        self._pid = os.getpid()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._held and not self._changed.wait_for(lambda: self._held, timeout=_LINGER):
                    self._running = False  # the next hold starts a new thread
                    return
                self._sleeps_until = min(due for due, _ in self._held.values())
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
        for receipt, (at, seconds) in self._held.items():
            if at <= now:
                due.setdefault(seconds, []).append(receipt)
        for seconds, receipts in due.items():
            for receipt in receipts:
                self._held[receipt] = (now + seconds / 3, seconds)
        return due

    def _renew(self, receipts: list[Receipt], seconds: float) -> None:
        try:
            outcomes = self._extend(receipts, seconds)
        except Exception:
            # The store is in trouble, or memory short: the next round tries again and settling will say what is wrong.
            return
        for receipt, outcome in zip(receipts, outcomes, strict=True):
            if outcome is Outcome.LOST:
                self.release(receipt)
