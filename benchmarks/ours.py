"""Pabal as its users call it: connect, queue, publish, lease, ack."""

from collections.abc import Callable
from pathlib import Path

import pabal
from subject import BODY

_FILL = 1000  # messages per call while filling


class Ours:
    """One queue named `bench` of a Pabal store, with its default policy unless told to sync every ack."""

    def __init__(self, place: Path, scheme: str, *, durable_acks: bool = False) -> None:
        self._open(f"{scheme}://{place / 'store'}")
        if durable_acks:
            self._queue.configure(pabal.Policy(durable_acks=True))

    def _open(self, url: str) -> None:
        self._connection = pabal.connect(url)
        self._queue = self._connection.queue("bench")

    def publish(self) -> None:
        self._queue.publish(BODY)

    def publish_many(self, count: int) -> None:
        self._queue.publish_many([BODY] * count)

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

    def close(self) -> None:
        self._connection.close()
