"""What every command works with: the queues, the clock, the names of effects, and who is told what was done."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pabal.clock import Clock
from pabal.durable import replace_whole
from pabal.errors import QueueUnknown, SenderMismatch
from pabal.mailbox.protocol import Request
from pabal.mailbox.settings import MailboxSettings, Observation, Observe
from pabal.mailbox.tally import Tally
from pabal.names import check_name
from pabal.queue import Queue
from pabal.store import Lease, Receipt, Settlement, Store

QUARANTINE = ".quarantine"  # what the name of a queue's quarantine ends in
_MOST_QUEUES = 4096
_MOST_LEASES = 100_000
_UNFIT = re.compile(r"[^A-Za-z0-9_:.-]+|\.(?=\.|$)|^[^A-Za-z0-9_]+")


class Connection(Protocol):
    """What the desk needs of `pabal.connect.Connection`, which stands above it."""

    store: Store

    def queue(self, name: str) -> Queue: ...


class Kind(Enum):
    """What a command does to the store: those of one kind that wait together are one call."""

    PUBLISH = "publish"
    SETTLE = "settle"
    EXTEND = "extend"
    OTHER = "other"


class Work(NamedTuple):
    """A request's part in a call that several share: what it puts in, and what it makes of its part of the result."""

    items: Sequence[Any]
    finish: Callable[[Sequence[Any]], Any]
    term: float = 0.0  # of an extension; only equal ones can be one call
    durable: bool = False


class Later(NamedTuple):
    """Nothing there yet: ask again when this queue rings, and no later than the deadline."""

    queue: str
    until: float  # on the boot clock


class Desk:
    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        settings: MailboxSettings,
        observe: Observe,
        secret: bytes,
        hang_bell: Callable[[str], str],
        tally: Tally,
        archive: str = "",
    ) -> None:
        self.connection = connection
        self.store = connection.store
        self.clock = clock
        self.settings = settings
        self.observe = observe
        self.archive = archive
        self.hang_bell = hang_bell
        self.tally = tally
        self.extras: dict[str, Callable[[], dict[str, Any]]] = {}  # command: what its answer has beside its own
        self._secret = secret
        self._queues: dict[str, Queue] = {}
        self._leased_at: dict[Receipt, float] = {}

    def queue(self, name: str) -> Queue:
        """Return a queue that the configuration knows; raise QueueUnknown for another."""
        check_name(name)
        known = self.settings.queues
        if known is not None and name not in known and name.removesuffix(QUARANTINE) not in known:
            raise QueueUnknown(f"no queue {name}; the configuration names {len(known)} others")
        return self.any_queue(name)

    def any_queue(self, name: str) -> Queue:
        """Return a queue without asking the configuration: for what the store itself names."""
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= _MOST_QUEUES:
                self._queues.clear()
            found = self._queues[name] = self.connection.queue(name)
        return found

    def check_sender(self, request: Request, sender: str) -> None:
        """Let nobody send in the name of another, where each client is a user of its own."""
        if self.settings.clients is not None and sender not in ("", request.client):
            raise SenderMismatch(f"client {request.client} cannot send as {sender!r:.80}")

    def extra(self, command: str) -> dict[str, Any]:
        return self.extras[command]() if command in self.extras else {}

    # The names of effects: the same request, asked again, gets the same names and so changes nothing.

    def message_id(self, request: Request) -> str:
        """Return the id of what this request publishes: begins as the request's own, so that order is kept."""
        readable = _UNFIT.sub("", request.id[:90]) or "request"
        return f"{readable}.{request.occurrence:03d}{self._digest(request, 'message')}"

    def token(self, request: Request) -> str:
        """Return the token of what this request leases: nobody else can work it out."""
        return self._digest(request, "lease")

    def _digest(self, request: Request, what: str) -> str:
        name = "\0".join((what, request.client, request.id, str(request.occurrence)))
        return blake2b(name.encode("utf-8", "surrogatepass"), key=self._secret, digest_size=8).hexdigest()

    # What is told of the work

    def tell(self, kind: str, queue: str, *, count: int = 1, code: str = "") -> None:
        if count:
            self.observe(Observation(kind, queue, code=code, count=count))

    def tell_leased(self, leases: Sequence[Lease]) -> None:
        now, boot = self.clock.now(), self.clock.boot()
        if len(self._leased_at) + len(leases) > _MOST_LEASES:
            self._leased_at.clear()
        for lease in leases:
            self._leased_at[lease.receipt] = boot
            waited = max(0.0, now - lease.due_at)
            self.observe(Observation("leased", lease.receipt.queue, seconds=waited))

    def tell_settled(self, settlement: Settlement, code: str) -> None:
        began = self._leased_at.pop(settlement.receipt, None)
        took = 0.0 if began is None else max(0.0, self.clock.boot() - began)
        self.observe(Observation("settled", settlement.receipt.queue, ok=code != "lost", code=code, seconds=took))


def secret_at(path: Path) -> bytes:
    """Return the secret of a mailbox, made at its first start: what was named with it must be named so again."""
    with suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if len(found := os.read(fd, 64)) == 32:
                return found
        finally:
            os.close(fd)
    secret = os.urandom(32)
    replace_whole(path, secret)
    return secret
