"""What a command is and what it may give back; and what commands have in common: payloads, the keys of messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import msgspec

from pabal.errors import InvalidRequest
from pabal.mailbox.commands.context import Context
from pabal.mailbox.protocol import Request
from pabal.names import check_id, check_name

MOST_AT_ONCE = 1000  # messages in one answer
NO_MESSAGE: Mapping[str, None] = {"message": None, "lease": None}  # the answer to a consume that found nothing

Handler = Callable[[Context, Request], Any]


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


class Command(NamedTuple):
    """Its handler returns the data of the answer, `Work` or `Later`; or it raises."""

    handler: Handler
    kind: Kind = Kind.OTHER


class Payload(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    """A payload names no field that its command does not know: a misspelt one is no silent default."""


class OfQueue(Payload, frozen=True):
    queue: str


class Nothing(Payload, frozen=True):
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
