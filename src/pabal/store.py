"""The store contract: where messages live, which state each is in, who holds it.

A message is in exactly one state:

    publish ──> ready <──> delayed          delayed becomes ready when due
                  │ lease      ^
                  v            │ Retry
               inflight ───────┴──> done    Done
                  │
                  └────────────────> dead   Dead; revive makes it ready again
    corrupt: input that could not be read, set aside with its bytes

Guarantees, the same for every store, each a test by its number in `pabal.testing.store_suite` or `tests/crash`:

G1   When publish returns, its messages survive kill -9 and a power cut; others may see them a moment before. Leases and
     plain settlements survive kill -9 of any client; a power cut, or a crash of the store's server, may undo the last
     of them, which brings a message back and never loses one. Durable settlements, and all with follow-ups, survive it
     too.
G2   At most one live token per message.
G3   At least once: a lease that runs out is taken over by `expired`, never silently gone.
G4   One consumer alone sees priority (larger first), due time, id. Inside a group only publish order counts, and the
     next comes only after the earlier is done or dead; a delayed or retrying head blocks its group.
G5   A stale receipt is LOST and changes nothing, follow-ups included. Repeating a verdict with its receipt is REPEATED.
G6   The same dedup key within its window, also after ack, returns the first id and stores nothing. An id given by the
     caller is its own dedup key.
G7   A message is in exactly one state at every crash point.
G8   Attempts never go down by themselves (what undoes leases, see G1, may forget the last).
G9   Full disk: publish raises StoreFull; lease and settle still work. I/O error: StoreFailed or Uncertain, and the
     handle makes no further promises until reopened.
G10  Damaged or unreadable input is set aside as corrupt with its reason; browse gives its bytes; all else is served.
G11  No lease ends early or late when the wall clock steps.

Stores take and give messages, own their codec and their clock, and know no policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum, StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from pabal.errors import InvalidReceipt
from pabal.message import Message
from pabal.names import check_id, check_name
from pabal.policy import DEFAULT_MAX_BYTES


class State(StrEnum):
    """Where a message stands; it is in exactly one of these."""

    READY = "ready"
    DELAYED = "delayed"
    INFLIGHT = "inflight"
    DEAD = "dead"
    DONE = "done"
    CORRUPT = "corrupt"


class Terms(NamedTuple):
    """What the queue's policy asks of a publish."""

    dedup_window: float = 300.0
    max_bytes: int = DEFAULT_MAX_BYTES
    max_waiting: int = 0  # 0: no limit. Never applied to follow-ups, retries and revived messages.


# gc=False here and below: as said at Message.
class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message on its way: which queue, after what delay, under which terms. Made by `Queue.draft`."""

    queue: str
    message: Message
    delay: float = 0.0
    given_id: bool = True  # the caller chose the id, so it is a dedup key of its own
    terms: Terms = Terms()


class Published(msgspec.Struct, frozen=True, gc=False):
    """What publish says of one message: `id` is the first one's if it was a duplicate."""

    id: str
    duplicate: bool = False


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The proof of a lease and its fence: the token is new at every lease and stays through extend."""

    queue: str
    id: str
    token: str

    def __str__(self) -> str:
        return f"{self.queue}/{self.id}/{self.token}"

    @classmethod
    def parse(cls, text: str) -> Receipt:
        parts = text.split("/")
        if len(parts) != 3 or not all(parts):
            raise InvalidReceipt(f"a receipt is <queue>/<id>/<token>; found {text!r:.80}")
        queue, id, token = parts
        return cls(check_name(queue), check_id(id), token)


class FailureCode(StrEnum):
    VALIDATION_ERROR = "VALIDATION_ERROR"
    HANDLER_ERROR = "HANDLER_ERROR"
    HANDLER_TIMEOUT = "HANDLER_TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    RETRY_LIMIT = "RETRY_LIMIT"
    POISON = "POISON"
    EXPIRED = "EXPIRED"
    NACKED = "NACKED"
    MISSING_PAYLOAD = "MISSING_PAYLOAD"
    CORRUPT = "CORRUPT"
    DUPLICATE = "DUPLICATE"


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt failed, or why the message is dead or corrupt. `repeats` counts how often in a row it was this."""

    code: str
    reason: str = ""
    at: float = 0.0
    attempt: int = 0
    consumer: str = ""
    repeats: int = 1


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A message that the caller now holds. `attempt` counts this lease; `failure` is the one before it, if any."""

    receipt: Receipt
    message: Message
    attempt: int
    due_at: float
    failure: Failure | None = None


class Entry(NamedTuple):
    """A message as browse shows it. `message` is None where only a tombstone or damaged `data` is left.

    `token` is that of its lease, while it is in flight: with it, whoever may look can settle in the holder's stead.
    """

    queue: str
    id: str
    state: State
    attempt: int = 0
    due_at: float = 0.0
    message: Message | None = None
    failure: Failure | None = None
    data: bytes = b""
    cursor: str = ""
    token: str = ""


class Done(NamedTuple):
    """It was handled. `keep` asks for the whole message to be kept until purged, not only its tombstone."""

    then: tuple[Draft, ...] = ()
    failure: Failure | None = None  # set where a message is dropped instead of becoming dead
    keep: bool = False


class Retry(NamedTuple):
    """It comes back after `delay` seconds."""

    delay: float = 0.0
    failure: Failure | None = None
    then: tuple[Draft, ...] = ()


class Dead(NamedTuple):
    """It is set aside with its failure until revived or purged."""

    failure: Failure
    then: tuple[Draft, ...] = ()


Verdict: TypeAlias = Done | Retry | Dead


class Settlement(NamedTuple):
    receipt: Receipt
    verdict: Verdict


class Outcome(Enum):
    APPLIED = "applied"
    REPEATED = "repeated"
    LOST = "lost"


class Finding(NamedTuple):
    """Something `check` found: which message or file, what is wrong, what was or would be done."""

    where: str
    problem: str
    remedy: str
    repaired: bool = False


class Store(Protocol):
    """Where messages live. `pabal.testing.StoreSuite` tells whether a driver keeps its promises."""

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages durably, all or none where the store can; answer in order.

        Raise TooLarge or QueueFull before anything is written, StoreFull if there is no room, Uncertain if the
        outcome is unknown.
        """
        ...

    def lease(self, queue: str, limit: int, seconds: float, *, consumer: str = "", token: str = "") -> list[Lease]:
        """Lease up to `limit` ready messages addressed to nobody or to `consumer`, in the order of G4.

        All of one call share one token. A token that already holds messages returns those again and leases no more.
        """
        ...

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        """Apply each verdict and publish its follow-ups as one step; a LOST one drops its own follow-ups only."""
        ...

    def extend(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        """Let each lease end `seconds` from now if its token is still current: APPLIED or LOST."""
        ...

    def expired(self, queue: str, limit: int) -> list[Lease]:
        """Take over leases that ran out and waiting messages past their `expires_at`.

        Each comes under a new token with its attempt unchanged, to be settled at once by whoever judges it.
        """
        ...

    def next_due(self, queue: str) -> float | None:
        """Return the seconds until time alone changes something here (a delay, lease or ttl ends); None if nothing."""
        ...

    def counts(self, queue: str) -> dict[State, int]:
        """Count the messages in each state; tombstones are done, and what just came due may still be delayed."""
        ...

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages without changing them, ready ones in lease order; `after` is the last entry's cursor."""
        ...

    def find(self, queue: str, id: str) -> Entry | None:
        """Return one message, in whatever state it is."""
        ...

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again with no attempts and no time to live; return the ids that were dead.

        From then on they are given with no `expires_at`, whatever they were published with.
        """
        ...

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        """Remove up to `limit` messages that have been in this state for `age` seconds; inflight ones never.

        With `ids`, of these only.
        """
        ...

    def queues(self) -> list[str]:
        """Name every queue, sorted."""
        ...

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        ...

    def configure(self, queue: str, settings: Mapping[str, Any]) -> None:
        """Keep a document for this queue, durably, and wake whoever watches it."""
        ...

    def facts(self) -> Mapping[str, str]:
        """Say what an operator should know: place, format, how readers are woken, whether the ballast is there."""
        ...

    def close(self) -> None:
        """Release files and handles. Leases stay until they are settled or run out."""
        ...


class Watch(Protocol):
    """Sees that something may have become ready since it was made or last waited."""

    def wait(self, timeout: float) -> bool:
        """Sleep until rung, woken or timed out; True if rung or woken."""
        ...

    def wake(self) -> None:
        """End the current or next `wait`, from any thread."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class Waitable(Protocol):
    def watch(self, queues: Sequence[str]) -> Watch:
        """Watch the queues from this moment on. Arm first, then try to lease, then wait."""
        ...


@runtime_checkable
class Checkable(Protocol):
    def check(self, *, repair: bool) -> list[Finding]:
        """Look for what crashes and strangers leave behind, and mend it if asked. Never revives what is dead."""
        ...


@runtime_checkable
class Transactional(Protocol):
    def publish_in(self, connection: Any, drafts: Sequence[Draft]) -> list[Published]:
        """Publish inside a transaction of the application's own: the messages are there if and only if it commits."""
        ...


@runtime_checkable
class Movable(Protocol):
    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        """Take in messages as they stand in another store: id, state, attempts, due time and failure, durably.

        They may be ready, delayed, dead or done, and join their groups in the order given; their dedup keys count for
        `window` seconds more. Ids that are here are left alone; return the others. Repeating it is harmless.
        """
        ...
