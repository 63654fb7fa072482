"""What a team remembers beside its mail: three facts per message, how each agent is, what was told already.

The directories are the truth about every message. This database only tells their story: it may be deleted at any time,
and the team goes on.
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
_SOON = 0.1  # seconds
_FACTS = "queue, id, attempt, type, delivered_at, woken_at, read_at, done_at, wake, outcome, error"


class Fact(NamedTuple):
    """What is known of one attempt: given to its agent, the agent woken, read, done; each when, or None."""

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
    """How an agent is: starting, idle, busy (with what), stale or gone; since when."""

    name: str
    presence: str
    since: float
    busy_with: str = ""
    pid: int | None = None
    restarts: int = 0
    beat_at: float | None = None


class Ledger:
    """Writes facts down together, soon and not at once: a message must not wait for its own story.

    A database that cannot be written is let be, and tried again with the next facts.
    """

    def __init__(self, memory: Callable[[], Memory], now: Callable[[], float]) -> None:
        self._memory = memory
        self._now = now
        self._facts: list[Fact] = []
        self._due = 0.0

    def add(self, fact: Fact) -> None:
        if not self._facts:
            self._due = self._now() + _SOON
        self._facts.append(fact)

    def next_due(self) -> float | None:
        return max(0.0, self._due - self._now()) if self._facts else None

    def flush(self, *, all: bool = False) -> None:
        """Write what has waited long enough, or all."""
        if not self._facts or (not all and self._now() < self._due):
            return
        facts, self._facts = self._facts, []
        try:
            self._memory().record(facts)
        except StoreError as exc:
            log.warning("facts not written: %s", exc)


class Memory:
    """The team's database, in one file that others keep their own tables in too."""

    def __init__(self, database: Database) -> None:
        self.database = database

    @classmethod
    def open(cls, path: Path) -> Memory:
        return cls(Database(path, prepare=_prepare, committed=lambda rings: None))

    def close(self) -> None:
        self.database.close()

    def record(self, facts: Sequence[Fact]) -> None:
        """Add what is newly known; what a fact leaves open stays as it was."""
        self.database.write(lambda tx: tx.many(_RECORD, facts) and None, durable=False)

    def facts(self, queue: str, *, limit: int = 100) -> list[Fact]:
        """Return the latest facts of an agent's messages, newest first."""
        ask = f"select {_FACTS} from facts where queue = ? order by delivered_at desc limit ?"
        return self.database.read(lambda db: [Fact(*row) for row in db.execute(ask, (queue, limit))])

    def facts_of(self, id: str) -> list[Fact]:
        """Return what is known of every attempt at one message."""
        ask = f"select {_FACTS} from facts where id = ? order by queue, attempt"
        return self.database.read(lambda db: [Fact(*row) for row in db.execute(ask, (id,))])

    def note(self, agents: Sequence[Presence]) -> None:
        """Keep how agents are."""
        self.database.write(lambda tx: tx.many(_NOTE, agents) and None, durable=False)

    def presences(self) -> dict[str, Presence]:
        ask = "select name, presence, since, busy_with, pid, restarts, beat_at from agents"
        return self.database.read(lambda db: {row[0]: Presence(*row) for row in db.execute(ask)})

    def seen(self, key: str, at: float, window: float) -> bool:
        """Say whether this was remembered within the window."""
        ask = "select 1 from seen where key = ? and abs(? - at) < ?"
        return self.database.read(lambda db: next(iter(db.execute(ask, (key, at, window))), None) is not None)

    def first(self, key: str, at: float, window: float) -> bool:
        """Say whether this is the first time within the window, and remember it if so."""

        def work(tx: Transaction) -> bool:
            row = next(iter(tx.run("select at from seen where key = ?", (key,))), None)
            if row is not None and abs(at - row[0]) < window:
                return False
            tx.run("insert or replace into seen (key, at) values (?, ?)", (key, at))
            return True

        return self.database.write(work, durable=False)

    def forget_seen(self, key: str) -> None:
        """Let the next time be a first time again."""
        self.database.write(lambda tx: tx.change("delete from seen where key = ?", (key,)), durable=False)

    def forget(self, before: float) -> None:
        """Remove what is older than this instant."""

        def work(tx: Transaction) -> None:
            tx.change("delete from facts where delivered_at < ?", (before,))
            tx.change("delete from seen where at < ?", (before,))

        self.database.write(work, durable=False)


def _prepare(connection: Connection) -> None:
    migrate(connection, "memory", "pabal.ignite")


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
