"""What is measured: one way of keeping messages, driven alike whoever wrote it."""

import random
import string
from collections.abc import Callable
from typing import Protocol

BODY_BYTES = 1024
BATCH = 100
BODY = "".join(random.Random(1).choices(string.ascii_letters + string.digits + " ", k=BODY_BYTES))


class Subject(Protocol):
    """A queue, or the system calls beneath one. Bodies are `BODY` throughout."""

    def publish(self) -> None:
        """Store one message in one call."""
        ...

    def publish_many(self, count: int) -> None:
        """Store `count` messages in one call or commit, one by one where there is no such thing."""
        ...

    def take(self) -> None:
        """Lease the next message and ack it."""
        ...

    def take_many(self, count: int) -> None:
        """Lease and ack `count` messages with as few calls as there are."""
        ...

    def fill(self, count: int) -> None:
        """Add to the backlog by any means; never measured."""
        ...

    def close(self) -> None: ...


class Server(Subject, Protocol):
    """A queue that has a way to wait for messages, its own or the one its users are left with."""

    def send(self, body: str) -> None: ...

    def serve(self, seen: Callable[[str], bool], wait: float | None) -> None:
        """Hand each message to `seen`, then ack it; end when `seen` is false or after `wait` idle seconds."""
        ...
