"""Counts the steps of a piece of work, so that a test can judge its growth without a clock.

A step is a bytecode instruction of Python code. A method in C that goes through its whole object (`list.count`,
`str.find`) counts as the length of that object, because nothing inside it can be seen.
"""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

_WHOLE = frozenset(
    "copy count decode encode endswith find index insert join lower partition remove replace reverse rfind rindex "
    "rpartition rsplit sort split splitlines startswith strip translate upper".split()
)


def steps(work: Callable[[], object]) -> int:
    """Run the work, which may raise, and return how many steps it took."""
    taken = 0

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal taken
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        taken += event == "opcode"
        return count

    def weigh(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal taken
        if event == "c_call" and argument.__name__ in _WHOLE:
            owner = getattr(argument, "__self__", None)
            if isinstance(owner, list | str | bytes | bytearray):
                taken += len(owner)

    before = sys.gettrace(), sys.getprofile()
    sys.settrace(count)
    sys.setprofile(weigh)
    try:
        work()
    except Exception:  # the number of steps is the answer, not the outcome
        pass
    finally:
        sys.settrace(before[0])
        sys.setprofile(before[1])
    return taken


def growth(work: Callable[[int], Callable[[], object]], size: int) -> float:
    """Return how many times as many steps the work of four times the size takes; about 4 where it is linear.

    `work` prepares the work of a size and returns it.
    """
    small, large = work(size), work(4 * size)
    return steps(large) / steps(small)
