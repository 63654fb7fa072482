"""The peers, used as their own documents say, each with the durability that its installed source gives it."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import litequeue
import persistqueue
from huey.storage import SqliteStorage

from subject import BODY

LITEQUEUE_POLL = 0.001  # it has no way to wait; a user must choose between latency and idle CPU
HUEY_DELAY, HUEY_BACKOFF, HUEY_MAX_DELAY = 0.1, 1.15, 10.0  # the defaults of its consumer


class LiteQueue:
    """litequeue: WAL, NORMAL unless told otherwise. A batch is its own `transaction()` around `put` or `done`."""

    def __init__(self, place: Path, *, full: bool = False) -> None:
        self._queue = litequeue.LiteQueue(str(place / "lite.db"))
        if full:
            self._queue.conn.execute("pragma synchronous = full")

    def publish(self) -> None:
        self._queue.put(BODY)

    def publish_many(self, count: int) -> None:
        with self._queue.transaction():
            for _ in range(count):
                self._queue.put(BODY)

    def take(self) -> None:
        self._queue.done(self._queue.pop().message_id)

    def take_many(self, count: int) -> None:
        leased = [self._queue.pop() for _ in range(count)]  # pop opens a transaction of its own
        with self._queue.transaction():
            for message in leased:
                self._queue.done(message.message_id)

    fill = publish_many

    def send(self, body: str) -> None:
        self._queue.put(body)

    def serve(self, seen: Callable[[str], bool], wait: float | None) -> None:
        idle_since = time.monotonic()
        while wait is None or time.monotonic() - idle_since < wait:
            message = self._queue.pop()
            if message is None:
                time.sleep(LITEQUEUE_POLL)
                continue
            go_on = seen(message.data)
            self._queue.done(message.message_id)
            if not go_on:
                return
            idle_since = time.monotonic()

    def close(self) -> None:
        self._queue.close()


class PersistQueue:
    """persist-queue's SQLiteAckQueue: WAL, `synchronous` left at SQLite's own default. It has no batches.

    Acked rows stay and are walked over by every `get` until cleared, so `fill` clears them, unmeasured, and inserts
    with the queue's own statement in one commit.
    """

    def __init__(self, place: Path, *, threads: bool = False) -> None:
        self._queue: Any = persistqueue.SQLiteAckQueue(str(place), multithreading=threads)

    def publish(self) -> None:
        self._queue.put(BODY)

    def publish_many(self, count: int) -> None:
        for _ in range(count):
            self._queue.put(BODY)

    def take(self) -> None:
        item = self._queue.get(block=False, raw=True)
        self._queue.ack(id=item["pqid"])

    def take_many(self, count: int) -> None:
        leased = [self._queue.get(block=False, raw=True) for _ in range(count)]
        for item in leased:
            self._queue.ack(id=item["pqid"])

    def fill(self, count: int) -> None:
        self._queue.clear_acked_data(max_delete=1_000_000, keep_latest=0)
        data = self._queue._serializer.dumps(BODY)
        with self._queue._putter as db:
            db.executemany(self._queue._sql_insert, ((data, time.time()) for _ in range(count)))
        self._queue.total += count

    def send(self, body: str) -> None:
        self._queue.put(body)

    def serve(self, seen: Callable[[str], bool], wait: float | None) -> None:
        while True:
            try:
                item = self._queue.get(timeout=wait, raw=True)
            except persistqueue.Empty:
                return
            go_on = seen(item["data"])
            self._queue.ack(id=item["pqid"])
            if not go_on:
                return

    def close(self) -> None:
        self._queue.close()


class Huey:
    """huey's SqliteStorage: WAL, `synchronous` left at SQLite's own default. Taking deletes; there is no ack."""

    def __init__(self, place: Path) -> None:
        self._storage = SqliteStorage(name="bench", filename=str(place / "huey.db"))
        self._body = BODY.encode()

    def publish(self) -> None:
        self._storage.enqueue(self._body)

    def publish_many(self, count: int) -> None:
        for _ in range(count):
            self._storage.enqueue(self._body)

    def take(self) -> None:
        assert self._storage.dequeue() is not None

    def take_many(self, count: int) -> None:
        for _ in range(count):
            self.take()

    def fill(self, count: int) -> None:
        with self._storage.db(commit=True) as cursor:
            rows = (("bench", self._body, 0) for _ in range(count))
            cursor.executemany("insert into task (queue, data, priority) values (?, ?, ?)", rows)

    def send(self, body: str) -> None:
        self._storage.enqueue(body.encode())

    def serve(self, seen: Callable[[str], bool], wait: float | None) -> None:
        idle_since, delay = time.monotonic(), HUEY_DELAY
        while wait is None or time.monotonic() - idle_since < wait:
            data = self._storage.dequeue()
            if data is None:
                time.sleep(delay)
                delay = min(delay * HUEY_BACKOFF, HUEY_MAX_DELAY)
                continue
            if not seen(bytes(data).decode()):
                return
            idle_since, delay = time.monotonic(), HUEY_DELAY

    def close(self) -> None:
        self._storage.close()
