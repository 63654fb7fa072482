"""A table of numbers, callers that share a commit, and signal handlers that raise."""

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pabal.sql.connection import Connection
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction


def prepare(connection: Connection) -> None:
    connection.execute("create table if not exists t (x integer primary key)")


def rows(db: Database) -> list[int]:
    return db.read(lambda connection: [row[0] for row in connection.execute("select x from t order by x")])


class Interrupt(BaseException):
    """What a signal handler raises."""


@contextmanager
def profiled(handler: Callable[[FrameType, str, object], None]) -> Iterator[None]:
    """Let the handler see what begins and ends in this thread, but not what the collector does in passing."""
    gc.disable()
    sys.setprofile(handler)
    try:
        yield
    finally:
        sys.setprofile(None)
        gc.enable()


def run_together(db: Database, calls: list[Callable[[], None]]) -> None:
    """Let these calls come while another commit is under way, so that they share the next one."""
    held, go_on = threading.Event(), threading.Event()

    def first(tx: Transaction) -> None:
        held.set()
        assert go_on.wait(10)

    threads = [threading.Thread(target=lambda: db.write(first, durable=False))]
    threads[0].start()
    assert held.wait(10)
    for call in calls:
        threads.append(threading.Thread(target=call))
        threads[-1].start()
    while len(db._group._waiting) < len(calls):
        threading.Event().wait(0.001)
    go_on.set()
    for thread in threads:
        thread.join(10)
