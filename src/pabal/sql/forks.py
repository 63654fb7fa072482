"""Forks: an object that must not live through one is told before and after, for as long as it is there."""

import os
import threading
import weakref
from typing import Protocol


class Forked(Protocol):
    def before_fork(self) -> None: ...

    def after_fork_in_parent(self) -> None: ...

    def after_fork_in_child(self) -> None: ...


_known: "list[weakref.ref[Forked]]" = []
_forking = threading.Lock()  # held from before a fork until after it: one at a time
_told: list[Forked] = []  # who was told before it, to be told after it


def survive_fork(whom: Forked) -> None:
    """Call the three methods of this object around every fork; it is not kept alive for it."""
    _known.append(weakref.ref(whom, _known.remove))


def _before() -> None:
    _forking.acquire()
    for reference in reversed(_known.copy()):
        if (whom := reference()) is not None:
            _told.append(whom)
            whom.before_fork()


def _after_in_parent() -> None:
    while _told:
        _told.pop().after_fork_in_parent()
    _forking.release()


def _after_in_child() -> None:
    while _told:
        _told.pop().after_fork_in_child()
    _forking.release()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
