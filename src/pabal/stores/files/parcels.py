"""Drafts as files on their way: encoded, measured, named, written whole into `tmp` and flushed."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pabal import durable
from pabal.names import check_id, check_name
from pabal.store import Draft, State
from pabal.stores.files import dedup
from pabal.stores.files.dedup import First
from pabal.stores.files.names import ceiled, digest, floored, native_base, plain_stem
from pabal.stores.files.reading import order_of
from pabal.stores.files.remembering import remember
from pabal.stores.files.root import Root
from pabal.stores.limits import too_large

_CHUNK = 200  # files written and flushed together, each with an open descriptor


class Parcel:
    """One draft on its way to its directory."""

    __slots__ = (
        "crc",
        "data",
        "draft",
        "due",
        "final",
        "first",
        "id",
        "now",
        "order",
        "path",
        "records",
        "spool",
        "state",
        "stem",
        "tag",
    )

    def __init__(self, root: Root, draft: Draft, data: bytes, now: float) -> None:
        self.draft, self.data, self.id = draft, data, draft.message.id
        self.spool = root.make(draft.queue)
        self.now, self.due = now, ceiled(now + draft.delay) if draft.delay > 0 else floored(now)
        self.state = State.DELAYED if draft.delay > 0 else State.READY
        if root.layout.mirror and root.restating is not None:
            self.data = root.restating.restate(data, self.state, at=now)
        self.crc = zlib.crc32(self.data)
        self.records = dedup.records_of(self.spool, draft, now)
        self.first: First | None = None
        self.stem = "" if root.names.native else plain_stem(root.layout.stem(draft.message))
        self.order = None if root.names.native else order_of(root, draft.message)
        self.tag = dedup.new_tag()
        self.final = self.name(root, 0)  # unless it gets a place in the order of its group
        self.path = f"{self.spool.tmp}/{self.tag}~{self.final}"

    @property
    def as_first(self) -> First:
        return First(self.id, self.tag, digest(self.stem, 10) if self.stem else "")

    def name(self, root: Root, stamp: int) -> str:
        extension = root.names.extension
        if root.names.native:
            base = native_base(self.draft.message, self.id, self.due, stamp=stamp, crc=self.crc, own=True)
            return f"{base}{extension}"
        delay = f"~a0~d{self.due:x}" if self.draft.delay > 0 else ""
        return f"{self.stem}{delay}{extension}"


def pack(root: Root, drafts: Iterable[Draft]) -> list[Parcel]:
    """Encode the drafts and check what can be refused, before anything is written."""
    now = root.clock.now()
    encoded = []
    for draft in drafts:
        check_id(draft.message.id)
        check_name(draft.queue)  # before the codec writes it down
        data = root.codec.encode(draft.message, queue=draft.queue)
        if len(data) > draft.terms.max_bytes:
            raise too_large(draft, len(data))
        encoded.append((draft, data))
    return [Parcel(root, draft, data, now) for draft, data in encoded]


def stage(parcels: Sequence[Parcel]) -> None:
    """Write every parcel whole and flushed to its path; on failure none is left."""
    done: list[str] = []
    try:
        for start in range(0, len(parcels), _CHUNK):
            _write(parcels[start : start + _CHUNK], done)
    except BaseException:
        discard(done)
        raise


def _write(parcels: Sequence[Parcel], done: list[str]) -> None:
    open_files: list[int] = []
    try:
        for parcel in parcels:
            fd = durable.write_new(parcel.path, parcel.data)
            open_files.append(fd)
            done.append(parcel.path)
            os.utime(fd, (parcel.now, parcel.now))  # from here it waits
            if parcel.order is not None:
                remember(fd, parcel.order, taken=False)
        durable.sync_all(open_files)
    finally:
        for fd in open_files:
            os.close(fd)


def discard(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(OSError):
            os.unlink(path)
