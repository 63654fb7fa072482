"""What an open dashboard costs a busy store on SQLite: the rate of a publisher and consumer, with it and without.

Ten viewers are clients of the stream of figures in a process of their own, which reads and forgets: browsers draw on
machines of their own. Without is the same gateway, stopped by SIGSTOP, which costs nothing at all.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from urllib.parse import parse_qs, urlsplit

import pabal
from contest import Ratio
from scale import Scale

VIEWERS = 10
QUEUES = 20
OPEN, CLOSED, WITHOUT = "open", "closed", "without"
_BODY = "x" * 1024
_LEAST_SECONDS = 1.0  # of a slice: the figures are read once a second

_WATCH = """
import select, socket, sys
host, port, token, count = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
head = f"GET /events HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n"
opened = [socket.create_connection((host, port)) for _ in range(count)]
for each in opened:
    each.sendall(head.encode())
silent = set(opened)
while True:
    for each in select.select(opened, [], [])[0]:
        if b"data:" in each.recv(1 << 16) and each in silent:
            silent.discard(each)
            if not silent:
                print("all have figures", flush=True)
"""


class Gateway:
    """A gateway on a store, and those who watch."""

    def __init__(self, url: str) -> None:
        script = "from pabal.cli.main import main; main()"
        command = [sys.executable, "-c", script, "gateway", "--url", url, "--port", "0"]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        address = urlsplit(self._process.stdout.readline().split()[-1])
        self._process.stdout.readline()
        self._watch = [address.hostname or "", str(address.port), parse_qs(address.query)["token"][0]]

    @contextmanager
    def state(self, kind: str) -> Iterator[None]:
        """Let it be watched, or not, or stand still."""
        if kind == WITHOUT:
            os.kill(self._process.pid, signal.SIGSTOP)
        viewers = None
        if kind == OPEN:
            command = [sys.executable, "-S", "-c", _WATCH, *self._watch, str(VIEWERS)]
            viewers = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            assert viewers.stdout is not None and viewers.stdout.readline(), "the viewers see nothing"
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)
            if viewers is not None:
                viewers.kill()
                viewers.communicate()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def costs(place: Path, scale: Scale, chance: random.Random) -> dict[str, Ratio]:
    """Return the rates with a dashboard that is open, and with a closed one, to the rate without."""
    place.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:{place}/jobs.db"
    rounds: list[dict[str, float]] = []
    with pabal.connect(url) as mq:
        for number in range(QUEUES):
            mq.queue(f"queue-{number:02}").publish_many(range(scale.small // 10))
        gateway = Gateway(url)
        try:
            _rate(mq, scale.slice)
            for _ in range(scale.rounds):
                kinds = [OPEN, CLOSED, WITHOUT]
                chance.shuffle(kinds)
                found = {}
                for kind in kinds:
                    with gateway.state(kind):
                        found[kind] = _rate(mq, max(_LEAST_SECONDS, scale.slice * 20) if scale.rounds > 1 else 0.1)
                rounds.append(found)
        finally:
            gateway.close()
    return {kind: _ratio(rounds, kind) for kind in (OPEN, CLOSED)}


def _rate(mq: pabal.Connection, seconds: float) -> float:
    """Publish and consume messages one by one for a while; return how many a second."""
    queue, done, begun = mq.queue("busy"), 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds or not done:
        queue.publish(_BODY)
        for delivery in queue.lease():
            delivery.ack()
            done += 1
    return done / took


def _ratio(rounds: list[dict[str, float]], kind: str) -> Ratio:
    found = [each[kind] / each[WITHOUT] for each in rounds]
    rates = (median(each[name] for each in rounds) for name in (kind, WITHOUT))
    return Ratio(median(found), min(found), max(found), *rates)
