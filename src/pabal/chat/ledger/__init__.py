"""The database of the chat: one contract, one set of statements, SQLite or PostgreSQL below."""

from pabal.chat.ledger.contract import (
    Ledger,
    Membership,
    Outgoing,
    Rejected,
    Room,
    RoomView,
    Stored,
    User,
)
from pabal.chat.ledger.open import open_ledger

__all__ = [
    "Ledger",
    "Membership",
    "Outgoing",
    "Rejected",
    "Room",
    "RoomView",
    "Stored",
    "User",
    "open_ledger",
]
