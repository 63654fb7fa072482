"""Calls of the Kafka client that have no limit of their own, with one.

A synchronous commit and the close of a consumer wait for brokers that hang, as long as they hang, and no signal reaches
a thread that waits there. Such calls run in a thread of their own, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException

T = TypeVar("T")
_LEAVING = 5.0  # seconds for leaving a group


class Limited:
    """Runs calls in their order. One that is given up runs on, and the next waits for its end."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], None] | None] | None = None

    def run(self, work: Callable[[], T], seconds: float) -> T:
        """Run work; raise KafkaException, timed out, when it takes longer."""
        if self._calls is None:
            self._calls = SimpleQueue()
            Thread(target=_serve, args=(self._calls,), name="pabal-kafka", daemon=True).start()
        answers: list[T] = []
        errors: list[BaseException] = []
        over = Lock()
        over.acquire()

        def call() -> None:
            try:
                answers.append(work())
            except BaseException as exc:  # raised where it was asked for
                errors.append(exc)
            finally:
                over.release()

        self._calls.put(call)
        if not over.acquire(timeout=seconds):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        if errors:
            raise errors[0]
        return answers[0]

    def close(self, consumer: Consumer, seconds: float) -> None:
        """Close a consumer as the last call. It leaves its group in good order if that takes no longer than this."""
        try:
            self.run(consumer.close, min(seconds, _LEAVING))
        except KafkaException:
            pass  # it runs on; the group waits until its session is over
        if self._calls is not None:
            self._calls.put(None)


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while call := calls.get():
        call()
