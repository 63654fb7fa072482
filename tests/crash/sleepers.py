"""Consumers that sleep through their leases: each is told so, and changes nothing."""

import os
import signal
import time
from collections.abc import Callable
from contextlib import closing

from pabal.store import Store
from pabal.testing.store_place import Child, ack, publish, retry, take_one


def check_sleepers(open_store: Callable[[], Store], many: int) -> None:
    with closing(open_store()) as mine:
        for n in range(many):
            publish(mine, n)

            def sleep_on_it() -> str:
                with closing(open_store()) as theirs:
                    lease = take_one(theirs, seconds=0.05)
                    os.kill(os.getpid(), signal.SIGSTOP)
                    return ack(theirs, lease).name

            child = Child(sleep_on_it)
            os.waitpid(child.pid, os.WUNTRACED)
            time.sleep(0.06)
            (over,) = mine.expired("jobs", 10)
            retry(mine, over)
            again = take_one(mine)
            os.kill(child.pid, signal.SIGCONT)
            assert child.result() == "LOST"
            assert ack(mine, again).name == "APPLIED"
