"""The manager's figures are those of the store, whoever publishes and consumes, told in two forms."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.connect import connect
from pabal.mailbox.stats import Answered
from pabal.manager.config import read_config
from pabal.manager.metrics import Histogram, Metrics
from pabal.manager.report import Report
from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.metrics import quantile
from pabal.queues.prometheus import prometheus_text
from pabal.queues.queue import Queue
from pabal.store import Counters, Receipt, State
from pabal.testing import ManualClock

Figures = Callable[[], dict[str, Any]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def jobs(tmp_path: Path, clock: ManualClock) -> Iterator[Queue]:
    """The queue as a program uses it that does not know of the manager."""
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock, consumer="me") as mq:
        yield mq.queue("jobs")


@pytest.fixture
def report(tmp_path: Path, clock: ManualClock, jobs: Queue) -> Iterator[Report]:
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        report = Report(read_config(None, folder=tmp_path), mq, Metrics(clock), clock)
        report.look()
        yield report


@pytest.fixture
def figures(jobs: Queue, report: Report) -> Figures:
    def look() -> dict[str, Any]:
        jobs.store.counters("jobs")  # writes the leases and acks that were only noted
        found: dict[str, Any] = report.metrics()["queues"]["jobs"]
        return found

    return look


def test_a_histogram_tells_counts_and_quantiles() -> None:
    histogram = Histogram()
    for seconds in (0.0005, 0.002, 0.002, 7.0, 10**6):
        histogram.add(seconds)
    found = histogram.document()
    assert (histogram.count, found["count"], found["p50"], quantile(histogram.counts, 0.75)) == (5, 5, 0.005, 10.0)
    assert found["buckets"]["0.001"] == 1 and found["buckets"]["+Inf"] == 5
    assert Histogram().document()["p50"] is None


def test_messages_are_counted_from_publish_to_ack(jobs: Queue, clock: ManualClock, figures: Figures) -> None:
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
    found = figures()
    assert (found["published"], found["leased"], found["acked"], found["retries"]) == (4, 3, 1, 1)
    assert found["deadLetters"]["NACKED"] == {"total": 1, "lastHour": 1}
    assert found["failureRate"] == 0.667 and 0 < found["inPerSecond"] < 0.1
    assert (found["secondsInQueue"]["p50"], found["secondsInWork"]["p50"]) == (10.0, 5.0)
    clock.advance(3700)
    figures()
    clock.advance(70)
    found = figures()
    assert found["deadLetters"]["NACKED"] == {"total": 1, "lastHour": 0}
    assert (found["failureRate"], found["inPerSecond"]) == (0.0, 0.0)


def test_a_dropped_message_is_one_failure(jobs: Queue, figures: Figures) -> None:
    jobs.configure(Policy(retry=RetryPolicy(limit=1), dead_letters=DeadLetterPolicy(enabled=False)))
    jobs.publish_many([1, 2])
    jobs.lease()[0].nack()
    jobs.lease()[0].ack()
    found = figures()
    assert (found["dropped"], found["acked"], found["failureRate"]) == (1, 1, 0.5)


def test_what_runs_out_is_counted_by_kind(jobs: Queue, clock: ManualClock, figures: Figures) -> None:
    jobs.configure(Policy(visibility=5, retry=RetryPolicy(limit=2, initial=0)))
    jobs.publish(1)
    jobs.publish(2, ttl=1, delay=0.5)
    for _ in range(3):
        jobs.lease()
        clock.advance(6)
        jobs.sweep()
    found = figures()
    assert found["expirations"] == {"EXPIRED": 1, "LEASE_EXPIRED": 2}
    assert {code for code, counts in found["deadLetters"].items() if counts["total"]} == {"EXPIRED", "RETRY_LIMIT"}
    assert jobs.counts()[State.DEAD] == 2


def test_a_stale_receipt_is_counted_and_a_made_up_queue_is_not(jobs: Queue, report: Report, figures: Figures) -> None:
    jobs.publish(1, id="one")
    [delivery] = jobs.lease()
    delivery.ack()
    delivery.ack()
    with pytest.raises(Exception, match="no longer held"):
        jobs.ack(Receipt("jobs", "one", "f" * 16))
    with pytest.raises(Exception, match="no longer held"):
        Queue("made-up", jobs.store).ack(Receipt("made-up", "one", "f" * 16))
    assert figures()["stale"] == 1 and figures()["acked"] == 1
    assert "made-up" not in report.metrics()["queues"]


def test_prometheus_reads_every_number(jobs: Queue, clock: ManualClock, report: Report, figures: Figures) -> None:
    jobs.publish('quo"te')
    jobs.lease()[0].bury("no")
    figures()
    metrics = Metrics(clock)
    metrics.answered(Answered("publish", seconds=0.002))
    document = {
        "commands": {"publish": 1},
        "errors": {"codes": {"TIMEOUT": 2}},
        **report.metrics(),
        "uptimeMs": 1500,
        "requestSeconds": metrics.requests.document(),
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


def test_counters_that_were_set_back_are_no_error(clock: ManualClock) -> None:
    metrics = Metrics(clock)
    metrics.look("jobs", Counters(acked=1))
    clock.advance(60)
    found = metrics.lately("jobs", Counters(retried=1))
    assert (found["failureRate"], found["outPerSecond"]) == (1.0, 0.0)
