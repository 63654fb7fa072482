"""Publish in one statement, on a connection of the store or inside a transaction of the application."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from pabal import jsontext
from pabal.errors import QueueFull, Uncertain
from pabal.sql.postgres import within
from pabal.sql.postgres_link import Link, Rule
from pabal.store import Draft, Published, Terms, check_targets, with_copies
from pabal.stores.postgres.counters import PUBLISHED_IN
from pabal.stores.postgres.queues import Queues
from pabal.stores.rows import EncodedDraft, encode_drafts, failure_text

Encoded = Sequence[EncodedDraft[bytes]]

_PUBLISH = """
select pabal.publish(%s::integer[], %s::text[], %s::smallint[], %s::double precision[], %s::text[], %s::text[],
  %s::text[], %s::double precision[], %s::jsonb, %s::bigint[], %s::integer[], %b::bytea, %s)"""
# The usual message alone: no function, no arrays, few values.
_PUBLISH_ONE = """
insert into pabal.messages (queue_id, state, rank, due_at, state_since, id, crc, document)
values (%s, 0, 0, pabal.wall(), pabal.wall(), %s, %s, %b) on conflict (queue_id, id) do nothing
returning pg_notify('pabal.bell', %s)"""


class Publisher(Queues):
    def publish(self, drafts: Sequence[Draft]) -> list[Published]:
        """Store the messages durably, all or none."""
        if not drafts:
            self._server.require_usable()
            return []
        check_targets(self, drafts)
        encoded = self._encode(drafts)
        put = self._put_one if len(encoded) == 1 and _is_plain(drafts[0]) else self._put
        try:
            answers = self._server.run(partial(put, encoded), repeatable=False)
        except Uncertain as exc:
            raise Uncertain(str(exc), tuple(draft.message.id for draft in drafts)) from exc.__cause__
        except Rule as exc:
            raise _full(exc) from exc
        self._counters.published(drafts, answers)
        return answers

    def publish_in(self, connection: Any, drafts: Sequence[Draft]) -> list[Published]:
        """Publish inside a transaction of the application's own psycopg connection: it is there if that commits."""
        if not drafts:
            self._server.require_usable()
            return []
        check_targets(self, drafts)
        encoded = self._encode(drafts)
        with within(connection, _full) as theirs:
            [(firsts,)] = theirs.execute(self._sql(_PUBLISH), self._columns(encoded), prepare=True).fetchall()
            answers = _answers(encoded, firsts)
            fresh = Counter(draft.queue for draft, answer in zip(drafts, answers, strict=True) if not answer.duplicate)
            for queue, count in fresh.items():
                theirs.execute(self._sql(PUBLISHED_IN), (self._known[queue], count), prepare=True)
        return answers

    def _encode(self, drafts: Sequence[Draft]) -> Encoded:
        """Encode the drafts and make their queues; raise InvalidInput before anything is sent."""
        encoded = encode_drafts(drafts, self._codec)
        self._make(draft.queue for draft in drafts)
        return encoded

    def _put(self, encoded: Encoded, link: Link) -> list[Published]:
        [(firsts,)] = link.ask(self._sql(_PUBLISH), self._columns(encoded))
        return _answers(encoded, firsts)

    def _columns(self, encoded: Encoded) -> list[Any]:
        return columns_of(encoded, self._known, self._clock.now())

    def _put_one(self, encoded: Encoded, link: Link) -> list[Published]:
        [(draft, document, crc)] = encoded
        id, queue = draft.message.id, draft.queue
        values = (self._known[queue], id, crc, document, queue)
        return [Published(id, duplicate=not link.ask(self._sql(_PUBLISH_ONE), values))]


def _is_plain(draft: Draft) -> bool:
    """Return whether a message is ready at once, for every consumer, and independent of others: the usual message."""
    message = draft.message
    other = message.group or message.dedup_key or message.target or message.priority or message.expires_at is not None
    return not (other or message.unique or draft.delay or draft.terms.max_waiting or draft.failure)


def columns_of(encoded: Encoded, numbers: dict[str, int], now: float, *, limited: bool = True) -> list[Any]:
    """Return the arguments of the SQL function `publish`: one array for each column, and all documents joined.

    Terms are passed whole, as a JSON array, and only if a message needs them. Follow-ups are not `limited`. `now` is
    the client's clock, by which a time to live was turned into an instant.
    """
    drafts = [draft for draft, _, _ in encoded]
    messages = [draft.message for draft in drafts]
    groups, keys = [message.group or None for message in messages], [message.dedup_key or None for message in messages]
    more = with_copies(drafts) is not drafts or any(message.unique for message in messages)
    terms = [draft.terms if limited else draft.terms._replace(max_waiting=0) for draft in drafts]
    return [
        array(numbers[draft.queue] for draft in drafts),
        texts(message.id for message in messages),
        array(-message.priority for message in messages),
        array(draft.delay for draft in drafts),
        texts(message.target for message in messages),
        texts(groups) if any(groups) else None,
        texts(keys) if any(keys) else None,
        array(message.expires_at for message in messages),
        _json_of(drafts, terms) if any(keys) or any(one.max_waiting for one in terms) or more else None,
        array(crc for _, _, crc in encoded),
        array(len(document) for _, document, _ in encoded),
        b"".join(document for _, document, _ in encoded),
        now,
    ]


def _json_of(drafts: list[Draft], terms: list[Terms]) -> str:
    """Return the terms of the drafts, with their unique keys, and the failures of those that are stored as dead."""
    pairs = zip(drafts, terms, strict=True)
    rows = [
        {**one._asdict(), "failure": failure_text(draft.failure), "unique": draft.message.unique or None}
        for draft, one in pairs
    ]
    return jsontext.encode(rows).decode()


def array(values: Iterable[float | None]) -> str:
    """Return numbers as the text of an array. The driver's own way to write lists costs ten times as much."""
    return "{" + ",".join(["null" if value is None else str(value) for value in values]) + "}"


def texts(values: Iterable[str | None]) -> str:
    """Return texts as the text of an array."""
    return "{" + ",".join(["null" if value is None else _quoted(value) for value in values]) + "}"


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _answers(encoded: Encoded, firsts: Sequence[str | None] | None) -> list[Published]:
    """Return the answers. `firsts` has the ids of the messages that were repeated; it is None if all were new."""
    if firsts is None:
        return [Published(draft.message.id) for draft, _, _ in encoded]
    return [
        Published(draft.message.id) if first is None else Published(first, True)
        for (draft, _, _), first in zip(encoded, firsts, strict=True)
    ]


def _full(rule: Rule) -> QueueFull:
    most, wanted = rule.detail.split()
    return QueueFull(f"{rule} holds as many waiting messages as it may, {most}: {wanted} were refused")
