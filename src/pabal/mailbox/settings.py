"""What a mailbox is told at its start, and what it tells about its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec


class MailboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Folders are names under the mailbox's root; times are in seconds."""

    requests: str = "requests"
    processing: str = "processing"
    responses: str = "responses"
    dead: str = "dead"
    bells: str = "bells"
    archive: str = "archive"
    stale_seconds: float = 30.0  # a claimed file that cannot be read whole by then is dead
    answers_kept: float = 300.0
    watched: bool = True  # woken by what arrives; else it is looked for
    poll_seconds: float = 1.0  # so often, where nothing wakes
    dead_kept: float = 7 * 86400.0
    oldest_request: float = 300.0  # an older one could have been run before its effects were forgotten
    longest_wait: float = 60.0  # that a consume may ask for
    max_bytes: int = 80 << 20  # of a request file: the largest message and what is around it
    max_waiting_per_client: int = 10_000
    queues: frozenset[str] | None = None  # None: every queue; else those only, for the commands that name one
    clients: dict[str, int] | None = None  # clientId to uid, each client a user of its own; None: all are the manager's
    group: int | None = None  # of all clients, where each is a user of its own


class Answered(msgspec.Struct, frozen=True):
    """A request that was answered: its command, the code of its refusal, and how long it took."""

    command: str
    code: str = ""  # empty: it was not refused
    seconds: float = 0.0


Observe: TypeAlias = Callable[[Answered], None]
