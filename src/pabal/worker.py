"""The worker: takes messages as they come, runs a handler on each, settles by what the handler does.

The handler gets a delivery. Returning acks it (unless it settled the delivery itself), raising fails it by policy,
and a body that is not what was asked for is dead at once. Leases are renewed while handlers run.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from queue import SimpleQueue
from typing import Any

from pabal.calling import check_handler, check_returned
from pabal.delivery import Delivery, reason_of
from pabal.errors import LeaseLost, PabalError, ValidationFailed
from pabal.jsontext import Json
from pabal.message import check_count, check_seconds
from pabal.queue import MIN_LEASE, Queue
from pabal.schema import Check, checker
from pabal.store import FailureCode, Receipt
from pabal.waiter import Waiter

log = logging.getLogger("pabal")

_SLICE = 0.2  # seconds between looks at `stop`, which a signal handler may call and which therefore takes no lock
Handler = Callable[[Delivery], object]


class Worker:
    """Runs a handler over a queue with up to `concurrency` messages at a time. Made by `worker`."""

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        concurrency: int,
        seconds: float | None,
        timeout: float | None,
        check: Check | None,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._seconds = seconds
        self._timeout = timeout
        self._check = check
        self._waiter = Waiter(queue)
        self._free = threading.Semaphore(concurrency)
        self._work: SimpleQueue[Delivery | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._held: dict[Receipt, Delivery] = {}
        self._late: set[Receipt] = set()  # those whose time was over before their handler was done
        self._stopping = False
        self._broken: BaseException | None = None
        self.handled = 0

    def run(self, *, wait: float | None = None, count: int | None = None, grace: float = 30.0) -> int:
        """Work until stopped, until `wait` seconds bring nothing, or until `count` messages were taken.

        Then wait for the running handlers, after `stop` for `grace` seconds at most, and give back what is still held.
        Return how many were handled. Raise what made going on impossible, such as a StoreError.
        """
        self._start()
        try:
            with self._waiter:
                self._feed(float("inf") if wait is None else wait, float("inf") if count is None else count)
        except BaseException:
            self.stop()
            raise
        finally:
            self._finish(grace)
        if self._broken is not None:
            raise self._broken
        return self.handled

    def stop(self) -> None:
        """Take no more messages; `run` returns when what is held is finished or given back. For signal handlers too."""
        self._stopping = True
        self._waiter.stop()

    def give_up(self, exc: Exception) -> None:
        """Stop, and let `run` raise this: for a handler that finds that no waiting will help."""
        self._broken = exc
        self.stop()

    @property
    def stopping(self) -> bool:
        return self._stopping

    def _start(self) -> None:
        # Daemon threads: a handler that never returns must not keep the process from ending after its grace.
        for number in range(self._concurrency):
            threading.Thread(target=self._serve, name=f"pabal-worker-{number}", daemon=True).start()

    def _feed(self, patience: float, count: float) -> None:
        idle_since = time.monotonic()
        while count > 0 and (slots := self._take_slots(count)):
            # While handlers run the end is not near: never a look without a pause.
            least = _SLICE if self._held else 0.0
            deliveries = self._waiter.lease(slots, self._seconds, max(least, idle_since + patience - time.monotonic()))
            for delivery in deliveries:
                self._held[delivery.receipt] = delivery
                self._queue._renewal.hold(delivery.receipt, delivery.seconds)
                self._work.put(delivery)
            for _ in range(slots - len(deliveries)):
                self._free.release()
            count -= len(deliveries)
            if deliveries or len(self._held) > 0:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= patience:
                return

    def _take_slots(self, most: float) -> int:
        """Wait for a free thread and take all that are free; 0 when stopping."""
        while not self._stopping and not self._free.acquire(timeout=_SLICE):
            pass
        if self._stopping:
            return 0
        taken = 1
        while taken < most and self._free.acquire(blocking=False):
            taken += 1
        return taken

    def _serve(self) -> None:
        while (delivery := self._work.get()) is not None:
            try:
                self._handle(delivery)
            except LeaseLost as exc:
                log.warning("%s", exc)
            except BaseException as exc:  # sys.exit in a handler, a store that fails: the run ends and says why
                self._broken = exc
                self.stop()
                self._give_back(delivery)
            finally:
                self._queue._renewal.release(delivery.receipt)
                with self._changed:
                    self._late.discard(delivery.receipt)
                    del self._held[delivery.receipt]
                    self._changed.notify_all()
                self._free.release()

    def _handle(self, delivery: Delivery) -> None:
        try:
            if self._check is not None:
                delivery.body = self._check(delivery.body)
        except ValidationFailed as exc:
            delivery.fail(FailureCode.VALIDATION_ERROR, str(exc))
            return
        alarm = self._alarm(delivery)
        try:
            check_returned(self._handler(delivery))
        except Exception as exc:
            log.warning("handler raised for %s", delivery.receipt, exc_info=exc)
            if not delivery.settled:
                delivery.fail(FailureCode.HANDLER_ERROR, reason_of(exc))
        else:
            if not delivery.settled:
                delivery.ack()
            with self._changed:
                self.handled += delivery.receipt not in self._late
        finally:
            if alarm is not None:
                alarm.cancel()

    def _alarm(self, delivery: Delivery) -> threading.Timer | None:
        """Have the message failed when its time is over. Its handler cannot be ended; what it says then is stale."""
        if self._timeout is None:
            return None
        alarm = threading.Timer(self._timeout, self._time_out, [delivery])
        alarm.daemon = True
        alarm.start()
        return alarm

    def _time_out(self, delivery: Delivery) -> None:
        self._queue._renewal.release(delivery.receipt)
        self._late.add(delivery.receipt)
        try:
            if not delivery.settled:
                delivery.fail(FailureCode.HANDLER_TIMEOUT, f"took longer than {self._timeout:g} s")
        except PabalError as exc:
            log.warning("could not fail %s: %s", delivery.receipt, exc)

    def _finish(self, grace: float) -> None:
        with self._changed:
            while self._held and not self._stopping:
                self._changed.wait(_SLICE)
            self._changed.wait_for(lambda: not self._held, timeout=grace)
            unfinished = list(self._held.values())
        for delivery in unfinished:
            self._queue._renewal.release(delivery.receipt)
            self._give_back(delivery)
        for _ in range(self._concurrency):
            self._work.put(None)

    def _give_back(self, delivery: Delivery) -> None:
        try:
            if not delivery.settled:
                delivery.release()
        except PabalError as exc:
            log.warning("could not give back %s: %s", delivery.receipt, exc)


def worker(
    queue: Queue,
    handler: Handler,
    *,
    concurrency: int = 1,
    seconds: float | None = None,
    timeout: float | None = None,
    body: type[Any] | Mapping[str, Json] | None = None,
) -> Worker:
    """Make a worker: `handler(delivery)` for each message, up to `concurrency` at a time, each leased for `seconds`.

    A message whose handler takes longer than `timeout` seconds has failed, and somebody else may get it. `body` is a
    msgspec type (then `delivery.body` is of that type) or a JSON Schema.
    """
    check_handler(handler)
    if timeout is not None:
        check_seconds("timeout", timeout, least=MIN_LEASE)
    check_count("concurrency", concurrency)
    check = None if body is None else checker(body)
    return Worker(queue, handler, concurrency=concurrency, seconds=seconds, timeout=timeout, check=check)
