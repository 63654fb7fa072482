"""The queue over every store: policy, sweeps, deliveries, waiting."""

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

import pabal
from pabal import DeadLetterPolicy, Delivery, LeaseLost, Policy, Queue, RetryPolicy, State, SystemClock
from pabal.connect import Connection
from pabal.errors import (
    InvalidBody,
    InvalidInput,
    InvalidPolicy,
    InvalidReceipt,
    QueueFull,
    QueueUnknown,
    TooLarge,
    ValidationFailed,
)
from pabal.jsontext import Json
from pabal.message import replace
from pabal.policy.policy import PolicyChanges
from pabal.policy.retention import LOOK_SECONDS
from pabal.queues import waiter
from pabal.queues.store_proxy import StoreProxy
from pabal.testing import ManualClock
from pabal.watch import PathWatch

STORES = ["sqlite", "file", "hybrid"]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=STORES)
def mq(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Iterator[Connection]:
    with pabal.connect(f"{request.param}:{tmp_path}/store", clock=clock, consumer="tester") as connection:
        yield connection


@pytest.fixture
def jobs(mq: Connection) -> Queue:
    return mq.queue("jobs")


def one(queue: Queue) -> Delivery:
    [delivery] = queue.lease()
    return delivery


def test_a_published_message_is_leased_and_acked(jobs: Queue) -> None:
    published = jobs.publish({"temp": 36.5}, priority=5, type="reading", headers={"traceparent": "00-ab"})
    delivery = one(jobs)
    assert (delivery.message.id, delivery.message.body, delivery.attempt) == (published.id, {"temp": 36.5}, 1)
    assert (delivery.message.priority, delivery.message.headers) == (5, {"traceparent": "00-ab"})
    delivery.ack()
    assert jobs.lease() == []
    assert jobs.counts()[State.DONE] == 1


def test_priorities_have_names(jobs: Queue) -> None:
    for name in ("low", "critical", "normal", "high"):
        jobs.publish(name, priority=name)
    assert [delivery.body for delivery in jobs.lease(4)] == ["critical", "high", "normal", "low"]


def test_publish_many_takes_bodies_messages_and_drafts(mq: Connection, jobs: Queue) -> None:
    other = mq.queue("other")
    message = pabal.Message(id="given", body=b"\x00raw", created_at=1.0)
    published = jobs.publish_many(["a", message, other.draft("b")], type="t")
    assert [answer.duplicate for answer in published] == [False] * 3
    assert {delivery.message.id: delivery.body for delivery in jobs.lease(9)}["given"] == b"\x00raw"
    assert one(other).body == "b"
    assert jobs.publish_many([]) == []


def test_a_failed_attempt_comes_back_by_policy_and_then_is_dead(jobs: Queue, clock: ManualClock) -> None:
    jobs.configure(Policy(retry=RetryPolicy(limit=2, initial=10)))
    jobs.publish("x", id="x")
    one(jobs).nack(reason="first")
    assert jobs.lease() == []
    clock.advance(10)
    delivery = one(jobs)
    assert delivery.attempt == 2
    assert delivery.failure is not None and delivery.failure.reason == "first"
    delivery.nack(reason="second")
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None
    assert (entry.failure.code, entry.failure.reason, entry.failure.attempt, entry.failure.consumer) == (
        "RETRY_LIMIT",
        "attempt 2 of 2: NACKED: second",
        2,
        "tester",
    )


def test_a_delay_given_at_nack_replaces_the_policys(jobs: Queue, clock: ManualClock) -> None:
    jobs.publish("x")
    one(jobs).nack(delay=100)
    clock.advance(99)
    assert jobs.lease() == []
    clock.advance(1)
    assert one(jobs).attempt == 2


def test_a_lease_that_runs_out_is_judged_like_any_failure(jobs: Queue, clock: ManualClock) -> None:
    jobs.configure(Policy(visibility=5, retry=RetryPolicy(limit=2, initial=1)))
    jobs.publish("x")
    first = one(jobs)
    clock.advance(6)
    assert jobs.lease() == []  # judged, and resting for the policy's delay
    clock.advance(2)
    second = one(jobs)
    assert second.attempt == 2
    with pytest.raises(LeaseLost):
        first.ack()
    clock.advance(6)
    assert jobs.lease() == []
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None and entry.failure.code == "RETRY_LIMIT"
    assert entry.failure.reason == "attempt 2 of 2: LEASE_EXPIRED: the lease ran out"


def test_a_message_past_its_time_is_dead_not_delivered(jobs: Queue, clock: ManualClock) -> None:
    jobs.publish("x", ttl=10)
    clock.advance(11)
    assert jobs.lease() == []
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None and entry.failure.code == "EXPIRED"


def test_the_policys_ttl_is_the_default(jobs: Queue, clock: ManualClock) -> None:
    jobs.configure(Policy(ttl=10))
    jobs.publish("x")
    jobs.publish("y", ttl=100)
    clock.advance(11)
    assert one(jobs).body == "y"


def test_dead_letters_are_copied_where_the_policy_says(mq: Connection, jobs: Queue, clock: ManualClock) -> None:
    jobs.configure(Policy(dead_letters=DeadLetterPolicy(queue="jobs-dlq")))
    jobs.publish({"temp": 1}, id="x", trace_id="trace-1")
    one(jobs).bury("broken sensor")
    copy = one(mq.queue("jobs-dlq"))
    assert copy.message.id.startswith("x.dlq.")
    assert copy.message.trace_id == "trace-1"
    assert copy.body["originalMessage"]["payload"] == {"temp": 1}
    assert copy.body["failure"]["reasonMessage"] == "broken sensor"
    assert copy.body["routing"] == {"sourceQueue": "jobs", "dlqQueue": "jobs-dlq"}
    assert jobs.counts()[State.DEAD] == 1


def test_every_death_has_a_document_of_its_own(mq: Connection, jobs: Queue, clock: ManualClock) -> None:
    other = mq.queue("other")
    for queue in (jobs, other):
        queue.configure(Policy(dead_letters=DeadLetterPolicy(queue="dlq")))
        queue.publish("x", id="evt-1")
        one(queue).bury()
    jobs.revive(["evt-1"])
    clock.advance(1)
    one(jobs).bury()
    assert mq.queue("dlq").counts()[State.READY] == 3


def test_a_dead_letter_that_is_refused_holds_nobody_back(
    mq: Connection, jobs: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.configure(Policy(visibility=1, retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(queue="dlq")))
    jobs.publish_many(["a", "b"])
    assert len(jobs.lease(2)) == 2
    clock.advance(2)
    monkeypatch.setattr("pabal.queues.verdicts.LARGEST_MAX_BYTES", 10)
    assert jobs.lease() == []
    assert jobs.counts()[State.DEAD] == 2


def test_a_paused_queue_judges_what_ran_out_and_lets_its_consumer_sleep(jobs: Queue, clock: ManualClock) -> None:
    jobs.publish_many(["a", "b"], delay=0.5)
    clock.advance(1)
    assert one(jobs).attempt == 1
    jobs.pause()
    clock.advance(31)
    looks = time.thread_time()
    assert jobs.lease(wait=0.5) == []
    assert time.thread_time() - looks < 0.2
    assert jobs.counts()[State.INFLIGHT] == 0


def test_a_reason_that_no_text_can_carry_is_mended(jobs: Queue) -> None:
    jobs.publish("x")
    one(jobs).bury("lone \ud800 surrogate")
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None and entry.failure.reason == "lone ? surrogate"


def test_without_dead_letters_an_exhausted_message_is_dropped(jobs: Queue) -> None:
    jobs.configure(Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(enabled=False)))
    jobs.publish("x")
    one(jobs).nack()
    counts = jobs.counts()
    assert (counts[State.DEAD], counts[State.DONE], counts[State.READY]) == (0, 1, 0)


def test_dead_letters_are_kept_as_long_as_the_policy_says(jobs: Queue, clock: ManualClock) -> None:
    jobs.configure(Policy(dead_letters=DeadLetterPolicy(retention_days=1)))
    jobs.publish("x")
    one(jobs).bury()
    clock.advance(86399)
    jobs.sweep()
    assert jobs.counts()[State.DEAD] == 1
    clock.advance(86400)
    jobs.sweep()
    assert jobs.counts()[State.DEAD] == 1  # too old at one look: the clock may have jumped
    clock.advance(LOOK_SECONDS)
    jobs.sweep()
    assert jobs.counts()[State.DEAD] == 0


@pytest.mark.parametrize("policy", [Policy(), Policy(done_retention=86400)])
def test_a_clock_that_is_ahead_for_a_while_removes_no_dead_letters_and_no_kept_messages(
    jobs: Queue, clock: ManualClock, policy: Policy
) -> None:
    jobs.configure(policy)
    for body in ("dead", "done"):
        jobs.publish(body, id=body)
        delivery = one(jobs)
        delivery.bury() if body == "dead" else delivery.ack()
    clock.step_wall(15 * 86400)
    assert jobs.lease(1) == []
    clock.advance(2)
    assert jobs.lease(1) == []
    clock.step_wall(-15 * 86400)
    assert jobs.lease(1) == [] and jobs.counts()[State.DEAD] == 1
    assert (jobs.find("done") is not None) == (policy.done_retention > 0)


def test_done_messages_are_kept_whole_if_the_policy_says(jobs: Queue, clock: ManualClock) -> None:
    jobs.configure(Policy(done_retention=3600))
    jobs.publish("x", id="x")
    one(jobs).ack()
    clock.advance(3000)
    jobs.sweep()
    found = jobs.find("x")
    assert found is not None and found.message is not None and found.message.body == "x"
    clock.advance(3000)
    jobs.sweep()
    clock.advance(LOOK_SECONDS)
    jobs.sweep()
    assert jobs.find("x") is None


def test_ack_with_follow_ups_is_one_step(mq: Connection, jobs: Queue) -> None:
    results = mq.queue("results")
    jobs.publish("x")
    delivery = one(jobs)
    delivery.ack(then=[results.draft("r1"), results.draft("r2", delay=60)])
    assert one(results).body == "r1"
    assert results.counts()[State.DELAYED] == 1
    with pytest.raises(LeaseLost):
        delivery.nack()


def test_a_lost_lease_publishes_no_follow_ups(mq: Connection, jobs: Queue, clock: ManualClock) -> None:
    results = mq.queue("results")
    jobs.publish("x")
    late = one(jobs)
    clock.advance(31)
    jobs.sweep()
    with pytest.raises(LeaseLost, match="no longer held"):
        late.ack(then=[results.draft("r")])
    assert results.lease() == []


def test_a_block_acks_on_leaving(jobs: Queue) -> None:
    jobs.publish("x")
    with one(jobs) as delivery:
        assert delivery.body == "x"
    assert jobs.counts()[State.DONE] == 1


def test_a_block_that_raises_fails_by_policy_and_passes_the_error_on(jobs: Queue) -> None:
    jobs.publish("x")
    with pytest.raises(ZeroDivisionError), one(jobs):
        raise ZeroDivisionError("by zero")
    [entry] = jobs.browse(State.DELAYED)
    assert entry.failure is not None
    assert (entry.failure.code, entry.failure.reason) == ("HANDLER_ERROR", "ZeroDivisionError: by zero")


def test_an_interrupted_block_gives_the_message_back_at_once(jobs: Queue) -> None:
    jobs.publish("x")
    with pytest.raises(KeyboardInterrupt), one(jobs):
        raise KeyboardInterrupt
    assert one(jobs).attempt == 2


def test_a_block_that_settled_itself_is_left_alone(jobs: Queue) -> None:
    jobs.publish("x")
    with one(jobs) as delivery:
        delivery.bury("no")
    assert jobs.counts()[State.DEAD] == 1


@pytest.mark.parametrize(
    "policy",
    [
        Policy(),
        Policy(retry=RetryPolicy(poison_limit=2)),
        Policy(retry=RetryPolicy(limit=1)),
        Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(enabled=False)),
    ],
    ids=["retried", "one more would be poison", "dead", "dropped"],
)
def test_g5_repeating_a_nack_by_receipt_is_harmless(jobs: Queue, policy: Policy) -> None:
    jobs.configure(policy)
    jobs.publish("x")
    receipt = str(one(jobs).receipt)
    jobs.nack(receipt, reason="no")
    counts = jobs.counts()
    jobs.nack(receipt, reason="no")
    assert jobs.counts() == counts


@pytest.mark.parametrize("drops", [False, True])
def test_a_failure_by_receipt_of_what_did_not_fail_is_lost(
    jobs: Queue, drops: bool, caplog: pytest.LogCaptureFixture
) -> None:
    jobs.configure(Policy(dead_letters=DeadLetterPolicy(enabled=not drops)))
    jobs.publish_many(["acked", "to come again"])
    acked, again = (str(delivery.receipt) for delivery in jobs.lease(2))
    jobs.ack(acked)
    jobs.nack(again)
    counts = jobs.counts()
    for fail, receipt in ((jobs.nack, acked), (jobs.bury, acked), (jobs.bury, again)):
        with pytest.raises(LeaseLost):
            fail(receipt, reason="no")
    assert jobs.counts() == counts
    caplog.clear()
    jobs.publish("buried")
    buried = str(one(jobs).receipt)
    jobs.bury(buried)
    jobs.bury(buried)
    assert len(caplog.records) == 1  # one death


@pytest.mark.parametrize("call", ["ack", "nack", "bury"])
def test_a_delivery_given_for_a_receipt_is_refused_with_the_way(jobs: Queue, call: str) -> None:
    jobs.publish(1)
    [delivery] = jobs.lease()
    with pytest.raises(InvalidReceipt, match="expected a receipt; found Delivery: a delivery is settled by its own"):
        getattr(jobs, call)(delivery)
    delivery.ack()


def test_settling_by_receipt_alone(jobs: Queue) -> None:
    jobs.publish_many(["a", "b", "c"])
    first, second, third = (str(delivery.receipt) for delivery in jobs.lease(3))
    jobs.ack(first)
    jobs.ack(first)  # repeating is fine
    jobs.nack(second, delay=0)
    jobs.extend(third, 60)
    jobs.bury(third, "no")
    with pytest.raises(LeaseLost):
        jobs.extend(third, 60)
    with pytest.raises(LeaseLost):
        jobs.nack("jobs/nobody/token")
    for bad in ("nonsense", "jobs/../token", "../x/token", "other/id/token"):
        with pytest.raises(InvalidInput):
            jobs.ack(bad)
    counts = jobs.counts()
    assert (counts[State.DONE], counts[State.READY], counts[State.DEAD]) == (1, 1, 1)


def test_ack_many_names_what_was_lost_and_settles_the_rest(jobs: Queue) -> None:
    jobs.publish_many(range(50))
    deliveries = jobs.lease(50)
    for delivery in deliveries[::5]:
        delivery.nack(delay=50)
    with pytest.raises(LeaseLost, match=deliveries[0].message.id) as lost:
        jobs.ack_many(deliveries)
    assert lost.value.receipts == tuple(str(delivery.receipt) for delivery in deliveries[::5])
    assert jobs.counts()[State.DONE] == 40


def test_ack_many_refuses_what_is_of_another_queue(jobs: Queue, mq: Connection) -> None:
    jobs.publish("ours")
    mq.queue("others").publish("theirs")  # it has a policy of its own, which says how its acks are kept
    deliveries = [one(jobs), one(mq.queue("others"))]
    with pytest.raises(InvalidReceipt, match="others"):
        jobs.ack_many(deliveries)
    assert jobs.counts()[State.INFLIGHT] == 1


def test_a_paused_queue_gives_nothing_and_takes_everything(jobs: Queue, mq: Connection, clock: ManualClock) -> None:
    jobs.publish("x")
    other_handle = mq.queue("jobs")
    assert other_handle.paused is False
    jobs.pause()
    clock.advance(1)  # a running consumer reads the policy again within a second
    jobs.publish("y")
    assert jobs.lease() == other_handle.lease() == []
    jobs.resume()
    clock.advance(1)
    assert len(other_handle.lease(2)) == 2


def test_no_thread_goes_on_under_another_policy(jobs: Queue, mq: Connection) -> None:
    jobs.publish_many([str(n) for n in range(8)])
    jobs.pause()
    for _ in range(20):
        shared = mq.queue("jobs")
        with ThreadPoolExecutor(8) as pool:
            taken = list(pool.map(lambda _, queue=shared: queue.lease(), range(8)))
        assert taken == [[]] * 8


def test_settings_that_cannot_be_read_stop_everything(jobs: Queue, clock: ManualClock) -> None:
    jobs.store.configure("jobs", {"paused": True, "novel": 1})
    for _ in range(3):
        with pytest.raises(InvalidPolicy, match="novel"):
            jobs.publish("x")


def test_messages_given_whole_meet_schema_and_ttl_too(jobs: Queue) -> None:
    jobs.configure(Policy(ttl=10, body_schema={"type": "number"}))
    with pytest.raises(ValidationFailed):
        jobs.publish_many([pabal.Message(id="a", body="text")])
    jobs.publish_many([pabal.Message(id="b", body=1, created_at=5.0)])
    found = jobs.find("b")
    assert found is not None and found.message is not None and found.message.expires_at == 15


def test_a_queue_cannot_take_its_own_dead_letters(jobs: Queue) -> None:
    with pytest.raises(InvalidPolicy, match="its own dead letters"):
        jobs.configure(Policy(dead_letters=DeadLetterPolicy(queue="jobs")))


def test_consuming_needs_no_schema_package(jobs: Queue, mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs.configure(Policy(body_schema={"type": "number"}))
    jobs.publish(1)
    monkeypatch.setitem(sys.modules, "fastjsonschema", None)
    one(mq.queue("jobs")).ack()


def test_the_policy_and_the_switch_of_the_operator_are_apart(jobs: Queue, mq: Connection) -> None:
    jobs.configure(Policy(visibility=7))
    jobs.pause()
    assert (jobs.policy.visibility, jobs.paused) == (7, True)
    mq.queue("jobs").configure(Policy(visibility=8))
    mq.queue("jobs").ensure_policy(Policy(visibility=9))
    assert mq.queue("jobs").paused
    jobs.resume()
    assert mq.queue("jobs").policy == Policy(visibility=9) and not mq.queue("jobs").paused


def test_an_update_changes_what_is_named_and_nothing_else(jobs: Queue, mq: Connection) -> None:
    jobs.configure(Policy(visibility=7, retry=RetryPolicy(limit=2)))
    mq.queue("jobs").update_policy(ttl=60)  # by another handle
    assert jobs.update_policy(retry=RetryPolicy(limit=3)) == Policy(visibility=7, ttl=60, retry=RetryPolicy(limit=3))
    assert mq.queue("jobs").policy == jobs.policy
    with pytest.raises(InvalidPolicy, match="no visibilty: it has visibility"):
        jobs.update_policy(visibilty=3)  # type: ignore[call-arg]
    assert PolicyChanges.__annotations__.keys() == set(Policy.__struct_fields__)
    with pytest.raises(InvalidPolicy, match="visibility must be"):
        jobs.update_policy(visibility=-1)


class Color(Enum):
    RED = "red"


class Line(msgspec.Struct):
    when: datetime
    id: UUID
    price: Decimal
    color: Color
    size: tuple[int, int]
    data: bytes
    names: dict[int, str]


@dataclass
class Order:
    number: int
    tags: set[str]


class Bill(TypedDict):
    amount: Decimal


class Model(pydantic.BaseModel):
    number: int
    when: datetime


class Aliased(pydantic.BaseModel):
    """Reads what it has written only from JSON and by alias, without what it computes."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")
    user_id: int = pydantic.Field(alias="userId")
    when: datetime

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return self.user_id * 2


class OneWay(pydantic.BaseModel):
    user_id: int = pydantic.Field(serialization_alias="written", validation_alias="read")


ONE_WAY = OneWay.model_validate({"read": 1})
NOON = datetime(2030, 1, 2, 12, tzinfo=UTC)
LINE = Line(NOON, UUID(int=7), Decimal("1.50"), Color.RED, (3, 4), b"\x00\xff", {1: "one"})


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (LINE, Line),
        (Order(1, {"a"}), Order),
        ({"amount": Decimal("0.10")}, Bill),
        (Model(number=1, when=NOON), Model),
        (Aliased(userId=1, when=NOON), Aliased),
        ([Order(1, set()), Order(2, {"b"})], list[Order]),
        ((1, 2), tuple[int, int]),
        (Color.RED, Color),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_body_of_a_type_comes_back_as_that_type(mq: Connection, body: Any, kind: Any) -> None:
    queue = mq.queue("typed", body=kind)
    queue.publish(body)
    queue.publish_many([body])
    mq.queue("typed").publish(body, delay=timedelta(0))
    found = [delivery.body for delivery in queue.lease(3)]
    assert found == [body] * 3 and {type(each) for each in found} == {type(body)}
    seen = []
    queue.publish(body)
    pabal.worker(mq.queue("typed"), lambda delivery: seen.append(delivery.body), body=kind).run(wait=0)
    assert seen == [body]


def test_a_body_that_does_not_fit_the_type_of_the_queue_is_dead(mq: Connection) -> None:
    loose, typed = mq.queue("orders"), mq.queue("orders", body=Order)
    loose.publish_many([{"number": "x", "tags": []}, {"number": 1, "tags": ["a"]}])
    assert [delivery.body for delivery in typed.lease(2)] == [Order(1, {"a"})]
    [entry] = typed.browse(State.DEAD)
    assert entry.failure is not None and entry.failure.code == "VALIDATION_ERROR"
    loose.publish_many([{"number": "x", "tags": []}] * 3 + [{"number": 2, "tags": []}])
    assert [delivery.body for delivery in typed.lease(1)] == [Order(2, set())]  # behind those that do not fit


def test_a_type_whose_own_check_fails_does_not_keep_the_other_messages(mq: Connection) -> None:
    class Strange(pydantic.BaseModel):
        number: int

        @pydantic.field_validator("number")
        @classmethod
        def look(cls, value: int) -> int:
            return {1: 1}[value]

    mq.queue("orders").publish_many([{"number": 2}, {"number": 1}])
    typed = mq.queue("orders", body=Strange)
    assert [delivery.body.number for delivery in typed.lease(2)] == [1]
    [entry] = typed.browse(State.DELAYED)
    assert entry.failure is not None and "KeyError" in entry.failure.reason


def test_a_policy_that_is_given_while_an_operator_pauses_does_not_resume(mq: Connection, jobs: Queue) -> None:
    class Slow(StoreProxy):
        """Between its look at the settings and the change of them another process acts, once."""

        def settings(self, queue: str) -> Mapping[str, Any] | None:
            found = super().settings(queue)
            if acts:
                acts.pop()()
            return found

    other, acts = mq.queue("jobs"), list[Callable[[], object]]()
    slow = Queue("jobs", Slow(mq.store))
    acts = [other.pause]
    slow.configure(Policy(visibility=3))
    assert mq.queue("jobs").paused
    acts = [other.resume]
    slow.update_policy(ttl=5)
    assert not mq.queue("jobs").paused and mq.queue("jobs").policy == Policy(visibility=3, ttl=5)
    acts = [lambda: other.update_policy(ttl=6)]
    slow.pause()
    assert mq.queue("jobs").paused and mq.queue("jobs").policy.ttl == 6


def test_what_no_type_can_carry_is_refused_when_it_is_given(mq: Connection, jobs: Queue) -> None:
    class Custom:
        pass

    for kind in (Custom, list[Custom], dict[str, Custom]):
        with pytest.raises(InvalidInput, match="bodies cannot be converted to .*Custom"):
            mq.queue("jobs", body=kind)
        with pytest.raises(InvalidInput, match="bodies cannot be converted to .*Custom"):
            pabal.worker(jobs, print, body=kind)
    for body in (Custom(), {"a": Custom()}, {"a": b"x"}, {1: 2}, [{"a": {2, b"x"}}], ONE_WAY):
        with pytest.raises(InvalidBody):
            jobs.publish(body)


def test_a_message_is_due_at_a_time(jobs: Queue, clock: ManualClock) -> None:
    due = datetime.fromtimestamp(clock.now() + 60, UTC)
    jobs.publish("at", at=due)
    jobs.publish("past", at=datetime(2000, 1, 1, tzinfo=UTC))
    jobs.publish("delta", delay=timedelta(minutes=2), ttl=timedelta(hours=1))
    for body in ("past", "at", "delta"):
        delivery = one(jobs)
        delivery.ack()
        assert delivery.body == body and jobs.lease() == []
        clock.advance(61)
    with pytest.raises(InvalidInput, match="time zone"):
        jobs.publish("x", at=datetime(2030, 1, 1))
    with pytest.raises(InvalidInput, match="both"):
        jobs.publish("x", at=due, delay=1)


def test_the_size_limit_is_the_policys(jobs: Queue) -> None:
    jobs.configure(Policy(max_bytes=1000))
    jobs.publish("x" * 500)
    with pytest.raises(TooLarge):
        jobs.publish("x" * 1000)


def test_a_full_queue_refuses_publish_but_not_retries(jobs: Queue) -> None:
    jobs.configure(Policy(max_waiting=2))
    jobs.publish_many(["a", "b"])
    with pytest.raises(QueueFull):
        jobs.publish("c")
    delivery = one(jobs)
    jobs.publish("c")
    delivery.nack(delay=0)
    assert jobs.counts()[State.READY] == 3


def test_a_body_schema_refuses_at_publish(jobs: Queue) -> None:
    schema: dict[str, Json] = {"type": "object", "required": ["temp"], "properties": {"temp": {"type": "number"}}}
    jobs.configure(Policy(body_schema=schema))
    jobs.publish({"temp": 1})
    with pytest.raises(ValidationFailed, match="temp"):
        jobs.publish({"rpm": 1})
    with pytest.raises(ValidationFailed, match="body.temp must be number"):
        jobs.publish({"temp": "hot"})


def test_a_schema_that_cannot_be_used_is_refused_at_once(jobs: Queue) -> None:
    with pytest.raises(InvalidPolicy, match="schema"):
        jobs.configure(Policy(body_schema={"type": "nonsense"}))
    assert jobs.policy == Policy()


@pytest.mark.parametrize(
    "options",
    [
        {"priority": 101},
        {"priority": "urgent"},
        {"target": "a/b"},
        {"id": "a~b"},
        {"headers": {"a": "b\n"}},
        {"headers": {f"h{n}": "" for n in range(101)}},
        {"group": "g\x00"},
        {"type": "x" * 1025},
        {"attributes": {"a": float("nan")}},
        {"delay": -1},
        {"delay": float("nan")},
        {"delay": 1e300},
        {"ttl": -1},
        {"ttl": "soon"},
    ],
)
def test_bad_options_are_refused_and_nothing_is_stored(jobs: Queue, options: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        jobs.publish("x", **options)  # type: ignore[arg-type]  # wrong on purpose
    assert jobs.lease() == []


def test_bad_terms_of_a_lease_are_refused(jobs: Queue) -> None:
    jobs.publish("x")
    for limit in (0, -1, 1.5):
        with pytest.raises(InvalidInput, match="limit must be"):
            jobs.lease(limit)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(InvalidInput, match="wait must be"):
        jobs.lease(wait=float("nan"))
    with pytest.raises(InvalidInput, match="visibility must be"):
        jobs.lease(visibility=0)
    delivery = one(jobs)
    with pytest.raises(InvalidInput, match="extension must be"):
        delivery.extend(-1)
    with pytest.raises(InvalidInput, match="delay must be"):
        delivery.nack(delay=float("inf"))
    delivery.ack()


def test_browsing_pages_through_everything(jobs: Queue) -> None:
    jobs.publish_many([str(n) for n in range(250)])
    bodies = [entry.message.body for entry in jobs.entries(State.READY) if entry.message]
    assert bodies == [str(n) for n in range(250)]


def test_reviving_and_purging(jobs: Queue) -> None:
    jobs.publish_many(["a", "b"])
    for delivery in jobs.lease(2):
        delivery.bury()
    dead = [entry.id for entry in jobs.entries(State.DEAD)]
    assert jobs.revive([dead[0], "nobody"]) == [dead[0]]
    assert one(jobs).attempt == 1
    assert jobs.purge(State.DEAD) == 1


def test_a_waiting_consumer_is_woken_by_a_publish(jobs: Queue, mq: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiter, "SLOW_POLL", 3600.0)  # from here on only a wake ends a sleep
    asleep = threading.Event()
    wait = PathWatch.wait

    def seen(watch: PathWatch, timeout: float) -> bool:
        asleep.set()
        return wait(watch, timeout)

    def publish_when_asleep() -> None:
        asleep.wait(60)
        mq.queue("jobs").publish("x")

    monkeypatch.setattr(PathWatch, "wait", seen)
    thread = threading.Thread(target=publish_when_asleep)
    thread.start()
    [delivery] = jobs.lease(wait=3600)
    thread.join()
    assert asleep.is_set() and delivery.body == "x"


def test_consume_leases_several_at_once_and_gives_back_what_it_did_not_yield(jobs: Queue) -> None:
    jobs.publish_many(list(range(20)))
    seen = []
    for delivery in jobs.consume(wait=0, prefetch=8):
        seen.append(delivery.body)
        left = len(seen) // 8 * 8 + 8 if len(seen) % 8 else len(seen)
        assert len(jobs.renewal._held) == min(left, 20) - len(seen)  # all that wait here are renewed
        delivery.ack()
        if len(seen) == 10:
            break
    assert seen == list(range(10))
    counts = jobs.counts()
    assert (counts[State.DONE], counts[State.READY], counts[State.INFLIGHT]) == (10, 10, 0)
    assert jobs.renewal._held == {}
    assert [delivery.body for delivery in jobs.consume(wait=0, prefetch=100)] == list(range(10, 20))
    with pytest.raises(InvalidInput, match="prefetch"):
        next(jobs.consume(prefetch=0))


def test_consume_ends_when_nothing_comes(jobs: Queue) -> None:
    jobs.publish_many(["a", "b"])
    seen = []
    for delivery in jobs.consume(wait=0.05):
        with delivery:
            seen.append(delivery.body)
    assert seen == ["a", "b"]


def outlast(mq: Connection, delivery: Delivery) -> None:
    """Wait until the lease of a delivery would have ended three times over; another consumer gets nothing meanwhile."""
    clock = SystemClock()
    end = clock.boot() + 3 * delivery.visibility
    while clock.boot() < end:
        assert mq.queue("jobs").lease() == []


def test_the_lease_is_renewed_while_a_block_runs(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        jobs = mq.queue("jobs")
        jobs.publish("x")
        [delivery] = jobs.lease(visibility=0.2)
        with delivery:
            outlast(mq, delivery)
        assert jobs.counts()[State.DONE] == 1


def test_the_lease_is_renewed_in_a_forked_child_too(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        jobs = mq.queue("jobs")
        jobs.publish_many(["a", "b"])
        with one(jobs):
            pass  # the parent's renewal thread runs from here on
        child = os.fork()
        if child == 0:
            with warnings.catch_warnings():
                [delivery] = jobs.lease(visibility=0.2)
                with delivery:
                    outlast(mq, delivery)
            os._exit(0 if delivery.settled else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert jobs.counts()[State.DONE] == 2


def test_a_death_is_told_once_with_its_fields(jobs: Queue, caplog: pytest.LogCaptureFixture) -> None:
    jobs.publish("secret body", id="x")
    with caplog.at_level(logging.INFO, logger="pabal"):
        one(jobs).bury("no")
    [record] = caplog.records
    assert record.args == {"queue": "jobs", "id": "x", "outcome": "dead", "code": "NACKED", "reason": "no"}
    assert "secret" not in record.getMessage()


def test_slips_are_refused_with_the_remedy(jobs: Queue) -> None:
    for one_body in ({"a": 1}, "text", b"bytes"):
        with pytest.raises(InvalidInput, match="publish_many takes a list of bodies; found one .* use publish"):
            jobs.publish_many(one_body)
    with pytest.raises(InvalidInput, match="a state is one of ready, delayed"):
        jobs.browse("nope")  # type: ignore[arg-type]
    jobs.publish("x")
    assert len(jobs.browse("ready")) == 1  # type: ignore[arg-type]
    for wait in (-1, "3", True, float("nan")):
        with pytest.raises(InvalidInput, match="wait must be"):
            jobs.lease(wait=wait)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="wait must be"):
            jobs.consume(wait=wait)  # type: ignore[arg-type]


def test_cancelled_messages_are_gone_and_their_holder_learns_it(jobs: Queue) -> None:
    first, second, third = (jobs.publish(n).id for n in range(3))
    [delivery] = jobs.lease()
    assert jobs.cancel([first, second]) == [second] and jobs.cancel([first], inflight=True) == [first]
    with pytest.raises(LeaseLost):
        delivery.ack()
    with pytest.raises(InvalidInput, match="one str"):
        jobs.cancel(third)
    assert [each.body for each in jobs.consume(wait=0)] == [2]


def test_a_message_without_attempts_moves_whole_to_its_dead_letter_queue(
    mq: Connection, jobs: Queue, clock: ManualClock
) -> None:
    moving = DeadLetterPolicy(queue="bin", move=True)
    jobs.configure(Policy(visibility=1, retry=RetryPolicy(limit=1), dead_letters=moving))
    jobs.publish({"n": 1}, id="m", headers={"a": "b"}, group="g")
    one(jobs).nack()
    assert sum(jobs.counts().values()) == jobs.counts()[State.DONE] == 1
    moved = one(mq.queue("bin"))
    assert (moved.body, moved.attempt, moved.message.group) == ({"n": 1}, 1, "g")
    assert moved.message.headers == {"a": "b", "source-queue": "jobs", "original-id": "m"}
    moved.ack(then=[jobs.draft(moved.body, headers=moved.message.headers)])  # sent back, and left by its consumer
    one(jobs)
    clock.advance(2)
    assert jobs.lease() == []
    [again] = mq.queue("bin").lease()
    assert again.message.headers["original-id"] == "m" and again.message.id != moved.message.id
    again.ack()
    jobs.publish("late", ttl=1)
    clock.advance(2)
    assert jobs.lease() == [] and jobs.counts()[State.DEAD] == 1  # its time was over: nobody failed
    with pytest.raises(InvalidPolicy, match=r"dead_letters\.move needs"):
        DeadLetterPolicy(move=True)


def test_messages_with_one_key_all_arrive_in_their_dead_letter_queue(mq: Connection, clock: ManualClock) -> None:
    policy = Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(queue="bin", move=True))
    for name in ("a", "b"):
        queue = mq.queue(name)
        queue.configure(policy)
        queue.publish("by key", dedup_key="k")
        queue.publish("unique", unique="u")
        for delivery in queue.lease(2):
            delivery.nack()
    assert sorted(delivery.body for delivery in mq.queue("bin").lease(9)) == ["by key", "by key", "unique", "unique"]
    mq.queue("a").publish("late", ttl=1)
    clock.advance(2)
    assert mq.queue("a").lease() == [] and mq.queue("bin").lease() == []  # it stays where it is, without a copy


def test_a_message_that_its_dead_letter_queue_refuses_stays_dead(
    mq: Connection, jobs: Queue, clock: ManualClock
) -> None:
    mq.queue("Bin").publish("x")
    jobs.configure(
        Policy(visibility=1, retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(queue="bin", move=True))
    )
    jobs.publish("x")
    one(jobs)
    clock.advance(2)
    assert jobs.lease() == [] and jobs.counts()[State.DEAD] == 1


def test_an_application_keeps_a_document_with_a_queue(mq: Connection, jobs: Queue) -> None:
    assert jobs.attached("sqs") == {}
    jobs.attach("sqs", lambda known: {**known, "tags": {"a": "b"}})
    jobs.attach("other", lambda known: {"n": 1})
    jobs.update_policy(visibility=9)
    jobs.pause()
    jobs.configure(Policy(visibility=8))
    same = mq.queue("jobs")
    assert same.attached("sqs") == {"tags": {"a": "b"}} and same.paused and same.policy == Policy(visibility=8)
    jobs.attach("sqs", lambda known: {})
    assert mq.queue("jobs").attached("sqs") == {} and mq.queue("jobs").attached("other") == {"n": 1}


def test_every_attempt_is_kept_with_its_failure_and_its_consumer(mq: Connection, clock: ManualClock) -> None:
    jobs, other = mq.queue("jobs"), Queue("jobs", mq.store, clock=clock, consumer="other")
    jobs.configure(Policy(visibility=30, retry=RetryPolicy(limit=4, initial=0)))
    id = jobs.publish(1).id
    one(jobs).nack(reason="first " + "x" * 5000)
    one(other).nack(reason="second")
    one(other)  # and is never heard of again
    clock.advance(31)
    one(jobs).nack(reason="last")
    entry = jobs.find(id)
    assert entry is not None and entry.failure is not None and entry.failure.code == "RETRY_LIMIT"
    kept = [(each.attempt, each.code, each.reason[:12], each.consumer) for each in entry.failure.before]
    assert kept == [
        (1, "NACKED", "first xxxxxx", "tester"),
        (2, "NACKED", "second", "other"),
        (3, "LEASE_EXPIRED", "the lease ra", "other"),
    ]
    assert len(entry.failure.before[0].reason) == 300


def test_of_many_attempts_the_last_ones_are_kept(jobs: Queue) -> None:
    jobs.configure(Policy(retry=RetryPolicy(limit=100, initial=0)))
    jobs.publish(1)
    for number in range(25):
        one(jobs).nack(reason=f"no {number}")
    failure = one(jobs).failure
    assert failure is not None and failure.reason == "no 24"
    assert [each.reason for each in failure.before] == [f"no {number}" for number in range(14, 24)]
    assert not any(each.before for each in failure.before)


def test_without_create_a_queue_must_be_there(mq: Connection) -> None:
    jobs, feed = mq.queue("jobs", create=False), mq.queue("feed")
    calls: list[Callable[[], object]] = [
        lambda: jobs.publish(1),
        lambda: jobs.publish_many([1, 2]),
        lambda: feed.publish_many([jobs.draft(1)]),
        lambda: jobs.configure(Policy()),
        lambda: jobs.update_policy(visibility=9),
        lambda: jobs.attach("sqs", lambda known: {"a": 1}),
        jobs.pause,
    ]
    feed.publish("x")
    held = one(feed)
    calls.append(lambda: held.ack(then=[jobs.draft(1)]))
    for call in calls:
        with pytest.raises(QueueUnknown):
            call()
        assert mq.queues() == ["feed"]
    mq.queue("jobs").publish(0)  # from now on it is there, though it has no settings
    held.ack(then=[jobs.draft(1)])
    jobs.publish(2)
    jobs.pause()
    assert jobs.counts()[State.READY] == 3
    jobs.delete(force=True)
    with pytest.raises(QueueUnknown):
        jobs.publish(3)


def test_a_policy_that_moves_makes_its_dead_letter_queue_and_a_move_does_not(mq: Connection, jobs: Queue) -> None:
    policy = Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(queue="bin", move=True))
    jobs.configure(policy)
    assert mq.queues() == ["bin", "jobs"]
    mq.queue("bin").delete()
    jobs.update_policy(visibility=9)
    jobs.publish("kept")
    one(jobs).nack(reason="no")
    assert mq.queues() == ["jobs"]
    [entry] = jobs.browse(State.DEAD)
    assert entry.failure is not None and entry.failure.code == "RETRY_LIMIT"
    jobs.update_policy(dead_letters=policy.dead_letters)
    jobs.revive([entry.id])
    one(jobs).nack()
    assert one(mq.queue("bin")).body == "kept"
    assert mq.queue("other").create(replace(policy, dead_letters=DeadLetterPolicy(queue="tip", move=True)))
    assert "tip" in mq.queues()
