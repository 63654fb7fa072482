"""What a server holds for its agent: leases that it renews, and the calls that may be cancelled while they take some.

An agent thinks for minutes between two calls, so the server renews the leases of its agent while the process lives. It
stops `hold` seconds after the last call of the agent; then the lease runs out and the policy of the queue decides. An
agent may go on working and have forgotten a message, because its context was cut: so renewal of a lease also ends
`MOST_HOLDS` times `hold` after the agent last named it, by `receive` or `extend`. A process that is killed renews
nothing, so its messages come back after the visibility timeout of their queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from pabal.queues.renewal import Extend, Renewal
from pabal.store import Outcome, Receipt

MOST_HOLDS = 4
LONGEST_EXTENSION = 86400.0  # seconds


class Call:
    """One call of a tool, which may be cancelled from another thread at any moment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._hurried = False
        self._end_wait: Callable[[], None] = lambda: None
        self._give_back: Callable[[], None] | None = None

    def waits(self, end_wait: Callable[[], None]) -> None:
        """Note how to end the wait of the call. If it was stopped already, end it now."""
        with self._lock:
            self._end_wait = end_wait
            ended = self._stopped or self._hurried
        if ended:
            end_wait()

    def took(self, give_back: Callable[[], None]) -> None:
        """Note how to give back what the call took. If it was stopped already, give it back now."""
        with self._lock:
            self._give_back = give_back
            stopped = self._stopped
        if stopped:
            self.give_back()

    def hurry(self) -> None:
        """End the wait of the call, which answers with what it has: its server is being stopped."""
        with self._lock:
            self._hurried = True
            end_wait = self._end_wait
        end_wait()

    def stop(self) -> None:
        """End the wait of the call; what it takes from now on is given back at once."""
        with self._lock:
            self._stopped = True
            end_wait = self._end_wait
        end_wait()

    def give_back(self) -> None:
        """Give back what the call took, once: its answer reaches nobody."""
        with self._lock:
            give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()


class Leases:
    """The leases of one agent, by receipt. Threads may share it."""

    def __init__(self, extend: Extend, hold: float, now: Callable[[], float] = time.monotonic) -> None:
        self._extend = extend
        self._hold = hold
        self._now = now
        self._lock = threading.Lock()
        self._until: dict[Receipt, float] = {}
        self._last: dict[Receipt, float] = {}  # however often the agent calls
        self._renewal = Renewal(self._renew, now)

    def add(self, receipt: Receipt, seconds: float, *, hold: float = 0.0) -> None:
        """Renew a lease of `seconds` until `hold` seconds, or the usual ones, have passed without a call."""
        with self._lock:
            now = self._now()
            self._until[receipt] = max(self._until.get(receipt, 0.0), now + (hold or self._hold))
            self._last[receipt] = now + max(hold, MOST_HOLDS * self._hold)
        self._renewal.hold(receipt, seconds)

    def sign(self) -> None:
        """Note a call of the agent: it lives, and so do its leases that it has named not too long ago."""
        with self._lock:
            until = self._now() + self._hold
            self._until = {
                receipt: max(before, min(until, self._last[receipt])) for receipt, before in self._until.items()
            }

    def drop(self, receipt: Receipt) -> None:
        """Renew a lease no more: it is settled or lost."""
        with self._lock:
            self._until.pop(receipt, None)
            self._last.pop(receipt, None)
        self._renewal.release(receipt)

    def receipts(self) -> list[Receipt]:
        """Return the leases that are renewed, the oldest first."""
        with self._lock:
            return list(self._until)

    def clear(self) -> list[Receipt]:
        """Renew nothing any more; return what was held."""
        receipts = self.receipts()
        for receipt in receipts:
            self.drop(receipt)
        return receipts

    def _renew(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        with self._lock:
            now = self._now()
            live = [receipt for receipt in receipts if self._until.get(receipt, 0.0) > now]
        outcomes = dict(zip(live, self._extend(live, seconds), strict=True)) if live else {}
        lost = [receipt for receipt in receipts if outcomes.get(receipt) is not Outcome.APPLIED]
        with self._lock:
            for receipt in lost:
                self._until.pop(receipt, None)
                self._last.pop(receipt, None)
        return [outcomes.get(receipt, Outcome.LOST) for receipt in receipts]
