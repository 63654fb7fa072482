"""The raw limits: the least that SQLite or the file system must do for a message that survives a power cut.

SQLite, through apsw, in WAL mode with `synchronous` FULL or NORMAL, one table and the one index without which no queue
finds its next message. One at a time, each statement commits itself:

    publish      insert into message (state, body) values (0, ?)
    lease        update message set state = 1, deadline = ? where seq = (the first of state 0) returning seq, body
    ack          delete from message where seq = ?

A hundred per commit: begin immediate; a hundred inserts; commit. Begin immediate; one update of the first hundred with
returning; commit. Begin immediate; a hundred deletes; commit.

Files: publish is open, write, fsync, close, rename into the directory, fsync of the directory (kept open). Taking is a
rename into a second directory and an unlink, of names that are known beforehand and with nothing synced or read.
"""

import os
import time
from collections import deque
from pathlib import Path

import apsw

from subject import BODY

_SCHEMA = """
create table message (seq integer primary key, state integer not null, deadline real, body text not null);
create index message_state on message (state, seq);
"""
_INSERT = "insert into message (state, body) values (0, ?)"
_LEASE = (
    "update message set state = 1, deadline = ? where seq in"
    " (select seq from message where state = 0 order by seq limit ?) returning seq, body"
)
_LEASE_ONE = (
    "update message set state = 1, deadline = ? where seq ="
    " (select seq from message where state = 0 order by seq limit 1) returning seq, body"
)
_ACK = "delete from message where seq = ?"


class RawSqlite:
    """The loop above, as tight as Python allows."""

    def __init__(self, place: Path, synchronous: str) -> None:
        self._db = apsw.Connection(str(place / "raw.db"))
        self._db.pragma("journal_mode", "wal")
        self._db.pragma("synchronous", synchronous)
        self._db.execute(_SCHEMA)

    def publish(self) -> None:
        self._db.execute(_INSERT, (BODY,))

    def publish_many(self, count: int) -> None:
        self._db.execute("begin immediate")
        self._db.executemany(_INSERT, ((BODY,) for _ in range(count)))
        self._db.execute("commit")

    def take(self) -> None:
        [(seq, _body)] = self._db.execute(_LEASE_ONE, (time.monotonic() + 30,)).fetchall()
        self._db.execute(_ACK, (seq,))

    def take_many(self, count: int) -> None:
        self._db.execute("begin immediate")
        leased = self._db.execute(_LEASE, (time.monotonic() + 30, count)).fetchall()
        self._db.execute("commit")
        self._db.execute("begin immediate")
        self._db.executemany(_ACK, ((seq,) for seq, _body in leased))
        self._db.execute("commit")

    fill = publish_many

    def close(self) -> None:
        self._db.close()


class RawFiles:
    """One file per message."""

    def __init__(self, place: Path) -> None:
        self._tmp, self._ready, self._held = (f"{place}/{name}/" for name in ("tmp", "ready", "held"))
        for path in (self._tmp, self._ready, self._held):
            os.mkdir(path)
        self._directory = os.open(self._ready, os.O_RDONLY | os.O_DIRECTORY)
        self._body = BODY.encode()
        self._names: deque[str] = deque()
        self._next = 0

    def publish(self) -> None:
        self._write()
        os.fsync(self._directory)

    def publish_many(self, count: int) -> None:
        for _ in range(count):
            self._write()
        os.fsync(self._directory)

    def take(self) -> None:
        name = self._names.popleft()
        os.rename(self._ready + name, self._held + name)
        os.unlink(self._held + name)

    def take_many(self, count: int) -> None:
        for _ in range(count):
            self.take()

    fill = publish_many

    def close(self) -> None:
        os.close(self._directory)

    def _write(self) -> None:
        self._next += 1
        name = f"{self._next:012}.json"
        handle = os.open(self._tmp + name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.write(handle, self._body)
        os.fsync(handle)
        os.close(handle)
        os.rename(self._tmp + name, self._ready + name)
        self._names.append(name)
