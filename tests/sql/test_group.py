"""Callers that come at once share a commit, and none of them waits for ever."""

import sys
import threading
from contextlib import suppress
from types import FrameType

import pytest

from pabal.sql import group as group_module
from pabal.sql.group import Group, Job
from tests.sql.numbers import Interrupt

group_file = group_module.__file__


class Commits:
    """Counts commits; the first one waits until it is let go, so that others can queue behind it."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, jobs: list[Job]) -> None:
        self.sizes.append(len(jobs))
        if len(self.sizes) == 1:
            self.begun.set()
            assert self.go_on.wait(10)
        for job in jobs:
            try:
                job.result = job.work()
            except ValueError as exc:
                job.error = exc

    def end(self, group: Group, threads: list[threading.Thread]) -> None:
        """Let the first one go on when all other threads wait behind it, and see them all off."""
        while len(group._waiting) < len(threads) - 1:
            threading.Event().wait(0.001)
        self.go_on.set()
        for thread in threads:
            thread.join(10)


def test_a_caller_alone_works_in_its_own_thread() -> None:
    commits = Commits()
    commits.go_on.set()
    group = Group(commits)
    assert group.write(threading.get_ident, durable=False) == threading.get_ident()
    assert commits.sizes == [1]


def test_those_who_come_meanwhile_share_one_commit_and_one_failure_fails_one() -> None:
    commits = Commits()
    group = Group(commits)
    answers: dict[int, object] = {}

    def call(number: int) -> None:
        def work() -> int:
            if number == 3:
                raise ValueError("three")
            return number * 10

        try:
            answers[number] = group.write(work, durable=False)
        except ValueError as exc:
            answers[number] = str(exc)

    threads = [threading.Thread(target=call, args=(0,))]
    threads[0].start()
    assert commits.begun.wait(10)
    for number in range(1, 8):
        threads.append(threading.Thread(target=call, args=(number,)))
        threads[-1].start()
    commits.end(group, threads)
    assert commits.sizes == [1, 7]
    assert answers == {0: 0, 1: 10, 2: 20, 3: "three", 4: 40, 5: 50, 6: 60, 7: 70}


def test_an_interrupted_leader_leaves_nobody_waiting() -> None:
    begun, go_on = threading.Event(), threading.Event()
    calls = []

    def commit(jobs: list[Job]) -> None:
        calls.append(jobs)
        if len(calls) == 1:
            begun.set()
            go_on.wait(10)
            raise KeyboardInterrupt
        for given in jobs:
            given.result = given.work()

    group = Group(commit)
    interrupted: list[BaseException] = []

    def lead() -> None:
        try:
            group.write(lambda: 1, durable=False)
        except KeyboardInterrupt as exc:
            interrupted.append(exc)

    leader = threading.Thread(target=lead)
    leader.start()
    assert begun.wait(10)
    answers: list[int] = []
    follower = threading.Thread(target=lambda: answers.append(group.write(lambda: 2, durable=False)))
    follower.start()
    go_on.set()
    leader.join(10)
    follower.join(10)
    assert interrupted and answers == [2]
    assert group.write(lambda: 3, durable=False) == 3


@pytest.mark.parametrize("point", range(8))
def test_a_leader_interrupted_while_it_hands_over_leaves_nobody_waiting(point: int) -> None:
    """It raises where Python lets it: when a function begins or one of C has ended."""
    commits = Commits()
    group = Group(commits)
    left = iter(range(point, -1, -1))

    def handler(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and frame.f_code.co_filename == group_file and next(left, -1) == 0:
            sys.setprofile(None)
            raise Interrupt

    def lead() -> None:
        with suppress(Interrupt):
            group.write(lambda: sys.setprofile(handler), durable=False)
        sys.setprofile(None)

    threads = [threading.Thread(target=lead)]
    threads[0].start()
    assert commits.begun.wait(10)
    answers: list[int] = []
    for _ in range(3):
        threads.append(threading.Thread(target=lambda: answers.append(group.write(lambda: 1, durable=False))))
        threads[-1].start()
    commits.end(group, threads)
    assert len(answers) == 3
    assert group.write(lambda: 4, durable=False) == 4


@pytest.mark.parametrize("threads", [2, 16])
def test_every_caller_gets_its_own_answer(threads: int) -> None:
    def commit(jobs: list[Job]) -> None:
        for given in jobs:
            given.result = given.work()

    group = Group(commit)
    wrong: list[object] = []

    def call(number: int) -> None:
        for turn in range(200):
            expected = (number, turn)
            answer = group.write(lambda expected=expected: expected, durable=False)
            if answer != expected:
                wrong.append((expected, answer))

    running = [threading.Thread(target=call, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join(30)
    assert not wrong
