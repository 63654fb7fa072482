"""The desk of an agent that works on the queues of a store."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any

from pabal.clock import Clock, SystemClock
from pabal.connect import Connection, connect, parse_url
from pabal.errors import (
    InvalidInput,
    LeaseLost,
    MessageUnknown,
    PabalError,
    QueueNotEmpty,
    QueueUnknown,
    StoreClosed,
    StoreFailed,
    StoreMissing,
)
from pabal.ids import IdMaker
from pabal.mcp.desk import (
    REPEATED,
    check_offset,
    check_question,
    contains,
    entry_document,
    extension,
    failure_text,
    glance,
    message_document,
    waiting_time,
)
from pabal.mcp.leases import Call, Leases
from pabal.mcp.tools import (
    MOST_MESSAGES,
    MOST_SHOWN,
    QUEUE_TOOLS,
    Ack,
    Arguments,
    AskHuman,
    Document,
    Extend,
    Fail,
    LookAtQueue,
    ReceiveFromQueue,
    SendToQueue,
    Status,
    Tool,
)
from pabal.names import check_id, check_name, local_name, no_queue, shown_url
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.queues.waiter import Waiter
from pabal.store import Draft, Entry, Outcome, Receipt, Retry, State

HOLD = 1800.0  # seconds without a call after which a lease is renewed no more
HUMAN_QUEUE = "human"
_MOST_SEARCHED = 10_000  # messages of one search
_MOST_QUEUES = 100  # shown by status and look


class QueueDesk:
    """Serves the tools on a store, with the queues that the agent may use.

    The store is opened at the first call, and again after it failed.
    """

    tools: Sequence[Tool] = QUEUE_TOOLS

    def __init__(
        self,
        url: str,
        *,
        agent: str = "",
        human_queue: str = HUMAN_QUEUE,
        hold: float = HOLD,
        clock: Clock | None = None,
        may_use: Callable[[str], bool] = lambda queue: True,
    ) -> None:
        scheme, path = parse_url(url)
        self._url = url
        local = scheme in ("sqlite", "file", "hybrid", "mailbox")
        self._place = f"{scheme}:{path.absolute()}" if local else shown_url(url).strip("'")
        self._agent = check_name(agent, "agent") if agent else ""
        self._human_queue = check_name(human_queue)
        self._may_use = may_use
        self._clock = clock or SystemClock()
        self._ids = IdMaker(self._clock)
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._used = threading.local()  # the connection of the call in each thread
        self._queues: dict[str, Queue] = {}
        self._leases = Leases(self._extend_all, hold)
        self._tools: Mapping[str, Callable[[Any, Call], Document]] = {
            "send": self._send,
            "receive": self._receive,
            "ack": self._ack,
            "fail": self._fail,
            "extend": self._extend,
            "look": self._look,
            "ask_human": self._ask_human,
            "status": self._status,
        }

    def serve(self, name: str, arguments: Arguments, call: Call) -> Document:
        self._leases.sign()
        try:
            return self._tools[name](arguments, call)
        except (StoreFailed, StoreClosed):
            self._forget_store(self._used.connection)
            raise

    def release(self) -> None:
        """Give back every message that the agent holds."""
        for receipt in self._leases.clear():
            with suppress(PabalError):  # then its lease runs out
                self._give_back(receipt)

    def close(self, *, release: bool = True) -> None:
        if release:
            self.release()
        self._leases.clear()
        if self._connection is not None:
            self._forget_store(self._connection)

    # The store

    def _open(self, *, create: bool = False) -> Connection:
        with self._lock:
            if self._connection is None:
                self._connection = connect(self._url, consumer=self._agent, create=create, clock=self._clock)
            self._used.connection = self._connection
            return self._connection

    def _forget_store(self, failed: Connection) -> None:
        """Close a store that failed. One that another call has opened since then stays."""
        with self._lock:
            if self._connection is failed:
                self._connection = None
                self._queues.clear()
        with suppress(PabalError):
            failed.close()

    def _names(self) -> list[str]:
        return [name for name in self._open().queues() if self._may_use(name)]

    def _own(self, name: str, *, create: bool = False) -> Queue:
        """Return a queue that the agent may use."""
        if not self._may_use(check_name(name)):
            raise InvalidInput(f"your key may not use the queue {name}")
        return self._queue(name, create=create)

    def _queue(self, name: str, *, create: bool = False) -> Queue:
        connection = self._open(create=create)
        with self._lock:
            if len(self._queues) > _MOST_QUEUES:
                self._queues.clear()
            return self._queues.setdefault(name, connection.queue(name))

    def _known(self, name: str) -> Queue:
        queue, names = self._own(name), self._names()
        if name not in names:
            raise QueueUnknown(no_queue(name, names))
        return queue

    # Send and receive

    def _send(self, given: SendToQueue, call: Call) -> Document:
        if given.reply_to:
            self._own(given.reply_to, create=True)
        published = self._own(given.to, create=True).publish(
            given.body,
            type=given.type or None,
            sender=self._agent or None,
            priority=given.priority,
            dedup_key=given.dedup_key or None,
            thread_id=given.thread_id or None,
            reply_to=given.reply_to or None,
            delay=given.delay,
        )
        found: Document = {"ids": [published.id], "duplicate": published.duplicate}
        if published.dead:
            found["note"] = "the body does not fit the schema of the queue: the message is a dead letter"
        return found

    def _receive(self, given: ReceiveFromQueue, call: Call) -> Document:
        if not 1 <= given.max <= MOST_MESSAGES:
            raise InvalidInput(f"max must be 1 to {MOST_MESSAGES}; found {given.max}")
        wait = waiting_time(given.wait)
        found = self._lease(self._own(given.queue, create=True), given.max, wait, call)
        answer: Document = {"messages": [self._delivered(delivery) for delivery in found]}
        new = {delivery.receipt for delivery in found}
        if held := [str(receipt) for receipt in self._leases.receipts() if receipt not in new]:
            answer["held"] = held  # an agent whose context was cut has forgotten them
        return answer if found else answer | {"note": self._why_nothing(given.queue, wait)}

    def _lease(self, queue: Queue, limit: int, wait: float, call: Call) -> list[Delivery]:
        """Wait for messages and hold them for the agent, unless the call is cancelled: then they are given back."""
        with Waiter(queue) as waiter:
            call.waits(waiter.stop)
            found = waiter.lease(limit, None, wait)
        for delivery in found:
            self._leases.add(delivery.receipt, delivery.visibility)
        if found:
            call.took(partial(self._give_back_all, [delivery.receipt for delivery in found]))
        return found

    def _give_back_all(self, receipts: Sequence[Receipt]) -> None:
        for receipt in receipts:
            self._leases.drop(receipt)
            with suppress(PabalError):  # then its lease runs out
                self._give_back(receipt)

    def _give_back(self, receipt: Receipt) -> None:
        queue = self._queue(receipt.queue)
        entry = queue.find(receipt.id)
        queue.settler.settle(receipt, Retry(0.0, entry.failure if entry is not None else None))

    def _delivered(self, delivery: Delivery) -> Document:
        found = {"receipt": str(delivery.receipt), **message_document(delivery.message), "attempt": delivery.attempt}
        if delivery.failure is not None:
            found["failed_before"] = failure_text(delivery.failure)
        return found

    def _why_nothing(self, name: str, wait: float) -> str:
        queue, names = self._queue(name), self._names()
        if name not in names:
            return f"{no_queue(name, names)}; it is made by the first message"
        if queue.paused:
            return f"the queue is paused: a person can `pabal resume {name}`"
        counts = queue.counts()
        facts = ", ".join(f"{counts.get(state, 0)} {state}" for state in (State.DELAYED, State.INFLIGHT))
        return f"nothing came in {wait:g} seconds ({facts}); call receive again to go on waiting"

    # Settle

    def _receipt(self, text: str) -> tuple[Receipt, Queue]:
        receipt = Receipt.parse(text)
        return receipt, self._own(receipt.queue)

    def _ack(self, given: Ack, call: Call) -> Document:
        receipt, queue = self._receipt(given.receipt)
        reply = self._reply(receipt, queue, given.reply) if given.reply is not None else ()
        try:
            queue.ack(receipt, reply)
        except LeaseLost:
            if not self._is_removed_answer(receipt):
                raise
        self._leases.drop(receipt)
        self._remove_answers(receipt.queue)
        if given.reply is not None and not reply:
            return {"done": receipt.id, "note": REPEATED}
        return {"done": receipt.id} | ({"reply_ids": [draft.message.id for draft in reply]} if reply else {})

    def _reply(self, receipt: Receipt, queue: Queue, body: Any) -> tuple[Draft, ...]:
        entry = queue.find(receipt.id)
        if entry is None or entry.message is None or entry.state is not State.INFLIGHT:
            return ()  # it was settled, with this reply or without: the ack says which
        message = entry.message
        if not message.reply_to:
            raise InvalidInput("this message names no queue for a reply (reply_to): ack it without one, and send")
        # Whoever sent the message may use that queue; the agent may not be allowed to.
        target = self._queue(check_name(message.reply_to))
        answered = {"In-Reply-To": message.id}
        thread = message.thread_id or None
        return (target.draft(body, headers=answered, thread_id=thread, sender=self._agent or None),)

    def _fail(self, given: Fail, call: Call) -> Document:
        receipt, queue = self._receipt(given.receipt)
        if given.final:
            queue.bury(receipt, given.reason)
        else:
            queue.nack(receipt, given.retry_in, given.reason)
        self._leases.drop(receipt)
        entry = queue.find(receipt.id)
        return {"id": receipt.id, "state": str(entry.state) if entry is not None else "dropped"}

    def _extend(self, given: Extend, call: Call) -> Document:
        receipt, queue = self._receipt(given.receipt)
        seconds = extension(given.seconds)
        # Not for all these seconds: if this process is killed, the message should come back soon.
        lease = queue.policy.visibility
        queue.extend(receipt, lease)
        self._leases.add(receipt, lease, hold=seconds)
        return {"id": receipt.id, "seconds": seconds}

    def _extend_all(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        return self._open().store.extend(receipts, seconds)

    # Look

    def _look(self, given: LookAtQueue, call: Call) -> Document:
        check_offset(given.offset)
        if given.id:
            return {"messages": [entry_document(self._find(given.queue, given.id), offset=given.offset)]}
        if given.search:
            return self._search(given)
        if not given.queue:
            return {"messages": [], "queues": self._counts(), "note": "name a queue to see its messages"}
        page = self._known(given.queue).browse(given.state, after=given.after, limit=MOST_SHOWN)
        found: Document = {"messages": [glance(entry) for entry in page]}
        return found | {"after": page[-1].cursor} if len(page) == MOST_SHOWN else found

    def _find(self, name: str, id: str) -> Entry:
        check_id(id)
        for queue in [self._known(name)] if name else map(self._queue, self._names()):
            if (entry := queue.find(id)) is not None:
                return entry
        raise MessageUnknown(f"no message {id} in {name or 'any queue'}; done messages are forgotten after some time")

    def _search(self, given: LookAtQueue) -> Document:
        queues = [self._known(given.queue)] if given.queue else list(map(self._queue, self._names()))
        every = (entry for queue in queues for entry in queue.entries(given.state))
        looked, found = 0, []
        for entry in islice(every, _MOST_SEARCHED):
            looked += 1
            if entry.message is not None and contains(entry.message, given.search):
                found.append({"queue": entry.queue, **glance(entry)})
                if len(found) == MOST_SHOWN:
                    break
        answer: Document = {"messages": found}
        if looked == _MOST_SEARCHED or len(found) == MOST_SHOWN:
            answer["note"] = f"only the first {looked} messages were searched; name a queue or a longer text"
        return answer

    def _status(self, given: Status, call: Call) -> Document:
        found: Document = {
            "place": self._place,
            "agent": self._agent or local_name(os.getpid()),
            "held": [str(receipt) for receipt in self._leases.receipts()],
        }
        try:
            return found | {"queues": self._counts()}
        except StoreMissing:
            return found | {"queues": [], "note": "there is no store yet; the first send makes it"}

    def _counts(self) -> list[Document]:
        store = self._open().store
        return [
            {"queue": name, **{str(state): count for state, count in store.counts(name).items() if count}}
            for name in self._names()[:_MOST_QUEUES]
        ]

    # Questions for people

    def _ask_human(self, given: AskHuman, call: Call) -> Document:
        wait = waiting_time(given.wait)
        check_question(given)
        if given.question:
            id = self._ids()
            body = {"question": given.question, "options": list(given.options)}
            human = self._own(self._human_queue, create=True)
            human.publish(body, id=id, type="question", reply_to=self._answers(id), sender=self._agent or None)
        else:
            id = check_id(given.question_id)
        answers = self._lease(self._own(self._answers(id), create=True), 1, wait, call)
        if not answers:
            note = "no answer yet: call ask_human with this question_id to go on waiting"
            return {"question_id": id, "answered": False, "note": note}
        found = self._delivered(answers[0])
        return {"question_id": id, "answered": True, "answer": found.pop("body", None), **found}

    def _answers(self, id: str) -> str:
        return f"{self._human_queue}.answers.{id}"

    def _is_answer(self, queue: str) -> bool:
        return queue.startswith(self._answers(""))

    def _is_removed_answer(self, receipt: Receipt) -> bool:
        return self._is_answer(receipt.queue) and receipt.queue not in self._open().queues()

    def _remove_answers(self, name: str) -> None:
        """Remove the queue of a question that is answered: each question has its own."""
        if self._is_answer(name):
            with suppress(QueueNotEmpty):
                self._queue(name).delete()
