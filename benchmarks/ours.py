"""Pabal as its users call it: connect, queue, publish, lease, ack."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pabal
from subject import BODY

_FILL = 1000  # messages per call while filling


class Ours:
    """One queue named `bench` of a Pabal store, with its default policy unless told to sync every ack."""

    _body: str | bytes = BODY

    def __init__(self, place: Path, scheme: str, *, durable_acks: bool = False, raw: bool = False) -> None:
        if raw:
            self._body = BODY.encode()
        self._open(f"{scheme}://{place / 'store'}")
        if durable_acks:
            self._queue.configure(pabal.Policy(durable_acks=True))

    def _open(self, url: str) -> None:
        self._connection = pabal.connect(url)
        self._queue = self._connection.queue("bench")

    def publish(self) -> None:
        self._queue.publish(self._body)

    def publish_many(self, count: int) -> None:
        self._queue.publish_many([self._body] * count)

    def take(self) -> None:
        [delivery] = self._queue.lease()
        delivery.ack()

    def take_many(self, count: int) -> None:
        deliveries = self._queue.lease(count)
        assert len(deliveries) == count
        self._queue.ack_many(deliveries)

    def fill(self, count: int) -> None:
        while count > 0:
            self.publish_many(min(count, _FILL))
            count -= _FILL

    def send(self, body: str) -> None:
        self._queue.publish(body)

    def serve(self, seen: Callable[[str], bool], wait: float | None) -> None:
        for delivery in self._queue.consume(wait=wait):
            go_on = seen(delivery.body)
            delivery.ack()
            if not go_on:
                return

    def take_soon(self, wait: float) -> int:
        """Lease and ack the next message if one comes in time; return how many were taken."""
        deliveries = self._queue.lease(1, wait=wait)
        for delivery in deliveries:
            delivery.ack()
        return len(deliveries)

    def consume(self, count: int, prefetch: int) -> None:
        """Take so many messages with an iterator, and ack each."""
        for delivery in islice(self._queue.consume(wait=0.0, prefetch=prefetch), count):
            delivery.ack()

    def work(self, count: int, concurrency: int) -> None:
        """Take so many messages with a worker whose handler does nothing."""
        assert pabal.worker(self._queue, lambda _delivery: None, concurrency=concurrency).run(count=count) == count

    def close(self) -> None:
        self._connection.close()


class Leasing(Ours):
    """A consumer that calls `lease(wait=…)` in a loop, as most do, and acks each message."""

    def serve(self, seen: Callable[[str], bool], wait: float | None) -> None:
        while deliveries := self._queue.lease(1, wait=3600.0 if wait is None else wait):
            [delivery] = deliveries
            go_on = seen(_text(delivery.body))
            delivery.ack()
            if not go_on:
                return

    def send(self, body: str) -> None:
        self._queue.publish(body.encode())


def _text(body: object) -> str:
    return body.decode() if isinstance(body, bytes) else str(body)
