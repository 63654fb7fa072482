"""A topic as its users see it: it takes JSON values or bytes and checks them with the schema of the topic.

A value is written as plain JSON, so that every other client can read it; bytes are marked by their content type. The
version of a schema is part of the topic's name (`chat.messages.v1`): another schema is another topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pabal import jsontext
from pabal.clock import Clock, Refreshed, SystemClock
from pabal.errors import InvalidInput, StoreError, ValidationFailed
from pabal.jsontext import Json
from pabal.policy.bodies import check_many
from pabal.policy.validation import Check, checker
from pabal.topic_store import (
    NO_HEADERS,
    NO_SETTINGS,
    Bounds,
    NewRecord,
    Position,
    Record,
    Shape,
    Share,
    Topics,
    check_topic,
)

CONTENT_TYPE = "content-type"
BYTES = "application/octet-stream"


class _Schema:
    """A schema and its check; replaced whole when the schema changes."""

    def __init__(self, schema: dict[str, Any] | None) -> None:
        self.schema = schema

    @cached_property
    def check(self) -> Check | None:
        return None if self.schema is None else checker(self.schema)


class _SchemaCache(Refreshed[_Schema]):
    """Returns the schema of a topic; read again at most once a second, so that a change reaches running processes."""

    def __init__(self, name: str, topics: Topics, clock: Clock) -> None:
        super().__init__(clock.boot, from_end=True)
        self._name = name
        self._topics = topics

    def _read(self, known: _Schema | None) -> _Schema:
        try:
            schema = self._topics.settings(self._name).get("schema")
        except StoreError:
            if known is None:
                raise
            return known  # to check a record, the schema known so far is enough
        return known if known is not None and known.schema == schema else _Schema(schema)


class Topic:
    """One topic of a connection. Threads may share it."""

    def __init__(self, name: str, topics: Topics, *, clock: Clock | None = None) -> None:
        self.name = check_topic(name)
        self.topics = topics
        self.clock = clock or SystemClock()
        self._schema = _SchemaCache(self.name, topics, self.clock)

    def __repr__(self) -> str:
        return f"<Topic {self.name}>"

    def create(
        self,
        partitions: int = 1,
        *,
        max_age: float = 0.0,
        max_bytes: int = 0,
        schema: Mapping[str, Json] | None = None,
    ) -> bool:
        """Make the topic; False if it was there. A topic keeps its partitions and its schema for ever.

        Raises NameTaken if it is there with others, also if another process makes it at the same time.
        """
        if schema is not None:
            checker(schema)
        settings = NO_SETTINGS if schema is None else {"schema": dict(schema)}
        made = self.topics.create(self.name, Shape(partitions, max_age, max_bytes), settings)
        self._schema.forget()
        return made

    def retain(self, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change the retention of each partition, in seconds and bytes; 0 is no limit, None leaves a limit as it is."""
        self.topics.retain(self.name, max_age=max_age, max_bytes=max_bytes)

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema of the topic, or None."""
        return self._schema().schema

    def append(
        self,
        body: Json | bytes,
        *,
        key: str = "",
        headers: Mapping[str, str] = NO_HEADERS,
        partition: int | None = None,
    ) -> Position:
        """Append one record durably and return its position. Records of one key keep their order."""
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
        """Append many records in one call. Give a record with its own key or headers as a NewRecord."""
        check_many(bodies, "append")
        return self.topics.append(self.name, self._records(bodies, key, headers, partition))

    def _records(
        self, bodies: Iterable[Json | bytes | NewRecord], key: str, headers: Mapping[str, str], partition: int | None
    ) -> list[NewRecord]:
        """Make the records of these bodies, checked with the schema of the topic."""
        records = [
            body if isinstance(body, NewRecord) else new_record(body, key, headers, partition) for body in bodies
        ]
        if self._schema().check is not None:
            for record in records:
                self.body_of(record)
        return records

    def read(self, partition: int, offset: int = 0, limit: int = 100) -> list[Record]:
        """Return records from an offset on, independently of any group."""
        return self.topics.read(self.name, partition, offset, limit)

    def bounds(self) -> list[Bounds]:
        """Return the oldest and the next offset of every partition."""
        return self.topics.bounds(self.name)

    def groups(self) -> dict[str, list[Share]]:
        """Return every group of this topic, with the committed offsets and lags of its partitions."""
        return self.topics.groups(self.name)

    def body_of(self, record: Record | NewRecord) -> Json | bytes:
        """Return the body of a record; raise ValidationFailed if it does not fit the schema of the topic."""
        check = self._schema().check
        if check is None:
            return body_of(record)
        try:
            body = body_of(record, strict=True)
        except InvalidInput as exc:
            raise ValidationFailed(f"{exc.code}: {exc}") from exc
        checked: Json | bytes = check(body)
        return checked


def new_record(body: Json | bytes, key: str, headers: Mapping[str, str], partition: int | None) -> NewRecord:
    """Return a body as a record to append."""
    if isinstance(body, bytes):
        return NewRecord(body, key, {CONTENT_TYPE: BYTES, **headers}, partition)
    jsontext.check(body)
    return NewRecord(jsontext.encode(body), key, headers, partition)


def body_of(record: Record | NewRecord, *, strict: bool = False) -> Json | bytes:
    """Return the value of a record, decoded. A value that is no JSON stays bytes; with `strict`, raise InvalidInput."""
    if record.headers.get(CONTENT_TYPE) == BYTES:
        return record.value
    try:
        body: Json = jsontext.read(record.value)
    except InvalidInput:
        if strict:
            raise
        return record.value
    return body
