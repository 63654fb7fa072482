"""People who write while the database hangs or is stopped: two gateways in processes of their own, real servers.

Seconds and a few people here: every message is accepted while the database answers nothing, so no ack waited for it.
With PABAL_SOAK=1 ten minutes and forty people; then the 99th percentile of the acks is below 100 milliseconds, and the
times and the processor time of the gateways are printed.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from pabal.apps.chat.gateway.auth import Tokens
from pabal.apps.chat.ledger import Ledger, open_ledger
from pabal.clock import SystemClock
from tests.apps.chat.gateways import Client
from tests.apps.chat.place import Place
from tests.apps.chat.test_outside_client import SECRET, Chat
from tests.services import postgres as postgres_server
from tests.services.kafka import KafkaServer
from tests.services.postgres import PostgresServer
from tests.waiting import until

SOAK = os.environ.get("PABAL_SOAK") == "1"
PEOPLE, ROOMS = (40, 4) if SOAK else (6, 2)
BEFORE, DURING = (60, 600) if SOAK else (1, 3)  # messages of each person, one a second
QUIET = 60 if SOAK else 0  # seconds in which nobody writes
MOST = 0.1  # seconds


class Writer(NamedTuple):
    client: Client
    room: str


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server of its own, which is stopped here."""
    with postgres_server.running() as server:
        yield server


def people(ledger: Ledger) -> list[tuple[str, str]]:
    """Return the token and the room of each person."""
    tokens, found = Tokens(SECRET.encode(), SystemClock()), []
    users = [ledger.add_user(f"p{number}@example.org", "no hash") for number in range(PEOPLE)]
    rooms = [ledger.create_room(f"room {number}", users[number].id).id for number in range(ROOMS)]
    for number, user in enumerate(users):
        ledger.join(rooms[number % ROOMS], user.id)
        session = ledger.open_session(user.id, lifetime=86_400, address="", agent="").id
        found.append((tokens.login(user.id, user.email, session)[0], rooms[number % ROOMS]))
    return found


def sequence(ledger: Ledger, room: str) -> int:
    """Return how many messages are stored in a room."""
    found = ledger.room(room)
    assert found is not None
    return found.last_sequence


def stored_all(ledger: Ledger, room: str, count: int) -> bool:
    return sequence(ledger, room) >= count


async def write(writer: Writer, count: int, offset: float) -> list[float]:
    """Send a message each second; return the seconds until each was accepted."""
    took, loop = [], asyncio.get_running_loop()
    begin = loop.time() + offset
    for number in range(count):
        await asyncio.sleep(max(0.0, begin + number - loop.time()))
        sent = time.perf_counter()
        ack = await writer.client.send(writer.room, f"{number}", patience=120)
        took.append(time.perf_counter() - sent)
        assert ack["status"] == "ACCEPTED", ack
    return took


def processor_seconds(pids: list[int]) -> float:
    """Return the processor time that these processes have used."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Report:
    """Times of acks and of processors, printed for the documentation."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    async def phase(self, name: str, writers: list[Writer], count: int) -> float:
        """Let all write, and then nobody; return the 99th percentile."""
        used, began = processor_seconds(self._pids), time.monotonic()
        found = await asyncio.gather(
            *(write(writer, count, number / len(writers)) for number, writer in enumerate(writers))
        )
        writing = (processor_seconds(self._pids) - used) / (time.monotonic() - began) / len(self._pids)
        used = processor_seconds(self._pids)
        await asyncio.sleep(QUIET)
        quiet = (processor_seconds(self._pids) - used) / QUIET / len(self._pids) if QUIET else 0.0
        took = sorted(seconds for each in found for seconds in each)
        p50, p99 = took[len(took) // 2], took[len(took) * 99 // 100]
        times = ", ".join(
            f"{word} {seconds * 1000:.1f} ms" for word, seconds in (("p50", p50), ("p99", p99), ("most", took[-1]))
        )
        cost = f"a gateway uses {writing:.1%} of a core, {quiet:.1%} when nobody writes"
        sys.stdout.write(f"{name}: {len(took)} acks, {times}; {cost}\n")
        return p99


@pytest.mark.parametrize("outage", ["hung", "stopped"])
def test_no_ack_waits_for_the_database(
    kafka: KafkaServer, database: PostgresServer, tmp_path: Path, outage: str
) -> None:
    place = Place("servers", kafka.url, f"{database.url}?schema=chat")
    ledger = open_ledger(place.db_url)
    known = people(ledger)
    chat = Chat(place, tmp_path)

    async def play() -> None:
        async with AsyncExitStack() as stack:
            writers = []
            for number, (token, room) in enumerate(known):
                client = Client()
                await client.connect(chat.addresses[number % 2], {"token": token})
                stack.push_async_callback(client.close)
                assert (await client.ask("joinRoom", {"roomId": room}))["success"]
                writers.append(Writer(client, room))
            report = Report(chat.pids)
            await report.phase("the database answers", writers, BEFORE)
            await asyncio.to_thread(database.hang if outage == "hung" else database.stop)
            try:
                p99 = await report.phase(f"the database is {outage}", writers, DURING)
            finally:
                await asyncio.to_thread(database.resume if outage == "hung" else database.start)
            if SOAK:
                assert p99 < MOST, p99

    try:
        asyncio.run(play())
        for room, members in Counter(room for _, room in known).items():
            count = members * (BEFORE + DURING)
            until(partial(stored_all, ledger, room, count), 300)
            assert sequence(ledger, room) == count
    finally:
        ledger.close()
        chat.close()
