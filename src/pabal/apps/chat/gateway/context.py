"""What the endpoints and the sockets of a gateway share."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import msgspec

from pabal.apps.chat.events import Kind, MessageCreated, at_milliseconds, encode
from pabal.apps.chat.gateway.appender import Appender
from pabal.apps.chat.gateway.auth import Login, Passwords, Tokens
from pabal.apps.chat.gateway.images import Images
from pabal.apps.chat.gateway.ledger_calls import LedgerCalls, LiveSessions, Memberships
from pabal.apps.chat.gateway.limits import MINUTE, Buckets, Limits
from pabal.apps.chat.gateway.presence import Presence
from pabal.clock import Clock
from pabal.topic_store import NewRecord


@dataclass(frozen=True, kw_only=True)
class Context:
    """The shared parts of one gateway, created in its event loop."""

    clock: Clock
    limits: Limits
    tokens: Tokens
    calls: LedgerCalls
    memberships: Memberships
    sessions: LiveSessions
    messages: Appender
    announcements: Appender  # the presence topic
    presence: Presence
    passwords: Passwords
    images: Images


class Rates:
    """The token buckets of all rate limits."""

    def __init__(self, limits: Limits, clock: Clock) -> None:
        self.sends = Buckets(limits.sends, limits.burst, clock)
        self.events = Buckets(limits.events, 4 * limits.events, clock)
        self.requests = Buckets(limits.requests, 4 * limits.requests, clock)
        self.logins = Buckets(limits.logins / MINUTE, limits.logins, clock)
        self.logins_per_address = Buckets(limits.logins_per_address / MINUTE, limits.logins_per_address, clock)
        self.logins_per_email = Buckets(limits.logins_per_email / MINUTE, limits.logins_per_email, clock)
        self.registrations = Buckets(limits.registrations / MINUTE, limits.registrations, clock)
        self.uploads = Buckets(limits.uploads / MINUTE, limits.uploads, clock)
        self.typing = Buckets(0.5, 1, clock)


def created(login: Login, room_id: str, client_msg_id: str, kind: Kind, content: str, now: float) -> NewRecord:
    """Return a record of MESSAGES for the workers."""
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


def system(login: Login, room_id: str, document: dict[str, str], now: float) -> NewRecord:
    """Return the SYSTEM message that a user joined, left or was removed, or that the room was renamed."""
    content = msgspec.json.encode(document).decode()
    return created(login, room_id, str(uuid.uuid4()), Kind.SYSTEM, content, now)
