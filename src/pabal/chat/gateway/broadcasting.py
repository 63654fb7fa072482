"""From the topics to the sockets: new messages, what became of one's own, who is online, who types.

Each gateway reads every record. Messages of a room come in the order of their sequences; what comes a second time,
because a worker died after publishing it, is dropped. A batch is handed over to the event loop as a whole, and the
next one is read when it is through: a slow gateway reads less often, and remembers nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import msgspec

from pabal.chat.events import PERSISTOR, MessageCreated, MessagePersisted, read_created, read_persisted
from pabal.chat.gateway.bodies import instant, message_out
from pabal.chat.gateway.catching_up import Floors
from pabal.chat.gateway.server import Server, room_name, user_name
from pabal.dead_records import dead_of
from pabal.errors import InvalidBody
from pabal.topic import Record

log = logging.getLogger("pabal.chat")

T = TypeVar("T")
Event = TypeVar("Event")


class Broadcasting:
    """Tells sockets of messages. Lives in the event loop."""

    def __init__(self, server: Server, floors: Floors) -> None:
        self._server, self._floors = server, floors

    async def persisted(self, events: Iterable[MessagePersisted]) -> None:
        """Tell the rooms of new messages, and each sender what became of its own."""
        for event in events:
            if event.sequence <= self._floors.seen.get(event.room_id, 0):
                continue
            skip = self._floors.passed(event.room_id, event.sequence)
            room, sender = room_name(event.room_id), user_name(event.sender_id)
            if self._server.count_in(room):
                await self._server.emit("newMessage", msgspec.to_builtins(message_out(event)), to=room, skip_sid=skip)
            if self._server.count_in(sender):
                await self._server.emit("messagePersisted", _persisted(event), to=sender)

    async def rejected(self, dead: Iterable[tuple[MessageCreated, str]]) -> None:
        """Tell senders that a message of theirs will never be stored, and why."""
        for event, reason in dead:
            document = {"roomId": event.room_id, "clientMsgId": event.client_msg_id, "reason": reason}
            await self._server.emit("messageRejected", document, to=user_name(event.sender_id))


def persisted_of(records: Iterable[Record]) -> list[MessagePersisted]:
    """Return the messages that records tell of; what is none was told to nobody, and is logged."""
    return _readable(records, lambda record: read_persisted(record.value))


def rejected_of(records: Iterable[Record]) -> list[tuple[MessageCreated, str]]:
    """Return what the workers could not store, and why."""
    dead = [record for record in records if dead_of(record).group == PERSISTOR]
    return _readable(dead, lambda record: (read_created(record.value), dead_of(record).reason))


def handing_over(
    loop: asyncio.AbstractEventLoop,
    read: Callable[[list[Record]], T],
    tell: Callable[[T], Coroutine[Any, Any, None]],
) -> Callable[[list[Record]], None]:
    """Return what a follower does with records: read them in its thread, wait until the event loop has told of them."""

    def take(records: list[Record]) -> None:
        try:
            asyncio.run_coroutine_threadsafe(tell(read(records)), loop).result()
        except Exception:
            log.exception("%d records from %s on were told to nobody", len(records), records[0])
            time.sleep(1.0)  # whatever it is, it must not keep a core busy

    return take


def _readable(records: Iterable[Record], read: Callable[[Record], Event]) -> list[Event]:
    found = []
    for record in records:
        try:
            found.append(read(record))
        except InvalidBody as exc:
            log.warning("%s is not told to anybody: %s", record, exc)
    return found


def _persisted(event: MessagePersisted) -> dict[str, object]:
    return {
        "roomId": event.room_id,
        "clientMsgId": event.client_msg_id,
        "messageId": event.message_id,
        "sequence": event.sequence,
        "createdAt": instant(event.created_at),
    }
