"""Keeps children running: starts them, notices their end, starts them again after a pause that grows while they fail.

It is a task of a `Service`: the watch wakes when a child ends, `next_due` says when the next restart is due.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pabal.clock import Clock
from pabal.runtime.process import GRACE, Child, Command
from pabal.runtime.wake import FdWatch

log = logging.getLogger("pabal.supervisor")

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds
STEADY = 60.0  # seconds after which a child counts as sound again


class ChildState(NamedTuple):
    """How one child is: its pid while it runs, else when it will be started again, and how the last one ended.

    Neither pid nor due: it failed too often in a row and is given up.
    """

    name: str
    pid: int | None
    restarts: int
    status: int | None
    due: float | None


@dataclass
class _Post:
    """A place to be kept filled."""

    command: Command
    child: Child | None = None
    started: float = 0.0
    due: float = 0.0
    failures: int = 0  # in a row
    restarts: int = 0
    status: int | None = None


class Supervisor:
    """Keeps one child for each name. Use it in one thread, which must outlive the children."""

    def __init__(
        self,
        commands: Mapping[str, Command],
        *,
        clock: Clock,
        watch: FdWatch,
        start: Callable[[Command], Child] = Child,
        most: int | None = None,
    ) -> None:
        """`most` is how often in a row a child is started again before it is given up; None is without end."""
        self._clock = clock
        self._most = most
        self._watch = watch
        self._start = start
        self._posts = {name: _Post(command, due=clock.boot()) for name, command in commands.items()}

    def step(self) -> None:
        """Take note of those that ended and start those that are due."""
        now = self._clock.boot()
        for name, post in self._posts.items():
            if post.child is not None and (status := post.child.status()) is not None:
                self._ended(name, post, status, now)
            if post.child is None and post.due <= now and not self._given_up(post):
                self._begin(name, post, now)

    def next_due(self) -> float | None:
        """Return the seconds until the next restart."""
        due = [post.due for post in self._posts.values() if post.child is None and not self._given_up(post)]
        return max(0.0, min(due) - self._clock.boot()) if due else None

    def states(self) -> list[ChildState]:
        return [
            ChildState(
                name,
                post.child.pid if post.child else None,
                post.restarts,
                post.status,
                None if post.child or self._given_up(post) else max(0.0, post.due - self._clock.boot()),
            )
            for name, post in self._posts.items()
        ]

    def restart(self, name: str, grace: float = GRACE) -> None:
        """Start a child anew at the next step, without a pause: it is ended first if it runs."""
        post = self._posts[name]
        if post.child is not None:
            self._take_out(post, post.child.stop(grace))
        post.failures, post.due = 0, self._clock.boot()

    def keep(self, name: str, command: Command) -> None:
        """Take one more child on, or start one anew by another command; it begins at the next step."""
        if name in self._posts and self._posts[name].command == command:
            return
        self.drop(name)
        self._posts[name] = _Post(command, due=self._clock.boot())

    def drop(self, name: str) -> None:
        """End a child for good, if there is one of this name."""
        post = self._posts.pop(name, None)
        if post is not None and post.child is not None:
            self._take_out(post, post.child.stop())

    def forgive(self, name: str) -> None:
        """Count a child as sound: it has done what it is there for."""
        self._posts[name].failures = 0

    def stop(self, grace: float = GRACE) -> None:
        """End all children, all at once, and wait for them."""
        running = [(post, post.child) for post in self._posts.values() if post.child is not None]
        for _, child in running:
            child.signal(signal.SIGTERM)
        end = self._clock.boot() + grace
        for post, child in running:
            self._take_out(post, child.stop(max(0.0, end - self._clock.boot())))

    def _given_up(self, post: _Post) -> bool:
        return self._most is not None and post.failures > self._most

    def _begin(self, name: str, post: _Post, now: float) -> None:
        try:
            child = self._start(post.command)
        except OSError as exc:
            log.error("cannot start %s: %s", name, exc, extra={"pabal": {"child": name}})
            self._postpone(post, now)
            return
        post.child, post.started = child, now
        self._watch.add(child.fd)
        log.info("started %s", name, extra={"pabal": {"child": name, "pid": child.pid}})

    def _ended(self, name: str, post: _Post, status: int, now: float) -> None:
        if now - post.started >= STEADY:
            post.failures = 0
        self._take_out(post, status)
        self._postpone(post, now)
        facts = {"child": name, "status": status, "again_in": round(post.due - now, 3)}
        log.warning("%s ended with %s", name, status, extra={"pabal": facts})

    def _postpone(self, post: _Post, now: float) -> None:
        post.due = now + min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(post.failures, 30))
        post.failures += 1
        post.restarts += 1

    def _take_out(self, post: _Post, status: int) -> None:
        assert post.child is not None
        self._watch.remove(post.child.fd)
        post.child.close()
        post.child, post.status = None, status
