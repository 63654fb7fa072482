"""What a command of the mailbox is, and what commands have in common: payloads and the keys of messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from pabal.errors import InvalidRequest
from pabal.mailbox.desk import Desk, Kind
from pabal.mailbox.protocol import Request
from pabal.names import check_id, check_name

Handler = Callable[[Desk, Request], Any]


class Command(NamedTuple):
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
