"""Read a database of the original system for a takeover, with the payload files of a hybrid store."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from pabal.clock import Clock
from pabal.durable import translated
from pabal.errors import DecodeError, InvalidInput, StoreRefused
from pabal.sql.connection import Connection, SqliteError, connect, error_of
from pabal.sql.place import copy_files
from pabal.store import Entry, Failure, FailureCode, State
from pabal.stores.original import (
    Original,
    checked_policy,
    envelope_in,
    failure_of,
    id_of,
    message_in,
    read_part,
    refuse_names,
    set_aside,
)
from pabal.stores.sqlite.seed import (
    Found,
    Tables,
    bytes_of,
    id_in,
    message_at,
    messages_in,
    parts_of,
    rename_tables,
    set_tables_aside,
    unindexed_in,
)

_INDEX = "msg_index"
_STATES = {
    "ready": State.READY,
    "delayed": State.DELAYED,
    "inflight": State.INFLIGHT,
    "dlq": State.DEAD,
    "archived": State.DONE,
}


@contextmanager
def read_database(path: Path, payloads: Path, tables: Tables, scratch: Path, clock: Clock) -> Iterator[Original]:
    """Read a database of the original system, which must not run meanwhile, through a copy in `scratch`.

    `payloads` is the folder with the files of a hybrid store, `<queue>/{active,dlq,archive}/<id>.json`.
    """
    copy = scratch / "original.db"
    before = _stamps(path)
    copy_files(path, copy)
    if _stamps(path) != before:
        raise StoreRefused(f"{path} changed while it was read: stop the original system, then repeat")
    try:
        connection = connect(copy)
        try:
            rename_tables(connection, tables)
            if not set_tables_aside(connection):
                raise StoreRefused(
                    f"{path} has no tables {tables.kv} and {tables.msg_index}: it is no database of the original system"
                )
            policies = {
                str(key).removeprefix("policy:"): checked_policy(f"{key} in {path}", bytes_of(value))
                for key, value in connection.execute("select key, value from seed_kv where key like 'policy:%'")
            }
            yield Original(policies, _Reader(connection, path, payloads, clock).entries(set(policies)))
        finally:
            connection.close()
    except SqliteError as exc:
        raise error_of(exc, path, 0.0, "reading") from exc


def _stamps(path: Path) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = []
    for end in ("", "-wal"):
        try:
            about = os.stat(f"{path}{end}")
            found.append((about.st_mtime_ns, about.st_size))
        except FileNotFoundError:
            found.append(None)
    return found


class _Reader:
    """Reads the tables set aside, and the payload files."""

    def __init__(self, connection: Connection, path: Path, payloads: Path, clock: Clock) -> None:
        self._connection = connection
        self._path = path
        self._payloads = payloads
        self._now = clock.now()

    def entries(self, names: set[str]) -> Iterator[Entry]:
        """Yield the messages, queue by queue: those of the index, envelopes without a row, and files without a row."""
        try:
            yield from self._entries(names)
        except (TypeError, ValueError, AttributeError, OverflowError) as exc:
            if isinstance(exc, InvalidInput):
                raise
            raise StoreRefused(
                f"a row of kv or msg_index in {self._path} has a value of a wrong type ({exc}). Nothing was made"
            ) from exc

    def _entries(self, names: set[str]) -> Iterator[Entry]:
        unindexed = unindexed_in(self._connection)
        names |= {row[0] for row in self._connection.execute("select distinct queue from seed_index")}
        names |= {parts_of(key)[0] for key, _ in unindexed}
        with suppress(FileNotFoundError, NotADirectoryError):
            names |= {entry.name for entry in os.scandir(self._payloads) if entry.is_dir()}
        refuse_names(names, "Nothing was made")
        for queue in sorted(names):
            used: set[Path] = set()
            ids: set[str] = set()
            for found in messages_in(self._connection, queue):
                yield self._indexed(found, self._fresh(id_in(found.key, queue), found.key, ids), used)
            for key, value in unindexed:
                if parts_of(key)[0] == queue:
                    yield self._unindexed(queue, key, bytes_of(value), self._fresh(id_in(key, queue), key, ids), used)
            yield from self._files(queue, ids, used)

    @staticmethod
    def _fresh(id: str, where: str, ids: set[str]) -> str:
        id = id_of("", where) if id in ids else id
        ids.add(id)
        return id

    def _indexed(self, found: Found, id: str, used: set[Path]) -> Entry:
        data = b"" if found.value is None else bytes_of(found.value)
        where = f"{found.key} in {self._path}"
        state = _STATES.get(found.state)
        try:
            if found.value is None:
                return self._missing(found, id, "there was no envelope")
            envelope = envelope_in(data)
            if "payload" not in envelope and "payloadPath" in envelope:
                folders = ("dlq", "active", "archive") if state is State.DEAD else ("active", "dlq", "archive")
                path = self._payload_file(found.key, found.queue, folders)
                if path is None:
                    return self._missing(found, id, f"its payload file is missing: {envelope['payloadPath']!r:.200}")
                used.add(path)
                where, data = str(path), read_part(path)[0]
                envelope = {**envelope, **envelope_in(data)}
            message = message_at(found, envelope, data, id)
        except DecodeError as exc:
            return set_aside(found.queue, id, data, f"{where}: {exc.reason}", now=self._now)
        if state is None:
            reason = f"{where}: unknown state {found.state!r:.40}"
            failure = Failure(FailureCode.CORRUPT, reason, self._now, found.attempt)
            return Entry(found.queue, id, State.DEAD, found.attempt, found.due_at, message, failure)
        died = failure_of(envelope, found.attempt, found.died_at or self._now, found.reason)
        if state in (State.READY, State.DELAYED, State.INFLIGHT):
            # Nobody can settle a lease of the original here, so its message is ready.
            state = State.DELAYED if state is not State.INFLIGHT and found.due_at > self._now else State.READY
        failure_or_none = died if state is State.DEAD else None
        return Entry(found.queue, id, state, found.attempt, found.due_at, message, failure_or_none)

    def _missing(self, found: Found, id: str, reason: str) -> Entry:
        text = f"{found.key} in {self._path}: {reason}"
        code = FailureCode.MISSING_PAYLOAD
        return set_aside(found.queue, id, text.encode(), text, now=self._now, code=code)

    def _unindexed(self, queue: str, key: str, data: bytes, id: str, used: set[Path]) -> Entry:
        where = f"{key} in {self._path}"
        try:
            envelope = envelope_in(data)
            path = self._payload_file(key, queue, ("active", "dlq", "archive"))
            if "payload" not in envelope and path is not None:
                used.add(path)
                envelope = {**envelope, **envelope_in(read_part(path)[0])}
            message = message_in(envelope, data, id=id, at=self._now)
        except DecodeError as exc:
            return set_aside(queue, id, data, f"{where}: {exc.reason}", now=self._now)
        failure = Failure(FailureCode.CORRUPT, f"{where}: no row of {_INDEX} named it", self._now)
        return Entry(queue, id, State.DEAD, due_at=self._now, message=message, failure=failure)

    def _files(self, queue: str, ids: set[str], used: set[Path]) -> Iterator[Entry]:
        """Yield the payloads that no row names: acknowledged ones in `archive`, and leftovers of crashes."""
        for folder in ("active", "dlq", "archive"):
            with translated(f"reading {self._payloads / queue / folder}"):
                for path in sorted((self._payloads / queue / folder).glob("*.json")):
                    if path not in used:
                        yield self._file(queue, path, self._fresh(id_of(path.stem, str(path)), str(path), ids))

    def _file(self, queue: str, path: Path, id: str) -> Entry:
        data, changed = read_part(path)
        try:
            message = message_in(envelope_in(data), data, id=id, at=changed)
        except DecodeError as exc:
            return set_aside(queue, id, data, f"{path}: {exc.reason}", now=self._now)
        if path.parent.name == "archive":
            return Entry(queue, id, State.DONE, due_at=changed, message=message)
        reason = f"{path}: no row of {_INDEX} named it, so it was acknowledged, or its publish was not committed"
        failure = Failure(FailureCode.CORRUPT, reason, self._now)
        return Entry(queue, id, State.DEAD, due_at=self._now, message=message, failure=failure)

    def _payload_file(self, key: str, queue: str, folders: Sequence[str]) -> Path | None:
        name = f"{key.rpartition(':')[2]}.json"
        if "/" in name or "\0" in name:
            return None
        paths = (self._payloads / queue / folder / name for folder in folders)
        return next((path for path in paths if path.is_file()), None)
