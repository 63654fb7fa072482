"""PostgreSQL: one server for all contenders, a bare psycopg loop on it, and Pabal beside that.

The bare loop is what a careful user writes by hand: a table with ids, priorities and due times, and the one index
without which no queue finds its next message. Each step is one statement that commits itself:

    publish      insert into bare (id, body) values (…) on conflict do nothing
    lease        with first as materialized (the first ready, for update skip locked)
                 update bare set token, until from first where the ids are equal returning id, body
    ack          delete from bare where id and token are those

A hundred per call: `executemany` of the insert in one transaction; one update of the first hundred; one delete by an
array of ids. Both sides flush every commit.
"""

import atexit
import sys
import uuid
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import psycopg

from ours import Ours
from subject import BODY

sys.path.append(str(Path(__file__).parent.parent))

from tests.services.postgres import PostgresServer, running

_SCHEMA = """
create table {0} (
  id text collate "C" primary key, priority int not null default 0, due_at timestamptz not null default now(),
  token text, until timestamptz, body bytea not null
);
create index on {0} (priority desc, due_at, id) where token is null"""


@cache
def server() -> PostgresServer:
    """Start the server with the first who asks; it ends with the program."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(running())


class RawPostgres:
    """The loop above, as tight as Python allows."""

    def __init__(self, place: Path) -> None:
        table = f"bare_{uuid.uuid4().hex[:8]}"
        self._db = psycopg.connect(server().url, autocommit=True)
        self._db.execute(_SCHEMA.format(table))
        self._insert = f"insert into {table} (id, body) values (%s, %b) on conflict do nothing"
        self._lease = (
            f"with first as materialized (select id from {table} where token is null and due_at <= now()"
            " order by priority desc, due_at, id limit %s for update skip locked)"
            f" update {table} set token = %s, until = now() + interval '30 s' from first where {table}.id = first.id"
            f" returning {table}.id, body"
        )
        self._ack = f"delete from {table} where id = any(%s) and token = %s"
        self._body = BODY.encode()

    def publish(self) -> None:
        self._db.execute(self._insert, (str(uuid.uuid4()), self._body), prepare=True)

    def publish_many(self, count: int) -> None:
        with self._db.transaction():
            self._db.cursor().executemany(self._insert, [(str(uuid.uuid4()), self._body) for _ in range(count)])

    def take(self) -> None:
        self.take_many(1)

    def take_many(self, count: int) -> None:
        token = uuid.uuid4().hex
        leased = self._db.execute(self._lease, (count, token), prepare=True).fetchall()
        assert len(leased) == count
        self._db.execute(self._ack, ([id for id, _body in leased], token), prepare=True)

    fill = publish_many

    def close(self) -> None:
        self._db.close()


class OursOnPostgres(Ours):
    """Pabal in a schema of its own on that server."""

    def __init__(self, place: Path) -> None:
        self._open(f"{server().url}?schema=ours_{uuid.uuid4().hex[:8]}")
