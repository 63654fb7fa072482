"""One connection to PostgreSQL: how it is made, what it hears, and whom a server refuses.

No statement is waited for without end, and every connection has settings of its own: commits are flushed whatever the
role's default says, and plans do not depend on statistics.
"""

from __future__ import annotations

import select
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, LiteralString
from urllib.parse import parse_qsl, quote, urlencode

from pabal.errors import ExtraMissing, InvalidUrl, StoreRefused

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as exc:
    raise ExtraMissing("stores on PostgreSQL need psycopg: pip install 'pabal[postgres]'") from exc

ANSWER_SECONDS = 60.0
_OF_ANSWER = 5 / 6
_CONNECT_SECONDS = 5
_LEAST_VERSION = 140_000  # knows how to end the statement of a client that has gone
# The table is small at first and its statistics are old by the time it is large: plans must not depend on them.
_SETTINGS = """
select set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
  set_config('plan_cache_mode', 'force_generic_plan', false), set_config('jit', 'off', false),
  set_config('client_min_messages', 'error', false), set_config('statement_timeout', %s, false),
  set_config('client_connection_check_interval', '1s', false),
  set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'on'
    else current_setting('synchronous_commit') end, false),
  (select backend_start::text from pg_stat_activity where pid = pg_backend_pid())"""


_WILL_NOT = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


class Unreached(Exception):
    """No connection could be had: nothing was sent."""


class Rule(Exception):
    """A rule of our own schema was broken: the server's word for it, and its details."""

    def __init__(self, code: str, message: str, detail: str) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail


class Link(psycopg.Connection[Any]):
    """One connection, on which no statement is waited for without end. `started` tells it from others of its pid."""

    pid, started, answer = 0, "", ANSWER_SECONDS
    again = False  # what is done with it now may have been done before, over a link that broke

    @cached_property
    def _cursors(self) -> dict[str, psycopg.Cursor[Any]]:
        return {}

    def ask(self, statement: LiteralString, values: Sequence[object], *, binary: bool = False) -> list[Any]:
        """Return the rows of a statement that comes again and again: it is prepared, and its cursor kept.

        A new cursor finds out anew how to write each value, at the price of all else that a client does.
        """
        cursor = self._cursors.get(statement)
        if cursor is None:
            cursor = self._cursors[statement] = self.cursor(binary=binary)
        rows = cursor.execute(statement, values, prepare=True).fetchall()
        if cursor.pgresult is not None:
            cursor.pgresult.clear()  # the documents in it may be large
        return rows

    @cached_property
    def _heard(self) -> select.poll:
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return poll

    def readable(self) -> bool:
        """Say whether something has come that was not read."""
        return bool(self._heard.poll(0))

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.answer if timeout is None else timeout)

    def words(self) -> list[str] | None:
        """Return what was heard on the channels listened to, without waiting; None if the link is broken."""
        words = []
        try:
            self.pgconn.consume_input()
            while (heard := self.pgconn.notifies()) is not None:
                words.append(heard.extra.decode())
        except psycopg.Error:
            return None
        return words if self.pgconn.status == psycopg.pq.ConnStatus.OK else None


def connect(url: str, place: str, answer: float = ANSWER_SECONDS) -> Link:
    """Return a new connection on which an answer is awaited for so many seconds.

    Raise Unreached if there is none to be had now, StoreRefused if never.
    """
    try:
        link = Link.connect(
            url,
            autocommit=True,
            connect_timeout=_CONNECT_SECONDS,
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=15_000,
            application_name="pabal",
        )
    except psycopg.Error as exc:
        raise _refusal(exc, place) from exc
    if (version := link.info.server_version) < _LEAST_VERSION:
        hang_up(link)
        raise StoreRefused(f"{place} is PostgreSQL {version // 10_000}: 14 or later is needed")
    try:
        link._pool = None  # as psycopg's own pool says that a program may end without closing it
        link.pid = link.pgconn.backend_pid
        link.answer = answer
        limit = f"{round(answer * _OF_ANSWER * 1000)}ms"  # the server gives up first, and says so
        link.started = (link.execute(_SETTINGS, (limit,)).fetchone() or ("",))[-1]
    except psycopg.Error as exc:
        hang_up(link)
        raise Unreached(told(exc)) from exc
    return link


def _refusal(exc: psycopg.Error, place: str) -> Exception:
    """Tell a server that will not have us from one that is not there yet."""
    said = told(exc)
    code = exc.sqlstate or ""
    if code.startswith("28") or code == "3D000" or any(word in said for word in _WILL_NOT):
        return StoreRefused(f"{place}: {said}: correct the URL or the server's rules")
    if isinstance(exc, psycopg.ProgrammingError):
        return InvalidUrl(f"not the URL of a PostgreSQL database: {said}")
    return Unreached(said)


def split_url(url: str, own: frozenset[str]) -> tuple[str, dict[str, str]]:
    """Return the URL as libpq takes it and the options in it that are ours."""
    query = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    rest = [(name, text) for name, text in query if name not in own]
    found = {name: text for name, text in query if name in own}
    place = url.partition("?")[0]
    return f"{place}?{urlencode(rest, quote_via=quote)}" if rest else place, found


def place_of(url: str) -> str:
    """Say which database a URL names, without its secrets."""
    try:
        found = conninfo_to_dict(url)
    except psycopg.Error as exc:
        raise InvalidUrl(f"not the URL of a PostgreSQL database: {told(exc)}") from exc
    # What is not said libpq has from its variables, or by default.
    usual = {option.keyword.decode(): (option.val or b"").decode() for option in psycopg.pq.Conninfo.get_defaults()}
    host, port, name = (found.get(field) or usual[field] for field in ("host", "port", "dbname"))
    return f"postgresql://{host or 'localhost'}:{port}/{name}"


def rule_of(exc: psycopg.Error) -> Rule:
    """Return the rule of ours that a statement broke."""
    return Rule(exc.sqlstate or "", exc.diag.message_primary or "", exc.diag.message_detail or "")


def told(exc: Exception) -> str:
    """Return an error of the driver on one line."""
    return " ".join(str(exc).split())[:300] or type(exc).__name__


def hang_up(link: Link) -> None:
    """Close a connection, whatever state it is in."""
    with suppress(psycopg.Error):
        link.close()


def broken(link: Link) -> bool:
    """Say whether a connection that listens has broken; what it heard until now is forgotten."""
    return link.readable() and link.words() is None
