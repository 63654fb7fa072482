"""Every process that uses Kafka or PostgreSQL ends on a signal, while those hang, are gone or never answered."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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

    def stop(self) -> None:
        """Send each its signal, and wait until all have ended."""
        for (_, number), process in self.running.items():
            assert process.poll() is None, self.log
            process.send_signal(number)
        for (name, number), process in self.running.items():
            try:
                process.wait(ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                raise AssertionError(f"{name} did not end on {number.name}: {self.log[-2000:]}") from None


@contextmanager
def fleet(folder: Path, commands: dict[str, list[str]]) -> Iterator[Fleet]:
    found = Fleet(folder, commands)
    try:
        yield found
    finally:
        for process in found.running.values():
            process.kill()
            process.wait(60)


def test_all_of_them_end_on_a_signal_while_their_servers_hang_or_are_gone(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    for name in ("kafka", "postgres"):
        request.getfixturevalue(name)  # says why there can be no server here
    (tmp_path / "secret").write_text("s" * 32)
    (tmp_path / "secret").chmod(0o600)
    with kafka_server.running() as kafka, postgres_server.running() as postgres:
        place = Place("servers", kafka.url, f"{postgres.url}?schema=chat")
        urls = ["--topics", place.topics_url, "--db", place.db_url]
        ledger = open_ledger(place.db_url)
        who = people(ledger)
        chat = {
            "worker": ["chat", "worker", *urls, "--name", "w-NAME"],
            "gateway": ["chat", "gateway", *urls, "--name", "g-NAME", "--port", "0", "--secret-file", "secret"],
        }
        store = ["--url", f"{postgres.url}?schema=queues"]
        readers = {
            "reader": [
                "topic",
                "--topics",
                kafka.url,
                "read",
                "events",
                "--group",
                "NAME",
                "--count",
                "0",
                "--wait",
                "1h",
            ],
            "to-queue": ["bridge", "--topics", kafka.url, "to-queue", "events", "work-NAME", *store],
            "to-topic": ["bridge", "--topics", kafka.url, "to-topic", "other-NAME", "events", *store],
        }
        with connect_topics(kafka.url) as topics:
            topics.topic("events").create(1)
        with fleet(tmp_path, chat | readers) as at_work:
            send(place, [created(who.room, who.ann, "before")])
            until(lambda: ledger.messages(who.room))
            until(lambda: at_work.log.count("gateway   http") == 2)
            kafka.hang()
            postgres.hang()
            at_work.stop()
        with fleet(tmp_path, chat) as starting:  # connections are accepted, and nothing answers
            starting.stop()
        kafka.kill()
        postgres.kill()
        soon = {name: [word.replace(kafka.url, f"{kafka.url}?timeout=2") for word in chat[name]] for name in chat}
        with fleet(tmp_path, soon) as starting:
            until(lambda: "the gateway waits for its topics" in starting.log and "the worker waits" in starting.log)
            starting.stop()
        ledger.close()
