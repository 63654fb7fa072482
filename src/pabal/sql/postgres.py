"""A PostgreSQL server: a pool of connections, repetition after broken ones, and errors of the server as our errors.

- A statement is a transaction of its own. If the connection breaks, it may or may not have been committed: repeatable
  work is repeated on a new connection, other work raises Uncertain.
- No call waits for ever: it tries to reach the server for `patience` seconds and waits for an answer for `answer`
  seconds; then it raises.
- However many threads there are, they share `CONNECTIONS` connections, and those not used for a while are closed.
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

import psycopg  # after postgres_link, which names the extra to install

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
from pabal.sql.postgres_link import ANSWER_SECONDS, Link, Rule, Unreached, connect, hang_up, one_line, place_of, rule_of

T = TypeVar("T")

PATIENCE_SECONDS = 30.0
CONNECTIONS = 16
IDLE_SECONDS = 30.0
_PAUSES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
# A statement sent over a broken connection may still run: end it, and wait until it has ended.
_END = """
select pg_terminate_backend(pid, 5000) from pg_stat_activity
where pid = %s and backend_start = %s::timestamptz and usename = current_user"""
_GONE = frozenset({"57P01", "57P02", "57P03", "57P05", "25P03"})
_CONNECTION = "08"  # class: PgBouncer says 08P01 when its connection to the server breaks
_REPEAT = frozenset({"40001", "40P01", "55P03"})
_VALUES = frozenset({"22", "23", "54", "P0"})  # classes: data, constraints, limits, errors of triggers
_TEXT = frozenset({"22021", "22P05"})


class Server:
    """The connections of one process to a database. Threads may share it."""

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
        self._slots = threading.Semaphore(CONNECTIONS)
        self._idle: list[Link] = []  # the one that was used last is the last

    def run(self, work: Callable[[Link], T], *, repeatable: bool = True) -> T:
        """Run the work and return its result; repeat it on a new connection if the old one broke and it is repeatable.

        `link.again` says whether an earlier try may have been committed.
        """
        deadline = time.monotonic() + self._patience  # the first try may be the longest
        try:
            return self._once(work, None)
        except (Unreached, _Cut, _Clash) as exc:
            return self._repeat(work, exc, repeatable, deadline)

    def read(self, work: Callable[[Link], T]) -> T:
        """Run work that changes nothing and return its result."""
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
        slots = self._slots
        if not slots.acquire(timeout=self._patience):
            raise StoreFailed(
                f"all {CONNECTIONS} connections to {self.place} were busy for {self._patience:g} seconds: use fewer"
                " threads, or another store handle for some of them"
            )
        try:
            return self._on_link(work, cut)
        finally:
            slots.release()

    def _on_link(self, work: Callable[[Link], T], cut: _Cut | None) -> T:
        link = self._borrow()
        under_way = cut
        try:
            link.again = cut is not None
            if cut is not None and cut.pid:
                link.execute(_END, (cut.pid, cut.started))
            under_way = None
            result = _in_transaction(work, link) if link.pooled else work(link)
        except psycopg.Error as exc:
            whole = not link.closed and link.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            if whole:
                self._give_back(link)
            else:
                hang_up(link)
            raise (under_way or self._translate(exc, None if whole else (link.pid, link.started))) from exc
        except BaseException:
            # A signal handler raised in the middle: the state of this connection is unknown.
            if link.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                self._give_back(link)
            else:
                hang_up(link)
            raise
        self._give_back(link)
        return result

    def connect(self) -> Link:
        """Return a new connection, which the caller closes."""
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
        """Leave the connections to the parent: the child must send nothing over them."""
        links = self._idle
        self._fresh()
        self.disown(links)

    def disown(self, links: Iterable[Link]) -> None:
        """Close connections of the parent process without sending anything."""
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
            hang_up(link)  # unexpected data: the server closes the connection

    def _give_back(self, link: Link) -> None:
        link.used_at = time.monotonic()
        surplus: Link | None = link
        with self._mutex:
            if not self._closed:
                self._idle.append(link)
                is_old = link.used_at - self._idle[0].used_at > IDLE_SECONDS
                surplus = self._idle.pop(0) if is_old else None
        if surplus is not None:
            hang_up(surplus)

    # Errors

    def _translate(self, exc: psycopg.Error, broken: tuple[int, str] | None) -> Exception:
        code = exc.sqlstate or ""
        if code.startswith("PB"):
            return rule_of(exc)
        if code.startswith(_CONNECTION) or broken is not None and (not code or code in _GONE):
            return _Cut(one_line(exc), *(broken or (0, "")))
        if code in _REPEAT:
            return _Clash(one_line(exc))
        if code == "53100":
            return StoreFull(f"the disk of {self.place} has no room: free some space and repeat")
        if code in _TEXT:
            return InvalidText(f"the database cannot hold this text: {one_line(exc)}")
        if code == "42501":
            return StoreRefused(f"{self.place}: {one_line(exc)}: grant it or use another role")
        return StoreFailed(f"{one_line(exc)} at {self.place}")


def _in_transaction(work: Callable[[Link], T], link: Link) -> T:
    """Run work through a pooler: the settings hold for this transaction only, and nothing stays in the session."""
    with link.transaction():
        link.set_up(local=True)
        return work(link)


class _Cut(Exception):
    """The connection broke after something was sent; names the process of the server."""

    def __init__(self, reason: str, pid: int, started: str) -> None:
        super().__init__(reason)
        self.pid = pid
        self.started = started


class _Clash(Exception):
    """The server rolled it back because of another transaction."""


def refused_values(exc: BaseException) -> bool:
    """Return whether a sound server refused the values of a statement."""
    cause = exc.__cause__
    if not isinstance(exc, StoreFailed) or not isinstance(cause, psycopg.Error):
        return False
    return cause.sqlstate[:2] in _VALUES if cause.sqlstate else isinstance(cause, psycopg.DataError)


@contextmanager
def within(connection: Any, broken_rule: Callable[[Rule], Exception]) -> Iterator[Any]:
    """Work inside a transaction of the application: if it fails, only this part is rolled back."""
    if not isinstance(connection, psycopg.Connection):
        raise StoreRefused(f"a psycopg connection is needed; found {type(connection).__name__}")
    try:
        _require_transaction(connection)
        with connection.transaction():
            yield connection
    except psycopg.Error as exc:
        if (exc.sqlstate or "").startswith("PB"):
            raise broken_rule(rule_of(exc)) from exc
        raise StoreFailed(f"{one_line(exc)} in the application's transaction") from exc


def _require_transaction(connection: psycopg.Connection[Any]) -> None:
    """Make sure that a transaction of the application is open, so that the block becomes a part of it."""
    if connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
        if connection.autocommit:
            raise InvalidInput("no transaction is open on this connection: begin one, and commit it afterwards")
        connection.execute("select 1")  # begins it
