"""The archive of a team: every message that somebody got, kept for threads and search after its queue has forgotten it.

The monitor adds a message when it gives it to its agent. The queues decide about every message; the archive may be
deleted at any time, and then only the history is gone.

Words are found by their beginning. Korean, Japanese and Chinese text has no spaces that separate its words in a usable
way, so it is indexed by pairs of characters and found by any part of two characters or more, or by one character.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pabal import jsontext
from pabal.codecs.mime.addresses import named, read_message_id
from pabal.codecs.mime.fields import DELIVERED_TO, IN_REPLY_TO
from pabal.errors import InvalidInput
from pabal.jsontext import Json
from pabal.message import Message
from pabal.sql.connection import Connection
from pabal.sql.migrate import migrate
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction

FILE = "archive.db"
_COLUMNS = "id, thread, sender, recipients, type, priority, subject, body, at, in_reply_to"
_TITLES = ("title", "subject", "goal", "issue_title", "summary", "question", "text", "message")
_LONGEST_SUBJECT = 120


class MailItem(NamedTuple):
    """A message as lists show it. `id` is that of the copy, `origin` that of the message without the number of a copy.

    `agent` is the one whose mail it is. `state` is waiting, delayed, in hand, done, dead or, in the archive, empty.
    """

    id: str
    origin: str
    thread: str
    sender: str
    to: tuple[str, ...]
    type: str
    priority: int
    subject: str
    body: Json
    at: float
    in_reply_to: str = ""
    agent: str = ""
    state: str = ""
    path: str = ""
    receipt: str = ""
    attempt: int = 0


def item_of(agent: str, message: Message, **more: Any) -> MailItem:
    """Return a message of an agent as an item."""
    origin = _origin_of(message)
    answered = message.headers.get(IN_REPLY_TO, "")
    return MailItem(
        id=message.id,
        origin=origin,
        thread=message.thread_id or origin,
        sender=message.sender,
        to=named(message).all or (agent,),
        type=message.type,
        priority=message.priority,
        subject=subject_of(message),
        body=None if isinstance(message.body, bytes) else message.body,
        at=message.created_at,
        in_reply_to=_id_of(answered),
        agent=agent,
        **more,
    )


def subject_of(message: Message) -> str:
    """Return the subject of a message, or the line of its body that serves best as one."""
    texts = [message.headers.get("Subject", "")]
    if isinstance(message.body, dict):
        texts += [value for name in _TITLES if isinstance(value := message.body.get(name), str)]
    elif isinstance(message.body, str):
        texts.append(message.body)
    first = next((text.strip() for text in texts if text.strip()), message.type)
    # It becomes the header of an answer, which holds no control character.
    line = "".join(char if char.isprintable() else " " for char in first.splitlines()[0]).strip() or message.type
    return line if len(line) <= _LONGEST_SUBJECT else f"{line[: _LONGEST_SUBJECT - 1]}…"


def _origin_of(message: Message) -> str:
    """Return the id of a message without the number that the copies for its recipients have."""
    owner = message.headers.get(DELIVERED_TO, "")
    recipients = named(message).all
    if owner not in recipients:
        return message.id
    return message.id.removesuffix(f"-{recipients.index(owner) + 1}")


def _id_of(raw: str) -> str:
    try:
        return read_message_id(raw)[0] if raw else ""
    except InvalidInput:
        return raw


class Archive:
    """The database of the archive."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, path: Path) -> Archive:
        return cls(Database(path, prepare=_prepare, committed=lambda queues: None))

    def close(self) -> None:
        self._database.close()

    def add(self, items: Sequence[MailItem]) -> None:
        """Add messages; those that are there stay as they are."""

        def work(tx: Transaction) -> None:
            for item in items:
                body = jsontext.encode(item.body).decode()
                row = (
                    *(item.origin, item.thread, item.sender, "\n".join(item.to), item.type, item.priority),
                    *(item.subject, body, item.at, item.in_reply_to),
                )
                for (number,) in list(tx.run(_ADD, row)):
                    words = (" ".join(words_of(item.subject)), " ".join(words_of(text_of(item.body))))
                    tx.run("insert into words (rowid, subject, body) values (?, ?, ?)", (number, *words))

        self._database.write(work, durable=False)

    def find(self, id: str) -> MailItem | None:
        """Return the message with this id, or of which this is the id of a copy."""
        plain = re.sub(r"-\d{1,4}\Z", "", id)
        ask = f"select {_COLUMNS} from messages where id in (?, ?) order by id = ? desc limit 1"
        return next(iter(self._items(ask, (id, plain, id))), None)

    def thread(self, thread: str) -> list[MailItem]:
        """Return the messages of a thread, the oldest first."""
        return self._items(f"select {_COLUMNS} from messages where thread = ? or id = ? order by at", (thread, thread))

    def search(
        self, query: Query, *, sender: str = "", to: str = "", type: str = "", since: float = 0.0, limit: int = 50
    ) -> list[MailItem]:
        """Return the messages that contain all words of the query, the newest first."""
        bindings = (query.expression, since, sender, sender, type, type, to, to, limit)
        return self._items(_SEARCH, bindings)

    def forget(self, before: float) -> None:
        """Remove the messages that are older than this instant."""

        def work(tx: Transaction) -> None:
            tx.run("delete from words where rowid in (select number from messages where at < ?)", (before,))
            tx.run("delete from messages where at < ?", (before,))

        self._database.write(work, durable=False)

    def _items(self, ask: str, bindings: tuple[Any, ...]) -> list[MailItem]:
        return self._database.read(lambda db: [_item(row) for row in db.execute(ask, bindings)])


def _item(row: tuple[Any, ...]) -> MailItem:
    id, thread, sender, recipients, type, priority, subject, body, at, in_reply_to = row
    to = tuple(recipients.split("\n"))
    read = jsontext.read(body.encode())
    return MailItem(id, id, thread, sender, to, type, priority, subject, read, at, in_reply_to, agent=to[0])


def _prepare(connection: Connection) -> None:
    migrate(connection, "archive", "pabal.apps.ignite")


_ADD = f"insert or ignore into messages ({_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) returning number"
_SEARCH = f"""
select {_COLUMNS} from messages
where number in (select rowid from words where words match ?) and at >= ?
  and (? = '' or sender = ?) and (? = '' or type = ?)
  and (? = '' or instr(char(10) || recipients || char(10), char(10) || ? || char(10)))
order by at desc limit ?
"""


# Words

# Scripts whose words are not separated: kana, ideographs, Hangul.
_UNSPACED = (
    "\u1100-\u11ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_run = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|[^\W_{_UNSPACED}]+")
_piece = re.compile(r'"([^"]*)"|(\S+)')


def text_of(body: Json) -> str:
    """Return all text in a body, without the names of fields."""
    if isinstance(body, dict):
        return "\n".join(text_of(value) for value in body.values())
    if isinstance(body, list):
        return "\n".join(map(text_of, body))
    return "" if body is None or isinstance(body, bool) else str(body)


def words_of(text: str) -> list[str]:
    """Return the words of a text, each letter in one form; of unspaced scripts each pair of characters and the last."""
    return [word for run, unspaced in _runs(text) for word in (_pairs(run) if unspaced else [run])]


def _runs(text: str) -> Iterator[tuple[str, bool]]:
    same = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    for found in _run.finditer(same):
        yield found[0], found["unspaced"] is not None


def _pairs(run: str) -> list[str]:
    return [run[at : at + 2] for at in range(len(run))]


class Query:
    """What is searched: words that must all occur, each by its beginning. Words in double quotes stand together."""

    def __init__(self, text: str) -> None:
        self._phrases = [phrase for quoted, plain in _piece.findall(text) if (phrase := _phrase(quoted or plain))]
        if not self._phrases:
            raise InvalidInput(f"a search needs at least one word of letters or digits; found {text!r:.60}")

    @property
    def expression(self) -> str:
        """The query as FTS5 reads it."""
        return " AND ".join(f'"{" ".join(words)}"{"*" * open}' for words, open in self._phrases)

    def matches(self, text: str) -> bool:
        """Return whether a text contains the words, for messages that are not in the archive yet."""
        words = words_of(text)
        return all(_occurs(phrase, open, words) for phrase, open in self._phrases)


def _phrase(text: str) -> tuple[list[str], bool] | None:
    """Return the words of a phrase, and whether its last word is only the beginning of one."""
    runs = list(_runs(text))
    if not runs:
        return None
    last, unspaced = runs[-1]
    words = [word for run, pairs in runs[:-1] for word in (_pairs(run) if pairs else [run])]
    if unspaced and len(last) > 1:
        return [*words, *_pairs(last)[:-1]], False
    return [*words, last], True


def _occurs(phrase: Sequence[str], open: bool, words: Sequence[str]) -> bool:
    *whole, last = phrase
    for at in range(len(words) - len(phrase) + 1):
        end = words[at + len(whole)]
        if words[at : at + len(whole)] == whole and (end.startswith(last) if open else end == last):
            return True
    return False
