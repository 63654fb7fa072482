"""Request and reply: a message whose publisher waits for the answer of its consumer.

The reply goes to the queue `<queue>.replies` under an id that is made from that of the request. It is published in the
step that acks the request: so there is one reply, if and only if the request is done. The requester does not lease it
but looks for its id. A requester that was killed asks again under the same id, and finds the reply that came meanwhile.

All threads and tasks that wait for replies of a queue share one thread, which sleeps on the watch of the reply queue.
"""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pabal.clock import SLOW_POLL
from pabal.errors import InvalidInput, NoReply, PabalError, RequestFailed
from pabal.names import check_id
from pabal.policy.policy import DeadLetterPolicy, Policy
from pabal.store import Draft, State

if TYPE_CHECKING:
    from pabal.queues.queue import Queue

SUFFIX = ".replies"  # the name of a reply queue is that of its queue with this suffix
KEPT = 3600.0  # seconds that a reply waits for a requester that asks again
_SPARE = 60.0  # seconds that a request lives longer than its requester waits, which may be killed
_SWEEP = 30.0  # seconds
# A reply that nobody fetched is dropped.
_POLICY = Policy(ttl=KEPT, dead_letters=DeadLetterPolicy(enabled=False))


def reply_id(request: str) -> str:
    """Return the id of the reply to a request."""
    return check_id(f"{request}.reply")


def reply_draft(queue: Queue, request: str, body: Any, **fields: Any) -> Draft:
    """Make the reply to a request, for the queue that it names."""
    return queue.draft(body, id=reply_id(request), thread_id=request, **fields)


class Replies:
    """The replies to the requests that this process has sent to one queue."""

    _pid: int

    def __init__(self, requests: Queue, replies: Queue) -> None:
        self._requests = requests
        self._replies = replies
        self._reset()

    def _reset(self) -> None:
        # A forked child has none of the threads of its parent.
        self._mutex = threading.Lock()
        self._waiting: dict[str, Future[Any]] = {}
        self._running = False
        self._configured = False
        self._swept = float("-inf")
        self._pid = os.getpid()

    @property
    def queue(self) -> str:
        """The name of the queue to which replies go."""
        return self._replies.name

    def expect(self, request: str) -> Future[Any]:
        """Return the future body of the reply to a request, which is published after this."""
        if self._pid != os.getpid():
            self._reset()
        if not self._configured:
            self._replies.ensure_policy(_POLICY)
            self._configured = True
        reply_id(request)
        with self._mutex:
            known = self._waiting.get(request)
            if known is not None and not known.done():
                raise InvalidInput(f"this process waits for the reply to {request} already")
            answer = self._waiting[request] = Future[Any]()
            if not self._running:
                threading.Thread(target=self._run, name="pabal-replies", daemon=True).start()
                self._running = True
        return answer

    def received(self, request: str, *, keep: bool) -> None:
        """Remove a reply that its requester has got, unless the requester may ask again."""
        if not keep:
            self._replies.store.purge(self.queue, State.READY, ids=[reply_id(request)])

    def give_up(self, request: str, *, keep: bool) -> None:
        """Wait no longer. A request that nobody has taken is cancelled, unless the requester may ask again."""
        with self._mutex:
            self._waiting.pop(request, None)
        if not keep:
            self._requests.cancel([request])

    def nothing_came(self, request: str, timeout: float) -> NoReply:
        return NoReply(f"nobody replied to {request} of {self._requests.name} within {timeout:g} s")

    def _run(self) -> None:
        try:
            watch = self._replies.watch()
            try:
                self._serve(watch)
            finally:
                if watch is not None:
                    watch.close()
        except BaseException as exc:
            with self._mutex:
                waiting, self._waiting, self._running = self._waiting, {}, False
            for answer in waiting.values():
                _fail(answer, exc)

    def _serve(self, watch: Any) -> None:
        checked = float("-inf")
        while True:
            with self._mutex:
                waiting = dict(self._waiting)
                if not waiting:
                    self._running = False
                    return
            now = time.monotonic()
            thorough = now - checked >= SLOW_POLL
            checked = now if thorough else checked
            ended = {id: answer for id, answer in waiting.items() if self._look(id, answer, thorough)}
            with self._mutex:
                for id, answer in ended.items():
                    if self._waiting.get(id) is answer:  # else it was asked for again
                        del self._waiting[id]
            if thorough and now - self._swept >= _SWEEP:
                self._swept = now
                self._replies.sweep()
            if watch is None:
                time.sleep(SLOW_POLL / 20)
            elif not ended:
                watch.wait(SLOW_POLL)

    def _look(self, request: str, answer: Future[Any], thorough: bool) -> bool:
        """Look for a reply; return whether there is no more to wait for."""
        if answer.done() or self._found(request, answer):
            return True
        entry = self._requests.find(request) if thorough else None
        if entry is None or entry.state not in (State.DONE, State.DEAD, State.CORRUPT):
            return False
        if not self._found(request, answer):  # again: the reply came with the ack
            why = f"{entry.failure.code} {entry.failure.reason}".strip() if entry.failure else "nothing was replied"
            _fail(answer, RequestFailed(f"{request} of {self._requests.name} is {entry.state}: {why}"))
        return True

    def _found(self, request: str, answer: Future[Any]) -> bool:
        entry = self._replies.find(reply_id(request))
        if entry is None or entry.message is None:
            return False
        with suppress(InvalidStateError):
            answer.set_result(entry.message.body)
        return True


def _fail(answer: Future[Any], exc: BaseException) -> None:
    with suppress(InvalidStateError):
        answer.set_exception(exc)


def request_ttl(timeout: float) -> float:
    """Return the time to live of a request whose requester waits for so long."""
    return timeout + _SPARE


def wait_for_reply(replies: Replies, request: str, answer: Future[Any], timeout: float, *, keep: bool) -> Any:
    """Return the body of the reply; raise NoReply if none comes in time, RequestFailed if none will come."""
    try:
        body = answer.result(timeout)
    except TimeoutError as exc:
        if isinstance(exc, PabalError):
            raise
        replies.give_up(request, keep=keep)
        raise replies.nothing_came(request, timeout) from None
    except BaseException:
        replies.give_up(request, keep=keep)
        raise
    replies.received(request, keep=keep)
    return body
