"""Readers: processes that wait for the mail of an agent, and signs of life of agents.

A message is in hand from its lease on, but it is the agent's only once the monitor has delivered it: before that it may
be refused, distributed or taken back. The monitor notes the lease that it delivered last, since an agent has one
message at a time, and a reader returns no other. The status in the file is no proof: programs copy files with headers.

While a reader waits it holds a shared lock. If it is the agent itself, the monitor need not wake the agent in another
way. Any other reader, such as a person who looks, is enough only if the agent cannot be woken.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from pabal.apps.ignite.workspace import BEATS, HOOKS, Held, Workspace
from pabal.durable import replace_whole
from pabal.errors import StoreError
from pabal.filesystem import touch
from pabal.store import Receipt
from pabal.watch import ATTRIB, CLOSE_WRITE, MOVED_TO, PathWatch

log = logging.getLogger("pabal.ignite")

_SLOW_POLL = 1.0  # seconds between looks that no event asks for


def beat(workspace: Workspace, agent: str) -> None:
    """Give a sign of life for an agent, by touching its file, which wakes the monitor. A failure is ignored."""
    path = workspace.root / BEATS / agent
    with suppress(OSError):
        touch(path)
        os.utime(path)


def deliver(workspace: Workspace, receipt: Receipt) -> None:
    """Note that the monitor has given a message to its agent for good."""
    try:
        replace_whole(_note_of(workspace.root, receipt.queue), receipt.token.encode(), synced=False)
    except (OSError, StoreError) as exc:  # its readers find it when the agent is woken again
        about = {"queue": receipt.queue, "id": receipt.id, "error": str(exc)}
        log.warning("%(queue)s/%(id)s: delivery not noted: %(error)s", about)


def delivered(workspace: Workspace, agent: str) -> list[Held]:
    """Return the messages that an agent has in hand for good."""
    token = ""
    with suppress(OSError):
        token = _note_of(workspace.root, agent).read_text()
    return [held for held in workspace.held(agent) if held.receipt.token == token]


class MailWatch:
    """Wakes a process when something may have changed for an agent: use it in a `with` block."""

    def __init__(self, workspace: Workspace, agent: str) -> None:
        hook = workspace.root / HOOKS / agent
        touch(hook)
        self._watch = PathWatch({str(hook): ATTRIB | CLOSE_WRITE, workspace.folders.processed(agent): MOVED_TO})
        self._stopped = threading.Event()

    def until_found(
        self, look: Callable[[], list[Held]], end: float, is_needed: Callable[[], bool] = lambda: True
    ) -> list[Held]:
        """Return what `look` finds, as soon as it finds something; nothing at the `end`, or if nobody needs it."""
        while is_needed():
            if found := look():
                return found
            left = end - time.monotonic()
            if left <= 0 or self._stopped.is_set():
                break
            self._watch.wait(min(left, _SLOW_POLL))
        return []

    def stop(self) -> None:
        """End the wait, from any thread."""
        self._stopped.set()
        self._watch.wake()

    def __enter__(self) -> MailWatch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.close()


def wait_for_mail(
    workspace: Workspace,
    agent: str,
    seconds: float,
    *,
    own: bool,
    began: Callable[[MailWatch], None] = lambda watch: None,
) -> list[Held]:
    """Wait until an agent has mail, as a reader; return it, or nothing.

    `own` is whether this is the agent itself. `began` gets what ends the wait.
    """
    end = time.monotonic() + seconds

    def look() -> list[Held]:
        return delivered(workspace, agent)

    with MailWatch(workspace, agent) as watch:
        began(watch)
        fd = os.open(
            _lock_of(workspace.root, agent, own=own), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            beat(workspace, agent)  # now, so that the monitor finds the reader
            found = watch.until_found(look, end)
        finally:
            os.close(fd)
    # What the monitor delivered to the reader while it let go of the lock.
    return found or look()


def is_awaited(root: Path, agent: str, *, own: bool) -> bool:
    """Return whether an agent waits for its mail itself; or, if not `own`, whether any process does."""
    return any(_is_locked(_lock_of(root, agent, own=each)) for each in ((True,) if own else (True, False)))


def _is_locked(path: Path) -> bool:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def _note_of(root: Path, agent: str) -> Path:
    return root / HOOKS / f"{agent}.delivered"


def _lock_of(root: Path, agent: str, *, own: bool) -> Path:
    return root / HOOKS / f"{agent}.{'reader' if own else 'readers'}"
