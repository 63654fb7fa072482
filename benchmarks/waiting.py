"""Many consumers wait for one queue, and one message comes: when one of them has it, and what it costs them all."""

import multiprocessing
import os
import statistics
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

from kinds import open_server
from scale import Scale

_SPAWN = multiprocessing.get_context("spawn")
_SAMPLES = 100
_GAP = 0.05  # seconds between two messages: all sleep again


def woken(kind: str, place: Path, scale: Scale, processes: int, threads: int) -> tuple[float, float]:
    """Return the milliseconds until one of them has a message (the median), and the CPU of all of them for it."""
    server = open_server(kind, place)
    here, there = _SPAWN.Pipe()
    host = _SPAWN.Process(target=_host, args=(kind, place, processes, threads, there))
    host.start()
    there.close()
    try:
        pids = here.recv()
        time.sleep(scale.idle_seconds / 5)  # the last of them has gone to sleep
        latencies, used = [], _cpu(pids)
        for _ in range(min(_SAMPLES, scale.samples)):
            server.send(f"{time.monotonic_ns():020}")
            latencies.append(here.recv())
            time.sleep(_GAP)
        used = _cpu(pids) - used
    finally:
        host.terminate()
        host.join()
        server.close()
    return statistics.median(latencies) / 1e6, used / len(latencies) / 1e6


def _host(kind: str, place: Path, processes: int, threads: int, answer: Connection) -> None:
    """Fork the consumers, who end with this process, and pass on what they tell."""
    told, tell = os.pipe()
    end, alive = os.pipe()
    pids = []
    for _ in range(processes):
        pids.append(os.fork())
        if pids[-1] == 0:
            os.close(alive)
            _consume(kind, place, threads, tell)
            os.read(end, 1)
            os._exit(0)
    with os.fdopen(told) as lines:
        for _ in range(processes * threads):
            lines.readline()
        answer.send(pids)
        for line in lines:
            answer.send(int(line))


def _consume(kind: str, place: Path, threads: int, tell: int) -> None:
    server = open_server(kind, place)

    def seen(body: str) -> bool:
        os.write(tell, f"{time.monotonic_ns() - int(body)}\n".encode())
        return True

    def serve() -> None:
        os.write(tell, b"\n")
        server.serve(seen, None)

    for _ in range(threads):
        threading.Thread(target=serve, daemon=True).start()


def _cpu(pids: list[int]) -> int:
    """Return the nanoseconds that all threads of these processes have run."""
    files = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[0]) for path in files)
