"""What an open dashboard costs a busy store on SQLite: the rate of a publisher and consumer, with it and without.

Ten viewers are clients of the stream of figures in a process of their own, which reads and forgets: browsers draw on
machines of their own. Without is the same gateway, stopped by SIGSTOP, which costs nothing at all.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple
from urllib.parse import parse_qs, urlsplit

import psutil

import pabal
from contest import Ratio
from scale import Scale

VIEWERS = 10
QUEUES = 20
OPEN, CLOSED = "open", "closed"
_BODY = "x" * 1024
_SLICE = 2.0  # seconds: the figures are read once a second

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
    def viewers(self) -> Iterator[None]:
        """Let it be watched."""
        command = [sys.executable, "-S", "-c", _WATCH, *self._watch, str(VIEWERS)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None and process.stdout.readline(), "the viewers see nothing"
            try:
                yield
            finally:
                process.kill()

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    def cpu(self) -> float:
        """Return the seconds of a core that it has used."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class Cost(NamedTuple):
    """The rate with the gateway to the rate without, and what the gateway used of a core, in ms per s."""

    ratio: Ratio
    used: float


def costs(place: Path, scale: Scale) -> dict[str, Cost]:
    """Return the costs of a dashboard that is open, and of a closed one."""
    place.mkdir(parents=True, exist_ok=True)
    url = f"sqlite:{place}/jobs.db"
    with pabal.connect(url) as mq:
        for number in range(QUEUES):
            mq.queue(f"queue-{number:02}").publish_many(range(scale.small // 10))
        gateway = Gateway(url)
        try:
            _rate(mq, scale.slice)
            closed = _cost(mq, gateway, scale)
            with gateway.viewers():
                return {OPEN: _cost(mq, gateway, scale), CLOSED: closed}
        finally:
            gateway.close()


def _cost(mq: pabal.Connection, gateway: Gateway, scale: Scale) -> Cost:
    """Measure with and without in turns, in the order ABBA: so a machine that gets slower strikes both."""
    seconds = _SLICE if scale.rounds > 1 else 0.1
    rounds, used = [], 0.0
    for _ in range(scale.rounds):
        found = {True: 0.0, False: 0.0}
        for runs in (True, False, False, True):
            if runs:
                before = gateway.cpu()
                found[runs] += _rate(mq, seconds) / 2
                used += gateway.cpu() - before
            else:
                with gateway.standing_still():
                    found[runs] += _rate(mq, seconds) / 2
        rounds.append(found)
    ratios = [each[True] / each[False] for each in rounds]
    ratio = Ratio(
        median(ratios), min(ratios), max(ratios), *(median(r[runs] for r in rounds) for runs in (True, False))
    )
    return Cost(ratio, used / (2 * scale.rounds * seconds) * 1000)


def _rate(mq: pabal.Connection, seconds: float) -> float:
    """Publish and consume messages one by one for a while; return how many a second."""
    queue, done, begun = mq.queue("busy"), 0, time.perf_counter()
    while (took := time.perf_counter() - begun) < seconds or not done:
        queue.publish(_BODY)
        for delivery in queue.lease():
            delivery.ack()
            done += 1
    return done / took
