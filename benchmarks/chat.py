"""The chat as its users have it: time until another has a message, how many per second, a room with many sockets.

The chat is `pabal chat up`, all in SQLite. Beside it stands a bare echo server; both get the same clients, which keep
so many messages on their way that the server always has some to do.
"""

import asyncio
import random
import resource
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from chat_clients import Arrivals, Client, Crowd
from contest import Ratio
from footprint import Latency, percentiles
from pabal.apps.chat.gateway.auth import Tokens, read_secret
from pabal.apps.chat.ledger import open_ledger
from pabal.clock import SystemClock
from scale import Scale

GAP = 0.01, 0.05  # seconds between messages, so that everybody is asleep each time
CLIENTS, ROOMS, AHEAD = 8, 4, 32  # AHEAD: messages that each client has on their way
SLICES = 8  # of the usual length, since a message stays on its way for a while
PATIENCE = 30.0  # seconds for one message
SOCKETS, BROADCASTS, PER_USER = 1000, 20, 100
_UP = [sys.executable, "-c", "from pabal.cli.main import main; main()", "chat", "up", "--port", "0", "--root"]
_LIMITS = ("sends=1000000", "burst=1000000", "events=1000000", "sockets_per_user=1000", "presence=1")


class Chat:
    """A running chat, and who is in it."""

    def __init__(self, root: Path, port: int) -> None:
        self.port = port
        self._tokens = Tokens(read_secret(root / "secret"), SystemClock())
        self._ledger = open_ledger(f"sqlite:{root / 'chat.db'}")
        self._count = 0

    def users(self, count: int) -> list[tuple[str, str]]:
        """Add users; return the id and a token of each."""
        found = []
        for _ in range(count):
            self._count += 1
            user = self._ledger.add_user(f"user{self._count}@example.org", "no hash")
            session = self._ledger.open_session(user.id, lifetime=86_400, address="", agent="")
            found.append((user.id, self._tokens.login(user.id, user.email, session.id)[0]))
        return found

    def room(self, users: Sequence[tuple[str, str]]) -> str:
        room = self._ledger.create_room("bench", users[0][0])
        for user, _ in users[1:]:
            self._ledger.join(room.id, user)
        return room.id

    def close(self) -> None:
        self._ledger.close()


@contextmanager
def running(place: Path) -> Iterator[Chat]:
    """Run a chat."""
    limits = [part for limit in _LIMITS for part in ("--limit", limit)]
    with subprocess.Popen([*_UP, str(place), *limits], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            chat = Chat(place, int(process.stdout.readline().rpartition(":")[2]))
            yield chat
            chat.close()
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate()


@contextmanager
def echoing() -> Iterator[int]:
    """Run the bare echo server; give its port."""
    program = [sys.executable, str(Path(__file__).parent / "echo.py")]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()
            process.communicate()


def latency(place: Path, scale: Scale, chance: random.Random) -> Latency | str:
    """Send at random moments and see when another client has each message."""
    with running(place) as chat:
        users = chat.users(2)
        return asyncio.run(_latency(chat, users, chat.room(users), scale, chance))


async def _latency(
    chat: Chat, users: list[tuple[str, str]], room: str, scale: Scale, chance: random.Random
) -> Latency | str:
    arrivals = Arrivals()
    sender = await Client.join(chat.port, users[0][1], room, 0, lambda number, after: None)
    receiver = await Client.join(chat.port, users[1][1], room, 1, arrivals.note)
    for count in range(1 + scale.samples):
        await asyncio.sleep(chance.uniform(*GAP))
        await sender.send()
        if not await arrivals.reach(count + 1, scale.latency_seconds):
            return f"none within {scale.latency_seconds:g} s"
    await sender.close()
    await receiver.close()
    return percentiles(arrivals.taken[1:])  # the first finds everything cold


def rate(place: Path, scale: Scale, chance: random.Random) -> Ratio:
    """Return how many messages per second go through, to the bare echo server."""
    with running(place) as chat, echoing() as port:
        users = chat.users(CLIENTS)
        rooms = [chat.room(users) for _ in range(ROOMS)]
        return asyncio.run(_rates(chat.port, port, [token for _, token in users], rooms, scale, chance))


async def _rates(
    chat: int, echo: int, tokens: list[str], rooms: list[str], scale: Scale, chance: random.Random
) -> Ratio:
    crowds = [await Crowd.gather(port, tokens, rooms) for port in (chat, echo)]
    rounds: list[tuple[float, float]] = []
    for _ in range(scale.backlog_rounds + 1):
        found = {}
        for at in chance.sample((0, 1), 2):
            found[at] = await crowds[at].push(AHEAD, scale.slice * SLICES, PATIENCE)
        rounds.append((found[0], found[1]))
    for crowd in crowds:
        await crowd.close()
    ratios = [ours / base for ours, base in rounds[1:]]  # the first warms up
    return Ratio(
        statistics.median(ratios),
        min(ratios),
        max(ratios),
        statistics.median(ours for ours, _ in rounds[1:]),
        statistics.median(base for _, base in rounds[1:]),
    )


def crowded(place: Path, scale: Scale) -> float | str:
    """Return the longest time in ms until all of many sockets in one room have a message."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # for the gateway too
    count = min(SOCKETS, scale.large)
    with running(place) as chat:
        users = chat.users(1 + -(-count // PER_USER))
        return asyncio.run(_crowded(chat, users, chat.room(users), count, scale))


async def _crowded(chat: Chat, users: list[tuple[str, str]], room: str, count: int, scale: Scale) -> float | str:
    arrivals = Arrivals()
    sender = await Client.join(chat.port, users[0][1], room, 0, lambda number, after: None)
    tokens = [users[1 + number // PER_USER][1] for number in range(count)]
    others = [await Client.join(chat.port, token, room, 1, arrivals.note) for token in tokens]
    for done in range(min(BROADCASTS, scale.samples)):
        await sender.send()
        if not await arrivals.reach((done + 1) * count, PATIENCE):
            return f"{len(arrivals.taken) - done * count} of {count} within {PATIENCE:g} s"
        await asyncio.sleep(GAP[1])
    for client in (sender, *others):
        await client.close()
    return max(arrivals.taken) / 1e6
