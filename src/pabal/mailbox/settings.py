"""What a mailbox is told at its start, and what it tells about its work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from pabal.policy import LARGEST_MAX_BYTES


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
    max_bytes: int = LARGEST_MAX_BYTES + (4 << 20)  # of a request file
    max_waiting_per_client: int = 10_000
    queues: frozenset[str] | None = None  # None: every queue; else those only, for the commands that name one
    clients: dict[str, int] | None = None  # clientId to uid, each client a user of its own; None: all are the manager's
    group: int | None = None  # of all clients, where each is a user of its own


class Observation(msgspec.Struct, frozen=True):
    """Something that happened: `name` is a command for kind "request", else a queue.

    Kinds: request (seconds it took), published, leased (seconds since it was due), settled (`code` is done, retry, dead
    or lost; seconds since its lease), expired, revived, purged.
    """

    kind: str
    name: str
    ok: bool = True
    code: str = ""
    seconds: float = 0.0
    count: int = 1


Observe: TypeAlias = Callable[[Observation], None]
