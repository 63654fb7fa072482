"""What the endpoints and the sockets of one gateway share."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec

from pabal.chat.events import Kind, MessageCreated, at_milliseconds, encode
from pabal.chat.gateway.images import Images
from pabal.chat.gateway.ledger_calls import LedgerCalls
from pabal.chat.gateway.limits import MINUTE, Buckets, Limits
from pabal.chat.gateway.membership import Memberships
from pabal.chat.gateway.passwords import Passwords
from pabal.chat.gateway.presence import Presence
from pabal.chat.gateway.sending import Sending
from pabal.chat.gateway.tokens import Login, Tokens
from pabal.clock import Clock
from pabal.topic import NewRecord


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Made once, in the event loop."""

    clock: Clock
    limits: Limits
    tokens: Tokens
    calls: LedgerCalls
    memberships: Memberships
    messages: Sending
    whispers: Sending  # the presence topic
    presence: Presence
    passwords: Passwords
    images: Images


class Rates:
    """The buckets of all limits that are about time."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.sends = Buckets(limits.sends, limits.burst, clock)
        self.events = Buckets(limits.events, 4 * limits.events, clock)
        self.requests = Buckets(limits.requests, 4 * limits.requests, clock)
        self.logins = Buckets(limits.logins / MINUTE, limits.logins, clock)
        self.registrations = Buckets(limits.registrations / MINUTE, limits.registrations, clock)
        self.uploads = Buckets(limits.uploads / MINUTE, limits.uploads, clock)
        self.typing = Buckets(0.5, 1, clock)


def created(login: Login, room_id: str, client_msg_id: str, kind: Kind, content: str, now: float) -> NewRecord:
    """Return a message on its way to the workers."""
    event = MessageCreated(
        event_id=str(uuid.uuid4()),
        room_id=room_id,
        sender_id=login.user_id,
        client_msg_id=client_msg_id,
        message_type=kind,
        content=content,
        produced_at=at_milliseconds(int(now * 1000)),
    )
    return NewRecord(encode(event), room_id)


def system(login: Login, room_id: str, word: str, now: float) -> NewRecord:
    """Return the message that says that somebody joined or left."""
    content = msgspec.json.encode({"event": word, "userId": login.user_id, "email": login.email}).decode()
    return created(login, room_id, str(uuid.uuid4()), Kind.SYSTEM, content, now)
