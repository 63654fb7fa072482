"""What passes through the manager is counted once, timed, and told in two forms."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.connect import Connection, connect
from pabal.mailbox.settings import Answered
from pabal.manager.measures import Histogram, Rate
from pabal.manager.metrics import Metrics
from pabal.manager.observed import ObservedStore
from pabal.manager.prometheus import prometheus_text
from pabal.policy import Policy, RetryPolicy
from pabal.queue import Queue
from pabal.store import Receipt, State, Waitable
from pabal.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    return Metrics(clock)


@pytest.fixture
def jobs(tmp_path: Path, clock: ManualClock, metrics: Metrics) -> Iterator[Queue]:
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        yield Connection(ObservedStore(mq.store, metrics), clock=clock, consumer="me").queue("jobs")


def test_a_rate_forgets_what_is_past_its_window() -> None:
    rate = Rate(60)
    rate.add(30, now=100.0)
    rate.add(30, now=130.0)
    assert rate.count(now=130.0) == 60 and rate.per_second(now=159.0, since=0.0) == 1.0
    assert rate.count(now=160.5) == 30 and rate.count(now=191.0) == 0


def test_a_young_rate_is_taken_over_the_time_there_was() -> None:
    rate = Rate(60)
    rate.add(20, now=10.0)
    assert rate.per_second(now=10.0, since=0.0) == 2.0


def test_a_histogram_tells_counts_and_quantiles() -> None:
    histogram = Histogram()
    for seconds in (0.0005, 0.002, 0.002, 7.0, 10**6):
        histogram.add(seconds)
    assert histogram.count == 5
    assert (histogram.quantile(0.5), histogram.quantile(0.75)) == (0.005, 10.0)
    assert histogram.cumulative()[0] == ("0.001", 1) and histogram.cumulative()[-1] == ("+Inf", 5)
    assert Histogram().quantile(0.5) is None


def test_messages_are_counted_from_publish_to_ack(jobs: Queue, clock: ManualClock, metrics: Metrics) -> None:
    clock.advance(60)
    jobs.publish_many([1, 2, 3])
    jobs.publish(1, id="same")
    jobs.publish(1, id="same")
    clock.advance(7)
    [first, second, third] = jobs.lease(3)
    clock.advance(3)
    first.ack()
    second.nack(reason="no")
    third.bury("never")
    found = metrics.queue_document("jobs")
    assert (found["published"], found["leased"], found["acked"], found["retries"]) == (4, 3, 1, 1)
    assert found["deadLetters"] == {"NACKED": {"total": 1, "lastHour": 1}}
    assert found["failureRate"] == 0.667 and found["inPerSecond"] == 0.067
    assert (found["secondsInQueue"]["p50"], found["secondsInWork"]["p50"]) == (10.0, 5.0)


def test_what_runs_out_is_counted_by_kind(jobs: Queue, clock: ManualClock, metrics: Metrics) -> None:
    jobs.configure(Policy(visibility=5, retry=RetryPolicy(limit=2, initial=0)))
    jobs.publish(1)
    jobs.publish(2, ttl=1, delay=0.5)
    for _ in range(3):
        jobs.lease()
        clock.advance(6)
        jobs.sweep()
    found = metrics.queue_document("jobs")
    assert found["expirations"] == {"EXPIRED": 1, "LEASE_EXPIRED": 2}
    assert found["deadLetters"].keys() == {"EXPIRED", "RETRY_LIMIT"}
    assert jobs.counts()[State.DEAD] == 2


def test_a_stale_receipt_is_counted_and_a_made_up_queue_is_not(jobs: Queue, metrics: Metrics) -> None:
    jobs.publish(1, id="one")
    [delivery] = jobs.lease()
    delivery.ack()
    delivery.ack()
    with pytest.raises(Exception, match="no longer held"):
        jobs.ack(Receipt("jobs", "one", "f" * 16))
    with pytest.raises(Exception, match="no longer held"):
        Queue("made-up", jobs.store).ack(Receipt("made-up", "one", "f" * 16))
    assert metrics.queue_document("jobs")["stale"] == 1 and metrics.queue_document("jobs")["acked"] == 1
    assert "made-up" not in metrics.queues


def test_an_observed_store_can_still_be_watched(jobs: Queue) -> None:
    assert isinstance(jobs.store, Waitable)
    watch = jobs.watch()
    assert watch is not None
    watch.close()


def test_prometheus_reads_every_number(jobs: Queue, clock: ManualClock, metrics: Metrics) -> None:
    jobs.publish('quo"te')
    jobs.lease()[0].bury("no")
    metrics.answered(Answered("publish", seconds=0.002))
    document = {
        "uptimeMs": 1500,
        "commands": {"publish": 1},
        "errors": {"codes": {"TIMEOUT": 2}},
        "requestSeconds": metrics.requests.document(),
        "process": {"residentBytes": 1, "cpuSeconds": 0.5},
        "queues": {
            "jobs": {
                **{str(state): count for state, count in dict.fromkeys(State, 0).items()},
                "oldestReadySeconds": None,
                "paused": False,
                **metrics.queue_document("jobs"),
            }
        },
    }
    lines = prometheus_text(document).splitlines()
    for line in (
        "pabal_uptime_seconds 1.5",
        'pabal_requests_total{command="publish"} 1',
        'pabal_request_errors_total{code="TIMEOUT"} 2',
        'pabal_request_seconds_bucket{le="0.005"} 1',
        'pabal_published_total{queue="jobs"} 1',
        'pabal_dead_letters_total{queue="jobs",reason="NACKED"} 1',
        'pabal_messages{queue="jobs",state="ready"} 0',
        'pabal_work_seconds_count{queue="jobs"} 1',
    ):
        assert line in lines, line
    for line in lines:
        assert line.startswith("# ") or len(line.rsplit(" ", 1)) == 2 and float(line.rsplit(" ", 1)[1]) >= 0
