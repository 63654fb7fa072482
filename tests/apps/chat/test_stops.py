"""Every process that uses Kafka or PostgreSQL ends on a signal, while those hang, are gone or never answered."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from pabal.apps.chat.ledger import open_ledger
from pabal.connect import connect_topics
from tests.apps.chat.place import Place, created, people, send
from tests.apps.chat.running import PABAL
from tests.services import kafka as kafka_server
from tests.services import postgres as postgres_server
from tests.waiting import until

SIGNALS = (signal.SIGTERM, signal.SIGINT)
ENDS_WITHIN = 60.0  # seconds; a limit of the test, for a machine that is busy


class Fleet:
    """Processes of `pabal`, each kind twice: one for each signal."""

    def __init__(self, folder: Path, commands: dict[str, list[str]]) -> None:
        self._log = folder / "fleet.log"
        self.running: dict[tuple[str, signal.Signals], subprocess.Popen[bytes]] = {}
        with self._log.open("ab") as log:
            for name, command in commands.items():
                for number in SIGNALS:
                    self.running[name, number] = subprocess.Popen(
                        [*PABAL, *(word.replace("NAME", number.name.lower()) for word in command)],
                        stdout=log,
                        stderr=log,
                        cwd=folder,
                    )

    @property
    def log(self) -> str:
        return self._log.read_text()

    def until_clients_are_loaded(self) -> None:
        """Wait until each process has the library of a server in memory: from then on it may wait for one."""
        for process in self.running.values():
            until(partial(_has_client, process))

    def stop(self, *, alive: bool = True) -> None:
        """Send each its signal, and wait until all have ended. `alive`: none may have ended before."""
        for (name, number), process in self.running.items():
            assert process.poll() is None or not alive, f"{name} ended by itself: {self.log[-2000:]}"
            process.send_signal(number)
        for (name, number), process in self.running.items():
            try:
                process.wait(ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} did not end on {number.name}: {self.log[-2000:]}") from None


def _has_client(process: "subprocess.Popen[bytes]") -> bool:
    if process.poll() is not None:
        return True
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return "confluent_kafka" in maps or "libpq" in maps


@contextmanager
def fleet(folder: Path, commands: dict[str, list[str]]) -> Iterator[Fleet]:
    found = Fleet(folder, commands)
    try:
        yield found
    finally:
        for process in found.running.values():
            process.kill()
            process.wait(60)


@pytest.mark.parametrize("outage", ["hung", "gone"])
def test_all_of_them_end_on_a_signal_during_an_outage(
    request: pytest.FixtureRequest, tmp_path: Path, outage: str
) -> None:
    """Hung servers keep connections and accept new ones, as half-open ones do; those that are gone refuse them."""
    for name in ("kafka", "postgres"):
        request.getfixturevalue(name)  # says why there can be no server here
    (tmp_path / "secret").write_text("s" * 32)
    (tmp_path / "secret").chmod(0o600)
    with kafka_server.running() as kafka, postgres_server.running() as postgres:
        place = Place("servers", kafka.url, f"{postgres.url}?schema=chat")
        ledger = open_ledger(place.db_url)
        who = people(ledger)
        with connect_topics(kafka.url) as topics:
            topics.topic("events").create(1)
        commands = everything(place, kafka.url, f"{postgres.url}?schema=queues")
        with fleet(tmp_path, commands) as at_work:
            send(place, [created(who.room, who.ann, "before")])
            until(lambda: ledger.messages(who.room))
            until(lambda: at_work.log.count("gateway   http") == 2 and at_work.log.count("serving SQS") == 2)
            at_work.until_clients_are_loaded()
            if outage == "hung":
                kafka.hang()
                postgres.hang()
            else:
                kafka.kill()
                postgres.kill()
            at_work.stop()
        soon = f"{kafka.url}?timeout=2"
        commands = {name: [word.replace(kafka.url, soon) for word in words] for name, words in commands.items()}
        with fleet(tmp_path, commands) as starting:
            starting.until_clients_are_loaded()
            if outage == "gone":
                until(lambda: "the gateway waits for its topics" in starting.log and "the worker waits" in starting.log)
            starting.stop(alive=False)  # some say that there is no server, and end
        ledger.close()


def test_a_gateway_that_starts_without_kafka_serves_when_kafka_is_there(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.getfixturevalue("kafka")  # says why there can be no server here
    (tmp_path / "secret").write_text("s" * 32)
    (tmp_path / "secret").chmod(0o600)
    with kafka_server.running() as kafka:
        kafka.kill()
        command = ["chat", "gateway", "--topics", f"{kafka.url}?timeout=2", "--db", "sqlite:chat.db", "--port", "0"]
        with fleet(tmp_path, {"gateway": [*command, "--name", "NAME", "--secret-file", "secret"]}) as waiting:
            until(lambda: waiting.log.count("the gateway waits for its topics") >= 2)
            assert "gateway   http" not in waiting.log
            kafka.start()
            until(lambda: waiting.log.count("gateway   http") == 2)
            waiting.stop()


def everything(place: Place, topics: str, store: str) -> dict[str, list[str]]:
    """Return a command for each role, consumer and bridge that uses one of the servers."""
    chat = ["--topics", place.topics_url, "--db", place.db_url, "--name"]
    bridge, queues = ["bridge", "--topics", topics], ["--url", store]
    read = ["topic", "--topics", topics, "read", "events", "--group", "NAME", "--count", "0", "--wait", "1h"]
    return {
        "worker": ["chat", "worker", *chat, "w-NAME"],
        "gateway": ["chat", "gateway", *chat, "g-NAME", "--port", "0", "--secret-file", "secret"],
        "reader": read,
        "to-queue": [*bridge, "to-queue", "events", "work-NAME", *queues],
        "to-topic": [*bridge, "to-topic", "other-NAME", "events", *queues],
        "consumer": ["consume", "jobs", *queues, "--exec", "true"],
        "lease": ["consume", "others", *queues, "--wait", "1h"],
        "sqs": ["gateway", *queues, "--port", "0"],
    }
