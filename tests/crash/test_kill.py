"""kill -9 at every system call of every operation, then again while the next process recovers: G1 to G8 still hold."""

import random
from contextlib import closing
from pathlib import Path

import pytest

from pabal.store import State
from tests.crash.harness import SOAK, Zygote, judge, one_state_each, scratch
from tests.crash.operations import BROKEN, OPERATIONS
from tests.crash.recorder import AheadClock, draft
from tests.openers import OPENERS


@pytest.mark.parametrize("operation", [*OPERATIONS, "open"])
def test_a_kill_at_any_call_loses_and_doubles_nothing(zygote: Zygote, operation: str) -> None:
    points = zygote.points(operation)
    assert points, f"{operation} touches nothing"
    for point in points:
        with scratch() as folder:
            assert zygote.kill(operation, Path(folder), point), f"never came to {point.told}"
            assert judge(zygote.store, Path(folder)).harm == {}, f"killed at {point.told}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_second_kill_while_recovering_is_no_worse(zygote: Zygote, operation: str) -> None:
    points, recovery = zygote.points(operation), zygote.points("open", operation)
    chance = random.Random(operation)
    for point in points if SOAK else chance.sample(points, min(len(points), 8)):
        again = chance.choice(recovery)
        with scratch() as folder:
            assert zygote.kill(operation, Path(folder), point, name="first")
            zygote.kill("open", Path(folder), again, name="second")
            assert judge(zygote.store, Path(folder)).harm == {}, f"killed at {point.told}, then at {again.told}"


@pytest.mark.parametrize("operation", BROKEN)
def test_a_broken_promise_is_found(zygote: Zygote, operation: str) -> None:
    points = zygote.points(operation)
    for point in sorted(points, key=lambda point: abs(points.index(point) - len(points) // 2)):  # between the two steps
        with scratch() as folder:
            zygote.kill(operation, Path(folder), point)
            if "half" in judge(zygote.store, Path(folder)).harm:
                return
    pytest.fail(f"a kill at any of {len(points)} calls showed no half of {operation}")


def test_a_delete_that_was_killed_anywhere_is_finished_by_a_repeat(zygote: Zygote) -> None:
    points = zygote.points("delete")
    chance = random.Random("delete")
    for point in points if SOAK else chance.sample(points, min(len(points), 25)):
        with scratch() as folder:
            assert zygote.kill("delete", Path(folder), point), f"never came to {point.told}"
            with closing(OPENERS[zygote.store].open(Path(folder, "place"), AheadClock())) as store:
                one_state_each(store)
                store.delete("gone", force=True)
                assert store.queues() == [] and not any(store.counts("gone").values()), point.told
                assert store.settings("gone") is None
                again = store.publish([draft(id, queue="gone", key=f"key {id}") for id in "abcde"])
                assert not any(answer.duplicate for answer in again), point.told
                assert store.counts("gone") == {**store.counts("other"), State.READY: 5}, point.told
