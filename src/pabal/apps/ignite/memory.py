"""The memory of a team: facts about each attempt at a message, the presence of agents, and escalations already sent.

The queues decide about every message. This database only records their history: it may be deleted at any time, and the
team goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from pabal.errors import StoreError
from pabal.sql.connection import Connection
from pabal.sql.migrate import migrate
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction

log = logging.getLogger("pabal.ignite")

FILE = "memory.db"
_DELAY = 0.1  # seconds
_FACTS = "queue, id, attempt, type, delivered_at, woken_at, read_at, done_at, wake, outcome, error"


class Fact(NamedTuple):
    """One attempt at a message: when it was given to its agent, the agent was woken, read it and was done, or None."""

    queue: str
    id: str
    attempt: int
    type: str = ""
    delivered_at: float | None = None
    woken_at: float | None = None
    read_at: float | None = None
    done_at: float | None = None
    wake: str = ""
    outcome: str = ""
    error: str = ""


class Presence(NamedTuple):
    """The state of an agent: starting, idle, busy (with which message), stale, away or gone; and since when."""

    name: str
    presence: str
    since: float
    busy_with: str = ""
    pid: int | None = None
    restarts: int = 0
    beat_at: float | None = None


class FactWriter:
    """Writes facts in batches after a short delay, so that no message waits for them.

    If the database cannot be written, these facts are lost and the next ones are tried again.
    """

    def __init__(self, memory: Callable[[], Memory], now: Callable[[], float]) -> None:
        self._memory = memory
        self._now = now
        self._facts: list[Fact] = []
        self._due = 0.0

    def add(self, fact: Fact) -> None:
        if not self._facts:
            self._due = self._now() + _DELAY
        self._facts.append(fact)

    def next_due(self) -> float | None:
        return max(0.0, self._due - self._now()) if self._facts else None

    def flush(self, *, all: bool = False) -> None:
        """Write the facts if they have waited long enough, or all of them now."""
        if not self._facts or (not all and self._now() < self._due):
            return
        facts, self._facts = self._facts, []
        try:
            self._memory().record(facts)
        except StoreError as exc:
            log.warning("facts not written: %(error)s", {"error": str(exc)})


class Memory:
    """The team's database. The coordinator has its tables in the same file."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, path: Path) -> Memory:
        return cls(Database(path, prepare=_prepare, committed=lambda queues: None))

    def close(self) -> None:
        self.database.close()

    def record(self, facts: Sequence[Fact]) -> None:
        """Add facts to what is known; fields that a fact leaves empty stay as they were."""
        self.database.write(lambda tx: tx.many(_RECORD, facts) and None, durable=False)

    def facts(self, queue: str, *, limit: int = 100) -> list[Fact]:
        """Return the latest facts of an agent's messages, newest first."""
        ask = f"select {_FACTS} from facts where queue = ? order by delivered_at desc limit ?"
        return self.database.read(lambda db: [Fact(*row) for row in db.execute(ask, (queue, limit))])

    def facts_of(self, id: str) -> list[Fact]:
        """Return the facts about every attempt at one message."""
        ask = f"select {_FACTS} from facts where id = ? order by queue, attempt"
        return self.database.read(lambda db: [Fact(*row) for row in db.execute(ask, (id,))])

    def note(self, agents: Sequence[Presence]) -> None:
        """Record the state of agents."""
        self.database.write(lambda tx: tx.many(_NOTE, agents) and None, durable=False)

    def presences(self) -> dict[str, Presence]:
        ask = "select name, presence, since, busy_with, pid, restarts, beat_at from agents"
        return self.database.read(lambda db: {row[0]: Presence(*row) for row in db.execute(ask)})

    def seen(self, key: str, at: float, window: float) -> bool:
        """Return whether this key was recorded within the window."""
        ask = "select 1 from seen where key = ? and abs(? - at) < ?"
        return self.database.read(lambda db: next(iter(db.execute(ask, (key, at, window))), None) is not None)

    def first(self, key: str, at: float, window: float) -> bool:
        """Return whether this is the first time within the window, and record the key if so."""
        return bool(self.new([key], at, window))

    def new(self, keys: Sequence[str], at: float, window: float) -> list[str]:
        """Return the keys that come for the first time within the window, and record them."""

        def work(tx: Transaction) -> list[str]:
            found = []
            for key in keys:
                row = next(iter(tx.run("select at from seen where key = ?", (key,))), None)
                if row is None or abs(at - row[0]) >= window:
                    tx.run("insert or replace into seen (key, at) values (?, ?)", (key, at))
                    found.append(key)
            return found

        return self.database.write(work, durable=False) if keys else []

    def forget_seen(self, key: str) -> None:
        """Forget a key, so that the next time is a first time again."""
        self.database.write(lambda tx: tx.change("delete from seen where key = ?", (key,)), durable=False)

    def forget(self, before: float) -> None:
        """Remove everything that is older than this instant."""

        def work(tx: Transaction) -> None:
            tx.change("delete from facts where delivered_at < ?", (before,))
            tx.change("delete from seen where at < ?", (before,))

        self.database.write(work, durable=False)


def _prepare(connection: Connection) -> None:
    migrate(connection, "memory", "pabal.apps.ignite")


_RECORD = f"""
insert into facts ({_FACTS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
on conflict (queue, id, attempt) do update set
    type = iif(excluded.type = '', type, excluded.type),
    delivered_at = coalesce(delivered_at, excluded.delivered_at),
    woken_at = coalesce(excluded.woken_at, woken_at),
    read_at = coalesce(read_at, excluded.read_at),
    done_at = coalesce(excluded.done_at, done_at),
    wake = iif(excluded.wake = '', wake, excluded.wake),
    outcome = iif(excluded.outcome = '', outcome, excluded.outcome),
    error = iif(excluded.error = '', error, excluded.error)
"""
_NOTE = """
insert or replace into agents (name, presence, since, busy_with, pid, restarts, beat_at) values (?, ?, ?, ?, ?, ?, ?)
"""
