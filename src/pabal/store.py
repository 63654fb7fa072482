"""The store contract: where messages are kept, their states, and their leases.

A message is in exactly one state:

    publish ──> ready <──> delayed          delayed becomes ready when due
                  │ lease      ^
                  v            │ Retry
               inflight ───────┴──> done    Done
                  │
                  └────────────────> dead   Dead; revive makes it ready again
    corrupt: input that could not be read, set aside with its bytes

Guarantees, the same for every store. Each is tested under its number in `pabal.testing.store_suite` or `tests/crash`:

G1   When publish returns, its messages survive kill -9 and a power cut; consumers may see them shortly before. Leases
     and plain settlements survive kill -9 of any client. A power cut, or a crash of the store's server, may undo the
     last of them: a message may then come again, but none is lost. Durable settlements, and all settlements with
     follow-ups, survive a power cut too.
G2   At most one live token per message.
G3   At least once: a lease that runs out is returned by `expired`; its message is never lost silently.
G4   A single consumer gets messages by priority (larger first), due time, id. Inside a group only publish order
     counts, and the next message comes only after the earlier one is done or dead; a delayed or retrying head blocks
     its group. A lease of successive messages takes several of a group together, in order; then no other of the group
     comes until all of these are settled, and those that come back do so in order, before every later one.
G5   A stale receipt is LOST and changes nothing, follow-ups included. Repeating a verdict with its receipt is REPEATED.
G6   A publish with the same dedup key within its window, also after the ack, returns the first id and stores
     nothing. An id given by the caller is its own dedup key.
G7   A message is in exactly one state at every crash point.
G8   Attempts never go down by themselves (a power cut that undoes leases, see G1, may undo the last count). Only the
     holder of a lease can take back its own count, with a Retry that is not counted.
G9   Full disk: publish raises StoreFull; lease and settle still work. I/O error: the call raises StoreFailed or
     Uncertain, and the handle must be reopened.
G10  Damaged or unreadable input is set aside as corrupt with its reason; browse returns its bytes; all other messages
     are served.
G11  No lease ends early or late when the wall clock steps.
G12  A publish with a unique key stores nothing and returns the first id while a message of this queue with that key
     waits or is in flight, for however long. When that message is done, dead or removed, the key is free.
G13  A cancelled message is done, with the failure CANCELLED: nobody gets it, and the receipt of its holder is LOST.
     Its id and its dedup key are remembered as after an ack.
G14  Each occurrence of a schedule is published once, when the clock of the store says so, as long as a consumer looks
     within a minute; a schedule that was removed or changed publishes nothing more. (On G1, G5, G6, G7, G12, `now`.)
G15  There is one reply to a request, if and only if it is done by `reply`; it is there as soon as the request is done.
     (On G1, G5, G6, G7.)

Stores take and return messages, have their own codec and clock, and know no policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum, StrEnum
from pathlib import Path
from types import EllipsisType
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import msgspec

from pabal import jsontext
from pabal.errors import InvalidPolicy, InvalidReceipt, QueueUnknown
from pabal.message import Message
from pabal.names import check_id, check_name, no_queue
from pabal.policy.policy import DEFAULT_MAX_BYTES

_LONGEST_TOKEN = 128
KEPT_FAILURES = 10  # earlier ones of a message, beside its last
_EARLIER_REASON = 300  # characters of the reason of an earlier failure


class State(StrEnum):
    """The state of a message; it is in exactly one."""

    READY = "ready"
    DELAYED = "delayed"
    INFLIGHT = "inflight"
    DEAD = "dead"
    DONE = "done"
    CORRUPT = "corrupt"


class Terms(NamedTuple):
    """The limits of the queue's policy for a publish. Passed whole through SQL and wire."""

    dedup_window: float = 300.0
    max_bytes: int = DEFAULT_MAX_BYTES
    max_waiting: int = 0  # 0: no limit. Never applied to follow-ups, retries and revived messages.


BROWSE_BYTES = 16 << 20  # of the documents of one page of `Store.browse`; one document may be larger


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
    CANCELLED = "CANCELLED"
    NO_HANDLER = "NO_HANDLER"


class Failure(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Why an attempt failed, or why a message is dead or corrupt.

    `repeats` counts the same failure in a row. `before` has the failures of earlier attempts, the oldest first, the
    last `KEPT_FAILURES` of them; these have none before themselves, and their reasons are cut.
    """

    code: str
    reason: str = ""
    at: float = 0.0
    attempt: int = 0
    consumer: str = ""
    repeats: int = 1
    before: tuple[Failure, ...] = ()

    def as_earlier(self) -> tuple[Failure, ...]:
        """Return what the failure of the next attempt has as `before`."""
        cut = Failure(
            self.code, self.reason[:_EARLIER_REASON], self.at, self.attempt, self.consumer, repeats=self.repeats
        )
        return (*self.before, cut)[-KEPT_FAILURES:]


# Raises ValueError for what is none.
read_failure_document: Callable[[bytes | str], Failure] = jsontext.decoder(Failure)


# gc=False here and below: see Message.
class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message to publish, with its queue, delay and terms. Made by `Queue.draft`.

    With a `failure` it is stored as dead. `copies` are then the documents for its dead-letter queue; a store does not
    look at them, and `with_copies` puts them beside it. One that is for an `existing` queue does not make it.
    """

    queue: str
    message: Message
    delay: float = 0.0
    given_id: bool = True  # the caller chose the id, so it is a dedup key of its own
    terms: Terms = Terms()
    existing: bool = False
    failure: Failure | None = None
    copies: tuple[Draft, ...] = ()


def with_copies(drafts: Sequence[Draft]) -> Sequence[Draft]:
    """Return drafts, and after them the copies of those that are stored as dead."""
    dead = [draft for draft in drafts if draft.failure is not None]
    return [*drafts, *(copy for draft in dead for copy in draft.copies)] if dead else drafts


class Published(msgspec.Struct, frozen=True, gc=False):
    """The answer of publish for one message: for a duplicate, `id` is that of the first message.

    `dead`, in an answer of `Queue`: the body does not fit the schema of the queue, and the message is a dead letter.
    """

    id: str
    duplicate: bool = False
    dead: bool = False


def check_token(token: str) -> str:
    """Return a token that can be part of a receipt; raise InvalidReceipt if it cannot. Empty is none."""
    if len(token) > _LONGEST_TOKEN or not token.isprintable() or "/" in token:
        raise InvalidReceipt(f"the token of a receipt is at most {_LONGEST_TOKEN} printable characters, without '/'")
    return token


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """The proof of a lease: the token is new at every lease and stays the same through extend."""

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
        return cls(check_name(queue), check_id(id), check_token(token))


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A message that the caller now holds. `attempt` counts this lease; `failure` is that of the attempt before.

    `expired` says whether the time to live is over, in an answer of a store whose clock is not that of its caller.
    `consumer`, in an answer of `Store.expired`, is the name of the consumer whose lease ran out, if it is known.
    """

    receipt: Receipt
    message: Message
    attempt: int
    due_at: float
    failure: Failure | None = None
    expired: bool | None = None
    consumer: str = ""


class Entry(NamedTuple):
    """A message as browse shows it. `message` is None if only a tombstone or damaged `data` is left.

    While the message is in flight, `token` is that of its lease: with it, an operator can settle for the holder.
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
    """The message was handled. With `keep`, the whole message is kept until purged, not only its tombstone."""

    then: tuple[Draft, ...] = ()
    failure: Failure | None = None  # set if the message is dropped instead of becoming dead
    keep: bool = False


class Retry(NamedTuple):
    """The message comes back after `delay` seconds. If it is not `counted`, it comes back at once, as if this lease had
    not been: a consumer that stops gives back so what it has not done.
    """

    delay: float = 0.0
    failure: Failure | None = None
    then: tuple[Draft, ...] = ()
    counted: bool = True


class Dead(NamedTuple):
    """The message is set aside with its failure until revived or purged."""

    failure: Failure
    then: tuple[Draft, ...] = ()


Verdict: TypeAlias = Done | Retry | Dead
KnownSettings: TypeAlias = Mapping[str, Any] | EllipsisType | None  # ... for any


class Settlement(NamedTuple):
    receipt: Receipt
    verdict: Verdict


class Outcome(Enum):
    APPLIED = "applied"
    REPEATED = "repeated"
    LOST = "lost"


class Finding(NamedTuple):
    """A finding of `check`: the message or file, the problem, and the remedy that was or would be applied.

    `ordinary` is what a kill or a full disk leaves behind and the store removes or finishes by itself: no trouble.
    """

    where: str
    problem: str
    remedy: str
    repaired: bool = False
    ordinary: bool = False


DURATIONS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0, 1800.0, 3600.0, 86400.0)  # seconds


class Durations(msgspec.Struct, frozen=True):
    """A histogram: how many durations end in each bucket of `DURATIONS` and beyond the last, and their sum."""

    buckets: tuple[int, ...] = (0,) * (len(DURATIONS) + 1)
    seconds: float = 0.0


class Counters(msgspec.Struct, frozen=True):
    """What has happened in a queue since its store was made, whichever process did it. All counts only rise.

    `delivered` counts leases, `expired` leases and times to live that ran out, `dead` verdicts by failure code (codes
    of other programs as OTHER), `dropped` exhausted messages that the policy drops, `stale` verdicts that were LOST.
    """

    published: int = 0
    delivered: int = 0
    acked: int = 0
    retried: int = 0
    dropped: int = 0
    stale: int = 0
    expired: dict[str, int] = {}
    dead: dict[str, int] = {}
    in_queue: Durations = Durations()  # from ready to leased
    in_work: Durations = Durations()  # from leased to settled, where the handle that settles is the one that leased


class Held(NamedTuple):
    """How many messages of a queue a consumer holds, and since when it has held the first of them."""

    messages: int
    since: float


class Consumer(msgspec.Struct, frozen=True):
    """A consumer that has leased lately or holds messages, and the messages that it holds, by queue.

    A process that uses several names, or opens the store several times, is several consumers.
    """

    name: str  # as given to `lease`, by default host and process id; empty for holders that are not known
    host: str = ""
    pid: int = 0  # 0: not known, as that of a client of a manager
    since: float = 0.0  # of its first lease
    seen: float = 0.0  # of a lease or an extension of late: noted about once a minute
    holds: dict[str, Held] = {}


class Store(Protocol):
    """Keeps messages. `pabal.testing.StoreSuite` tests whether a driver keeps the guarantees."""

    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages durably, all or none where the store can; return the answers in order.

        Raise TooLarge or QueueFull before anything is written, QueueUnknown if the queue of one for an `existing` queue
        is not there, StoreFull if the disk is full, Uncertain if the outcome is unknown.
        """
        ...

    def lease(
        self,
        queue: str,
        limit: int,
        seconds: float,
        *,
        consumer: str = "",
        token: str = "",
        successive: bool = False,
    ) -> list[Lease]:
        """Lease up to `limit` ready messages that have no target or the target `consumer`, in the order of G4.

        With `successive`, each message of a group is followed by the next ones of its group, up to the first that is
        delayed or for another consumer; without, a group gives one message at a time.

        All of one call share one token. A token that already holds messages returns those again and leases no more. The
        first characters of a token (`pabal.ids.consumer_tag`) stand for the consumer, which `consumers` names.
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

        Each gets a new token and keeps its attempt count. The caller judges and settles it at once. If it does not, the
        lease still counts as that of the consumer that had it.
        """
        ...

    def now(self) -> float:
        """Return the seconds since the epoch on the clock by which delays end: that of the server, if there is one."""
        ...

    def next_due(self, queue: str) -> float | None:
        """Return the seconds until a delay, a lease or a time to live ends; None if there is none."""
        ...

    def counts(self, queue: str) -> dict[State, int]:
        """Count the messages in each state. Tombstones count as done; a message just due may still count as delayed."""
        ...

    def counters(self, queue: str) -> Counters:
        """Return the cumulative counts of a queue, of all handles of the store. Changes no message.

        Of a process that was killed, the last leases and acknowledgements may be missing; on a server, all of its
        last second but deaths and drops.
        """
        ...

    def oldest(self, queue: str, state: State) -> float | None:
        """Return since when the oldest message of a state has been in it; None if there is none.

        For a ready one that is when it became due, for one in flight when it was leased (in the file store, which does
        not keep that, when it became due).
        """
        ...

    def consumers(self) -> list[Consumer]:
        """Return the consumers of all queues that have leased in the last hour or hold messages, sorted by name.

        Changes nothing. The file store does not keep when a message was leased: there a consumer holds it since the
        lease, or since its last extension.
        """
        ...

    def browse(self, queue: str, state: State, *, after: str = "", limit: int = 100) -> list[Entry]:
        """List messages without changing them, ready ones in lease order; `after` is the last entry's cursor.

        A page ends early after documents of `BROWSE_BYTES`, which bounds its memory: only an empty one is the end.
        """
        ...

    def find(self, queue: str, id: str) -> Entry | None:
        """Return one message in any state, or None."""
        ...

    def revive(self, queue: str, ids: Sequence[str]) -> list[str]:
        """Make dead messages ready again with no attempts and no time to live; return the ids that were dead.

        From then on they have no `expires_at`.
        """
        ...

    def cancel(self, queue: str, ids: Sequence[str], *, inflight: bool = False) -> list[str]:
        """Make waiting messages done, durably, and with `inflight` those that a consumer holds; return their ids."""
        ...

    def purge(
        self, queue: str, state: State, *, age: float = 0.0, limit: int = 1000, ids: Sequence[str] | None = None
    ) -> int:
        """Remove up to `limit` messages that have been in this state for `age` seconds; inflight ones never.

        With `ids`, of these only.
        """
        ...

    def trim(self, queue: str, state: State, *, age: float, limit: int = 1000) -> int:
        """Apply a retention: remove up to `limit` messages that have been in this state for `age` seconds.

        As `purge`, but no wall clock that jumped ahead removes anything: a message must be too old at two looks,
        between which `pabal.policy.retention.LOOK_SECONDS` have really passed. Any two processes may have them.
        """
        ...

    def delete(self, queue: str, *, force: bool = False) -> int:
        """Remove a queue with its settings, tombstones and dedup keys; return how many messages were removed.

        Raise QueueNotEmpty if it has messages that are not done, and change nothing, unless `force` is given: then all
        are removed, those in flight too. What is published meanwhile stays. A process that uses the queue later makes
        it again. The counters stay. Repeating it after a crash is harmless.
        """
        ...

    def queues(self) -> list[str]:
        """Return the name of every queue, sorted. One that was deleted is among them only if it has messages."""
        ...

    def settings(self, queue: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None. Raise InvalidPolicy if it is damaged."""
        ...

    def configure(self, queue: str, settings: Mapping[str, Any], *, known: KnownSettings = ...) -> bool:
        """Keep a document for this queue, durably, and wake its watchers.

        With `known`, only if the document is still that one, or None if there was none; return whether it was kept.
        """
        ...

    def facts(self) -> Mapping[str, str]:
        """Return facts for operators: place, format, how readers are woken, whether the ballast is there."""
        ...

    def close(self) -> None:
        """Close files and connections. Leases stay until they are settled or run out."""
        ...


class KnowsQueues(Protocol):
    """The part of a store that says which queues there are."""

    def queues(self) -> list[str]: ...
    def settings(self, queue: str) -> Mapping[str, Any] | None: ...


def queue_exists(store: KnowsQueues, name: str) -> bool:
    """Return whether there is such a queue. One that was made on purpose has settings, which are quick to find."""
    try:
        return store.settings(name) is not None or name in store.queues()
    except InvalidPolicy:  # it has some that cannot be read
        return True


def check_exists(store: KnowsQueues, name: str) -> None:
    """Raise QueueUnknown if there is no such queue."""
    if not queue_exists(store, name):
        raise QueueUnknown(no_queue(name, store.queues()))


def check_targets(store: KnowsQueues, drafts: Iterable[Draft]) -> None:
    """Raise QueueUnknown if one of these is for an existing queue, and that is not there."""
    for name in {draft.queue for draft in drafts if draft.existing}:
        check_exists(store, name)


class Watch(Protocol):
    """Wakes its caller when something may have become ready since it was made or last waited."""

    def wait(self, timeout: float) -> bool:
        """Sleep until something may be ready, `wake` is called, or the timeout; False on timeout."""
        ...

    def wake(self) -> None:
        """End the current or next `wait`, from any thread."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class LastingWatch(Watch, Protocol):
    """A watch that may stay open while nobody waits: what happens meanwhile takes no space that grows."""

    lasting: bool


@runtime_checkable
class Waitable(Protocol):
    def watch(self, queues: Sequence[str]) -> Watch:
        """Watch the queues from now on. Make the watch first, then try to lease, then wait."""
        ...


@runtime_checkable
class Checkable(Protocol):
    def check(self, *, repair: bool) -> list[Finding]:
        """Look for leftovers of crashes and other programs; repair them if asked. Never revives dead messages."""
        ...


@runtime_checkable
class Compactable(Protocol):
    def compact(self) -> tuple[int, int]:
        """Give the space of removed messages back to the file system; return the bytes before and after."""
        ...


@runtime_checkable
class Adopting(Protocol):
    def adopt(self) -> list[Finding]:
        """Publish the messages of files that no message of the index names; return what was done with each."""
        ...


@runtime_checkable
class Rescuing(Protocol):
    def rescue(self, path: Path) -> int:
        """Add the messages that are whole in a damaged file of a store of this kind; return how many."""
        ...


@runtime_checkable
class Transactional(Protocol):
    def publish_in(self, connection: Any, drafts: Sequence[Draft]) -> list[Published]:
        """Publish inside a transaction of the application: the messages are there if and only if it commits."""
        ...


@runtime_checkable
class Movable(Protocol):
    def carry(self, queue: str, entries: Sequence[Entry], *, window: float = 300.0) -> list[str]:
        """Take in messages of another store with id, state, attempts, due time and failure, durably.

        They may be ready, delayed, dead or done, and join their groups in the order given. Their dedup keys count for
        `window` seconds more. Ids that exist here are skipped; return the others. Repeating the call is harmless.
        """
        ...
