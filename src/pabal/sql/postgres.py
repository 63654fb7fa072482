"""A PostgreSQL server that many threads and processes use: connections, what a broken one means, what errors mean.

- A statement is a transaction of its own. Cut off in the middle, it may or may not have been committed: work that can
  be repeated is repeated on a new connection, other work raises Uncertain.
- No call waits for ever: a server that cannot be reached is tried for `patience` seconds, an answer is awaited for
  `answer` seconds, and both end in an error.
- No connection is used in two processes: a forked child starts with none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any, TypeVar

import psycopg  # after links, which says what to install where it is missing

from pabal.errors import (
    InvalidInput,
    InvalidText,
    StoreClosed,
    StoreFailed,
    StoreFull,
    StoreRefused,
    Uncertain,
)
from pabal.sql.forks import survive_fork
from pabal.sql.links import ANSWER_SECONDS, Link, Rule, Unreached, connect, hang_up, place_of, rule_of, told

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
CONNECTIONS = 16  # most connections that are kept open while nobody uses them
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
# What was sent over a link that broke may still be under way: end it, and wait until it has.
_END = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where pid = %s and backend_start = %s::timestamptz and usename = current_user"""
_GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "08000", "08003", "08006", "25P03"})
_REPEAT = frozenset({"40001", "40P01", "55P03"})
_VALUES = frozenset({"22", "23", "54", "P0"})  # classes: data, constraints, limits, what a trigger refuses
_TEXT = frozenset({"22021", "22P05"})


class Server:
    """A database of a server, as one process uses it. Threads may share it."""

    def __init__(self, url: str, *, patience: float = PATIENCE_SECONDS, answer: float = ANSWER_SECONDS) -> None:
        self._url = url
        self._answer = answer
        self.place = place_of(url)
        self._patience = patience
        self._closed = False
        self._fresh()
        survive_fork(self)

    def _fresh(self) -> None:
        self._mutex = threading.Lock()
        self._idle: list[Link] = []

    def run(self, work: Callable[[Link], T], *, repeatable: bool = True) -> T:
        """Return what the work returned, repeated on a new connection if the old one broke and it can be.

        `link.again` tells the work whether an earlier try of it may have gone through.
        """
        deadline = time.monotonic() + self._patience  # the first try may be the longest
        try:
            return self._once(work, None)
        except (Unreached, _Cut, _Clash) as exc:
            return self._repeat(work, exc, repeatable, deadline)

    def read(self, work: Callable[[Link], T]) -> T:
        """Return the answer to a question, which may be asked again."""
        try:
            return self.run(work)
        except Uncertain as exc:
            raise StoreFailed(f"{self.place} did not answer: see that the server runs and repeat") from exc

    def _repeat(self, work: Callable[[Link], T], last: Exception, repeatable: bool, deadline: float) -> T:
        cut = last if isinstance(last, _Cut) else None
        pauses = chain(_PAUSES, repeat(_PAUSES[-1]))
        while repeatable or cut is None:
            pause = next(pauses)
            if time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
            try:
                return self._once(work, cut)
            except (Unreached, _Clash) as exc:
                last = exc
            except _Cut as exc:
                last = cut = exc
        if cut:
            raise Uncertain(f"the link to {self.place} broke ({last}): it may or may not have been written") from last
        raise StoreFailed(f"{self.place}: {last}: see that the server runs and repeat") from last

    def _once(self, work: Callable[[Link], T], cut: _Cut | None) -> T:
        link = self._borrow()
        under_way = cut
        try:
            link.again = cut is not None
            if cut is not None:
                link.execute(_END, (cut.pid, cut.started))
            under_way = None
            result = work(link)
        except psycopg.Error as exc:
            whole = not link.closed and link.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if whole:
                self._give_back(link)
            else:
                hang_up(link)
            raise (under_way or self._meaning(exc, None if whole else (link.pid, link.started))) from exc
        except BaseException:
            # A signal handler raised in the middle: nobody can know where the two ends of this connection stand.
            if link.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                self._give_back(link)
            else:
                hang_up(link)
            raise
        self._give_back(link)
        return result

    def connect(self) -> Link:
        """Return a new connection, that is the caller's to close."""
        return connect(self._url, self.place, self._answer)

    def require_usable(self) -> None:
        """Raise StoreClosed if this was closed."""
        if self._closed:
            raise StoreClosed(f"{self.place} was closed")

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
        for link in idle:
            hang_up(link)

    def before_fork(self) -> None:
        pass

    def after_fork_in_parent(self) -> None:
        pass

    def after_fork_in_child(self) -> None:
        """Leave the connections to the parent: its server must hear nothing of the child."""
        links = self._idle
        self._fresh()
        self.disown(links)

    def disown(self, links: Iterable[Link]) -> None:
        """Forget connections of the parent process without a word to the server."""
        for link in links:
            os.close(link.pgconn.socket)

    def _borrow(self) -> Link:
        while True:
            self.require_usable()
            with self._mutex:
                link = self._idle.pop() if self._idle else None
            if link is None:
                return self.connect()
            if not link.readable():
                return link
            hang_up(link)  # the server has said something that nobody asked for: that it hangs up

    def _give_back(self, link: Link) -> None:
        with self._mutex:
            if not self._closed and len(self._idle) < CONNECTIONS:
                self._idle.append(link)
                return
        hang_up(link)

    # What errors mean

    def _meaning(self, exc: psycopg.Error, broken: tuple[int, str] | None) -> Exception:
        code = exc.sqlstate or ""
        if code.startswith("PB"):
            return rule_of(exc)
        if broken is not None and (not code or code in _GONE):
            return _Cut(told(exc), *broken)
        if code in _REPEAT:
            return _Clash(told(exc))
        if code == "53100":
            return StoreFull(f"the disk of {self.place} has no room: free some space and repeat")
        if code in _TEXT:
            return InvalidText(f"the database cannot hold this text: {told(exc)}")
        if code == "42501":
            return StoreRefused(f"{self.place}: {told(exc)}: grant it or use another role")
        return StoreFailed(f"{told(exc)} at {self.place}")


class _Cut(Exception):
    """The connection to this process of the server broke after something was sent."""

    def __init__(self, reason: str, pid: int, started: str) -> None:
        super().__init__(reason)
        self.pid = pid
        self.started = started


class _Clash(Exception):
    """The server undid it for the sake of another transaction."""


def refused_values(exc: BaseException) -> bool:
    """Say whether the server, while it works as it should, will not take what a statement brought."""
    cause = exc.__cause__
    if not isinstance(exc, StoreFailed) or not isinstance(cause, psycopg.Error):
        return False
    return cause.sqlstate[:2] in _VALUES if cause.sqlstate else isinstance(cause, psycopg.DataError)


@contextmanager
def within(connection: Any, broken_rule: Callable[[Rule], Exception]) -> Iterator[Any]:
    """Work inside the application's own transaction: if it fails, this part alone is undone."""
    if not isinstance(connection, psycopg.Connection):
        raise StoreRefused(f"a psycopg connection is needed; found {type(connection).__name__}")
    try:
        _require_transaction(connection)
        with connection.transaction():
            yield connection
    except psycopg.Error as exc:
        if (exc.sqlstate or "").startswith("PB"):
            raise broken_rule(rule_of(exc)) from exc
        raise StoreFailed(f"{told(exc)} in the application's transaction") from exc


def _require_transaction(connection: psycopg.Connection[Any]) -> None:
    """See that the block to come is a part of the application's transaction, and not one of its own."""
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        if connection.autocommit:
            raise InvalidInput("no transaction is open on this connection: begin one, and commit it afterwards")
        connection.execute("select 1")  # begins it
