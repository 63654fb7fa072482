"""Statements about users."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from pabal.chat.events import at_milliseconds
from pabal.chat.ledger.contract import User
from pabal.chat.ledger.session import Row, Session, parameters
from pabal.errors import EmailTaken

_USER = "id, email, password_hash, created_at"


class Made(NamedTuple):
    """A user to be."""

    id: str
    email: str
    password_hash: str
    created_at: int


def add(db: Session, made: Made) -> User:
    """Add a user. Repeating it with the same id is no conflict."""
    row = (made.id, made.email, _key(made.email), made.password_hash, made.created_at)
    db.rows(
        "insert into pabal.users (id, email, email_key, password_hash, created_at) values (?, ?, ?, ?, ?) "
        "on conflict do nothing",
        row,
    )
    found = by_email(db, made.email)
    if found is None or found.id != made.id:
        raise EmailTaken("there is a user of this email")
    return found


def by_email(db: Session, email: str) -> User | None:
    rows = db.rows(f"select {_USER} from pabal.users where email_key = ?", (_key(email),))
    return _user(rows[0]) if rows else None


def known(db: Session, ids: Collection[str]) -> set[str]:
    """Return those of these ids that are a user's."""
    if not ids:
        return set()
    rows = db.rows(f"select id from pabal.users where id in {parameters(len(ids), 1)}", list(ids))
    return {row[0] for row in rows}


def _key(email: str) -> str:
    return email.casefold()


def _user(row: Row) -> User:
    return User(row[0], row[1], row[2], at_milliseconds(row[3]))
