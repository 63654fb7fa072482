"""A real Kafka server for the tests: one KRaft node on loopback, its own data and ports, stopped by its pid.

Its jars are named in `kafka/pom.xml`; Maven brings them into `.cache/` once, which `scripts/system-packages` installs
with a Java runtime and kcat.
"""

import ctypes
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.services import bringing
from tests.services.bringing import TIMEOUT, brought

POM = Path(__file__).parent / "kafka" / "pom.xml"
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
JAVA = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]

_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "broker.session.timeout.ms": "1000",
    "broker.heartbeat.interval.ms": "200",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.fetch.timeout.ms": "1000",
}


def missing() -> str:
    """Say what keeps a server from being started here, after trying to bring its jars; '' if nothing does."""
    return bringing.missing(("mvn", "java", "kcat"), jars, "the jars of Kafka, which Maven")


def jars() -> Path:
    """Return the folder of the server's jars, brought if need be."""
    return brought("kafka", POM, _bring)


def _bring(folder: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT)


class KafkaServer:
    """One server in a temporary folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._log = folder / "server.log"
        self._classes = f"{jars()}/*"
        self.port, controller = _free_ports(2)
        settings = _SETTINGS | {
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(folder / "data"),
        }
        self._properties = folder / "server.properties"
        self._properties.write_text("".join(f"{name}={text}\n" for name, text in settings.items()))
        self._java("kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(self._properties)).wait(60)
        self.start()

    @property
    def servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"kafka://{self.servers}"

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = self._java("kafka.Kafka", str(self._properties))
        end = time.monotonic() + 60
        # A process of its own: the client's library may stand in C code while the server comes and goes.
        while subprocess.run(["kcat", "-b", self.servers, "-L", "-m", "1"], capture_output=True).returncode:
            assert self._process.poll() is None, f"the server ended: {self._log.read_text()[-2000:]}"
            assert time.monotonic() < end, "the server does not answer"

    def stop(self) -> None:
        """Shut it down in good order."""
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)

    def hang(self) -> None:
        """Let it keep its connections and answer nothing."""
        self._process.send_signal(signal.SIGSTOP)

    def kill(self) -> None:
        """Kill it at once."""
        self._process.kill()
        self._process.wait(60)

    def kcat(self, *arguments: str, stdin: str = "") -> str:
        """Run Debian's Kafka client and return what it printed."""
        command = ["kcat", "-b", self.servers, *arguments]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _java(self, *arguments: str) -> "subprocess.Popen[bytes]":
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*JAVA, "-cp", self._classes, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )


@contextmanager
def running() -> Iterator[KafkaServer]:
    """Run a server for a while."""
    with TemporaryDirectory(prefix="pabal-kafka-") as folder:
        server = KafkaServer(Path(folder))
        try:
            yield server
        finally:
            server.kill()


def _die_with_parent() -> None:
    """Have the kernel kill this process when its parent is gone: a test session that is killed leaves no server."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for found in sockets:
            found.bind(("127.0.0.1", 0))
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()
