"""A whole chat on one machine: topics and database in one folder, a gateway and a worker that are kept running."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from pabal.chat.gateway.tokens import make_secret
from pabal.clock import Clock, SystemClock
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidInput, StoreFailed
from pabal.runtime.lock import PlaceLock, holder
from pabal.runtime.process import Child, Command
from pabal.runtime.service import Service
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch

HOST = "127.0.0.1"
GATEWAY, WORKER = "gateway", "worker"
_LOOK = 0.05  # seconds between looks whether the gateway answers
_TRIES = 5  # failures in a row of a gateway that never answered, after which this ends

# Makes the argument vector of a command of ours.
Argv = Callable[[list[str]], tuple[str, ...]]


class Place:
    """The folder of a chat, and what lies where in it."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        self.lock = self.root / "up.lock"
        self.log = self.root / "chat.log"
        self.secret = self.root / "secret"
        self.images = self.root / "images"
        self.address = self.root / "address"
        self.topics = f"sqlite://{self.root}/topics.db"
        self.db = f"sqlite://{self.root}/chat.db"

    def heartbeat(self, name: str) -> Path:
        return self.root / f"{name}.heartbeat"

    def holder(self) -> int | None:
        """Return the process that holds the chat up, or None."""
        return holder(self.lock)

    def command(self, name: str, port: int) -> list[str]:
        """Return how the gateway or the worker is started."""
        common = ["chat", name, "--topics", self.topics, "--db", self.db, "--name", name]
        common += ["--heartbeat", str(self.heartbeat(name))]
        if name == WORKER:
            return common
        return [*common, "--port", str(port), "--images", str(self.images), "--secret-file", str(self.secret)]


class _Announcing:
    """A task that tells when the gateway answers for the first time, or that it never will."""

    def __init__(self, port: int, supervisor: Supervisor, started: Callable[[], None]) -> None:
        self._port, self._supervisor, self._started = port, supervisor, started
        self._answered = False

    def step(self) -> None:
        if self._answered:
            return
        if _answers(self._port):
            self._answered = True
            self._started()
        elif any(state.restarts >= _TRIES for state in self._supervisor.states()):
            raise StoreFailed("the chat does not come up: its log says why")

    def next_due(self) -> float | None:
        return None if self._answered else _LOOK


def hold_up(
    place: Place,
    port: int,
    argv: Argv,
    *,
    more: list[str],
    variables: Mapping[str, str],
    started: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Keep a gateway and a worker running until SIGTERM or SIGINT; `more` are options of the gateway.

    `started` is called with the address when the gateway answers.
    """
    clock = clock or SystemClock()
    make_dirs(place.root)
    with closing(PlaceLock(place.lock, clock.now(), f"the chat in {place.root} is up already", advice="stop it first")):
        port = _free(port)
        make_secret(place.secret)
        address = f"http://{HOST}:{port}"
        replace_whole(place.address, address.encode())
        commands = {
            name: Command(argv=argv(place.command(name, port) + options), cwd=place.root, env=variables)
            for name, options in ((GATEWAY, more), (WORKER, []))
        }
        _supervise(place, commands, port, lambda: started(address), clock)


def _supervise(
    place: Place, commands: Mapping[str, Command], port: int, started: Callable[[], None], clock: Clock
) -> None:
    with closing(FdWatch()) as watch, place.log.open("ab") as log:
        supervisor = Supervisor(
            commands, clock=clock, watch=watch, start=lambda command: Child(command, stdout=log, stderr=log)
        )
        service = Service(watch, supervisor, _Announcing(port, supervisor, started))
        with service.on_signals({}):
            try:
                service.run()
            finally:
                supervisor.stop()


def _free(port: int) -> int:
    """Return the port if nobody has it; for 0, one that nobody has."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as exc:
            raise InvalidInput(f"cannot serve at {HOST} port {port}: {exc.strerror}; give another --port") from exc
        return int(probe.getsockname()[1])


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(0.2)
        return probe.connect_ex((HOST, port)) == 0
