"""Run work that servers may hold up, so that a signal ends it all the same.

A call to a server that hangs returns when its time limit is over, and no handler of a signal can shorten it. So the
work runs in a thread of its own, and the main thread waits for signals.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread, current_thread, main_thread
from types import FrameType

from pabal.errors import StoreFailed

GRACE_SECONDS = 8.0  # below the ten seconds after which most supervisors kill


def run_until_signal(work: Callable[[], None], stop: Callable[[], None], *, grace: float = GRACE_SECONDS) -> None:
    """Run `work` in a daemon thread until it returns, or raise what it raised.

    In the main thread SIGTERM and SIGINT call `stop`, which must let the work return soon. If it does not within
    `grace` seconds, raise StoreFailed, so that the process ends: what was not committed or acknowledged is done again
    by another one.
    """
    errors: list[BaseException] = []
    news: SimpleQueue[None] = SimpleQueue()  # a signal, or the end of the work; safe in a handler of signals

    def run() -> None:
        try:
            work()
        except BaseException as exc:
            errors.append(exc)
        finally:
            news.put(None)

    def heard(number: int, frame: FrameType | None) -> None:
        stop()
        news.put(None)

    numbers = (signal.SIGTERM, signal.SIGINT) if current_thread() is main_thread() else ()
    before = {number: signal.signal(number, heard) for number in numbers}
    try:
        thread = Thread(target=run, name="pabal-work", daemon=True)
        thread.start()
        news.get()
        thread.join(grace)
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
    if errors:
        raise errors[0]
    if thread.is_alive():
        raise StoreFailed(f"stopped without its servers, which did not answer for {grace:g} seconds; nothing is lost")
