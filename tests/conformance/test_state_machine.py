"""One model, every store: random calls, clock steps and reopenings, and after each the two must agree."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pabal.clock import Clock
from pabal.message import Message, replace
from pabal.store import (
    Dead,
    Done,
    Draft,
    Failure,
    Lease,
    Outcome,
    Retry,
    Settlement,
    State,
    Store,
    Terms,
    Verdict,
)
from pabal.stores.files import FileStore
from pabal.stores.layout import NativeLayout
from pabal.stores.memory import MemoryStore, Place
from pabal.stores.postgres import PostgresStore
from pabal.testing import ManualClock
from tests.openers import OPENERS, Opener, damage_file
from tests.services.postgres import PostgresServer
from tests.services.postgres_clock import ServerClock

SOAK = os.environ.get("PABAL_SOAK") == "1"
QUEUES = ("jobs", "next")
FAILED = Failure("NACKED", "in the test")
MEMORY = Path("/dev/shm")  # no flush is waited for there, and none is needed here

_queues = st.sampled_from(QUEUES)
_delays = st.sampled_from((0.0, 0.0, 5.0, 60.0))
_names = st.sampled_from(("", "", "a", "b"))


class StoreMachine(RuleBasedStateMachine):
    """Drives a store and the model by the same calls. Tokens differ, so each lease is kept with its twin."""

    opener: ClassVar[Opener]
    handles: ClassVar[int] = 1

    def arrive(self) -> ManualClock:
        """Make the place of a store, and the clock that it goes by."""
        self.folder = Path(tempfile.mkdtemp(prefix="pabal-machine-", dir=MEMORY if MEMORY.is_dir() else None))
        return ManualClock()

    def open(self) -> Store:
        return InTurn([self.opener.open(self.folder, self.clock) for _ in range(self.handles)]).as_store()

    def leave(self) -> None:
        shutil.rmtree(self.folder)

    @initialize()
    def begin(self) -> None:
        self.clock = self.arrive()
        self.model = MemoryStore(Place(), clock=self.clock)
        self.store = self.open()
        self.leases: list[tuple[Lease, Lease]] = []
        self.made = 0
        self.stepped_back = False

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            self.leave()

    def draft(self, queue: str, delay: float, priority: int, group: str, key: str, target: str, ttl: float) -> Draft:
        self.made += 1
        message = Message(
            id=f"m-{self.made:04d}",
            body=self.made,
            priority=priority,
            group=group,
            dedup_key=key,
            target=target,
            expires_at=self.clock.now() + ttl if ttl else None,
            created_at=self.clock.now(),
        )
        return Draft(queue, message, delay=delay, terms=Terms(dedup_window=100.0))

    _drafts = st.lists(
        st.tuples(_queues, _delays, st.integers(-2, 2), _names, _names, _names, st.sampled_from((0.0, 0.0, 0.0, 30.0))),
        min_size=1,
        max_size=4,
    )

    @rule(batch=_drafts)
    def publish(self, batch: Sequence[tuple[Any, ...]]) -> None:
        drafts = [self.draft(*each) for each in batch]
        assert self.store.publish(drafts) == self.model.publish(drafts)

    @precondition(lambda self: self.made)
    @rule(n=st.integers(0, 1000), queue=_queues)
    def publish_again(self, n: int, queue: str) -> None:
        message = Message(id=f"m-{1 + n % self.made:04d}", body="again", created_at=self.clock.now())
        again = [Draft(queue, message, terms=Terms(dedup_window=100.0))]
        assert self.store.publish(again) == self.model.publish(again)

    @precondition(lambda self: self.made)
    @rule(
        queue=_queues,
        limit=st.integers(1, 5),
        seconds=st.sampled_from((10.0, 100.0)),
        consumer=_names,
        successive=st.booleans(),
    )
    def lease(self, queue: str, limit: int, seconds: float, consumer: str, successive: bool) -> None:
        self.sweep(queue)  # what is past its time may or may not be leased until it is judged
        theirs, ours = (
            store.lease(queue, limit, seconds, consumer=consumer, successive=successive)
            for store in (self.store, self.model)
        )
        self.pair(theirs, ours)

    def pair(self, theirs: Sequence[Lease], ours: Sequence[Lease]) -> None:
        assert [plain(lease) for lease in theirs] == [plain(lease) for lease in ours]
        self.leases += zip(theirs, ours, strict=True)

    @precondition(lambda self: self.made)
    @rule(queue=_queues)
    def sweep(self, queue: str) -> None:
        theirs, ours = (
            sorted(store.expired(queue, 1000), key=lambda lease: lease.receipt.id) for store in (self.store, self.model)
        )
        before = len(self.leases)
        self.pair(theirs, ours)
        for number in range(before, len(self.leases)):
            ends = self.leases[number][0].message.expires_at
            self.judge(number, Dead(FAILED) if ends is not None and ends <= self.clock.now() else Retry(0.0, FAILED))

    _verdicts = st.sampled_from((Done(), Done(), Done(keep=True), Retry(0.0, FAILED), Retry(5.0, FAILED), Dead(FAILED)))

    @precondition(lambda self: self.leases)
    @rule(n=st.integers(0, 1000), verdict=_verdicts, then=st.one_of(st.just([]), _drafts), durable=st.booleans())
    def settle(self, n: int, verdict: Verdict, then: Sequence[tuple[Any, ...]], durable: bool) -> None:
        follow_ups = tuple(self.draft(*each) for each in then)
        self.judge(-1 - n % len(self.leases), verdict._replace(then=follow_ups), durable=durable)

    def judge(self, number: int, verdict: Verdict, durable: bool = False) -> None:
        theirs, ours = self.leases[number]
        found = self.store.settle([Settlement(theirs.receipt, verdict)], durable=durable)
        assert found == self.model.settle([Settlement(ours.receipt, verdict)])

    @precondition(lambda self: self.leases)
    @rule(n=st.integers(0, 1000), seconds=st.sampled_from((5.0, 50.0)))
    def extend(self, n: int, seconds: float) -> None:
        theirs, ours = self.leases[-1 - n % len(self.leases)]
        assert self.store.extend([theirs.receipt], seconds) == self.model.extend([ours.receipt], seconds)

    @precondition(lambda self: self.leases)
    @rule(n=st.integers(0, 1000))
    def forge(self, n: int) -> None:
        receipt = replace(self.leases[-1 - n % len(self.leases)][0].receipt, token="0" * 16)
        assert self.store.settle([Settlement(receipt, Done())]) == [Outcome.LOST]

    @precondition(lambda self: any(self.held(State.DEAD, queue) for queue in QUEUES))
    @rule(queue=_queues, ns=st.lists(st.integers(0, 1000), min_size=1, max_size=5))
    def revive(self, queue: str, ns: Sequence[int]) -> None:
        dead = [*self.held(State.DEAD, queue), "m-0001", "unknown"]
        ids = [dead[n % len(dead)] for n in ns]
        assert self.store.revive(queue, ids) == self.model.revive(queue, ids)

    @precondition(lambda self: self.made)
    @rule(queue=_queues, ns=st.lists(st.integers(0, 1000), min_size=1, max_size=3), inflight=st.booleans())
    def cancel(self, queue: str, ns: Sequence[int], inflight: bool) -> None:
        self.sweep(queue)
        ids = [f"m-{1 + n % self.made:04d}" for n in ns]
        assert self.store.cancel(queue, ids, inflight=inflight) == self.model.cancel(queue, ids, inflight=inflight)

    def held(self, state: State, queue: str) -> list[str]:
        return [entry.id for entry in self.model.browse(queue, state, limit=10_000)]

    # A key outlives its message only as long as the queue keeps tombstones, so nothing younger is purged here; nor is
    # what waits, since a store may call a message delayed until somebody asks for it.
    @precondition(lambda self: self.leases and not self.stepped_back)
    @rule(
        queue=_queues,
        state=st.sampled_from((State.DONE, State.DEAD, State.INFLIGHT)),
        age=st.sampled_from((700.0, 900.0)),
    )
    def purge(self, queue: str, state: State, age: float) -> None:
        assert self.store.purge(queue, state, age=age) == self.model.purge(queue, state, age=age)

    @rule(seconds=st.sampled_from((0.5, 7.0, 40.0, 300.0)))
    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(seconds=st.sampled_from((-3600.0, 3600.0)))
    def step_wall(self, seconds: float) -> None:
        if seconds < 0 and any(self.due_but_delayed(queue) for queue in QUEUES):
            return  # whether it is ready already depends on whether anybody has asked since
        self.stepped_back |= seconds < 0
        self.clock.step_wall(seconds)

    def due_but_delayed(self, queue: str) -> bool:
        return any(entry.due_at <= self.clock.now() for entry in self.store.browse(queue, State.DELAYED, limit=10_000))

    @rule(rebooted=st.booleans())
    def reopen(self, rebooted: bool) -> None:
        self.store.close()
        if rebooted:
            self.clock.reboot()
        self.store = self.open()

    @invariant()
    def both_hold_the_same(self) -> None:
        if hasattr(self, "store"):
            for queue in QUEUES:
                theirs, ours = survey(self.store, queue), survey(self.model, queue)
                assert theirs == ours


def plain(lease: Lease) -> tuple[Any, ...]:
    return (lease.receipt.queue, lease.receipt.id, lease.message, lease.attempt, round(lease.due_at, 2), lease.failure)


def survey(store: Store, queue: str) -> dict[str, tuple[str, int]]:
    """Return what is where. A delayed message that is due counts as ready: a store may move it when it is asked for."""
    found: dict[str, tuple[str, int]] = {}
    for state in State:
        for entry in store.browse(queue, state, limit=10_000):
            assert entry.id not in found, f"{entry.id} is in two states"
            found[entry.id] = ("waiting" if state in (State.READY, State.DELAYED) else str(state), entry.attempt)
    return found


def open_plain(place: Path, clock: Clock) -> Store:
    return FileStore(place / "spool", clock=clock, layout=NativeLayout(native=False))


class InTurn:
    """Several handles of one place: each call goes to the next, as if other processes had made the calls before."""

    def __init__(self, handles: Sequence[Store]) -> None:
        self._handles = handles
        self._turn = cycle(handles)

    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> object:
        return getattr(next(self._turn), name)

    def close(self) -> None:
        for handle in self._handles:
            handle.close()


class PlainMachine(StoreMachine):
    """The same with plain names, whose order is that of their documents: by when a message was created."""

    opener = Opener(open_plain, damage_file)
    handles = 3

    @rule()
    def step_wall(self) -> None:
        """The order of messages made before and after a step back is not promised."""

    @precondition(lambda self: any(self.revivable(queue) for queue in QUEUES))
    @rule(queue=_queues, n=st.integers(0, 1000))
    def revive(self, queue: str, n: int) -> None:
        """One without a group: in its group it takes the place that it had."""
        dead = self.revivable(queue)
        ids = [dead[n % len(dead)]] if dead else ["unknown"]
        assert self.store.revive(queue, ids) == self.model.revive(queue, ids)

    def revivable(self, queue: str) -> list[str]:
        entries = self.model.browse(queue, State.DEAD, limit=10_000)
        return [entry.id for entry in entries if entry.message is not None and not entry.message.group]


class PostgresMachine(StoreMachine):
    """The same on PostgreSQL, which has a clock of its own that no reboot of ours touches."""

    server: ClassVar[PostgresServer]

    def arrive(self) -> ManualClock:
        self.schema = f"machine_{uuid.uuid4().hex[:12]}"
        self.open().close()
        return ServerClock(self.server.url, self.schema)

    def open(self) -> Store:
        return PostgresStore(self.server.url, schema=self.schema, clock=getattr(self, "clock", None), patience=5.0)

    def leave(self) -> None:
        assert isinstance(self.clock, ServerClock)
        self.clock.close()
        self.server.execute(f"drop schema {self.schema} cascade")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("handles", [1, 3])
@pytest.mark.parametrize("opener", OPENERS.values(), ids=OPENERS)
def test_a_store_and_the_model_cannot_be_told_apart(opener: Opener, handles: int) -> None:
    _run(type("Machine", (StoreMachine,), {"opener": opener, "handles": handles}), 1000 if SOAK else 60)


@pytest.mark.timeout(1200)
def test_a_store_with_plain_names_and_the_model_cannot_be_told_apart() -> None:
    _run(PlainMachine, 1000 if SOAK else 60)


@pytest.mark.timeout(1200)
def test_a_store_on_a_server_and_the_model_cannot_be_told_apart(postgres: PostgresServer) -> None:
    _run(type("Machine", (PostgresMachine,), {"server": postgres}), 300 if SOAK else 30)


def _run(machine: type[StoreMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=60 if SOAK else 40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate, Phase.shrink] if SOAK else [Phase.generate],  # making it short takes minutes
        ),
    )
