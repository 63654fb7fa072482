"""What every command works with: the queues, the clock, and the names of effects."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from pabal.clock import Clock
from pabal.durable import replace_whole
from pabal.errors import QueueUnknown, SenderMismatch
from pabal.mailbox.protocol import Request
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.tally import Tally
from pabal.names import check_name
from pabal.queue import Queue
from pabal.store import Store

QUARANTINE = ".quarantine"  # what the name of a queue's quarantine ends in
_MOST_QUEUES = 4096
_UNFIT = re.compile(r"[^A-Za-z0-9_:.-]+|\.(?=\.|$)|^[^A-Za-z0-9_]+")

Extras: TypeAlias = Mapping[str, Callable[[], dict[str, Any]]]  # by command: what its answer has beside its own


class Connection(Protocol):
    """What the context needs of `pabal.connect.Connection`, which stands above it."""

    store: Store

    def queue(self, name: str) -> Queue: ...


class Context:
    """One for a mailbox, or for a store that is asked directly; a command gets it with its request."""

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        settings: MailboxSettings,
        secret: bytes,
        hang_bell: Callable[[str], str],
        tally: Tally,
        archive: str,
        extras: Extras | None = None,
    ) -> None:
        self.connection = connection
        self.store = connection.store
        self.clock = clock
        self.settings = settings
        self.archive = archive
        self.hang_bell = hang_bell
        self.tally = tally
        self._extras = {} if extras is None else extras
        self._secret = secret
        self._queues: dict[str, Queue] = {}

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
        """Return what the answer to a command has beside its own."""
        return self._extras[command]() if command in self._extras else {}

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
