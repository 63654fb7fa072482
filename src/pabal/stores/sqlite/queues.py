"""Queues as rows: their numbers, which never change and are therefore remembered, and their settings."""

from collections.abc import Mapping
from typing import Any

from pabal import jsontext
from pabal.errors import NameTaken
from pabal.names import check_name
from pabal.sql.connection import Connection
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction

_NAMED = "from queues where name = ?1 and name = ?1 collate binary"


def queue_id(tx: Transaction, known: Mapping[str, int], name: str) -> int:
    """Return the number of a queue, which comes into being here if need be; whoever watches it will be woken."""
    number = known.get(name) or tx.rings.get(name)
    if number is None:
        found = tx.run("select id, name from queues where name = ?", (name,)).fetchone()
        if found is not None and found[1] != name:
            raise NameTaken(f"queue {name!r} differs from {found[1]!r} only in case: use one of them")
        number = found[0] if found else tx.run("insert into queues (name) values (?) returning id", (name,)).get
    tx.rings[name] = number
    return number


class Queues:
    """The queues of one database. `known` holds the numbers that were committed and seen."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self.known: dict[str, int] = {}

    def number(self, name: str) -> int | None:
        """Return the number of a queue, or None if there is no such queue."""
        number = self.known.get(name)
        if number is None:
            check_name(name)
            number = self._db.read(lambda db: db.execute(f"select id {_NAMED}", (name,)).get)
            if number is not None:
                self.known[name] = number
        return number

    def names(self) -> list[str]:
        """Name every queue, sorted."""

        def look(db: Connection) -> list[str]:
            return [row[0] for row in db.execute("select name from queues order by name collate binary")]

        return self._db.read(look)

    def settings(self, name: str) -> Mapping[str, Any] | None:
        """Return the document given to `configure`, or None."""
        text = self._db.read(lambda db: db.execute(f"select settings {_NAMED}", (name,)).get)
        settings: Mapping[str, Any] | None = None if text is None else jsontext.decode(text.encode())
        return settings

    def configure(self, name: str, settings: Mapping[str, Any]) -> None:
        """Keep a document for this queue and wake its watchers."""
        text = jsontext.encode(dict(settings)).decode()
        check_name(name)

        def work(tx: Transaction) -> None:
            tx.run("update queues set settings = ? where id = ?", (text, queue_id(tx, self.known, name)))

        self._db.write(work, durable=True, essential=True)
