"""Calls methods of registered objects before and after every fork, for as long as the objects exist."""

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
_called: list[Forked] = []  # called before the fork, to be called after it


def survive_fork(object: Forked) -> None:
    """Call the three methods of this object around every fork. The registration does not keep it alive."""
    _known.append(weakref.ref(object, _known.remove))


def _before() -> None:
    _forking.acquire()
    for reference in reversed(_known.copy()):
        if (object := reference()) is not None:
            _called.append(object)
            object.before_fork()


def _after_in_parent() -> None:
    while _called:
        _called.pop().after_fork_in_parent()
    _forking.release()


def _after_in_child() -> None:
    while _called:
        _called.pop().after_fork_in_child()
    _forking.release()


os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
