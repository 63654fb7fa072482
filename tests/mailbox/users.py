"""A manager and its clients as users of their own, for tests that root runs."""

from __future__ import annotations

import os
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pabal
from pabal.clock import SystemClock
from pabal.connect import Connection
from pabal.mailbox.server import MailboxServer
from pabal.mailbox.settings import MailboxSettings
from pabal.testing.store_place import Child
from tests.mailbox.room import Room
from tests.openers import OPENERS

MANAGER, ALICE, BOB, STRANGER, GROUP = 20_000, 20_001, 20_002, 20_003, 20_010
CLIENTS = {"alice": ALICE, "bob": BOB}


def become(uid: int, *groups: int) -> None:
    os.setgroups(groups)
    os.setgid(uid)
    os.setuid(uid)
    os.umask(0o022)


def as_user(uid: int, function: Callable[[], Any]) -> Any:
    """Run a function as this user, in a process of its own, and return what it returned."""

    def run() -> Any:
        become(uid, *([GROUP] if uid in CLIENTS.values() else []))
        return function()

    return Child(run).result()


@contextmanager
def managed() -> Iterator[Path]:
    """Run a manager of its own user, for clients of their own users; yield its mailbox."""
    _warm_up()
    with tempfile.TemporaryDirectory(prefix="pabal-") as folder:
        os.chmod(folder, 0o755)
        place = Path(folder, "place")
        place.mkdir()
        os.chown(place, MANAGER, MANAGER)
        ready, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            _manage(place, tell)
        os.close(tell)
        assert os.read(ready, 1) == b"r", "the manager did not start"
        os.close(ready)
        try:
            yield place / "ipc"
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _warm_up() -> None:
    """Use everything once: as another user nothing can be imported from where only root may read."""
    with tempfile.TemporaryDirectory() as folder:
        room = Room(Path(folder, "ipc"), OPENERS["sqlite"].open(Path(folder), SystemClock())).serve()
        with pabal.connect(f"mailbox:{room.root}") as mq:
            mq.queue("jobs").publish(1)
            for delivery in mq.queue("jobs").consume(wait=0.01):
                delivery.ack()
        room.close()


def _manage(place: Path, tell: int) -> None:
    try:
        become(MANAGER, GROUP, *CLIENTS.values())
        clock = SystemClock()
        place.chmod(0o711)
        connection = Connection(OPENERS["sqlite"].open(place, clock), clock=clock, consumer="manager")
        settings = MailboxSettings(clients=CLIENTS, group=GROUP)
        server = MailboxServer(place / "ipc", connection, clock=clock, settings=settings)
        os.write(tell, b"r")
        while True:
            due = server.next_due()
            server.watch.wait(1.0 if due is None else min(1.0, due))
            server.step()
    except BaseException:
        traceback.print_exc()
    os._exit(1)
