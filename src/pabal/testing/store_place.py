"""The fixtures and helpers of all store tests."""

import json
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest

from pabal.clock import SystemClock
from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.ids import IdMaker
from pabal.jsontext import Json
from pabal.message import Message
from pabal.store import Dead, Done, Draft, Failure, Lease, Outcome, Retry, Settlement, State, Store, Terms, Verdict
from pabal.testing.clock import ManualClock

Reopen: TypeAlias = Callable[[], Store]
Damage: TypeAlias = Callable[[str, str], None]

QUEUE = "jobs"
FAILED = Failure("NACKED", "it did not work", at=1_700_000_000.0, attempt=1, consumer="tester")

_new_id = IdMaker(SystemClock())


class StorePlace:
    codec: Codec = JsonCodec()  # the codec of the store, where a test must know the size of a document
    shared = True  # several processes can open the same place
    direct = True  # the process that leases is known: it is no client of another process

    @pytest.fixture
    def clock(self) -> ManualClock:
        return ManualClock()

    @pytest.fixture
    def reopen(self) -> Reopen:
        """Return a function that opens another handle on this test's own place."""
        raise NotImplementedError("the driver's test class gives a fixture `reopen`")

    @pytest.fixture
    def damage(self) -> Damage:
        """Return a function (queue, id) that flips a byte of that stored message behind the store's back."""
        raise NotImplementedError("the driver's test class gives a fixture `damage`")

    @pytest.fixture
    def store(self, reopen: Reopen) -> Iterator[Store]:
        store = reopen()
        yield store
        store.close()

    def need_processes(self) -> None:
        if not self.shared:
            pytest.skip("this store lives in one process")


def draft(body: Json | bytes = None, *, queue: str = QUEUE, delay: float = 0.0, id: str = "", **more: Any) -> Draft:
    """Return a draft; `more` are fields of the message, `terms` those of the publish."""
    terms = more.pop("terms", Terms())
    message = Message(id=id or _new_id(), body=body, **more)
    return Draft(queue, message, delay=delay, given_id=bool(id), terms=terms)


def publish(store: Store, *bodies: Json | bytes, queue: str = QUEUE, **more: Any) -> list[str]:
    """Publish each body on its own and return the ids."""
    return [store.publish([draft(body, queue=queue, **more)])[0].id for body in bodies]


def take(store: Store, limit: int = 1, seconds: float = 60.0, *, queue: str = QUEUE, **more: Any) -> list[Lease]:
    return store.lease(queue, limit, seconds, **more)


def take_one(store: Store, seconds: float = 60.0, *, queue: str = QUEUE, **more: Any) -> Lease:
    leases = store.lease(queue, 1, seconds, **more)
    assert len(leases) == 1, f"one message should be ready in {queue}; got {leases}"
    return leases[0]


def bodies(leases: list[Lease]) -> list[Any]:
    return [lease.message.body for lease in leases]


def settle(store: Store, lease: Lease, verdict: Verdict, *, durable: bool = False) -> Outcome:
    (outcome,) = store.settle([Settlement(lease.receipt, verdict)], durable=durable)
    return outcome


def ack(store: Store, lease: Lease, *then: Draft) -> Outcome:
    return settle(store, lease, Done(then=then))


def retry(store: Store, lease: Lease, delay: float = 0.0) -> Outcome:
    return settle(store, lease, Retry(delay, FAILED))


def bury(store: Store, lease: Lease) -> Outcome:
    return settle(store, lease, Dead(FAILED))


def state_of(store: Store, id: str, queue: str = QUEUE) -> State | None:
    entry = store.find(queue, id)
    return entry.state if entry else None


def count(store: Store, state: State, queue: str = QUEUE) -> int:
    return store.counts(queue).get(state, 0)


def waiting(store: Store, queue: str = QUEUE) -> int:
    """Count the ready, delayed and leased messages."""
    return sum(count(store, state, queue) for state in (State.READY, State.DELAYED, State.INFLIGHT))


def drain(store: Store, queue: str = QUEUE, **more: Any) -> list[Any]:
    """Lease and ack one after the other until nothing is ready; return the bodies in the order they came."""
    found: list[Any] = []
    while leases := store.lease(queue, 1, 60.0, **more):
        found.extend(bodies(leases))
        assert ack(store, leases[0]) is Outcome.APPLIED
    return found


def in_threads(*functions: Callable[[], object]) -> None:
    """Run the functions at once and raise the first of their errors."""
    failures: list[BaseException] = []

    def run(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


class Child:
    """A forked process that runs one function and sends back its result."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._answer, give = os.pipe()
        with warnings.catch_warnings():
            # These tests are about parents with threads.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            self._run(function, give)
        os.close(give)

    @staticmethod
    def _run(function: Callable[[], Any], give: int) -> None:
        try:
            answer = {"returned": function()}
        except BaseException as exc:
            answer = {"raised": f"{type(exc).__name__}: {exc}"}
        os.write(give, json.dumps(answer).encode())
        os._exit(0)

    def result(self) -> Any:
        with os.fdopen(self._answer, "rb") as pipe:
            data = pipe.read()
        os.waitpid(self.pid, 0)
        answer = json.loads(data or b'{"raised": "it died"}')
        assert "raised" not in answer, f"in the child process: {answer['raised']}"
        return answer["returned"]


def soon(condition: Callable[[], bool], timeout: float = 5.0) -> bool:
    """Say whether the condition comes true before the timeout, which only a failing test waits for."""
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True
