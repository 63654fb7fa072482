"""One connection to PostgreSQL: connect, statements, notifications, and errors of connecting.

Every statement has a timeout. Every connection has its own settings: commits are flushed whatever the default of the
role is, and plans do not depend on statistics.

A pooler, such as PgBouncer in transaction mode, may give each transaction another session of the server. Through one,
nothing is prepared, and the settings are made in each transaction; see `Link.pooled`.
"""

from __future__ import annotations

import re
import select
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final, LiteralString
from urllib.parse import parse_qsl, quote, urlencode

from pabal.errors import ExtraMissing, InvalidUrl, StoreRefused
from pabal.names import shown_url

try:
    import psycopg
    from psycopg.conninfo import conninfo_to_dict
except ModuleNotFoundError as exc:
    raise ExtraMissing(
        "stores on PostgreSQL need psycopg: install Pabal with its extra 'postgres' (README, Extras)"
    ) from exc

ANSWER_SECONDS = 60.0
_OF_ANSWER = 5 / 6
_CONNECT_SECONDS = 5
_LEAST_VERSION = 140_000  # it can end the statement of a client that is gone
# The table is small at first, and its statistics are old when it is large: plans must not depend on them.
_SETTINGS: Final = """
select set_config('enable_seqscan', 'off', %(local)s), set_config('enable_bitmapscan', 'off', %(local)s),
  set_config('plan_cache_mode', 'force_generic_plan', %(local)s), set_config('jit', 'off', %(local)s),
  set_config('client_min_messages', 'error', %(local)s), set_config('statement_timeout', %(limit)s, %(local)s),
  set_config('client_connection_check_interval', '1s', %(local)s),
  set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'on'
    else current_setting('synchronous_commit') end, %(local)s)"""
_SESSION = "select pid, backend_start::text from pg_stat_activity where pid = pg_backend_pid()"


# What libpq says about an option before it asks any server.
_OPTION_REFUSED = re.compile(r"\binvalid [\w ]*(?:value|number|option)\b|could not match \d+")
_WILL_NOT = ("authentication failed", "does not exist", "no pg_hba.conf entry", "no password supplied")


class Unreached(Exception):
    """No connection could be made: nothing was sent."""


class Rule(Exception):
    """A function of our schema raised an error: its code, message and detail."""

    def __init__(self, code: str, message: str, detail: str) -> None:
        super().__init__(message)
        self.code = code
        self.detail = detail


class Link(psycopg.Connection[Any]):
    """One connection with a timeout for every statement. `started` and the pid name it, unless it is `pooled`."""

    pid, started, answer = 0, "", ANSWER_SECONDS
    pooled = False  # a pooler stands between: each transaction may have another session, which other programs use too
    used_at = 0.0  # on the monotonic clock
    again = False  # the current work may have been done before, over a connection that broke

    @cached_property
    def _cursors(self) -> dict[str, psycopg.Cursor[Any]]:
        return {}

    def ask(self, statement: LiteralString, values: Sequence[object], *, binary: bool = False) -> list[Any]:
        """Return the rows of a frequent statement: it is prepared, and its cursor is kept.

        A new cursor determines again how to write each value, which costs as much as all else that a client does.
        """
        cursor = self._cursors.get(statement)
        if cursor is None:
            cursor = self._cursors[statement] = self.cursor(binary=binary)
        rows = cursor.execute(statement, values, prepare=True).fetchall()
        if cursor.pgresult is not None:
            cursor.pgresult.clear()  # the documents in it may be large
        return rows

    def set_up(self, *, local: bool) -> None:
        """Make the settings, for this session or `local` for the current transaction."""
        limit = f"{round(self.answer * _OF_ANSWER * 1000)}ms"  # the server gives up first, with an error
        self.execute(_SETTINGS, {"limit": limit, "local": local})

    @cached_property
    def _poll(self) -> select.poll:
        poll = select.poll()
        poll.register(self.pgconn.socket, select.POLLIN)
        return poll

    def readable(self, seconds: float = 0.0) -> bool:
        """Return whether data has arrived that was not read, or arrives within some seconds."""
        return bool(self._poll.poll(seconds * 1000))

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.answer if timeout is None else timeout)

    def notifications(self) -> list[str] | None:
        """Return the payloads of notifications, without waiting; None if the connection is broken."""
        payloads = []
        try:
            self.pgconn.consume_input()
            while (found := self.pgconn.notifies()) is not None:
                payloads.append(found.extra.decode())
        except psycopg.Error:
            return None
        return payloads if self.pgconn.status == psycopg.pq.ConnStatus.OK else None


def connect(url: str, place: str, answer: float = ANSWER_SECONDS) -> Link:
    """Return a new connection that waits `answer` seconds for each answer.

    Raise Unreached if the server cannot be reached now, StoreRefused if it refuses us.
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
        refusal = _refusal(exc, place)
        raise refusal from (None if isinstance(refusal, InvalidUrl) else exc)
    if (version := link.info.server_version) < _LEAST_VERSION:
        hang_up(link)
        raise StoreRefused(f"{place} is PostgreSQL {version // 10_000}: 14 or later is needed")
    try:
        link._pool = None  # as in psycopg's own pool: a program may end without closing it
        link.answer = answer
        pid, started = link.execute(_SESSION).fetchone() or (0, "")
        if pid == link.pgconn.backend_pid:
            link.pid, link.started = pid, started
            link.set_up(local=False)
        else:
            link.pooled = True
            link.prepare_threshold = None
    except psycopg.Error as exc:
        hang_up(link)
        raise Unreached(one_line(exc)) from exc
    return link


def _refusal(exc: psycopg.Error, place: str) -> Exception:
    """Return the error for a failed connect: the server refuses us, or cannot be reached yet."""
    text = one_line(exc)
    code = exc.sqlstate or ""
    if code.startswith("28") or code == "3D000" or any(word in text for word in _WILL_NOT):
        return StoreRefused(f"{place}: {text}: correct the URL or the server's rules")
    if isinstance(exc, psycopg.ProgrammingError) or not code and _OPTION_REFUSED.search(text):
        return InvalidUrl(f"the URL of {place} has a wrong value: {_option_in(text)}")
    return Unreached(text)


def _option_in(text: str) -> str:
    """Return which option libpq refuses. Its value is not shown: it may be a part of a password."""
    found = re.search(r'option "(\w+)"|invalid (\w+)', text)
    return (found[1] or found[2]) if found else "correct it"


def for_libpq(url: str, own: frozenset[str]) -> tuple[str, dict[str, str]]:
    """Return the URL as libpq takes it, and our own options that were in it."""
    scheme, colon, rest = url.partition(":")
    place, _, options = f"{scheme.lower()}{colon}{rest}".partition("?")  # libpq knows only small letters
    query = parse_qsl(options, keep_blank_values=True)
    others = [(name, text) for name, text in query if name not in own]
    found = {name: text for name, text in query if name in own}
    return f"{place}?{urlencode(others, quote_via=quote)}" if others else place, found


def place_of(url: str) -> str:
    """Return which database a URL names, without its secrets."""
    try:
        found = conninfo_to_dict(url)
    except (psycopg.Error, UnicodeDecodeError):
        # The text of libpq shows the whole URL, with the password.
        raise InvalidUrl(f"not the URL of a PostgreSQL database: {shown_url(url)}") from None
    if not all(port.isdecimal() or not port for port in str(found.get("port") or "").split(",")):
        raise InvalidUrl("the port of a server must be a number of 1 to 65535")
    # libpq takes missing parts from PGHOST, PGPORT and PGDATABASE, or uses defaults.
    usual = {option.keyword.decode(): (option.val or b"").decode() for option in psycopg.pq.Conninfo.get_defaults()}
    host, port, name = (found.get(field) or usual[field] for field in ("host", "port", "dbname"))
    return f"postgresql://{host or 'localhost'}:{port}/{name}"


def rule_of(exc: psycopg.Error) -> Rule:
    """Return the error that a function of our schema raised."""
    return Rule(exc.sqlstate or "", exc.diag.message_primary or "", exc.diag.message_detail or "")


def one_line(exc: Exception) -> str:
    """Return an error of the driver on one line."""
    return " ".join(str(exc).split())[:300] or type(exc).__name__


def hang_up(link: Link) -> None:
    """Close a connection in any state."""
    with suppress(psycopg.Error):
        link.close()
