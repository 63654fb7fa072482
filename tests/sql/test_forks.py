"""Who is told of a fork, by whom, and for how long."""

import gc
import os
import threading
import time

from pabal.sql import forks
from pabal.sql.forks import survive_fork


class Witness:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.heard: list[str] = []
        survive_fork(self)

    def before_fork(self) -> None:
        self.lock.acquire()
        self.heard.append("before")
        time.sleep(0.001)  # lets another thread come between

    def after_fork_in_parent(self) -> None:
        self.heard.append("parent")
        self.lock.release()

    def after_fork_in_child(self) -> None:
        self.heard.append("child")
        self.lock.release()


def test_both_sides_of_a_fork_are_told() -> None:
    witness = Witness()
    pid = os.fork()
    if not pid:
        os._exit(witness.heard != ["before", "child"] or witness.lock.locked())
    assert os.waitpid(pid, 0)[1] == 0
    assert witness.heard == ["before", "parent"] and not witness.lock.locked()


def test_threads_may_fork_at_once() -> None:
    witness = Witness()
    ends: list[int] = []

    def work() -> None:
        for _ in range(10):
            pid = os.fork()
            if not pid:
                os._exit(0)
            ends.append(os.waitpid(pid, 0)[1])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ends == [0] * 40
    assert witness.heard == ["before", "parent"] * 40


def test_who_is_gone_is_forgotten() -> None:
    def known() -> int:
        return sum(isinstance(reference(), Witness) for reference in forks._known)

    gc.collect()
    assert known() == 0
    witnesses = [Witness() for _ in range(5)]
    assert known() == 5
    del witnesses
    gc.collect()
    assert known() == 0
    assert all(reference() is not None for reference in forks._known)
