"""What wakes a manager and its clients: arriving requests, queues that change, and long polls that come due."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from pabal.clock import SLOW_POLL, Clock
from pabal.errors import StoreError
from pabal.store import Store, Waitable
from pabal.watch import Inotify, PathWatch, Waker

GROUPS = 24
MAX_WATCHED_QUEUES = 1024
MAX_WAKEUP_FILES = 1024  # then the oldest is removed; a client that watches it falls back to polling
_MIN_PAUSE = 0.1  # seconds: a message for another consumer, or in a paused queue, must not keep the loop busy
_WAKEUP_FILE_KEPT = 86400.0  # seconds after its last registration that a wake-up file is still used after a restart
_FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC


class _Group:
    """Queues that share a watch: a change of one wakes all."""

    def __init__(self) -> None:
        self.queues: set[str] = set()
        self.watch: PathWatch | None = None
        self.changed = False


class Watches:
    """A `pabal.store.Watch` over the arriving requests and over queues, added when a client waits for them.

    A user may have few inotify instances, and clients need theirs. So the queues share a fixed number of watches: the
    first queues have one each, later ones share. A queue that cannot be watched is no error; see `covers`.
    """

    def __init__(self, inotify: Inotify | None) -> None:
        self._waker = Waker()
        self._poll = select.epoll()
        self._poll.register(self._waker.fd, select.EPOLLIN)
        if inotify is not None:
            self._poll.register(inotify.fd, select.EPOLLIN)
        self._groups = [_Group() for _ in range(GROUPS)]
        self._watched: dict[str, _Group] = {}  # the queue requested longest ago comes first

    def wait(self, timeout: float) -> bool:
        """Sleep until there is something to do. A changed queue is remembered until `changed` returns it."""
        ready = {fd for fd, _ in self._poll.poll(max(0.0, timeout))}
        if self._waker.fd in ready:
            self._waker.take()
        return bool(ready)

    def wake(self) -> None:
        """End the current or next wait, from any thread or signal handler."""
        self._waker.wake()

    def covers(self, queue: str) -> bool:
        """Return whether changes of this queue are reported."""
        return queue in self._watched

    def add(self, store: Store, queue: str) -> bool:
        """Watch this queue from now on; return False if it was watched already or cannot be."""
        if queue in self._watched:
            self._watched[queue] = self._watched.pop(queue)
            return False
        if not isinstance(store, Waitable):
            return False
        if len(self._watched) >= MAX_WATCHED_QUEUES:
            oldest = next(iter(self._watched))
            # It may be reported until the watch of its group is replaced.
            self._watched.pop(oldest).queues.discard(oldest)
        group = min(self._groups, key=lambda each: len(each.queues))
        with suppress(StoreError):
            watch = store.watch([*group.queues, queue])
            if isinstance(watch, PathWatch) and watch.woken_by == "inotify":
                self._replace(group, watch)
                group.queues.add(queue)
                self._watched[queue] = group
                return True
            watch.close()
        return False

    def _replace(self, group: _Group, watch: PathWatch) -> None:
        self._poll.register(watch.fileno(), select.EPOLLIN)
        if group.watch is not None:
            group.changed |= group.watch.wait(0.0)  # after the new watch began, so that no change falls between the two
            self._poll.unregister(group.watch.fileno())
            group.watch.close()
        group.watch = watch

    def changed(self) -> list[str]:
        """Take the queues that changed, or may have: the queues of a group are reported together."""
        ready = {fd for fd, _ in self._poll.poll(0.0)}
        found: list[str] = []
        for group in self._groups:
            changed, group.changed = group.changed, False
            if group.watch is not None and group.watch.fileno() in ready:
                changed |= group.watch.wait(0.0)
            found += group.queues if changed else ()
        return found

    def close(self) -> None:
        self._waker.close()
        self._poll.close()
        for group in self._groups:
            if group.watch is not None:
                group.watch.close()


class WakeupFiles:
    """A file of one byte for each queue that clients watch; the manager reads it when the queue changes.

    Clients watch for the read access and write nothing, so that one file serves all clients, whatever their users.
    """

    def __init__(self, folder: str, *, shared: bool) -> None:
        self._folder = folder
        self._mode = 0o640 if shared else 0o600
        self._registered: dict[str, None] = {}  # the queue registered longest ago comes first

    def left_over(self) -> list[str]:
        """Return the queues of an earlier run that clients may still watch; remove the files of all others."""
        found = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                registered_at = entry.stat(follow_symlinks=False).st_mtime
                if time.time() - registered_at < _WAKEUP_FILE_KEPT:
                    found.append((registered_at, entry.name))
                else:
                    os.unlink(entry.path)
        return [name for _, name in sorted(found)]

    def register(self, queue: str) -> None:
        """Make sure that a queue has its file."""
        path = f"{self._folder}/{queue}"
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | _FLAGS, self._mode)
        try:
            os.fchmod(fd, self._mode)
            os.pwrite(fd, b"\n", 0)  # reading an empty file is not reported; and mtime records the registration
        finally:
            os.close(fd)
        self._registered.pop(queue, None)
        self._registered[queue] = None
        if len(self._registered) > MAX_WAKEUP_FILES:
            oldest = next(iter(self._registered))
            del self._registered[oldest]
            with suppress(OSError):
                os.unlink(f"{self._folder}/{oldest}")

    def wake(self, queue: str) -> None:
        """Wake the clients that watch this queue."""
        if queue in self._registered:
            with suppress(OSError):
                fd = os.open(f"{self._folder}/{queue}", os.O_RDONLY | _FLAGS)
                try:
                    os.read(fd, 1)
                finally:
                    os.close(fd)


class Waiting(Protocol):
    queue: str
    until: float  # on the boot clock


T = TypeVar("T", bound=Waiting)


class LongPolls(Generic[T]):
    """Requests that wait for a message of a queue.

    The store is asked what is due in a queue when the queue changed and once a second, not at every pass of the loop.
    """

    def __init__(self, store: Store, watch: Watches, clock: Clock) -> None:
        self._store = store
        self._watch = watch
        self._clock = clock
        self._tasks: list[T] = []
        self._due_at: dict[str, float] = {}  # by queue, on the boot clock
        self._polled_at = float("-inf")

    def add(self, task: T) -> None:
        """Keep a task that has just found nothing."""
        self._tasks.append(task)
        self._due_at[task.queue] = self._read_due(task.queue, _MIN_PAUSE)

    def take(self, changed: Iterable[str]) -> list[T]:
        """Take the tasks to run again: their queue changed, something is due in it, or their time is over."""
        if not self._tasks:
            return []
        now = self._clock.boot()
        again = {*changed}
        if now - self._polled_at >= SLOW_POLL:
            self._polled_at = now
            self._due_at.clear()
            again.update(task.queue for task in self._tasks if not self._watch.covers(task.queue))
        for queue in again:
            self._due_at.pop(queue, None)
        ready = [task for task in self._tasks if task.queue in again or task.until <= now or self._due(task) <= now]
        taken = set(map(id, ready))
        self._tasks = [task for task in self._tasks if id(task) not in taken]
        return ready

    def take_all(self) -> list[T]:
        tasks, self._tasks = self._tasks, []
        return tasks

    def next_due(self) -> float | None:
        """Return the seconds until `take` may find something although no queue changed."""
        if not self._tasks:
            return None
        dues = [min(task.until, self._due(task)) for task in self._tasks]
        if not all(self._watch.covers(task.queue) for task in self._tasks):
            dues.append(self._polled_at + SLOW_POLL)
        return max(0.0, min(dues) - self._clock.boot())

    def _due(self, task: T) -> float:
        found = self._due_at.get(task.queue)
        if found is None:
            found = self._due_at[task.queue] = self._read_due(task.queue, 0.0)
        return found

    def _read_due(self, queue: str, least: float) -> float:
        due = self._store.next_due(queue)
        return float("inf") if due is None else self._clock.boot() + max(due, least)
