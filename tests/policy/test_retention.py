"""A look that was damaged neither stops a retention nor lets it remove anything early."""

import pytest

from pabal.policy.retention import LOOK_SECONDS, Look, trim_seen_twice
from pabal.testing import ManualClock


@pytest.mark.parametrize(
    "text",
    ["", "x", "nan 0 b0000001 1000", "1 nan b0000001 1000", "1 0 b0000001 nan", "1 0 b0000001 9e99", "inf 0 b 0"]
    + ["1 -9e99 b0000001 1000", "-inf inf b0000001 -inf", "1 inf b0000001 1000"],
)
def test_a_damaged_look_is_replaced(text: str) -> None:
    clock, kept, removed = ManualClock(), [text], list[float]()

    def remove(at: float) -> int:
        removed.append(at)
        return 1

    def trim() -> None:
        trim_seen_twice(clock, 2, kept=kept[0], keep=keep, is_due=lambda at: True, remove=remove)

    def keep(look: Look) -> None:
        kept[0] = str(look)

    began = clock.now()
    trim()
    assert removed == []
    clock.advance(LOOK_SECONDS)
    trim()
    assert removed == [began]
