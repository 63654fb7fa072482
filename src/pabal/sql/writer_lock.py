"""The file `<db>.lock`: writers of all processes queue on its flock. SQLite's own busy handler lets some starve."""

import operator
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
from functools import partial
from pathlib import Path

from pabal.errors import StoreBusy, StoreFailed
from pabal.filesystem import LOCK_FLAGS, busy

_nothing = bool  # a C function that does nothing


class WriterLock:
    """The lock of this process. `unlock` releases it, and does nothing if it is not held.

    `unlock` is a C function. A signal handler may raise wherever a Python function begins, and then the lock would
    never be released. Call it also after `take` raised.
    """

    def __init__(self, path: Path, seconds: float) -> None:
        """Create the lock of a file. A caller waits `seconds` at most."""
        self.path = path
        self._seconds = seconds
        self._fd = -1
        self._waiter: _Waiter | None = None
        self._waited = False  # the last caller had to wait: `unlock` is that of the waiter
        self.unlock: Callable[[], object] = _nothing

    def prepare(self) -> None:
        """Open the file; make it if it is missing."""
        if self._fd < 0:
            fd = os.open(self.path, LOCK_FLAGS, 0o600)
            self.unlock = partial(flock, fd, LOCK_UN)  # first: nothing is locked that cannot be unlocked
            self._fd = fd

    def take(self, seconds: float | None = None) -> None:
        """Wait for the lock; raise StoreBusy that names its holder when the time is over."""
        try:
            if self._fd < 0:
                self.prepare()
            if self._waited:
                self.unlock, self._waited = partial(flock, self._fd, LOCK_UN), False
            try:
                flock(self._fd, LOCK_EX | LOCK_NB)
            except BlockingIOError:
                self._wait(self._seconds if seconds is None else seconds)
        except OSError as exc:
            raise StoreFailed(f"{exc.strerror} while queueing on {self.path}: repeat") from exc

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock; raise StoreBusy if it cannot be had in time."""
        try:
            self.take()
            yield
        finally:
            self._let_go()

    @contextmanager
    def held_if_free(self, seconds: float) -> Iterator[bool]:
        """Yield whether the lock is held: it is not where another has it for so long, or where no file can be made."""
        try:
            try:
                self.take(seconds)
                held = True
            except (StoreBusy, StoreFailed):
                held = False
            yield held
        finally:
            self._let_go()

    def close(self) -> None:
        """Close the file, which releases the lock."""
        fd, self._fd, self.unlock = self._fd, -1, _nothing
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)
        waiter, self._waiter = self._waiter, None
        if waiter is not None:
            waiter.close()

    __del__ = close

    def _let_go(self) -> None:
        try:
            self.unlock()
        except OSError:
            self.close()

    def _wait(self, seconds: float) -> None:
        if self._waiter is None and seconds:
            self._waiter = _Waiter(self.path)
        self._waited = True
        if self._waiter is None or not self._waiter.take(seconds, self):
            raise busy(seconds, self.path)


class _Waiter:
    """A thread that waits for the lock on behalf of a caller, whose time is limited: flock itself has no limit.

    It locks a file description of its own. When it gets the lock after its caller has left, it lets it go at once.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, LOCK_FLAGS, 0o600)
        self._mutex = threading.Lock()
        self._asked = threading.Semaphore(0)
        self._waiting = False  # from `asked` until the lock was had
        self._closed = False
        self._callers: list[threading.Lock] = []
        threading.Thread(target=self._serve, name="pabal-writer-lock", daemon=True).start()

    def take(self, seconds: float, lock: WriterLock) -> bool:
        """Wait for the lock; False when the time is over. Sets `unlock` of the lock before."""
        granted = threading.Lock()
        granted.acquire()
        callers = [granted]
        # One call that runs no Python code: no longer wanted, and unlocked if it was locked already.
        steps: tuple[Callable[[], object], ...] = (callers.clear, partial(flock, self._fd, LOCK_UN))
        call: Callable[[Callable[[], object]], object] = operator.call
        lock.unlock = partial(any, map(call, steps))
        with self._mutex:
            self._callers = callers
            if not self._waiting:
                self._waiting = True
                self._asked.release()
        return granted.acquire(timeout=seconds)

    def close(self) -> None:
        """End the thread, at once or as soon as it has had the lock that it waits for."""
        with self._mutex:
            self._closed = True
            if not self._waiting:
                self._drop()
                self._asked.release()

    def _serve(self) -> None:
        while True:
            self._asked.acquire()
            if self._closed:
                return
            try:
                flock(self._fd, LOCK_EX)
                locked = True
            except OSError:
                locked = False  # its caller waits until the time is over
            with self._mutex:
                self._waiting = False
                if locked and self._callers and not self._closed:
                    for granted in list(self._callers):
                        granted.release()
                else:
                    with suppress(OSError):
                        flock(self._fd, LOCK_UN)
                if not self._goes_on():
                    return

    def _goes_on(self) -> bool:
        if self._closed:
            self._drop()
        return not self._closed

    def _drop(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                os.close(fd)
