"""The processes of the demo: a publisher and a worker. Each reports its actions as lines of JSON on stdout.

Run as `python processes.py publisher|worker URL`.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable

from pabal.connect import connect
from pabal.errors import LeaseLost
from pabal.jsontext import encode
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.queues.worker import worker
from pabal.store import FailureCode, State

QUEUE = "demo"
RATE = 20.0  # messages published per second
SLOW = "slow"
_WORK = 0.03
_PRINTING = threading.Lock()


def report(event: str, **facts: object) -> None:
    line = encode({"event": event, **facts}) + b"\n"
    with _PRINTING:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()


def kind_of(number: int) -> str:
    """Most succeed, some fail once, a few always fail."""
    if number % 80 == 15:
        return "broken"
    return "flaky" if number % 40 == 5 else "mail"


def publisher(queue: Queue) -> None:
    stopping = _on_sigterm()
    started = time.monotonic()
    number = 0
    while not stopping.wait(max(0.0, started + number / RATE - time.monotonic())):
        number += 1
        kind = kind_of(number)
        published = queue.publish({"number": number}, id=f"{kind}-{number:03}", type=kind)
        report("published", id=published.id)


def handle(queue: Queue, delivery: Delivery) -> None:
    id, kind, attempt = delivery.message.id, delivery.message.type, delivery.attempt
    report("took", id=id, attempt=attempt)
    time.sleep(600.0 if kind == SLOW and attempt == 1 else _WORK)
    if kind == "broken" or (kind == "flaky" and attempt == 1):
        reason = "no such address" if kind == "broken" else "connection reset"
        delivery.fail(FailureCode.HANDLER_ERROR, reason)
        entry = queue.find(id)
        report("failed", id=id, attempt=attempt, reason=reason, dead=entry is not None and entry.state is State.DEAD)
        return
    delivery.ack()
    report("done", id=id, attempt=attempt)


def work(queue: Queue) -> None:
    def handler(delivery: Delivery) -> None:
        try:
            handle(queue, delivery)
        except LeaseLost:
            report("lost", id=delivery.message.id, attempt=delivery.attempt)

    workers = worker(queue, handler, concurrency=4)
    signal.signal(signal.SIGTERM, lambda number, frame: workers.stop())
    workers.run(grace=0.5)


def _on_sigterm() -> threading.Event:
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.set())
    return stopping


def main(part: str, url: str) -> None:
    parts: dict[str, Callable[[Queue], None]] = {"publisher": publisher, "worker": work}
    logging.getLogger("pabal").addHandler(logging.NullHandler())  # the parent shows what happens
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then stops this process
    with connect(url) as mq:
        parts[part](mq.queue(QUEUE))


if __name__ == "__main__":
    main(*sys.argv[1:])
