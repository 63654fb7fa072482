"""The worker: takes messages, runs a handler on each, and settles by the outcome of the handler.

The handler gets a delivery. If it returns, the delivery is acked, unless the handler settled it. If it raises, the
delivery fails by policy. A body of the wrong type is dead at once. Leases are renewed while handlers run.

Messages are leased for all free threads at once, and those whose handlers return at about the same time are acked in
one call, by the thread that leases. While that one waits for messages, the threads of the handlers ack.

A handler is a function that has done its work when it returns. A coroutine function returns before that: its message
would be acked and its work never begun, so it is refused.
"""

from __future__ import annotations

import inspect
import logging
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar, overload

from pabal.errors import InvalidInput, LeaseLost, PabalError, ValidationFailed
from pabal.jsontext import Json
from pabal.message import check_count, check_seconds
from pabal.policy.validation import Check, checker
from pabal.queues.delivery import Body, Delivery, reason_of
from pabal.queues.queue import MIN_LEASE, Queue
from pabal.queues.waiter import Waiter
from pabal.store import FailureCode, Receipt

log = logging.getLogger("pabal")

# Seconds between looks at `_stopping`, since a signal handler that calls `stop` takes no lock; and the shortest wait
# for messages while handlers run.
SLICE = 0.2
Handler = Callable[[Delivery], object]
T = TypeVar("T")


class Worker:
    """Runs a handler over a queue with up to `concurrency` messages at a time. Made by `worker`."""

    def __init__(
        self,
        queue: Queue,
        handler: Handler,
        *,
        concurrency: int,
        visibility: float | None,
        timeout: float | Callable[[Delivery], float | None] | None,
        check: Check | None,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._concurrency = concurrency
        self._visibility = visibility
        self._timeout = timeout
        self._check = check
        self._waiter = Waiter(queue)
        self._work: SimpleQueue[Delivery | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._held: dict[Receipt, Delivery] = {}
        self._late: set[Receipt] = set()  # timed out before their handler returned
        self._returned: deque[Delivery] = deque()  # to be acked
        self._acking = threading.Lock()
        self._away = False  # the feeding thread waits for messages, or has ended
        self._asleep = threading.Lock()  # held; released to end the sleep of the feeding thread
        self._asleep.acquire()
        self._started = self._stopping = False
        self._broken: BaseException | None = None
        self.handled = 0

    def run(
        self, *, wait: float | None = None, count: int | None = None, grace: float = 30.0, signals: bool = True
    ) -> int:
        """Work until stopped, until `wait` seconds bring no message, or until `count` messages were taken.

        Then wait for the running handlers, after `stop` for `grace` seconds at most, and give back the messages that
        are still held, with no attempt counted. Return how many were handled. Raise the error that ended the work, such
        as a StoreError.

        In the main thread SIGTERM and SIGINT stop it, and a second one ends the process at once; unless `signals` is
        False, or the program has a handler of its own for them.
        """
        if self._started:
            raise InvalidInput("this worker has run: make another one")
        self._started = True
        with stopped_by_signals(self.stop) if signals else nullcontext():
            return self._run(wait, count, grace)

    def _run(self, wait: float | None, count: int | None, grace: float) -> int:
        warn_if_paused(self._queue)
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
        """Take no more messages; `run` returns when held ones are finished or given back. Safe in signal handlers."""
        self._stopping = True
        self._waiter.stop()

    def give_up(self, exc: Exception) -> None:
        """Stop, and let `run` raise this error: for a handler for which waiting is useless."""
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
        try:
            while count > 0 and not self._stopping:
                self._away = False
                self._ack_returned()
                slots = int(min(count, self._concurrency - len(self._held)))
                if not slots:
                    self._asleep.acquire(timeout=SLICE)
                    continue
                # While handlers run, `wait` does not run out: never look without a pause.
                least = SLICE if self._held else 0.0
                wait = max(least, idle_since + patience - time.monotonic())
                self._away = True
                self._ack_returned()  # what returned before the others could see it
                busy = bool(self._held)  # then what fails meanwhile may be ready again, after the last look
                deliveries = self._waiter.lease(slots, self._visibility, wait)
                for delivery in deliveries:
                    self._held[delivery.receipt] = delivery
                    delivery._hold()
                    self._work.put(delivery)
                count -= len(deliveries)
                if deliveries or self._held or busy:
                    idle_since = time.monotonic()
                elif time.monotonic() - idle_since >= patience:
                    return
        finally:
            self._away = True
            self._ack_returned()

    def _serve(self) -> None:
        while (delivery := self._work.get()) is not None:
            try:
                returned = self._handle(delivery)
            except LeaseLost as exc:
                log.warning("lease lost: %(error)s", {**ids_of(delivery.receipt), "error": str(exc)})
                returned = False
            except BaseException as exc:  # sys.exit in a handler, a store that fails: the run ends and raises it
                self._break_off(exc, [delivery])
                returned = False
            if not returned:
                self._finished([delivery])
                continue
            self._returned.append(delivery)
            if self._away:
                self._ack_returned()
            else:
                self._wake_feeder()

    def _handle(self, delivery: Delivery) -> bool:
        """Run the handler; return whether the delivery is to be acked."""
        try:
            if self._check is not None:
                delivery.body = self._check(delivery.body)
        except ValidationFailed as exc:
            delivery.fail(FailureCode.VALIDATION_ERROR, str(exc))
            return False
        alarm = self._alarm(delivery)
        try:
            check_returned(self._handler(delivery))
        except Exception as exc:
            if delivery.settled and self._stopping:
                return False  # it was given back, and then its handler was cancelled
            log.warning("handler raised for %(queue)s/%(id)s", ids_of(delivery.receipt), exc_info=exc)
            if not delivery.settled:
                delivery.fail(FailureCode.HANDLER_ERROR, reason_of(exc))
            return False
        finally:
            if alarm is not None:
                alarm.cancel()
        if delivery.settled:
            self._count([delivery])
        return not delivery.settled

    def _ack_returned(self) -> None:
        """Ack what has returned so far, unless another thread does: it looks again after it has finished."""
        while self._returned and self._acking.acquire(blocking=False):
            try:
                some = [self._returned.popleft() for _ in range(len(self._returned))]
                self._ack(some)
            finally:
                self._acking.release()
            self._finished(some)

    def _ack(self, deliveries: list[Delivery]) -> None:
        try:
            self._queue.ack_many(deliveries)
        except LeaseLost as exc:
            log.warning("lease lost: %(error)s", {"error": str(exc)})
        except BaseException as exc:
            self._break_off(exc, deliveries)
            return
        self._count([delivery for delivery in deliveries if delivery.settled])

    def _break_off(self, exc: BaseException, deliveries: list[Delivery]) -> None:
        self._broken = exc
        self.stop()
        for delivery in deliveries:
            self._give_back(delivery)

    def _count(self, deliveries: list[Delivery]) -> None:
        with self._changed:
            self.handled += sum(delivery.receipt not in self._late for delivery in deliveries)

    def _finished(self, deliveries: list[Delivery]) -> None:
        """Let go of deliveries that are settled or lost."""
        for delivery in deliveries:
            delivery._let_go()
        with self._changed:
            for delivery in deliveries:
                self._late.discard(delivery.receipt)
                del self._held[delivery.receipt]
            self._changed.notify_all()
        self._wake_feeder()

    def _wake_feeder(self) -> None:
        with suppress(RuntimeError):  # it was woken already
            self._asleep.release()

    def _alarm(self, delivery: Delivery) -> threading.Timer | None:
        """Fail the message when its time is over. Its handler cannot be stopped; its outcome is then ignored."""
        seconds = self._timeout(delivery) if callable(self._timeout) else self._timeout
        if seconds is None:
            return None
        alarm = threading.Timer(seconds, self._time_out, [delivery, seconds])
        alarm.daemon = True
        alarm.start()
        return alarm

    def _time_out(self, delivery: Delivery, seconds: float) -> None:
        delivery._let_go()
        self._late.add(delivery.receipt)
        try:
            if not delivery.settled:
                delivery.fail(FailureCode.HANDLER_TIMEOUT, f"took longer than {seconds:g} s")
        except PabalError as exc:
            log.warning("could not fail %(queue)s/%(id)s: %(error)s", {**ids_of(delivery.receipt), "error": str(exc)})

    def _finish(self, grace: float) -> None:
        with self._changed:
            while self._held and not self._stopping:
                self._changed.wait(SLICE)
            self._changed.wait_for(lambda: not self._held, timeout=grace)
            unfinished = list(self._held.values())
        for delivery in unfinished:
            delivery._let_go()
            self._give_back(delivery, counted=False)
        for _ in range(self._concurrency):
            self._work.put(None)

    def _give_back(self, delivery: Delivery, *, counted: bool = True) -> None:
        try:
            if not delivery.settled:
                delivery.release(counted=counted)
        except PabalError as exc:
            log.warning(
                "could not give back %(queue)s/%(id)s: %(error)s", {**ids_of(delivery.receipt), "error": str(exc)}
            )


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first SIGTERM or SIGINT in this block; the second acts as without it.

    Only in the main thread, and only where the program has no handler of its own.
    """
    usual: dict[signal.Signals, Any] = {}

    def put_back() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)
        usual.clear()

    def end(number: int, frame: FrameType | None) -> None:
        put_back()
        stop()

    if threading.current_thread() is threading.main_thread():
        defaults = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.default_int_handler}
        for number, default in defaults.items():
            if signal.getsignal(number) == default:
                usual[number] = signal.signal(number, end)
    try:
        yield
    finally:
        put_back()


def ids_of(receipt: Receipt) -> dict[str, str]:
    """Return the fields of the log that name a message."""
    return {"queue": receipt.queue, "id": receipt.id}


@overload
def worker(
    queue: Queue[Body],
    handler: Callable[[Delivery[Body]], object],
    *,
    concurrency: int = 1,
    visibility: float | None = None,
    timeout: float | None = None,
    body: Mapping[str, Json] | None = None,
) -> Worker: ...


@overload
def worker(
    queue: Queue,
    handler: Callable[[Delivery[T]], object],
    *,
    concurrency: int = 1,
    visibility: float | None = None,
    timeout: float | None = None,
    body: type[T],
) -> Worker: ...


def worker(
    queue: Queue,
    handler: Callable[..., object],
    *,
    concurrency: int = 1,
    visibility: float | None = None,
    timeout: float | None = None,
    body: type[Any] | Mapping[str, Json] | None = None,
) -> Worker:
    """Make a worker: `handler(delivery)` for each message, up to `concurrency` at a time, each leased for `visibility`
    seconds.

    A message whose handler takes longer than `timeout` seconds has failed, and another consumer may get it. `body` is a
    type (then `delivery.body` is of that type) or a JSON Schema.
    """
    check_handler(handler)
    check = check_terms(concurrency, timeout, body)
    return Worker(queue, handler, concurrency=concurrency, visibility=visibility, timeout=timeout, check=check)


def check_terms(concurrency: int, timeout: float | None, body: type[Any] | Mapping[str, Json] | None) -> Check | None:
    """Refuse wrong terms of a worker; return the check of its bodies, if there is one."""
    if timeout is not None:
        check_seconds("timeout", timeout, least=MIN_LEASE)
    check_count("concurrency", concurrency)
    return None if body is None else checker(body)


def warn_if_paused(queue: Queue) -> None:
    """Tell why a worker will get no messages."""
    if queue.paused:
        log.warning("%(queue)s is paused: no message is leased until it is resumed", {"queue": queue.name})


_KINDS = (
    (inspect.iscoroutinefunction, "a coroutine function"),
    (inspect.isasyncgenfunction, "an async generator function"),
    (inspect.isgeneratorfunction, "a generator function"),
)


def check_handler(handler: Callable[..., Any], *, together: bool = False) -> None:
    """Refuse a handler whose call does not run it. A handler of batches (`together`) may be a generator of refusals."""
    if not callable(handler):
        raise InvalidInput(f"a handler is a function; found {handler!r:.80}")
    for is_such, kind in _KINDS[: 2 if together else 3]:
        if is_such(handler) or is_such(type(handler).__call__):
            raise InvalidInput(
                f"a handler is a plain function; found {kind}, {_name(handler):.80}: use pabal.aio for coroutines, or"
                " run it to its end inside a function"
            )


def check_returned(result: object) -> None:
    """Raise if a handler returned work that is not done yet, such as a coroutine."""
    if result is not None and hasattr(result, "__await__"):
        if inspect.iscoroutine(result):
            result.close()  # or Python warns about it later, elsewhere
        kind = type(result).__name__
        raise InvalidInput(f"the handler returned a {kind}, which nobody awaits: use pabal.aio for coroutines")


def _name(handler: Callable[..., Any]) -> str:
    return getattr(handler, "__qualname__", type(handler).__qualname__)
