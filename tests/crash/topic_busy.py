"""A process that appends to a topic or consumes it as fast as it can until it is killed or told to stop.

    python -m tests.crash.topic_busy URL TOPIC HISTORY ROLE SESSION

Each line of a history is written in one call when the thing has happened: `MOMENT VALUE` of an appender once its append
has returned, `MOMENT VALUE PARTITION OFFSET` of a consumer once a record was handled, before it is committed.
"""

import os
import signal
import sys
import time
from itertools import count
from pathlib import Path

from pabal.connect import connect_topics
from pabal.errors import StoreError
from pabal.topics.attempts import Received
from pabal.topics.consumer import consumer
from pabal.topics.topic import Topic

GROUP = "crew"
BATCH = 20
KEYS = 16  # for each appender: every partition gets some


def append(topic: Topic, history: Path) -> None:
    """Append under keys of its own, one by one and in batches; what was not answered is appended again."""
    name, out = history.stem, _opened(history)
    for turn in count():
        size = 1 + turn % 5
        key = f"{name}-{turn % KEYS}"
        bodies = [f"{key}:{turn}:{n}" for n in range(size)]
        while True:
            try:
                topic.append_many(bodies, key=key)
                break
            except StoreError:  # a server that restarts: some may be there, and will be there twice
                time.sleep(0.1)
        os.write(out, "".join(f"{time.monotonic_ns()} {body}\n" for body in bodies).encode())


def consume(topic: Topic, history: Path, session: float) -> None:
    def handle(received: Received) -> None:
        record = received.record
        line = f"{time.monotonic_ns()} {received.body!s} {record.partition} {record.offset}\n"
        os.write(out, line.encode())

    crew = consumer(topic, GROUP, handle, batch=BATCH, session=session)
    signal.signal(signal.SIGTERM, lambda number, frame: crew.stop())
    out = _opened(history)  # from here on it may be asked to leave
    crew.run()


def _opened(history: Path) -> int:
    return os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def main(url: str, topic: str, history: str, role: str, session: str) -> None:
    with connect_topics(url) as topics:
        if role == "append":
            append(topics.topic(topic), Path(history))
        else:
            consume(topics.topic(topic), Path(history), float(session))


if __name__ == "__main__":
    main(*sys.argv[1:])
