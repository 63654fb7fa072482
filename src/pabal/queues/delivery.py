"""A delivery: a leased message, and the ways to settle it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from pabal.errors import InvalidInput, LeaseLost, PabalError
from pabal.jsontext import storable
from pabal.message import Message
from pabal.queues.replies import reply_draft
from pabal.store import Draft, Failure, FailureCode, Lease, Receipt, Retry, Verdict

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from pabal.queues.queue import Queue

    Body = TypeVar("Body", default=Any)
else:
    from typing import TypeVar

    Body = TypeVar("Body")


class Local:
    """Base of objects that cannot leave the process that made them."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or sent to another process: send the URL of the store, the name"
            " of the queue or str(delivery.receipt), and connect there"
        )


class Delivery(Local, Generic[Body]):
    """A message that the consumer holds until it settles it or the lease ends.

    As a context manager it renews the lease while the block runs, acks at the end of the block, and nacks by policy on
    an exception, which the caller gets too. A block that is interrupted (Ctrl-C, exit) gives the message back at once.
    """

    __slots__ = ("_lease", "_queue", "_settled", "body", "visibility")

    def __init__(self, queue: Queue[Body], lease: Lease, visibility: float) -> None:
        self._queue = queue
        self._lease = lease
        self.visibility = visibility
        self._settled = False
        self.body: Body = lease.message.body  # type: ignore[assignment]  # a typed queue converts it

    @property
    def message(self) -> Message:
        return self._lease.message

    @property
    def receipt(self) -> Receipt:
        return self._lease.receipt

    @property
    def attempt(self) -> int:
        return self._lease.attempt

    @property
    def due_at(self) -> float:
        return self._lease.due_at

    @property
    def failure(self) -> Failure | None:
        """The failure of the attempt before this one."""
        return self._lease.failure

    @property
    def queue(self) -> str:
        return self._queue.name

    @property
    def settled(self) -> bool:
        return self._settled

    def ack(self, then: Sequence[Draft] = ()) -> None:
        """Settle as done and publish the follow-ups `then`, as one step. Raise LeaseLost if the lease was lost."""
        self._queue.settler.ack(self._lease.receipt, then)
        self._settled = True

    def reply(self, body: Any, *, type: str | None = None, then: Sequence[Draft] = ()) -> None:
        """Settle as done and send the reply to the requester (`queue.request`), as one step.

        Raise InvalidInput if nobody waits for a reply, LeaseLost if the lease was lost: then nothing is sent.
        """
        self.ack([self._reply(body, type), *then])

    def _reply(self, body: Any, type: str | None) -> Draft:
        message = self._lease.message
        if not message.reply_to:
            raise InvalidInput(f"{message.id} is no request: it has no reply_to")
        trace_id = message.trace_id or None
        return reply_draft(self._queue._sibling(message.reply_to), message.id, body, type=type, trace_id=trace_id)

    def nack(self, delay: float | None = None, reason: str = "") -> None:
        """Settle as failed: the policy decides whether the message comes back, and when, unless `delay` is given."""
        self.fail(FailureCode.NACKED, reason, delay=delay)

    def bury(self, reason: str = "") -> None:
        """Settle as dead, even if attempts are left."""
        self.fail(FailureCode.NACKED, reason, final=True)

    def release(self, *, counted: bool = True) -> None:
        """Give the message back, ready at once for any consumer. With `counted=False` this lease is no attempt."""
        self._settle(Retry(0.0, self._lease.failure, counted=counted))

    def fail(self, code: str, reason: str, *, delay: float | None = None, final: bool = False) -> None:
        """Settle as the queue's policy decides for this failure; `final` allows no other attempt."""
        self._settle(self._judge(code, reason, delay=delay, final=final))

    def extend(self, seconds: float) -> None:
        """Let the lease end `seconds` from now. Raise LeaseLost if it was settled or leased again."""
        self._queue.extend(self.receipt, seconds)

    def _judge(self, code: str, reason: str, *, delay: float | None = None, final: bool = False) -> Verdict:
        settler = self._queue.settler
        failure = settler.failure(code, reason, self._lease.attempt, self._lease.failure)
        return settler.judge(self.message, failure, delay=delay, final=final)

    def _hold(self) -> None:
        """Renew the lease until it is let go."""
        self._queue.renewal.hold(self.receipt, self.visibility)

    def _let_go(self) -> None:
        self._queue.renewal.release(self.receipt)

    def _settle(self, verdict: Verdict) -> None:
        self._queue.settler.settle(self.receipt, verdict)
        self._settled = True

    def __enter__(self) -> Delivery[Body]:
        self._hold()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._let_go()
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        try:
            if isinstance(error, Exception):
                self.fail(FailureCode.HANDLER_ERROR, reason_of(error))
            else:
                self.release()
        except PabalError as exc:
            note_unsettled(error, exc)

    def __repr__(self) -> str:
        return f"<Delivery {self.receipt} attempt {self.attempt}>"


def note_unsettled(error: BaseException, exc: PabalError) -> None:
    """Keep the error of a block, which says more than what kept its message from being settled."""
    if not isinstance(exc, LeaseLost):
        error.add_note(f"its message was not settled and comes again when its lease ends: {exc}")


def reason_of(error: BaseException) -> str:
    """Return an exception as one line, for failures and logs."""
    text = storable(str(error).strip().partition("\n")[0])
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
