"""The queue over every store: policy, sweeps, deliveries, waiting."""

import logging
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pabal
from pabal import DeadLetterPolicy, Delivery, LeaseLost, Policy, Queue, RetryPolicy, State
from pabal.connect import Connection
from pabal.errors import InvalidInput, InvalidPolicy, InvalidReceipt, QueueFull, TooLarge, ValidationFailed
from pabal.jsontext import Json
from pabal.testing import ManualClock

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
    monkeypatch.setattr("pabal.judge.LARGEST_MAX_BYTES", 10)
    assert jobs.lease() == []
    assert jobs.counts()[State.DEAD] == 2


def test_a_paused_queue_judges_what_ran_out_and_lets_its_consumer_sleep(jobs: Queue, clock: ManualClock) -> None:
    jobs.publish_many(["a", "b"], delay=0.5)
    clock.advance(1)
    assert one(jobs).attempt == 1
    jobs.pause()
    clock.advance(31)
    looks = time.process_time()
    assert jobs.lease(wait=0.5) == []
    assert time.process_time() - looks < 0.2
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
    assert jobs.counts()[State.DEAD] == 0


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
    assert other_handle.policy.paused is False
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


def test_pausing_keeps_the_rest_of_the_policy(jobs: Queue) -> None:
    jobs.configure(Policy(visibility=7))
    jobs.pause()
    assert (jobs.policy.visibility, jobs.policy.paused) == (7, True)


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
    with pytest.raises(InvalidInput, match="lease must be"):
        jobs.lease(seconds=0)
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


def test_a_waiting_consumer_is_woken_by_a_publish(jobs: Queue, mq: Connection) -> None:
    def publish_soon() -> None:
        time.sleep(0.2)
        mq.queue("jobs").publish("x")

    thread = threading.Thread(target=publish_soon)
    began = time.monotonic()
    thread.start()
    [delivery] = jobs.lease(wait=20)
    thread.join()
    assert delivery.body == "x"
    assert time.monotonic() - began < 10


def test_consume_ends_when_nothing_comes(jobs: Queue) -> None:
    jobs.publish_many(["a", "b"])
    seen = []
    for delivery in jobs.consume(wait=0.05):
        with delivery:
            seen.append(delivery.body)
    assert seen == ["a", "b"]


def test_the_lease_is_renewed_while_a_block_runs(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        jobs = mq.queue("jobs")
        jobs.publish("x")
        [delivery] = jobs.lease(seconds=0.6)
        with delivery:
            time.sleep(1.5)
            assert mq.queue("jobs").lease() == []
        assert jobs.counts()[State.DONE] == 1


def test_the_lease_is_renewed_in_a_forked_child_too(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        jobs = mq.queue("jobs")
        jobs.publish_many(["a", "b"])
        with one(jobs):
            time.sleep(0.1)  # the parent's renewal thread runs
        child = os.fork()
        if child == 0:
            with warnings.catch_warnings():
                [delivery] = jobs.lease(seconds=0.6)
                with delivery:
                    time.sleep(1.5)
            os._exit(0 if delivery.settled else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert jobs.counts()[State.DONE] == 2


def test_a_death_is_told_once_with_its_fields(jobs: Queue, caplog: pytest.LogCaptureFixture) -> None:
    jobs.publish("secret body", id="x")
    with caplog.at_level(logging.INFO, logger="pabal"):
        one(jobs).bury("no")
    [record] = caplog.records
    assert vars(record)["pabal"] == {"queue": "jobs", "id": "x", "outcome": "dead", "code": "NACKED"}
    assert "secret" not in record.getMessage()
