"""The long poll of an event loop: one thread waits for a queue, for all tasks that wait for it.

The thread sleeps as every consumer does and ends a while after the last task has gone. What it has taken for a task
that is gone goes to the next one or back to the queue.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from functools import partial

from pabal.errors import StoreClosed
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.queues.waiter import Waiter

_LINGER = 5.0  # seconds that the thread waits for another task before it ends
_MOST = 1000  # messages of one lease


class Ask:
    """A task that waits for up to `limit` messages, each leased for `visibility` seconds."""

    def __init__(self, limit: int, visibility: float | None, successive: bool, token: str) -> None:
        self.limit = limit
        self.visibility = visibility
        self.successive = successive
        self.token = token
        self.alone = successive or token != ""  # what is leased for it is not divided
        self.found: Future[list[Delivery]] = Future()


class Feed:
    """Serves the tasks that wait for one queue, in the order in which they came. Any thread may use it."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._changed = threading.Condition()
        self._asks: dict[Ask, None] = {}
        self._waiter: Waiter | None = None  # of the thread, while it waits for messages
        self._serving: Ask | None = None  # what it waits for them for
        self._running = False
        self._closed = False
        self._pid = os.getpid()

    def ask(self, limit: int, visibility: float | None, successive: bool = False, token: str = "") -> Ask:
        ask = Ask(limit, visibility, successive, token)
        if self._pid != os.getpid():
            raise StoreClosed("the connection was made before a fork: connect in this process")
        with self._changed:
            if self._closed:
                raise StoreClosed("the connection is closed: connect again")
            if not self._running:
                threading.Thread(target=self._run, name="pabal-aio-feed", daemon=True).start()
                self._running = True
            self._asks[ask] = None
            self._changed.notify()
        return ask

    def withdraw(self, ask: Ask) -> bool:
        """Take back an ask; return False if it has its messages already."""
        with self._changed:
            waited = self._asks.pop(ask, ask) is None
            if self._waiter is not None and self._serving is not None and not self._alike(self._serving):
                self._waiter.stop()  # else it would lease for nobody
        return waited

    @property
    def asleep(self) -> bool:
        """Whether the thread sleeps: the store has answered that there is nothing."""
        waiter = self._waiter
        return waiter is not None and waiter.sleeping

    def close(self) -> None:
        """End the thread; those who wait get StoreClosed."""
        with self._changed:
            self._closed = True
            asks, self._asks = list(self._asks), {}
            self._changed.notify()
            if self._waiter is not None:
                self._waiter.stop()
            self._changed.wait_for(lambda: not self._running)
        for ask in asks:
            ask.found.set_exception(StoreClosed("the connection was closed while this task waited"))

    def _run(self) -> None:
        try:
            while self._has_asks():
                self._serve()
        except BaseException as exc:  # else tasks would wait for ever for a thread that has ended
            with self._changed:
                asks, self._asks = self._asks, {}
                self._running = False
                self._changed.notify_all()
            for ask in asks:
                ask.found.set_exception(exc)

    def _serve(self) -> None:
        """Lease for the tasks that ask, until there is none."""
        with Waiter(self._queue) as waiter:
            while ask := self._first(waiter):
                try:
                    found = waiter.lease(partial(self._limit, ask), ask.visibility, None, ask.successive, ask.token)
                except Exception as exc:
                    self._refuse(ask, exc)
                    continue
                self._hand_out(ask, found)
                if not found:
                    return  # it was stopped

    def _has_asks(self) -> bool:
        """Wait for a task that asks; if none comes, the thread ends."""
        with self._changed:
            if self._changed.wait_for(lambda: self._asks or self._closed, timeout=_LINGER) and self._asks:
                return True
            self._running = False
            self._changed.notify_all()
            return False

    def _first(self, waiter: Waiter) -> Ask | None:
        with self._changed:
            ask = next(iter(self._asks), None)
            self._waiter, self._serving = (None if ask is None else waiter), ask
            return ask

    def _alike(self, ask: Ask) -> list[Ask]:
        """Return the asks that one lease can serve: for the same time, and none for a whole group or with a token."""
        if ask.alone:
            return [ask] if ask in self._asks else []
        return [each for each in self._asks if not each.alone and each.visibility == ask.visibility]

    def _limit(self, ask: Ask) -> int:
        """Return how many messages the tasks want that are there now: others may have come, and gone."""
        with self._changed:
            alike = self._alike(ask)
            return max([1, min(sum(each.limit for each in alike), _MOST), *(each.limit for each in alike)])

    def _hand_out(self, ask: Ask, found: list[Delivery]) -> None:
        served: list[tuple[Ask, list[Delivery]]] = []
        with self._changed:
            for each in self._alike(ask):
                if found:
                    del self._asks[each]
                    served.append((each, found[: each.limit]))
                    found = found[each.limit :]
        for each, part in served:
            each.found.set_result(part)
        if found and not ask.token:  # with a token, the repetition of the call gets them
            self._queue._give_back(found)

    def _refuse(self, ask: Ask, error: Exception) -> None:
        with self._changed:
            refused = self._alike(ask)
            for each in refused:
                del self._asks[each]
        for each in refused:
            each.found.set_exception(error)
