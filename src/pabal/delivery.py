"""A leased message in the hands of a consumer, and the ways to be done with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from pabal.errors import LeaseLost
from pabal.jsontext import storable
from pabal.message import Message
from pabal.store import Draft, Failure, FailureCode, Lease, Receipt, Retry, Verdict

if TYPE_CHECKING:
    from pabal.queue import Queue


class Local:
    """What stays in the process that made it."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot be copied or sent to another process: send the URL of the store, the name"
            " of the queue or str(delivery.receipt), and connect there"
        )


class Delivery(Local):
    """One message, held under a lease until it is settled or the lease runs out.

    As a context manager it renews the lease while the block runs, acks on leaving and nacks by policy on an exception,
    which goes on to the caller. A block that is interrupted (Ctrl-C, exit) gives the message back at once.
    """

    __slots__ = ("_lease", "_queue", "_settled", "body", "seconds")

    def __init__(self, queue: Queue, lease: Lease, seconds: float) -> None:
        self._queue = queue
        self._lease = lease
        self.seconds = seconds
        self._settled = False
        self.body: Any = lease.message.body

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
        """Why the attempt before this one failed."""
        return self._lease.failure

    @property
    def queue(self) -> str:
        return self._queue.name

    @property
    def settled(self) -> bool:
        return self._settled

    def ack(self, then: Sequence[Draft] = ()) -> None:
        """Say that it was handled and publish what follows from it, as one step. Raise LeaseLost if it is not ours."""
        self._queue._settling.ack(self._lease.receipt, then)
        self._settled = True

    def nack(self, delay: float | None = None, reason: str = "") -> None:
        """Say that it failed: the policy decides whether it comes back, and when unless `delay` says so."""
        self.fail(FailureCode.NACKED, reason, delay=delay)

    def bury(self, reason: str = "") -> None:
        """Set it aside as dead, whatever attempts are left."""
        self.fail(FailureCode.NACKED, reason, final=True)

    def release(self) -> None:
        """Give it back for somebody else to take at once; the attempt has been counted."""
        self._settle(Retry(0.0, self._lease.failure))

    def fail(self, code: str, reason: str, *, delay: float | None = None, final: bool = False) -> None:
        """Settle by the queue's policy for a failure of this kind."""
        failure = self._queue.failure(code, reason, self._lease.attempt, self._lease.failure)
        self._settle(self._queue.judge(self.message, failure, delay=delay, final=final))

    def extend(self, seconds: float) -> None:
        """Let the lease end `seconds` from now. Raise LeaseLost if somebody else has it or it was settled."""
        self._queue.extend(self.receipt, seconds)

    def _settle(self, verdict: Verdict) -> None:
        self._queue._settling.settle(self.receipt, verdict)
        self._settled = True

    def __enter__(self) -> Delivery:
        self._queue._renewal.hold(self.receipt, self.seconds)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._queue._renewal.release(self.receipt)
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        with suppress(LeaseLost):  # the error that is on its way says more
            if isinstance(error, Exception):
                self.fail(FailureCode.HANDLER_ERROR, reason_of(error))
            else:
                self.release()

    def __repr__(self) -> str:
        return f"<Delivery {self.receipt} attempt {self.attempt}>"


def reason_of(error: BaseException) -> str:
    """Return an exception as the one line that a failure carries, and a log shows."""
    text = storable(str(error).strip().partition("\n")[0])
    return f"{type(error).__name__}: {text}"[:500] if text else type(error).__name__
