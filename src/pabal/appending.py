"""A topic as its users see it: JSON values or bytes in, checked against the schema that the topic carries.

A value is written as plain JSON, so that every other client reads it; bytes are marked by their content type. The
version of a schema is part of the topic's name (`chat.messages.v1`): another schema is another topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from pabal import jsontext
from pabal.errors import InvalidInput, ValidationFailed
from pabal.jsontext import Json
from pabal.schema import Check, checker
from pabal.topic import NO_HEADERS, Bounds, NewRecord, Position, Record, Shape, Share, Topics
from pabal.topic_limits import check_topic

CONTENT_TYPE = "content-type"
BYTES = "application/octet-stream"


class Topic:
    """One topic of a connection. Threads may share it."""

    def __init__(self, name: str, topics: Topics) -> None:
        self.name = check_topic(name)
        self.topics = topics

    def create(
        self,
        partitions: int = 1,
        *,
        max_age: float = 0.0,
        max_bytes: int = 0,
        schema: Mapping[str, Json] | None = None,
    ) -> bool:
        """Make the topic; False if it was there. A topic keeps its partitions and its schema for ever."""
        if schema is not None:
            checker(schema)
        made = self.topics.create(self.name, Shape(partitions, max_age, max_bytes))
        if schema is not None and schema != self.schema:
            if not made and self.schema is not None:
                raise InvalidInput(f"topic {self.name} carries another schema: make a topic of the next version")
            self.topics.configure(self.name, {**self.topics.settings(self.name), "schema": dict(schema)})
            for known in ("schema", "_check"):
                self.__dict__.pop(known, None)
        return made

    def retain(self, *, max_age: float | None = None, max_bytes: int | None = None) -> None:
        """Change what each partition keeps, in seconds and bytes, 0 for no limit; None leaves a limit as it is."""
        self.topics.retain(self.name, max_age=max_age, max_bytes=max_bytes)

    @cached_property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema that the topic carries, or None."""
        return self.topics.settings(self.name).get("schema")

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
        if self._check is not None:
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
        check = self._check
        if check is None:
            return body_of(record)
        try:
            body = body_of(record, strict=True)
        except InvalidInput as exc:
            raise ValidationFailed(f"{exc.code}: {exc}") from exc
        checked: Json | bytes = check(body)
        return checked

    @cached_property
    def _check(self) -> Check | None:
        return None if self.schema is None else checker(self.schema)


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
