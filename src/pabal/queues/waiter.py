"""Long poll: lease, or wait for a wakeup of the store, with a slow poll beneath it.

Threads of a process that wait for the same queue share one watch and one poll: one of them, the leader, looks and
sleeps on the watch; the others sleep until they lead. A leader that leaves, with a message or without, hands over to
the next, which looks before it sleeps. So no wakeup is lost, and a thousand waiting threads cost as much as one.

The watch stays open after the last waiter has left, so that a loop of waiting leases makes it once.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakKeyDictionary

from pabal.clock import SLOW_POLL
from pabal.queues.delivery import Delivery
from pabal.store import LastingWatch, Store, Watch

if TYPE_CHECKING:
    from pabal.queues.queue import Queue

_LEAST_PAUSE = 0.002  # seconds: a message that is due for another consumer must not keep this one busy
_LONGEST_SLEEP = 60.0  # seconds: then a follower sees to it that there is still a leader
_LEADER_SECONDS = 10.0  # a leader that was not seen for so long was struck by a signal before it could hand over
_WATCH_SECONDS = 60.0  # then a watch is made anew: its file may have been removed, and a manager may have forgotten it
_IDLE_LINES = 16  # lines without waiters of which a store keeps the watches


class WaitingLine:
    """The waiters of this process for one queue of a store, as one consumer."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.watch: Watch | None = None
        self.kept = False  # the watch may stay open while nobody waits
        self._watched_at = 0.0  # on the monotonic clock: when the watch was made
        self._sleepers = 0  # two, if a leader was replaced that is still there
        self._mutex = threading.Lock()
        self._members = 0
        self._leader: Waiter | None = None
        self._led_at = 0.0  # on the monotonic clock: when the leader was last seen
        self._followers: dict[Waiter, None] = {}  # the one that waits longest comes first

    def join(self) -> None:
        with self._mutex:
            self._members += 1

    @property
    def idle(self) -> bool:
        return not self._members

    def leave(self) -> bool:
        """Return whether this was the last waiter."""
        with self._mutex:
            self._members -= 1
            return not self._members

    def arm(self, queue: Queue) -> bool:
        """Make the watch if there is none, or an old one; then return True: look once more before sleeping.

        A watch gets old because its file may have been removed, or a manager may have forgotten it.
        """
        with self._mutex:
            had, now = self.watch, time.monotonic()
            if had is not None and (self._sleepers or now - self._watched_at < _WATCH_SECONDS):
                return False
        unused = made = queue.watch()
        with self._mutex:
            if self.watch is had and not self._sleepers:  # else there are two leaders, and the other made one
                unused, self.watch, self._watched_at = had, made, now
                self.kept = isinstance(made, LastingWatch)
        if unused is not None:
            unused.close()
        return made is not None

    def sleep(self, seconds: float) -> bool:
        """Sleep until the watch wakes; return False if there is no watch."""
        with self._mutex:
            watch = self.watch
            self._sleepers += watch is not None
        if watch is None:
            return False
        try:
            watch.wait(seconds)
        finally:
            with self._mutex:
                self._sleepers -= 1
        return True

    def close(self) -> None:
        watch, self.watch = self.watch, None
        if watch is not None:
            watch.close()

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        if not ending():  # else the process ends, which closes everything, and modules may be gone
            self.close()

    def leads(self, waiter: Waiter) -> bool:
        """Return whether this waiter leads from now on; if not, it is a follower and sleeps until its turn."""
        now = time.monotonic()
        with self._mutex:
            if self._leader is None or now - self._led_at > _LEADER_SECONDS:
                self._leader = waiter
            if self._leader is waiter:
                self._followers.pop(waiter, None)
                self._led_at = now
                return True
            self._followers[waiter] = None
            return False

    def step_down(self, waiter: Waiter) -> None:
        """Let the next one lead, if this waiter did."""
        with self._mutex:
            self._followers.pop(waiter, None)
            if self._leader is not waiter:
                return
            self._leader = next(iter(self._followers), None)
            if self._leader is not None:
                del self._followers[self._leader]
                self._led_at = time.monotonic()
                self._leader.end_sleep()


_Lines: TypeAlias = dict[tuple[str, str], WaitingLine]  # by queue and consumer; the line left longest ago comes first
_lines: WeakKeyDictionary[Store, _Lines] = WeakKeyDictionary()
_joining = threading.Lock()


def _fork() -> None:
    # The threads of the parent do not wait here: the child starts with no lines.
    global _lines, _joining
    _lines, _joining = WeakKeyDictionary(), threading.Lock()


os.register_at_fork(after_in_child=_fork)


def _join_line(queue: Queue) -> WaitingLine:
    with _joining:
        lines = _lines.setdefault(queue.store, {})
        line = lines.setdefault((queue.name, queue.consumer), WaitingLine())
        line.join()
        return line


def _leave_line(queue: Queue, line: WaitingLine) -> None:
    """Leave a line. After the last waiter it is kept for the next one, if its watch may be."""
    closed: list[WaitingLine] = []
    with _joining:
        if not line.leave():
            return
        key, lines = (queue.name, queue.consumer), _lines.get(queue.store, {})
        known = lines.get(key) is line
        if known:
            del lines[key]
        if known and line.kept:
            lines[key] = line  # as the last
            if len(lines) > _IDLE_LINES:
                first = next(key for key, each in lines.items() if each.idle)
                closed = [lines.pop(first)]
        else:
            closed = [line]
    for each in closed:
        each.close()


def close_watches(store: Store) -> None:
    """Close the watches of a store for which nobody waits; the others are closed by their last waiter."""
    with _joining:
        idle = [line for line in _lines.pop(store, {}).values() if line.idle]
    for line in idle:
        line.close()


class Waiter:
    """Waits for messages: joins the line only if the queue is empty, and stays in it for the next time."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._line: WaitingLine | None = None
        self._stopped = False
        self.sleeping = False  # after the store has answered, until the next look
        self._asleep = threading.Lock()  # held; released to end the sleep of its waiter
        self._asleep.acquire()

    def lease(
        self,
        limit: int | Callable[[], int],
        seconds: float | None,
        wait: float | None,
        successive: bool = False,
        token: str = "",
    ) -> list[Delivery]:
        """Take messages as `Queue.lease` does. A limit that changes while it waits is asked for at each look."""
        deadline = float("inf") if wait is None else time.monotonic() + wait
        try:
            while True:
                found = self._queue._take(limit if isinstance(limit, int) else limit(), seconds, successive, token)
                remaining = deadline - time.monotonic()
                if found or remaining <= 0 or self._stopped:
                    return found
                self._wait(remaining)
        finally:
            if self._line is not None and self._line.pid == os.getpid():
                self._line.step_down(self)

    def stop(self) -> None:
        """End the current wait and every later one at once, from any thread or signal handler."""
        self._stopped = True
        self.end_sleep()
        watch = self._line.watch if self._line is not None else None
        if watch is not None:
            watch.wake()

    def end_sleep(self) -> None:
        """End the current or next sleep of a waiter that does not lead."""
        with suppress(RuntimeError):  # it was ended already
            self._asleep.release()

    def _wait(self, remaining: float) -> None:
        line = self._line
        if line is None or line.pid != os.getpid():
            line = self._line = _join_line(self._queue)
        end = time.monotonic() + remaining
        while not line.leads(self):
            left = end - time.monotonic()
            if left <= 0 or self._sleep(min(left, _LONGEST_SLEEP)):
                return
        if line.arm(self._queue):
            return
        due = None if self._queue.paused else self._queue.store.next_due(self._queue.name)
        pause = min(remaining, SLOW_POLL, float("inf") if due is None else max(due, _LEAST_PAUSE))
        self.sleeping = True
        try:
            slept = line.sleep(pause)
        finally:
            self.sleeping = False
        if not slept:
            self._sleep(pause)

    def _sleep(self, seconds: float) -> bool:
        """Sleep until another thread ends it; return whether one did."""
        self.sleeping = True
        try:
            return self._asleep.acquire(timeout=seconds)
        finally:
            self.sleeping = False

    def __enter__(self) -> Waiter:
        return self

    def __exit__(self, *exc: object) -> None:
        line, self._line = self._line, None
        if line is not None and line.pid == os.getpid():
            _leave_line(self._queue, line)
