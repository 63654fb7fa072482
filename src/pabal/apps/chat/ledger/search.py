"""Search in the messages of a room, in an index of the database: FTS5 in SQLite, tsvector in PostgreSQL.

Both databases split text at spaces, and so find no word within Korean, Japanese or Chinese text. So text is split here,
as search engines do for these scripts: letters of other scripts form words, each pair of neighbours of these scripts
is a term (회의실: 회의, 의실). A query finds words by their beginning and pieces of these scripts anywhere. The server
needs no extension, both databases find the same, and one or two letters are enough, where trigrams need three.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from pabal.apps.chat.events import Kind
from pabal.apps.chat.ledger.database import Row, Session

_CJK = "\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff"
_RUN = re.compile(rf"([{_CJK}]+)|((?:(?![{_CJK}])[^\W_])+)")
_LONGEST = 100  # characters of a word
_MOST = 16  # parts of a query


class Term(NamedTuple):
    """A term of a text. `joins`: it overlaps the one before it."""

    text: str
    joins: bool = False


def terms_of(text: str) -> list[Term]:
    """Return the terms of a text in their order."""
    found: list[Term] = []
    for run, word in _RUN.findall(unicodedata.normalize("NFKC", text).casefold()):
        if word:
            found.append(Term(word[:_LONGEST]))
        else:
            found += [Term(run[at : at + 2], at > 0) for at in range(len(run))]
    return found


def parts_of(query: str) -> list[list[str]]:
    """Return the parts of a query, all of which a message must have: terms in a row, the last one as a beginning."""
    parts: list[list[str]] = []
    for term in terms_of(query):
        if not term.joins:
            parts.append([term.text])
        elif len(term.text) == 2:  # the last letter alone is in the pair before it
            parts[-1].append(term.text)
    return parts[:_MOST]


class Entry(NamedTuple):
    """A message for the index. Only texts can be found."""

    room_id: str
    sequence: int
    type: Kind
    content: str

    @property
    def terms(self) -> list[Term]:
        return terms_of(self.content) if self.type is Kind.TEXT else []


def note_column(db: Session) -> str:
    """Return the column of the messages that the index needs."""
    return "search_row" if db.fts5 else "terms"


def index(db: Session, added: Sequence[Entry]) -> list[str | int]:
    """Index messages; return the values of their note column."""
    if not db.fts5:
        return [_tsvector(entry.terms) for entry in added]
    [(last,)] = db.rows("select coalesce(max(rowid), 0) from pabal.search")
    notes: list[str | int] = []
    rows: list[Row] = []
    for entry in added:
        terms = " ".join(term.text for term in entry.terms)
        if terms:
            last += 1
            rows.append((last, _room(entry.room_id), terms, entry.room_id, entry.sequence))
        notes.append(last if terms else 0)
    db.many("insert into pabal.search (rowid, room, terms, room_id, sequence) values (?, ?, ?, ?, ?)", rows)
    return notes


def search(db: Session, columns: str, room_id: str, query: str, before: int, limit: int) -> list[Row]:
    """Return the newest messages before a sequence that have all parts of a query."""
    parts = parts_of(query)
    if not parts:
        return []
    named = ", ".join(f"m.{name.strip()}" for name in columns.split(","))
    if db.fts5:
        room = f'room : "{_room(room_id)}"'
        wanted = " AND ".join([room, *('terms : "' + " ".join(part) + '" *' for part in parts)])
        return db.rows(
            f"select {named} from pabal.search join pabal.messages m on m.room_id = pabal.search.room_id "
            "and m.sequence = pabal.search.sequence where pabal.search match ? and m.sequence < ? "
            "order by m.sequence desc limit ?",
            (wanted, before, limit),
        )
    wanted = " & ".join("(" + " <-> ".join(f"'{term}'" for term in part) + ":*)" for part in parts)
    return db.rows(
        f"select {named} from pabal.messages m where m.room_id = ? and m.terms @@ ?::tsquery and m.sequence < ? "
        "order by m.sequence desc limit ?",
        (room_id, wanted, before, limit),
    )


def forget(db: Session, room_id: str, up_to: int) -> None:
    """Remove the messages of a room up to a sequence from the index; those of tsvector go with their rows."""
    if db.fts5:
        rows = db.rows(
            "select search_row from pabal.messages where room_id = ? and sequence <= ? and search_row > 0",
            (room_id, up_to),
        )
        db.many("delete from pabal.search where rowid = ?", rows)


def _room(room_id: str) -> str:
    return room_id.replace("-", "")


def _tsvector(terms: Sequence[Term]) -> str:
    return " ".join(f"'{term.text}':{place}" for place, term in enumerate(terms, 1))
