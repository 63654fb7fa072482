"""A lease that is held is extended, whatever happens to one round."""

import os
import signal
import threading
import time
from collections.abc import Sequence

import pytest

from pabal.queues.renewal import Renewal
from pabal.store import Outcome, Receipt
from tests.waiting import until

RECEIPT = Receipt("jobs", "one", "token")
SECONDS = 0.06  # extended after a third of it


class Extended:
    """A store that counts how often it was asked, and fails at first as often as told."""

    def __init__(self, failures: int = 0) -> None:
        self.times = 0
        self._failures = failures

    def __call__(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        self.times += 1
        if self.times <= self._failures:
            raise MemoryError
        return [Outcome.APPLIED for _ in receipts]


def test_a_round_that_fails_in_any_way_is_not_the_last() -> None:
    extended = Extended(failures=2)
    renewal = Renewal(extended, time.monotonic)
    renewal.hold(RECEIPT, SECONDS)
    until(lambda: extended.times > 3)
    renewal.release(RECEIPT)


def test_where_no_thread_was_to_be_had_the_next_lease_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    extended = Extended()
    renewal = Renewal(extended, time.monotonic)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as context:
        context.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError):
            renewal.hold(RECEIPT, SECONDS)
    renewal.hold(RECEIPT, SECONDS)
    until(lambda: extended.times > 1)
    renewal.release(RECEIPT)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_that_was_forked_in_the_middle_of_a_round_is_not_held_up() -> None:
    renewal = Renewal(Extended(), time.monotonic)
    taken, over = threading.Event(), threading.Event()

    def look() -> None:
        with renewal._changed:  # as the thread has it while it looks what is due
            taken.set()
            over.wait()

    looking = threading.Thread(target=look)
    looking.start()
    taken.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(5)
        renewal.release(RECEIPT)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    over.set()
    looking.join()
