"""Everything dies in a burst, and the client that people have sees every accepted message once, in order.

Two gateways and a worker as processes, members on the `socket.io-client` from npm. In the ordinary run a few hundred
messages; 5,000 with PABAL_SOAK=1.
"""

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pabal.apps.chat.gateway.auth import Tokens
from pabal.apps.chat.ledger import Ledger, open_ledger
from pabal.apps.chat.ledger.values import Stored
from pabal.clock import SystemClock
from tests.apps.chat import outside
from tests.apps.chat.outside import Members, Seen, Sent
from tests.apps.chat.place import Place
from tests.apps.chat.running import Process

if TYPE_CHECKING:
    from tests.services.kafka import KafkaServer
    from tests.services.postgres import PostgresServer

SOAK = os.environ.get("PABAL_SOAK") == "1"
COUNT = 5000 if SOAK else 600
MEMBERS, ROOMS = 10, 4
SECRET = "a secret of the tests, which is long enough"
SENT_WITHIN, SEEN_WITHIN = 200.0, 90.0


@pytest.fixture(autouse=True)
def client() -> None:
    if reason := outside.missing():
        if os.environ.get("CI") == "true":
            pytest.fail(f"CI must have {reason}")
        pytest.skip(f"needs {reason}")


class Chat:
    """Two gateways and a worker, each of which can be killed and started again at its place."""

    def __init__(self, place: Place, folder: Path) -> None:
        self._place, self._folder = place, folder
        (folder / "secret").write_text(SECRET)
        (folder / "secret").chmod(0o600)
        self._gateways: dict[str, Process] = {}
        self._ports: dict[str, str] = {}
        self._workers: list[Process] = []
        for name in ("one", "two"):
            self.start_gateway(name)
        self.start_worker()

    @property
    def addresses(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self._ports.values()]

    @property
    def pids(self) -> list[int]:
        """The process ids of the gateways."""
        return [process.pid for process in self._gateways.values()]

    def start_gateway(self, name: str) -> None:
        places = [
            "--topics",
            self._place.topics_url,
            "--db",
            self._place.db_url,
            "--name",
            f"{self._folder.name}-{name}",
        ]
        limits = ["--limit", "sends=10000", "--limit", "burst=10000", "--limit", "events=10000"]
        own = ["--images", str(self._folder / "images"), "--secret-file", str(self._folder / "secret")]
        port = ["--port", self._ports.get(name, "0")]
        found = Process("chat", "gateway", *places, *own, *port, *limits, log=self._folder / f"{name}.log")
        self._gateways[name] = found
        self._ports[name] = found.line("gateway ").partition(",")[0].rpartition(":")[2]

    def kill_gateway(self, name: str) -> None:
        self._gateways.pop(name).kill()

    def start_worker(self) -> None:
        places = ["--topics", self._place.topics_url, "--db", self._place.db_url]
        self._workers.append(Process("chat", "worker", *places, log=self._folder / "worker.log"))

    def kill_worker(self) -> None:
        self._workers.pop().kill()

    def close(self) -> None:
        for process in (*self._gateways.values(), *self._workers):
            process.kill()


@pytest.fixture
def chat(place: Place, tmp_path: Path) -> Iterator[Chat]:
    found = Chat(place, tmp_path)
    yield found
    found.close()


@pytest.fixture
def real_ledger(place: Place) -> Iterator[Ledger]:
    found = open_ledger(place.db_url)
    yield found
    found.close()


class Deaths:
    """What happens when so many parts of all messages have been accepted, each once."""

    def __init__(self, *plan: tuple[float, Callable[[], None]]) -> None:
        self._plan = sorted(plan, key=lambda step: step[0])
        self.happened = 0

    def __call__(self, accepted: int) -> None:
        while self._plan and accepted >= self._plan[0][0] * COUNT:
            self._plan.pop(0)[1]()
            self.happened += 1


def people(ledger: Ledger) -> tuple[dict[str, str], list[str]]:
    """Return the tokens of members by name, and the rooms that all of them are in."""
    tokens = Tokens(SECRET.encode(), SystemClock())
    users = [ledger.add_user(f"member{number}@example.org", "no hash") for number in range(MEMBERS)]
    rooms = [ledger.create_room(f"room {number}", users[0].id).id for number in range(ROOMS)]
    for room in rooms:
        for user in users[1:]:
            ledger.join(room, user.id)
    sessions = {user: ledger.open_session(user.id, lifetime=86_400, address="", agent="").id for user in users}
    return {user.email: tokens.login(user.id, user.email, sessions[user])[0] for user in users}, rooms


def all_stored(ledger: Ledger, room: str) -> list[Stored]:
    found: list[Stored] = []
    while page := ledger.messages(room, after=found[-1].sequence if found else 0, limit=1000):
        found += page
    return found


def check(ledger: Ledger, rooms: list[str], sent: list[Sent], members: Members) -> None:
    """See that what was accepted is stored once, in order, and came to every member once, in order."""
    end = time.monotonic() + SEEN_WITHIN
    seen = members.seen()
    while any(sum(map(len, got.values())) < len(sent) for got in seen.values()):
        assert time.monotonic() < end, {name: sum(map(len, got.values())) for name, got in seen.items()}
        time.sleep(0.5)
        seen = members.seen()
    for room in rooms:
        stored = all_stored(ledger, room)
        assert [message.sequence for message in stored] == list(range(1, len(stored) + 1))
        accepted = [message for message in sent if message.room == room]
        assert sorted(message.client_msg_id for message in stored) == sorted(each.client_msg_id for each in accepted)
        in_order(stored, accepted)
        expected = [Seen(message.sequence, message.client_msg_id, message.content) for message in stored]
        for name, got in seen.items():
            assert got[room] == expected, f"{name} saw something else in {room}"


def in_order(stored: list[Stored], accepted: list[Sent]) -> None:
    """See that the messages of each sender stand in the order in which it wrote them."""
    numbers = {message.client_msg_id: message for message in accepted}
    by_sender: dict[str, list[int]] = {}
    for message in stored:
        found = numbers[message.client_msg_id]
        by_sender.setdefault(found.name, []).append(found.number)
    assert all(given == sorted(given) for given in by_sender.values())


@pytest.fixture(scope="module")
def kafka(kafka: "KafkaServer") -> "Iterator[KafkaServer]":
    """A server of its own: it is killed here, and other tests keep clients of the shared one."""
    from tests.services.kafka import running

    with running() as server:
        yield server


@pytest.fixture(scope="module")
def postgres(postgres: "PostgresServer") -> "Iterator[PostgresServer]":
    """A server of its own, which is killed here."""
    from tests.services.postgres import running

    with running() as server:
        yield server


def burst(chat: Chat, ledger: Ledger, deaths: Deaths, folder: Path) -> None:
    tokens, rooms = people(ledger)
    members = Members(chat.addresses, tokens, rooms, folder / "node.log")
    try:
        sent = members.send(COUNT // MEMBERS, 200, deaths, SENT_WITHIN)
        assert len(sent) == COUNT
        check(ledger, rooms, sent, members)
    finally:
        members.close()


def test_a_gateway_and_a_worker_are_killed_in_a_burst(chat: Chat, real_ledger: Ledger, tmp_path: Path) -> None:
    deaths = Deaths(
        (0.15, lambda: chat.kill_gateway("one")),
        (0.3, chat.kill_worker),
        (0.4, chat.start_worker),
        (0.5, lambda: chat.start_gateway("one")),
        (0.7, lambda: chat.kill_gateway("two")),
        (0.8, chat.kill_worker),
        (0.85, chat.start_worker),
    )
    burst(chat, real_ledger, deaths, tmp_path)
    assert deaths.happened == 7


@pytest.mark.parametrize("db_url", ["servers"], indirect=True)
def test_kafka_and_postgres_are_restarted_in_a_burst(
    chat: Chat, real_ledger: Ledger, kafka: "KafkaServer", postgres: "PostgresServer", tmp_path: Path
) -> None:
    def restart_kafka() -> None:
        kafka.kill()
        kafka.start()

    def restart_postgres() -> None:
        postgres.kill()
        time.sleep(1)  # long enough that messages are accepted meanwhile
        postgres.start()

    deaths = Deaths(
        (0.1, lambda: chat.kill_gateway("one")),
        (0.2, restart_postgres),
        (0.4, restart_kafka),
        (0.5, chat.kill_worker),
        (0.6, lambda: chat.start_gateway("one")),
        (0.65, chat.start_worker),
        (0.8, restart_postgres),
    )
    burst(chat, real_ledger, deaths, tmp_path)
    assert deaths.happened == 7
