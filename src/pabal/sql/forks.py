"""Forks: an object that must not live through one is told before and after, for as long as it is there."""

import os
import weakref
from collections.abc import Callable
from typing import Protocol


class Forked(Protocol):
    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


def survive_fork(whom: Forked) -> None:
    """Call the three methods of this object around every fork; it is not kept alive for it."""
    reference = weakref.ref(whom)

    def hook(name: str) -> Callable[[], None]:
        def run() -> None:
            if (found := reference()) is not None:
                getattr(found, name)()

        return run

    os.register_at_fork(
        before=hook("before_fork"),
        after_in_parent=hook("after_fork_in_parent"),
        after_in_child=hook("after_fork_in_child"),
    )
