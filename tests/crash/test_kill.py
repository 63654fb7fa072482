"""kill -9 at every system call of every operation, then again while the next process recovers: G1 to G8 still hold."""

import random
from pathlib import Path

import pytest

from tests.crash.harness import SOAK, Zygote, judge
from tests.crash.operations import BROKEN, OPERATIONS


@pytest.mark.parametrize("operation", [*OPERATIONS, "open"])
def test_a_kill_at_any_call_loses_and_doubles_nothing(zygote: Zygote, operation: str, tmp_path: Path) -> None:
    points = zygote.points(operation, tmp_path / "whole", tmp_path / "whole.jsonl")
    assert points, f"{operation} touches nothing"
    for point in points:
        place, histories = tmp_path / f"{point} place", tmp_path / f"{point} histories"
        histories.mkdir()
        assert zygote.kill(operation, place, histories / "child.jsonl", point), f"never came to {point.told}"
        assert judge(zygote.store, place, histories).harm == {}, f"killed at {point.told}"


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_second_kill_while_recovering_is_no_worse(zygote: Zygote, operation: str, tmp_path: Path) -> None:
    points = zygote.points(operation, tmp_path / "whole", tmp_path / "whole.jsonl")
    again = zygote.points("open", tmp_path / "whole", tmp_path / "again.jsonl")
    chance = random.Random(operation)
    for point in points if SOAK else chance.sample(points, min(len(points), 8)):
        second = chance.choice(again)
        place, histories = tmp_path / f"{point} place", tmp_path / f"{point} histories"
        histories.mkdir()
        assert zygote.kill(operation, place, histories / "first.jsonl", point)
        zygote.kill("open", place, histories / "second.jsonl", second)
        assert judge(zygote.store, place, histories).harm == {}, f"killed at {point.told}, then at {second.told}"


@pytest.mark.parametrize("operation", BROKEN)
def test_a_broken_promise_is_found(zygote: Zygote, operation: str, tmp_path: Path) -> None:
    points = zygote.points(operation, tmp_path / "whole", tmp_path / "whole.jsonl")
    found = 0
    for point in points:
        place, histories = tmp_path / f"{point} place", tmp_path / f"{point} histories"
        histories.mkdir()
        zygote.kill(operation, place, histories / "child.jsonl", point)
        found += "half" in judge(zygote.store, place, histories).harm
    assert found > 0
