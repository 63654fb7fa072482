"""A whole chat on one machine: topics and database in one folder, and a supervised gateway and worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

import msgspec

from pabal import jsontext
from pabal.apps.chat.gateway.auth import make_secret
from pabal.clock import Clock, SystemClock
from pabal.durable import make_dirs, replace_whole
from pabal.errors import InvalidInput, StoreFailed
from pabal.runtime.process import Command
from pabal.runtime.role_lock import RoleLock, holder
from pabal.runtime.service import Service
from pabal.runtime.state_file import write_reading
from pabal.runtime.supervisor import Supervisor
from pabal.runtime.wake import FdWatch

HOST = "127.0.0.1"
GATEWAY, WORKER = "gateway", "worker"
_POLL = 0.05  # seconds between checks whether the gateway answers
_TRIES = 5  # restarts of a gateway that never answered, after which `pabal chat up` ends

# Makes the argument vector of a `pabal` command from its arguments.
Argv = Callable[..., tuple[str, ...]]


class ChatFolder:
    """The folder of a chat and the paths in it."""

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))
        self.lock = self.root / "up.lock"
        self.log = self.root / "chat.log"
        self.secret = self.root / "secret"
        self.images = self.root / "images"
        self.address = self.root / "address"
        self.restarted = self.root / "restarts"
        self.topics = f"sqlite://{self.root}/topics.db"
        self.db = f"sqlite://{self.root}/chat.db"

    def heartbeat(self, name: str) -> Path:
        return self.root / f"{name}.heartbeat"

    def restarts(self) -> dict[str, int]:
        """Return how often gateway and worker were started again since `pabal chat up` began."""
        try:
            found: dict[str, int] = jsontext.decode_as(self.restarted.read_bytes(), dict[str, int])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
        return found

    def holder(self) -> int | None:
        """Return the process id of the running `pabal chat up`, or None."""
        return holder(self.lock)

    def command(self, name: str, port: int) -> list[str]:
        """Return the arguments that start the gateway or the worker."""
        common = ["chat", name, "--topics", self.topics, "--db", self.db, "--name", name]
        common += ["--heartbeat", str(self.heartbeat(name))]
        if name == WORKER:
            return common
        return [*common, "--port", str(port), "--images", str(self.images), "--secret-file", str(self.secret)]


class _Counting:
    """A task that keeps the number of restarts in a file, for `pabal chat status`."""

    def __init__(self, place: ChatFolder, supervisor: Supervisor) -> None:
        self._place, self._supervisor = place, supervisor
        self._written: dict[str, int] | None = None

    def step(self) -> None:
        found = {state.name: state.restarts for state in self._supervisor.states()}
        if found != self._written:
            write_reading(self._place.restarted, msgspec.json.encode(found))
            self._written = found

    def next_due(self) -> float | None:
        return None


class _Announcing:
    """A task that reports when the gateway first answers, or fails if it never does."""

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
            raise StoreFailed("the chat does not come up: see its log")

    def next_due(self) -> float | None:
        return None if self._answered else _POLL


def run_chat(
    place: ChatFolder,
    port: int,
    argv: Argv,
    *,
    more: list[str],
    variables: Mapping[str, str],
    started: Callable[[str], None],
    clock: Clock | None = None,
) -> None:
    """Keep a gateway and a worker running until SIGTERM or SIGINT; `more` are further options of the gateway.

    `started` is called with the address when the gateway answers.
    """
    clock = clock or SystemClock()
    make_dirs(place.root)
    with closing(RoleLock(place.lock, clock.now(), f"the chat in {place.root} is up already", advice="stop it first")):
        port = _free(port)
        make_secret(place.secret)
        address = f"http://{HOST}:{port}"
        replace_whole(place.address, address.encode())
        commands = {
            name: Command(argv=argv(*place.command(name, port), *options), cwd=place.root, env=variables)
            for name, options in ((GATEWAY, more), (WORKER, []))
        }
        _supervise(place, commands, port, lambda: started(address), clock)


def _supervise(
    place: ChatFolder, commands: Mapping[str, Command], port: int, started: Callable[[], None], clock: Clock
) -> None:
    with closing(FdWatch()) as watch:
        supervisor = Supervisor(commands, clock=clock, watch=watch, output=lambda name: place.log)
        service = Service(watch, supervisor, _Counting(place, supervisor), _Announcing(port, supervisor, started))
        with service.on_signals({}):
            try:
                service.run()
            finally:
                supervisor.stop()


def _free(port: int) -> int:
    """Return the port if it is free; for 0, return any free port."""
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
