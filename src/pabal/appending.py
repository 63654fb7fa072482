"""A topic as its users see it: JSON values or bytes in, checked against the schema that the topic carries.

A value is written as plain JSON, so that every other client reads it; bytes are marked by their content type. The
version of a schema is part of the topic's name (`chat.messages.v1`): another schema is another topic.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pabal import jsontext
from pabal.errors import InvalidInput, StoreError, ValidationFailed
from pabal.jsontext import Json
from pabal.schema import Check, checker
from pabal.topic import NO_HEADERS, NO_SETTINGS, Bounds, NewRecord, Position, Record, Shape, Share, Topics
from pabal.topic_limits import check_topic
from pabal.waiter import SLOW_POLL

CONTENT_TYPE = "content-type"
BYTES = "application/octet-stream"


class _Ruling:
    """A schema and what follows from it, replaced whole when another one holds."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        self.schema = schema

    @cached_property
    def check(self) -> Check | None:
        return None if self.schema is None else checker(self.schema)


class _InForce:
    """Called, it says what holds: read again at most once a second, so that a schema reaches who is at work already."""

    def __init__(self, name: str, topics: Topics) -> None:
        self._name = name
        self._topics = topics
        self._ruling: _Ruling | None = None
        self._read_at = 0.0

    def __call__(self) -> _Ruling:
        now, ruling = time.monotonic(), self._ruling
        if ruling is None or now - self._read_at >= SLOW_POLL:
            self._ruling = ruling = self._read(ruling)
            self._read_at = time.monotonic()  # from its end: one that takes long must not be followed by the next
        return ruling

    def forget(self) -> None:
        self._ruling = None

    def _read(self, known: _Ruling | None) -> _Ruling:
        try:
            schema = self._topics.settings(self._name).get("schema")
        except StoreError:
            if known is None:
                raise
            return known  # who only checks a record need not fail with the store
        return known if known is not None and known.schema == schema else _Ruling(schema)


class Topic:
    """One topic of a connection. Threads may share it."""

    def __init__(self, name: str, topics: Topics) -> None:
        self.name = check_topic(name)
        self.topics = topics
        self._in_force = _InForce(self.name, topics)

    def create(
        self,
        partitions: int = 1,
        *,
        max_age: float = 0.0,
        max_bytes: int = 0,
        schema: Mapping[str, Json] | None = None,
    ) -> bool:
        """Make the topic; False if it was there. A topic keeps its partitions and its schema for ever.

        NameTaken if it is there with others, also if somebody else makes it at the same time.
        """
        if schema is not None:
            checker(schema)
        settings = NO_SETTINGS if schema is None else {"schema": dict(schema)}
        made = self.topics.create(self.name, Shape(partitions, max_age, max_bytes), settings)
        self._in_force.forget()
        return made

    def retain(self, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change what each partition keeps, in seconds and bytes, 0 for no limit; None leaves a limit as it is."""
        self.topics.retain(self.name, max_age=max_age, max_bytes=max_bytes)

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema that the topic carries, or None."""
        return self._in_force().schema

    def append(
        self,
        body: Json | bytes,
        *,
        key: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        partition: int | None = None,
    ) -> Position:
        """Append one record and return where it stands, once it is safe. Records of one key keep their order."""
        [position] = self.append_many([body], key=key, headers=headers, partition=partition)
        return position

    def append_many(
        self,
        bodies: Iterable[Json | bytes | NewRecord],
        *,
        key: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        partition: int | None = None,
    ) -> list[Position]:
        """Append many records in one call; one that has its own key or headers is given as a NewRecord."""
        records = [
            body if isinstance(body, NewRecord) else new_record(body, key, headers, partition) for body in bodies
        ]
        if self._in_force().check is not None:
            for record in records:
                self.body_of(record)
        return self.topics.append(self.name, records)

    def read(self, partition: int, offset: int = 0, limit: int = 100) -> list[Record]:
        """Return records from an offset on. No group is concerned."""
        return self.topics.read(self.name, partition, offset, limit)

    def bounds(self) -> list[Bounds]:
        """Return the oldest and the next offset of every partition."""
        return self.topics.bounds(self.name)

    def groups(self) -> dict[str, list[Share]]:
        """Return every group that reads this topic, and how far it is."""
        return self.topics.groups(self.name)

    def body_of(self, record: Record | NewRecord) -> Json | bytes:
        """Return the body of a record; raise ValidationFailed if it is not what the topic's schema asks for."""
        check = self._in_force().check
        if check is None:
            return body_of(record)
        try:
            body = body_of(record, strict=True)
        except InvalidInput as exc:
            raise ValidationFailed(f"{exc.code}: {exc}") from exc
        checked: Json | bytes = check(body)
        return checked


def new_record(body: Json | bytes, key: str, headers: Mapping[str, str], partition: int | None) -> NewRecord:
    """Return a body on its way to a topic."""
    if isinstance(body, bytes):
        return NewRecord(body, key, {CONTENT_TYPE: BYTES, **headers}, partition)
    jsontext.check(body)
    return NewRecord(jsontext.encode(body), key, headers, partition)


def body_of(record: Record | NewRecord, *, strict: bool = False) -> Json | bytes:
    """Return what a record's value means. What is no JSON is bytes, or InvalidInput where JSON is asked for."""
    if record.headers.get(CONTENT_TYPE) == BYTES:
        return record.value
    try:
        body: Json = jsontext.read(record.value)
    except InvalidInput:
        if strict:
            raise
        return record.value
    return body
