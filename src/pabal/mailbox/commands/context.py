"""What a command is, and what every command works with: the queues, the clock, the names of effects."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from pabal.clock import Clock
from pabal.durable import replace_whole
from pabal.errors import InvalidRequest, QueueUnknown, SenderMismatch
from pabal.ids import alphanumeric, consumer_tag
from pabal.mailbox.protocol import Request
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.stats import RequestStats
from pabal.names import check_id, check_name, no_queue
from pabal.queues.queue import Queue
from pabal.store import Store

QUARANTINE = ".quarantine"  # the name of a queue's quarantine is the queue's with this suffix
MAX_MESSAGES = 1000  # in one answer
NO_MESSAGE: Mapping[str, None] = {"message": None, "lease": None}  # the answer to a consume that found nothing
_MAX_QUEUES = 4096
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_:.-]+|\.(?=\.|$)|^[^A-Za-z0-9_]+")

Extras: TypeAlias = Mapping[str, Callable[[], dict[str, Any]]]  # by command: further fields of its answer


class Connection(Protocol):
    """The part of `pabal.connect.Connection` that commands use."""

    store: Store

    def queue(self, name: str) -> Queue: ...


class Context:
    """One for each mailbox, or for each store that is used directly. A command gets it with its request."""

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock,
        settings: MailboxSettings,
        secret: bytes,
        register_wakeup: Callable[[str], str],
        stats: RequestStats,
        archive: str,
        extras: Extras | None = None,
    ) -> None:
        self.connection = connection
        self.store = connection.store
        self.clock = clock
        self.settings = settings
        self.archive = archive
        self.register_wakeup = register_wakeup
        self.stats = stats
        self._extras = {} if extras is None else extras
        self._secret = secret
        self._queues: dict[str, Queue] = {}

    def queue(self, name: str) -> Queue:
        """Return a queue that the configuration allows; raise QueueUnknown for another."""
        check_name(name)
        known = self.settings.queues
        if known is not None and name not in known and name.removesuffix(QUARANTINE) not in known:
            raise QueueUnknown(f"{no_queue(name, sorted(known))} in the configuration")
        return self.any_queue(name)

    def known_queue(self, name: str) -> Queue:
        """Return a queue that is in the store or in the configuration; raise QueueUnknown for another."""
        names = self.store.queues()
        if name in names:
            return self.any_queue(name)
        queue = self.queue(name)
        if self.settings.queues is None:
            raise QueueUnknown(no_queue(name, names))
        return queue

    def delete(self, name: str, *, force: bool) -> int:
        """Delete a queue that the configuration does not name; return how many messages were removed."""
        if name in (self.settings.queues or ()):
            raise InvalidRequest(f"{name} is in the configuration of the manager: remove it there first")
        return self.any_queue(name).delete(force=force)

    def any_queue(self, name: str) -> Queue:
        """Return a queue of the store, also one that the configuration does not name."""
        found = self._queues.get(name)
        if found is None:
            if len(self._queues) >= _MAX_QUEUES:
                self._queues.clear()
            found = self._queues[name] = self.connection.queue(name)
        return found

    def check_sender(self, request: Request, sender: str) -> None:
        """Raise SenderMismatch if a client sends as another, where each client is a user of its own."""
        if self.settings.clients is not None and sender not in ("", request.client):
            raise SenderMismatch(f"client {request.client} cannot send as {sender!r:.80}")

    def extra(self, command: str) -> dict[str, Any]:
        """Return the further fields of a command's answer."""
        return self._extras[command]() if command in self._extras else {}

    # The names of effects: the same request, sent again, gets the same names and so changes nothing.

    def message_id(self, request: Request) -> str:
        """Return the id of the message that this request publishes. It begins with the request's id, to keep order."""
        readable = _UNSAFE_CHARACTERS.sub("", request.id[:90]) or "request"
        return f"{readable}.{request.occurrence:03d}{self._digest('message', *_name_of(request))[:8].hex()}"

    def token(self, request: Request, consumer: str) -> str:
        """Return the token of the leases that this request takes. It begins with the tag of the consumer.

        Other clients cannot compute it.
        """
        tag = consumer_tag(alphanumeric(self._digest("consumer", consumer)))
        return tag + alphanumeric(self._digest("lease", *_name_of(request)))[len(tag) :]

    def _digest(self, *name: str) -> bytes:
        return blake2b("\0".join(name).encode("utf-8", "surrogatepass"), key=self._secret, digest_size=12).digest()


def _name_of(request: Request) -> tuple[str, str, str]:
    return request.client, request.id, str(request.occurrence)


def secret_at(path: Path) -> bytes:
    """Return the secret of a mailbox, made at its first start. It is kept, because names are derived from it."""
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


class Kind(Enum):
    """The store call that a command becomes. Requests of one kind that wait together share one call."""

    PUBLISH = "publish"
    SETTLE = "settle"
    EXTEND = "extend"
    OTHER = "other"


class Work(NamedTuple):
    """A request's part in a shared call: its items, and how its part of the result becomes its answer."""

    items: Sequence[Any]
    finish: Callable[[Sequence[Any]], Any]
    seconds: float = 0.0  # of an extension; only extensions of the same length can share a call
    durable: bool = False


class Later(NamedTuple):
    """There is no message yet: run the request again when this queue changes, and no later than `until`."""

    queue: str
    until: float  # on the boot clock
    empty: Mapping[str, Any] = NO_MESSAGE  # the answer if none comes


class Command(NamedTuple):
    """A handler returns the data of the answer, `Work` or `Later`; or it raises."""

    handler: Callable[[Context, Request], Any]
    kind: Kind = Kind.OTHER


class Payload(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """The payload of a command. An unknown field is an error: a misspelt one must not become a silent default."""


class QueuePayload(Payload, frozen=True):
    queue: str


class EmptyPayload(Payload, frozen=True):
    pass


def key_of(queue: str, id: str) -> str:
    return f"msg:{queue}:{id}"


def parse_key(key: str) -> tuple[str, str]:
    """Return queue and id of a message key."""
    head, _, rest = key.partition(":")
    queue, _, id = rest.partition(":")
    if head != "msg" or not id:
        raise InvalidRequest(f"payload.messageKey: msg:<queue>:<messageId> is expected; found {key!r:.80}")
    return check_name(queue), check_id(id)
