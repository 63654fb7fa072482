"""The calls of the HTTP interface, each with its method, path, types and the right that a key needs for it."""

from __future__ import annotations

import asyncio
import math
import re
import time
from base64 import b64decode
from binascii import Error as NotBase64
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

import pabal.aio
from pabal import jsontext
from pabal.clock import Clock, iso_stamp
from pabal.errors import InvalidInput, InvalidPolicy, InvalidReceipt, LeaseLost, MessageUnknown, QueueUnknown
from pabal.gateway.api import types
from pabal.gateway.api.people import People
from pabal.gateway.api.topics import TopicDesk
from pabal.message import replace
from pabal.names import check_id, check_name, no_queue
from pabal.policy.policy import document_of, policy_from
from pabal.queues.documents import (
    Document,
    QueueFigures,
    consumer_document,
    delivery_document,
    entry_document,
    figures_document,
    schedule_document,
)
from pabal.queues.queue import Queue, check_ids
from pabal.queues.redrive import lots, moved_from, redrive, send_back
from pabal.store import Entry, Receipt, State
from pabal.topic_store import Record
from pabal.topics.documents import TopicStatus, dead_record_document, record_body, record_document

_PREVIEW = 2000  # characters of a body that is too large for a list
_LISTED = 4096  # bytes of a body in a list
_SLICE = 500  # messages that one request looks at
_PAGE = 100  # of them at a time
_PACED_SECONDS = 2.0  # of a request with a rate
_PAGES = 6  # that one request reads at most
_REASON = 500  # characters of a reason that is counted
_DECODED = 1 << 18  # characters of a text that is read as JSON for a search
_BY_TEXT = ("type", "sender", "target", "group", "dedup_key", "unique", "thread_id", "trace_id", "reply_to")

Act = Callable[..., Awaitable[Any]]
A = TypeVar("A", bound=Act)
T = TypeVar("T")


class Call(NamedTuple):
    """A call of the interface: `query` and `body` are the types of what it takes, `answer` that of what it gives."""

    method: str
    path: str
    right: str
    words: str
    act: Act
    query: type[msgspec.Struct] | None = None
    body: Any = None
    answer: Any = None
    waits: bool = False  # until its client goes
    whole: bool = False  # of no queue: only for keys of all queues


CALLS: list[Call] = []


def call(method: str, path: str, right: str, answer: Any, **more: Any) -> Callable[[A], A]:
    """Add a method of `Calls` to the table; the first line of its docstring is the summary."""

    def add(act: A) -> A:
        words = (act.__doc__ or "").partition("\n")[0]
        CALLS.append(Call(method, path, right, words, act, answer=answer, **more))
        return act

    return add


class Calls:
    """Does what the calls say, with the queues of one connection."""

    def __init__(self, mq: pabal.aio.Connection, clock: Clock, topics: TopicDesk, people: People) -> None:
        self._mq = mq
        self._clock = clock
        self._topics = topics
        self._people = people

    # Queues

    @call("GET", "/queues", "look", types.Queues)
    async def list_queues(self) -> Document:
        """List the queues with their figures."""
        names = await self._mq.queues()
        return {"queues": await self._mq.threads(lambda: [self._figures(name) for name in names])}

    def _figures(self, name: str) -> QueueFigures:
        return figures_document(self._mq.blocking.queue(name), self._clock.now())

    @call("GET", "/queues/{queue}", "look", types.QueueOut)
    async def show_queue(self, queue: str) -> Document:
        """Show a queue with its policy."""
        await self._known(queue)
        at = self._clock.now()  # before the count: an act with this time takes nothing that was not counted
        figures = await self._mq.threads(self._figures, queue)
        try:
            policy = document_of(await self._mq.queue(queue).policy())
        except InvalidPolicy:
            policy = None
        return {**figures, "policy": policy, "at": iso_stamp(round(at, 3))}

    @call("PUT", "/queues/{queue}", "manage", types.Created)
    async def create_queue(self, queue: str) -> Document:
        """Make a queue, if it is not there."""
        return {"created": await self._mq.queue(check_name(queue)).create()}

    @call("DELETE", "/queues/{queue}", "manage", types.Removed, query=types.Forced)
    async def delete_queue(self, queue: str, given: types.Forced) -> Document:
        """Delete a queue with its policy; one that has messages only with `force`."""
        return {"removed": await (await self._known(queue)).delete(force=given.force)}

    @call("PUT", "/queues/{queue}/policy", "manage", types.QueueOut, body=dict[str, Any])
    async def set_policy(self, queue: str, given: dict[str, Any]) -> Document:
        """Give a queue a policy; what the document leaves out has its default."""
        await (await self._known(queue)).configure(policy_from(given))
        return await self.show_queue(queue)

    @call("POST", "/queues/{queue}/pause", "manage", types.QueueOut)
    async def pause_queue(self, queue: str) -> Document:
        """Stop all leasing from a queue; publishing goes on."""
        await (await self._known(queue)).pause()
        return await self.show_queue(queue)

    @call("POST", "/queues/{queue}/resume", "manage", types.QueueOut)
    async def resume_queue(self, queue: str) -> Document:
        """Let consumers take messages from a queue again."""
        await (await self._known(queue)).resume()
        return await self.show_queue(queue)

    # Messages

    @call("POST", "/queues/{queue}/messages", "send", types.PublishedMessages, body=types.NewMessages)
    async def publish(self, queue: str, given: types.NewMessages) -> Document:
        """Publish messages; they are on the disk when this answers. Makes the queue if it is not there."""
        target = self._mq.queue(check_name(queue))
        drafts = [await target.draft(_body_of(each), **_options(each)) for each in given.messages]
        found = await target.publish_many(drafts)
        return {"messages": [{"id": each.id, "duplicate": each.duplicate, "dead": each.dead} for each in found]}

    @call("GET", "/queues/{queue}/messages", "look", types.MessagePage, query=types.Look)
    async def list_messages(self, queue: str, given: types.Look) -> Document:
        """List messages of one state without taking them, or search them."""
        source = await self._known(queue)

        def listed() -> Document:
            keep = partial(_stored, most=_LISTED)
            found, after = _look(source.blocking, State(given.state), given.search, given.after, given.limit, keep)
            return {"messages": found, "next": after}

        return await self._mq.threads(listed)

    @call("GET", "/queues/{queue}/reasons", "look", types.Reasons, query=types.LookForReasons)
    async def list_reasons(self, queue: str, given: types.LookForReasons) -> Document:
        """Count the reasons for which messages are dead, of 500 of them in a request."""
        source = await self._known(queue)
        found, after = await self._mq.threads(_look, source.blocking, State.DEAD, "", given.after, _SLICE, _reason_of)
        counted = Counter(found).most_common()
        reasons = [{"code": code, "reason": reason, "messages": messages} for (code, reason), messages in counted]
        return {"reasons": reasons, "next": after}

    @call("GET", "/queues/{queue}/messages/{id}", "look", types.StoredMessage, query=types.LookAtOne)
    async def show_message(self, queue: str, id: str, given: types.LookAtOne) -> Document:
        """Show one message, in whatever state it is."""
        entry = await self._entry(queue, id)
        return await self._mq.threads(_stored, entry, given.most)

    @call("GET", "/queues/{queue}/messages/{id}/body", "look", bytes)
    async def download_body(self, queue: str, id: str) -> bytes:
        """Return the whole body of a message: bytes as they are, else its JSON; or what could not be read."""
        entry = await self._entry(queue, id)
        body = entry.data if entry.message is None else entry.message.body
        return body if isinstance(body, bytes) else await self._mq.threads(jsontext.encode, body)

    @call("POST", "/queues/{queue}/lease", "receive", types.LeasedMessages, query=types.LeaseTerms, waits=True)
    async def lease(self, queue: str, given: types.LeaseTerms) -> Document:
        """Take messages; they come back if they are not settled before their visibility timeout ends."""
        source = self._mq.queue(queue)
        found = await source.lease(given.limit, visibility=given.visibility, wait=given.wait)
        return {"messages": [delivery_document(each) for each in found]}

    @call("POST", "/queues/{queue}/ack", "receive", types.Settled, body=types.Receipts)
    async def ack(self, queue: str, given: types.Receipts) -> Document:
        """Settle messages as done."""
        source = self._mq.queue(queue)
        return await _settled(queue, given.receipts, source.ack)

    @call("POST", "/queues/{queue}/nack", "receive", types.Settled, body=types.Failed)
    async def nack(self, queue: str, given: types.Failed) -> Document:
        """Settle messages as failed: the policy of the queue decides whether and when they come back."""
        source = self._mq.queue(queue)
        return await _settled(queue, given.receipts, lambda receipt: source.nack(receipt, given.delay, given.reason))

    @call("POST", "/queues/{queue}/bury", "receive", types.Settled, body=types.Failed)
    async def bury(self, queue: str, given: types.Failed) -> Document:
        """Settle messages as dead."""
        if given.delay is not None:
            raise InvalidInput("delay: a message that is buried does not come back")
        source = self._mq.queue(queue)
        return await _settled(queue, given.receipts, lambda receipt: source.bury(receipt, given.reason))

    @call("POST", "/queues/{queue}/extend", "receive", types.Settled, body=types.Extension)
    async def extend(self, queue: str, given: types.Extension) -> Document:
        """Let leases end later."""
        source = self._mq.queue(queue)
        return await _settled(queue, given.receipts, lambda receipt: source.extend(receipt, given.seconds))

    @call("POST", "/queues/{queue}/redrive", "manage", types.RedriveAnswer, body=types.Redrive)
    async def redrive(self, queue: str, given: types.Redrive) -> Document:
        """Make dead messages ready again, with no attempts counted, in their queue or in another one."""
        source = await self._known(queue)
        target = (await self._known(given.to)).blocking if given.to else None
        most = _SLICE if given.rate is None else min(_SLICE, max(1, int(given.rate * _PACED_SECONDS)))
        chosen = await self._chosen(source, State.DEAD, given, most)
        if given.dry_run:
            return {**chosen, "kept": {}}
        done: list[str] = []
        kept: dict[str, str] = {}
        due = time.monotonic()
        for ids, seconds in lots(chosen["ids"], given.rate):
            redriven = await self._mq.threads(partial(redrive, source.blocking, ids, target, clock=self._clock))
            done += redriven.ids
            kept |= redriven.kept
            due += seconds
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        return {**chosen, "ids": done, "kept": kept}

    @call("POST", "/queues/{queue}/send-back", "manage", types.SentBack, body=types.SendBack)
    async def send_back(self, queue: str, given: types.SendBack) -> Document:
        """Send messages that were moved to this dead-letter queue back, with no attempts counted."""
        source = await self._known(queue)
        if not given.to and not given.dry_run:
            raise InvalidInput("to: name the queue that the messages came from; a dry_run counts them by queue")
        target = (await self._known(given.to)).blocking if given.to else None
        sources = Counter[str]()

        def moved_here(entry: Entry) -> bool:
            found = moved_from(entry.message, queue)
            if not found or given.to not in ("", found):
                return False
            sources[found] += 1
            return True

        chosen = await self._chosen(source, State.READY, given, only=moved_here)
        done, kept = chosen["ids"], dict[str, str]()
        if target is not None and done and not given.dry_run:
            done, kept = await self._mq.threads(send_back, source.blocking, done, target)
        return {**chosen, "ids": done, "kept": kept, "sources": dict(sources)}

    @call("POST", "/queues/{queue}/remove", "manage", types.Acted, body=types.Removal)
    async def remove(self, queue: str, given: types.Removal) -> Document:
        """Remove messages of one state for good; those in flight never."""
        source = await self._known(queue)
        chosen = await self._chosen(source, State(given.state), given)
        if given.dry_run or not chosen["ids"]:
            return chosen
        return {**chosen, "ids": await self._mq.threads(_remove, source.blocking, State(given.state), chosen["ids"])}

    @call("POST", "/queues/{queue}/cancel", "manage", types.Cancelled, body=types.Cancellation)
    async def cancel(self, queue: str, given: types.Cancellation) -> Document:
        """Take back messages that wait; their ids are remembered as after an ack."""
        source = await self._known(queue)
        return {"ids": await source.cancel(given.ids, inflight=given.inflight)}

    # The store

    @call("GET", "/consumers", "look", types.Consumers)
    async def list_consumers(self) -> Document:
        """List the consumers of the last hour, and what each one holds."""
        return {"consumers": [consumer_document(each) for each in await self._mq.consumers()]}

    @call("GET", "/schedules", "look", types.Schedules)
    async def list_schedules(self) -> Document:
        """List the schedules with their next times."""
        return {"schedules": [schedule_document(each) for each in await self._mq.schedules()]}

    # Topics

    @call("GET", "/topics", "look", types.TopicList)
    async def list_topics(self) -> Document:
        """List the topics with their records, groups and dead records."""
        return {"topics": await self._topics.summaries()}

    @call("GET", "/topics/{topic}", "look", TopicStatus)
    async def show_topic(self, topic: str) -> TopicStatus:
        """Show a topic with its partitions and groups."""
        return await self._topics.status(topic)

    @call("GET", "/topics/{topic}/records", "look", types.RecordPage, query=types.LookAtRecords)
    async def list_records(self, topic: str, given: types.LookAtRecords) -> Document:
        """List records of a topic without a group: from an offset or a time on, or the newest."""
        found = await self._topics.page(topic, given)
        records = await self._mq.threads(lambda: [_shown_record(each, _LISTED) for each in found.records])
        return {"records": records, "previous": found.previous, "next": found.next}

    @call("GET", "/topics/{topic}/records/{partition}/{offset}", "look", types.RecordOut, query=types.LookAtOne)
    async def show_record(self, topic: str, partition: str, offset: str, given: types.LookAtOne) -> Document:
        """Show one record."""
        record = await self._topics.record(topic, _number("partition", partition), _number("offset", offset))
        return await self._mq.threads(_shown_record, record, given.most)

    @call("GET", "/topics/{topic}/dead", "look", types.DeadRecordPage, query=types.LookAtDead)
    async def list_dead_records(self, topic: str, given: types.LookAtDead) -> Document:
        """List dead records of a topic that were not replayed yet, with why and for which group they are dead."""
        found = await self._topics.dead(topic, given)
        records = await self._mq.threads(lambda: [_shown_dead_record(each) for each in found.records])
        return {"records": records, "next": found.next}

    @call("POST", "/topics/{topic}/replay", "manage", types.Replayed, body=types.Replay)
    async def replay_dead_records(self, topic: str, given: types.Replay) -> types.Replayed:
        """Append dead records to their topic again, for the group that failed; 100 of them in a request."""
        return await self._topics.replay(topic, given)

    # Applications beside the store

    @call("GET", "/needs", "look", types.Needs, whole=True)
    async def list_needs(self) -> types.Needs:
        """List what waits for a person: questions, problems and mail of teams and kingdoms."""
        return await self._people.needs()

    @call("POST", "/needs/answer", "manage", types.NeedAnswered, body=types.NeedAnswer, whole=True)
    async def answer_need(self, given: types.NeedAnswer) -> types.NeedAnswered:
        """Answer a question, or reply to mail; the first answer counts."""
        return await self._people.answer(given)

    @call("GET", "/teams", "look", types.Teams, whole=True)
    async def list_teams(self) -> Document:
        """Show the teams of agents: who lives, what each one has in hand, and its mail."""
        return {"teams": await self._people.reports("ignite")}

    @call("GET", "/kingdoms", "look", types.Kingdoms, whole=True)
    async def list_kingdoms(self) -> Document:
        """Show the kingdoms: roles, soldiers, and what waits and why."""
        return {"kingdoms": await self._people.reports("kingdom")}

    async def _known(self, name: str) -> pabal.aio.Queue:
        names = await self._mq.queues()
        if name not in names:
            raise QueueUnknown(no_queue(check_name(name), names))
        return self._mq.queue(name)

    async def _entry(self, queue: str, id: str) -> Entry:
        entry = await (await self._known(queue)).find(check_id(id))
        if entry is None:
            raise MessageUnknown(f"no message {id!r:.140} in {queue}")
        return entry

    async def _chosen(
        self,
        source: pabal.aio.Queue,
        state: State,
        given: types.Selection,
        most: int = _SLICE,
        only: Callable[[Entry], bool] | None = None,
    ) -> Document:
        """Return the ids of a slice of the selection, where the next slice begins, and the time before which it is."""
        try:
            given_time = self._clock.now() if given.before is None else given.before.astimezone(UTC).timestamp()
        except OverflowError as exc:
            raise InvalidInput(f"before: a time in UTC of the years 1 to 9999; found {given.before}") from exc
        # Rounded as stores round the time of a death: else what was counted a moment ago might be left alone.
        before = round(given_time, 3)
        bound = iso_stamp(before)
        if given.ids is msgspec.UNSET:
            ids, after = await self._mq.threads(
                _look, source.blocking, state, given.search, given.after, most, _id_of, before, only
            )
            return {"ids": ids, "next": after, "before": bound}
        if given.search:
            raise InvalidInput("give ids or search, and not both")
        check_ids(given.ids)
        wanted = list(dict.fromkeys(given.ids))
        if given.after and given.after not in wanted:
            raise InvalidInput("after is the `next` of another answer; found one that is none of the ids")
        first = wanted.index(given.after) + 1 if given.after else 0
        part = wanted[first : first + (most if most < _SLICE else len(wanted))]
        until = math.inf if given.before is None else before
        ids = await self._mq.threads(lambda: [id for id in part if _is_in(source.blocking, id, state, until, only)])
        return {"ids": ids, "next": part[-1] if first + len(part) < len(wanted) else None, "before": bound}


def _remove(queue: Queue, state: State, ids: list[str]) -> list[str]:
    """Remove messages; return the ids of those that were removed, which others may have taken meanwhile."""
    if queue.store.purge(queue.name, state, limit=len(ids), ids=ids) == len(ids):
        return ids
    return [id for id in ids if queue.find(id) is None]


def _body_of(message: types.NewMessage) -> Any:
    if message.body_encoding is None:
        return message.body
    try:
        return b64decode(message.body, validate=True)
    except (NotBase64, TypeError, ValueError) as exc:
        raise InvalidInput(f"body: not base64 text, as body_encoding says: {exc}") from exc


def _options(message: types.NewMessage) -> dict[str, Any]:
    fields = (name for name in message.__struct_fields__ if name not in ("body", "body_encoding"))
    return {name: value for name in fields if (value := getattr(message, name)) is not None}


async def _settled(queue: str, receipts: list[str], settle: Callable[[str], Awaitable[None]]) -> Document:
    """Settle each receipt; raise one LeaseLost for all that are stale, after the others are settled."""
    for receipt in receipts:  # before the first is settled
        if Receipt.parse(receipt).queue != queue:
            raise InvalidReceipt(f"a receipt of another queue was given to {queue}")
    outcomes = await asyncio.gather(*(settle(receipt) for receipt in receipts), return_exceptions=True)
    lost: list[str] = []
    for outcome in outcomes:
        if isinstance(outcome, LeaseLost):
            lost += outcome.receipts
        elif isinstance(outcome, BaseException):
            raise outcome
    if lost:
        words = f"{len(lost)} of {len(receipts)} receipts are stale: their messages are settled or leased again"
        raise LeaseLost(words, tuple(lost))
    return {"settled": len(receipts)}


def _is_in(queue: Queue, id: str, state: State, before: float, only: Callable[[Entry], bool] | None) -> bool:
    entry = queue.find(id)
    return entry is not None and entry.state is state and _since(entry) <= before and (only is None or only(entry))


def _id_of(entry: Entry) -> str:
    return entry.id


def _reason_of(entry: Entry) -> tuple[str, str]:
    return (entry.failure.code, entry.failure.reason[:_REASON]) if entry.failure is not None else ("", "")


def _look(
    queue: Queue,
    state: State,
    search: str,
    after: str,
    limit: int,
    keep: Callable[[Entry], T],
    before: float | None = None,
    only: Callable[[Entry], bool] | None = None,
) -> tuple[list[T], str | None]:
    """Return up to `limit` messages that fit, of a slice of bounded length and size, and the cursor behind them.

    Of each message only what `keep` makes of it stays in memory: bodies may be large.
    """
    if not after.isprintable():
        raise InvalidInput("after is the `next` of another answer; found characters that it never has")
    fits, found = _fits(search), list[T]()
    seen = pages = 0
    # Pages that are cut short because their messages are large count as long ones.
    while seen < _SLICE and pages < _PAGES:
        page = queue.browse(state, after=after, limit=_PAGE)
        pages += 1
        if not page:
            return found, None
        for entry in page:
            after, seen = entry.cursor, seen + 1
            if before is not None and _since(entry) > before:
                continue
            if fits(entry) and (only is None or only(entry)):
                found.append(keep(entry))
                if len(found) == limit:
                    return found, after
    return found, after


def _fits(search: str) -> Callable[[Entry], bool]:
    """Return whether a message has the text that is searched for; in JSON it may have spaces, or none."""
    wanted = search.casefold()
    compact = re.sub(r'(?<="):\s+|(?<=,)\s+(?=["\[{])', lambda found: found[0].strip(), wanted)

    def fits(entry: Entry) -> bool:
        if any(wanted in each.casefold() for each in _texts(entry)):
            return True
        return any(wanted in text or compact in text for text in map(str.casefold, _bodies(entry)))

    return fits if wanted else lambda entry: True


def _since(entry: Entry) -> float:
    """Return when a message came or, if it is dead, when it died, in whole milliseconds."""
    if entry.state is State.DEAD and entry.failure is not None:
        return round(entry.failure.at, 3)
    return round(entry.message.created_at, 3) if entry.message is not None else 0.0


def _texts(entry: Entry) -> Iterator[str]:
    """Yield the texts of a message in which a search looks, but for its body."""
    yield entry.id
    if entry.failure is not None:
        yield entry.failure.code
        yield entry.failure.reason
    if (message := entry.message) is not None:
        yield from (getattr(message, name) for name in _BY_TEXT)
        for name, value in message.headers.items():
            yield f"{name}: {value}"
        if message.attributes:
            yield jsontext.encode(message.attributes).decode()


def _bodies(entry: Entry) -> Iterator[str]:
    """Yield the body of a message as text: JSON, bytes that may be text, or text as it is and the JSON that it has."""
    body = entry.data if entry.message is None else entry.message.body
    if not isinstance(body, str):
        yield _text(body)
        return
    yield body
    if len(body) <= _DECODED and body.lstrip()[:1] in ("{", "["):
        with suppress(ValueError, RecursionError):  # it only looks like JSON
            yield jsontext.encode(jsontext.decode(body.encode())).decode()


def _text(body: Any) -> str:
    return body.decode("utf-8", "replace") if isinstance(body, bytes) else jsontext.encode(body).decode()


def _stored(entry: Entry, most: int) -> Document:
    if entry.message is None:
        document = entry_document(entry._replace(data=entry.data[:most]))
        return {**document, "cursor": entry.cursor, "body_bytes": len(entry.data), "body_text": ""}
    body = entry.message.body
    large = isinstance(body, bytes) and len(body) > most  # then it is not written as base64 first
    shown = entry._replace(message=replace(entry.message, body=None)) if large else entry
    return _cut({**entry_document(shown), "cursor": entry.cursor}, body, most)


def _shown_record(record: Record, most: int) -> Document:
    return _cut(record_document(record), record_body(record), most)


def _shown_dead_record(record: Record) -> Document:
    return _cut(dead_record_document(record), record_body(record), _LISTED)


def _cut(document: Document, body: Any, most: int) -> Document:
    """Add the size of a body and its text; leave a body out that is too large."""
    text = _text(body)
    size = len(body) if isinstance(body, bytes) else len(text.encode())
    if size > most:
        document |= {"body": None, "body_encoding": None}
        text = text[:_PREVIEW]
    return {**document, "body_bytes": size, "body_text": text}


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise InvalidInput(f"{name} is a number in digits; found {text!r:.40}")
    return int(text)
