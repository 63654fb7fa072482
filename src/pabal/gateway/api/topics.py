"""Topics for the HTTP interface: their figures, pages of their records, and dead records."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pabal.aio
from pabal.errors import InvalidInput, MessageUnknown, StoreMissing, TopicUnknown
from pabal.gateway.api import types
from pabal.names import shown_url
from pabal.topic_store import Record, check_topic
from pabal.topics.browse import Places, read_places, records_before, records_from, write_places
from pabal.topics.dead_records import dlq_of, not_replayed, replay
from pabal.topics.documents import TopicStatus, TopicSummary, topic_status, topic_summary
from pabal.topics.topic import Topic

T = TypeVar("T")

_MOST_PARTITIONS = 100  # that one page reads
_SLICE = 100  # dead records that one request replays


class Found:
    """A page of records with the places around it."""

    def __init__(self, records: list[Record], previous: Places | None, next: Places | None) -> None:
        self.records = records
        self.previous = None if previous is None else write_places(previous)
        self.next = None if next is None else write_places(next)


class TopicDesk:
    """Reads the topics of one URL, from when they are there. An empty URL has none."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: pabal.aio.TopicConnection | None = None
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def summaries(self) -> list[TopicSummary]:
        try:
            topics = await self._topics()
        except StoreMissing:
            return []
        names = await topics.topics()
        return await topics.threads(lambda: [topic_summary(topics.blocking.topic(name), names) for name in names])

    async def status(self, name: str) -> TopicStatus:
        return await self._read(name, topic_status)

    async def page(self, name: str, given: types.LookAtRecords) -> Found:
        """Return records from a place, an offset or a time on, or the last ones before a place or the end."""
        return await self._read(name, lambda topic: _page(topic, given))

    async def record(self, name: str, partition: int, offset: int) -> Record:
        def read(topic: Topic) -> Record:
            bounds = topic.bounds()
            if 0 <= partition < len(bounds) and bounds[partition].first <= offset < bounds[partition].next:
                for record in topic.read(partition, offset, 1):
                    if record.offset == offset:
                        return record
            raise MessageUnknown(f"no record {partition}/{offset} in {topic.name}")

        return await self._read(name, read)

    async def dead(self, name: str, given: types.LookAtDead) -> Found:
        """Return dead records that were not replayed yet."""

        def read(topic: Topic) -> Found:
            dlq = dlq_of(topic)
            if given.after:
                places = _places(given.after, dlq)
            else:
                places = {number: first for number, (first, _) in not_replayed(topic).items()}
            found, behind = records_from(dlq, places, given.limit) if places else ([], None)
            return Found(found, None, behind)

        return await self._read(name, read)

    async def replay(self, name: str, given: types.Replay) -> types.Replayed:
        """Replay a slice of the dead records before some places; without them, of those that are there now."""

        def act(topic: Topic) -> types.Replayed:
            left = not_replayed(topic)
            if given.until:
                until = _places(given.until, dlq_of(topic))
            else:
                until = {number: end for number, (_, end) in left.items()}
            done = 0
            if not given.dry_run and until:
                done = replay(topic, _SLICE, until)
                left = not_replayed(topic)
            rest = sum(max(0, min(end, until.get(number, 0)) - first) for number, (first, end) in left.items())
            return {"replayed": done, "left": rest, "until": write_places(until)}

        return await self._read(name, act)

    async def _topics(self) -> pabal.aio.TopicConnection:
        async with self._opening:
            if self._opened is None:
                if not self._url:
                    raise StoreMissing("this gateway shows no topics: give it --topics URL")
                opened = pabal.aio.connect_topics(self._url, create=False)
                await opened.__aenter__()
                self._opened = opened
            return self._opened

    async def _read(self, name: str, read: Callable[[Topic], T]) -> T:
        try:
            topics = await self._topics()
        except StoreMissing as exc:
            raise TopicUnknown(f"no topic {check_topic(name)}: {exc}") from exc
        topic = topics.blocking.topic(name)

        def known() -> T:
            if name not in topics.blocking.topics():
                raise TopicUnknown(f"no topic {name} in {shown_url(self._url)}")
            return read(topic)

        return await topics.threads(known)


def _places(text: str, topic: Topic) -> Places:
    return read_places(text, topic.topics.shape(topic.name).partitions)


def _page(topic: Topic, given: types.LookAtRecords) -> Found:
    if sum((bool(given.after), bool(given.before), given.newest, given.at is not None, given.offset is not None)) > 1:
        raise InvalidInput("give one of after, before, newest, at, offset")
    if given.after:
        places = _places(given.after, topic)
        return Found(*_on(topic, places, given.limit))
    if given.before:
        places = _places(given.before, topic)
        return Found(*_back(topic, places, given.limit))
    bounds = topic.bounds()
    numbers = [number for number, (first, end) in enumerate(bounds) if first < end]
    if given.partition is not None:
        if given.partition >= len(bounds):
            raise InvalidInput(f"{topic.name} has partitions 0 to {len(bounds) - 1}; found {given.partition}")
        numbers = [given.partition]
    if len(numbers) > _MOST_PARTITIONS:
        raise InvalidInput(f"{topic.name} has records in {len(numbers)} partitions: give the partition to look at")
    if given.newest:
        return Found(*_back(topic, {number: bounds[number].next for number in numbers}, given.limit))
    if given.at is not None:
        found = topic.topics.offsets_at(topic.name, given.at.timestamp())
        starts = {number: found[number] for number in numbers}
    else:
        starts = dict.fromkeys(numbers, given.offset or 0)
    places = {number: min(max(start, bounds[number].first), bounds[number].next) for number, start in starts.items()}
    return Found(*_on(topic, places, given.limit))


def _on(topic: Topic, places: Places, limit: int) -> tuple[list[Record], Places | None, Places | None]:
    records, behind = records_from(topic, places, limit)
    bounds = topic.bounds()
    older = any(place > bounds[number].first for number, place in places.items())
    return records, places if older else None, behind


def _back(topic: Topic, places: Places, limit: int) -> tuple[list[Record], Places | None, Places | None]:
    records, begin = records_before(topic, places, limit)
    bounds = topic.bounds()
    newer = any(place < bounds[number].next for number, place in places.items())
    return records, begin, places if newer else None
