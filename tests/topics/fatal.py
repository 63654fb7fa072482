"""A process that consumes a topic until it is idle, and that some records end.

    python -m tests.topics.fatal URL TOPIC HISTORY HOW

A line of the history is `PARTITION BODY`, written when a record was handled. The body `fatal` ends the process: as the
memory killer does when records are handled one by one, by `os._exit` when they are handled together.
"""

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from pabal.connect import connect_topics
from pabal.policy.policy import RetryPolicy
from pabal.topics.attempts import Received, Refusal
from pabal.topics.consumer import consumer

GROUP = "workers"
SESSION = 1.0
LIMIT = 3
BATCH = 10


def main(url: str, name: str, history: str, how: str) -> None:
    def write_down(received: Received) -> None:
        with Path(history).open("a") as file:
            file.write(f"{received.record.partition} {received.body!s}\n")

    def one(received: Received) -> None:
        if received.body == "fatal":
            os.kill(os.getpid(), signal.SIGKILL)
        write_down(received)

    def many(received: Sequence[Received]) -> Iterable[Refusal]:
        if any(found.body == "fatal" for found in received):
            os._exit(9)
        for found in received:
            write_down(found)
        return ()

    retry = RetryPolicy(limit=LIMIT)
    with connect_topics(url) as topics:
        topic = topics.topic(name)
        if how == "together":
            consumer(topic, GROUP, many, together=True, retry=retry, batch=BATCH, session=SESSION).run(wait=3.0)
        else:
            consumer(topic, GROUP, one, retry=retry, batch=BATCH, session=SESSION).run(wait=3.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
