"""kill -9 at every system call of every operation, then again while the next process recovers: G1 to G8 still hold."""

import random
from pathlib import Path

import pytest

from tests.crash.harness import SOAK, Zygote, judge, scratch
from tests.crash.operations import BROKEN, OPERATIONS


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
    found = 0
    for point in zygote.points(operation):
        with scratch() as folder:
            zygote.kill(operation, Path(folder), point)
            found += "half" in judge(zygote.store, Path(folder)).harm
    assert found > 0
