"""A manager and its clients, each a process of its own: what the way through the mailbox costs."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

import pabal
from ours import Ours
from pabal.errors import PabalError
from subject import BODY

CLIENTS = 8
_UP = [sys.executable, "-c", "from pabal.cli.main import main; main()", "up", "--root"]
_SPAWN = multiprocessing.get_context("spawn")


class Manager:
    """`pabal up` on a root of its own, all defaults."""

    def __init__(self, place: Path) -> None:
        self.url = f"mailbox://{place}/root/ipc"
        place.mkdir(parents=True, exist_ok=True)
        with open(place / "log", "ab") as log:
            self._process = subprocess.Popen([*_UP, str(place / "root")], cwd=place, stdout=log, stderr=log)
        end = time.monotonic() + 30
        while True:
            try:
                with pabal.connect(self.url) as mq:
                    mq.queues()
                return
            except PabalError:
                if time.monotonic() > end or self._process.poll() is not None:
                    raise
                time.sleep(0.05)

    def usage(self) -> tuple[float, float]:
        """Return the CPU seconds used so far and the resident MB."""
        process = psutil.Process(self._process.pid)
        times = process.cpu_times()
        return times.user + times.system, process.memory_info().rss / 1e6

    def close(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(30)


class Managed(Ours):
    """A queue behind a manager, used by one client or by eight at once."""

    def __init__(self, place: Path) -> None:
        self._manager = Manager(place)
        self._clients: list[tuple[multiprocessing.process.BaseProcess, Connection]] = []
        self._open(self._manager.url)

    def together(self, seconds: float) -> float:
        """Return messages per second of eight clients that publish one by one."""
        if not self._clients:
            self._clients = [_started(self._manager.url) for _ in range(CLIENTS)]
        start = time.perf_counter()
        for _, pipe in self._clients:
            pipe.send(seconds)
        count: int = sum(pipe.recv() for _, pipe in self._clients)
        return count / (time.perf_counter() - start)

    def close(self) -> None:
        for client, pipe in self._clients:
            pipe.send(None)
            client.join()
        super().close()
        self._manager.close()


def _started(url: str) -> tuple[multiprocessing.process.BaseProcess, Connection]:
    here, there = _SPAWN.Pipe()
    client = _SPAWN.Process(target=_publish, args=(url, there), daemon=True)
    client.start()
    there.close()
    here.recv()
    return client, here


def _publish(url: str, pipe: Connection) -> None:
    with pabal.connect(url, consumer=f"client-{os.getpid()}") as mq:
        queue = mq.queue("bench")
        queue.publish(BODY)
        pipe.send(None)
        while (seconds := pipe.recv()) is not None:
            end, count = time.perf_counter() + seconds, 0
            while time.perf_counter() < end:
                queue.publish(BODY)
                count += 1
            pipe.send(count)
