"""The database of the chat: one contract, one set of statements, SQLite or PostgreSQL below."""

from pabal.apps.chat.ledger.ledger import Ledger, open_ledger
from pabal.apps.chat.ledger.values import Membership, Outgoing, Rejected, Room, RoomView, Stored, User

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
