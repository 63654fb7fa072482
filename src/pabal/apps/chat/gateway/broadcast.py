"""From the topics to the sockets: new messages, stored or rejected messages of the sender, presence, typing.

Each gateway reads every record. The messages of a room come in the order of their sequences. A message that comes a
second time, because a worker died after publishing it, is dropped. A follower passes a whole batch to the event loop
and reads the next one when that is done, so a slow gateway reads less often and buffers nothing.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from pabal.apps.chat.events import PERSISTOR, MessageCreated, MessagePersisted, read_created, read_persisted
from pabal.apps.chat.gateway.bodies import instant, message_out
from pabal.apps.chat.gateway.catch_up import Floors
from pabal.apps.chat.gateway.server import Server, room_name, user_name
from pabal.errors import InvalidBody, PabalError
from pabal.topic_store import Member, Record, Topics
from pabal.topics.dead_records import dead_of

log = logging.getLogger("pabal.chat")

_REMEMBERED = 10_000

T = TypeVar("T")
Event = TypeVar("Event")


class Broadcaster:
    """Sends messages to sockets. Runs in the event loop."""

    def __init__(self, server: Server, floors: Floors) -> None:
        self._server, self._floors = server, floors
        self._unnumbered: dict[str, None] = {}  # ids of messages without a sequence, the oldest first

    async def persisted(self, events: Iterable[MessagePersisted]) -> None:
        """Send new messages to their rooms, and a confirmation to each sender."""
        for event in events:
            if self._seen(event):
                continue
            skip = self._floors.passed(event.room_id, event.sequence) if event.sequence is not None else []
            room, sender = room_name(event.room_id), user_name(event.sender_id)
            if self._server.count_in(room):
                await self._server.emit("newMessage", msgspec.to_builtins(message_out(event)), to=room, skip_sid=skip)
            if self._server.count_in(sender):
                await self._server.emit("messagePersisted", _persisted(event), to=sender)

    def _seen(self, event: MessagePersisted) -> bool:
        """Return whether a message was sent before."""
        if event.sequence is not None:
            return event.sequence <= self._floors.seen.get(event.room_id, 0)
        if event.message_id in self._unnumbered:
            return True
        self._unnumbered[event.message_id] = None
        if len(self._unnumbered) > _REMEMBERED:
            del self._unnumbered[next(iter(self._unnumbered))]
        return False

    async def rejected(self, dead: Iterable[tuple[MessageCreated, str]]) -> None:
        """Inform senders that a message will never be stored, with the reason."""
        for event, reason in dead:
            document = {"roomId": event.room_id, "clientMsgId": event.client_msg_id, "reason": reason}
            await self._server.emit("messageRejected", document, to=user_name(event.sender_id))


def persisted_of(records: Iterable[Record]) -> list[MessagePersisted]:
    """Decode stored messages; invalid records are logged and skipped."""
    return _readable(records, lambda record: read_persisted(record.value))


def rejected_of(records: Iterable[Record]) -> list[tuple[MessageCreated, str]]:
    """Decode the messages that the workers rejected, each with its reason."""
    dead = [record for record in records if dead_of(record).group == PERSISTOR]
    return _readable(dead, lambda record: (read_created(record.value), dead_of(record).reason))


def in_loop(
    loop: asyncio.AbstractEventLoop,
    read: Callable[[list[Record]], T],
    send: Callable[[T], Coroutine[Any, Any, None]],
) -> Callable[[list[Record]], None]:
    """Return a function for a follower: decode records in its thread, then wait until the event loop has sent them."""

    def take(records: list[Record]) -> None:
        try:
            asyncio.run_coroutine_threadsafe(send(read(records)), loop).result()
        except Exception:
            fields = {"many": len(records), "record": str(records[0])}
            log.exception("%(many)d records from %(record)s on were not sent", fields)
            time.sleep(1.0)  # so that a failure that repeats does not use a whole core

    return take


def _readable(records: Iterable[Record], read: Callable[[Record], Event]) -> list[Event]:
    found = []
    for record in records:
        try:
            found.append(read(record))
        except InvalidBody as exc:
            log.warning("%(record)s is not sent: %(error)s", {"record": str(record), "error": str(exc)})
    return found


def _persisted(event: MessagePersisted) -> dict[str, object]:
    return {
        "roomId": event.room_id,
        "clientMsgId": event.client_msg_id,
        "messageId": event.message_id,
        "sequence": event.sequence,
        "createdAt": instant(event.created_at),
    }


_BATCH = 500
_WAIT = 1.0  # seconds
_NEAR = 0.05  # seconds between reads of partitions that another member owns
_COMMIT_SECONDS = 5.0
_LEAVE_SECONDS = 3.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds before going on after an error


class Follower:
    """Passes on each record of a topic once, in order within a partition, from `start` on, in a thread of its own.

    A gateway has its own group, which wakes it and shows its lag. The group's offsets do not matter: the follower keeps
    its own. Partitions that a dead gateway of the same name still owns are read without the group.
    """

    def __init__(
        self, topics: Topics, topic: str, group: str, start: Mapping[int, int], take: Callable[[list[Record]], None]
    ) -> None:
        """`take` is called in the follower's thread; an exception ends the thread."""
        self._topics, self._topic, self._group = topics, topic, group
        self._next = dict(start)
        self._take = take
        self._stopping = threading.Event()
        self._member: Member | None = None
        self.failing = False  # the last read failed
        self._thread = threading.Thread(target=self._run, name=f"pabal-chat-{topic}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Leave the group and wait for the thread, up to a limit: a Kafka client may never return from its close."""
        self._stopping.set()
        member = self._member
        if member is not None:
            member.wake()
        self._thread.join(_LEAVE_SECONDS)
        if self._thread.is_alive():
            fields = {"group": self._group, "topic": self._topic, "seconds": _LEAVE_SECONDS}
            log.warning("%(group)s did not leave %(topic)s within %(seconds)g seconds", fields)

    def _run(self) -> None:
        pause = _FIRST_PAUSE
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                self._member = member = self._topics.join(self._topic, self._group)
                try:
                    self._follow(member)
                finally:
                    self._member = None
                    member.close()
            except PabalError as exc:
                fields = {"group": self._group, "topic": self._topic, "code": exc.code, "error": str(exc)}
                log.warning("%(group)s goes on in %(topic)s after %(code)s: %(error)s", fields)
                self.failing = True
                pause = _FIRST_PAUSE if time.monotonic() - began > _LONGEST_PAUSE else min(pause * 2, _LONGEST_PAUSE)
                self._stopping.wait(pause)

    def _follow(self, member: Member) -> None:
        committed = 0.0
        while not self._stopping.is_set():
            others = self._next.keys() - member.partitions
            records = self._fresh(member, member.read(_BATCH, _NEAR if others else _WAIT))
            if self.failing:
                self.failing = False
                log.info("%(group)s reads %(topic)s again", {"group": self._group, "topic": self._topic})
            for partition in self._next.keys() - member.partitions:
                records += self._advance(self._topics.read(self._topic, partition, self._next[partition], _BATCH))
            if records:
                self._take(records)
            if time.monotonic() - committed > _COMMIT_SECONDS or self._stopping.is_set():
                committed = time.monotonic()
                member.commit({number: self._next[number] for number in member.partitions})

    def _fresh(self, member: Member, records: Sequence[Record]) -> list[Record]:
        """Drop records that were passed on already, and add those that the group skipped."""
        fresh: list[Record] = []
        stale: set[int] = set()
        for record in records:
            number = record.partition
            if record.offset < self._next[number]:
                stale.add(number)
                continue
            while record.offset > self._next[number]:
                page = self._topics.read(self._topic, number, self._next[number], _BATCH)
                missed = self._advance([found for found in page if found.offset < record.offset])
                if not missed:
                    break  # offsets may have gaps
                fresh += missed
            fresh += self._advance([record])
        for number in stale:
            member.seek(number, self._next[number])
        return fresh

    def _advance(self, records: list[Record]) -> list[Record]:
        for record in records:
            self._next[record.partition] = record.offset + 1
        return records
