"""`pabal metrics` and `pabal check`: true whoever publishes and consumes, and without a manager."""

import json
import os
import signal
from pathlib import Path

from pabal.policy.policy import Policy, RetryPolicy
from pabal.store import State
from tests.cli.command import Pabal
from tests.cli.test_consume import fill


def samples(text: str) -> dict[str, float]:
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


def test_all_series_begin_at_zero(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    found = samples(any_pabal.ok("metrics"))
    assert found['pabal_published_total{queue="jobs"}'] == 1
    for series in (
        'pabal_dead_letters_total{queue="jobs",reason="RETRY_LIMIT"}',
        'pabal_expirations_total{queue="jobs",code="LEASE_EXPIRED"}',
        'pabal_acked_total{queue="jobs"}',
        'pabal_leased_total{queue="jobs"}',
        'pabal_dropped_total{queue="jobs"}',
        'pabal_oldest_inflight_seconds{queue="jobs"}',
        'pabal_queue_seconds_count{queue="jobs"}',
        'pabal_work_seconds_bucket{queue="jobs",le="+Inf"}',
    ):
        assert found[series] == 0, series
    assert found["pabal_free_bytes"] > 0 and found["pabal_ballast"] == 1


def test_deaths_in_another_process_are_counted(any_pabal: Pabal) -> None:
    with any_pabal.connect() as mq:
        jobs = mq.queue("jobs")
        jobs.configure(Policy(retry=RetryPolicy(limit=1)))
        jobs.publish_many(range(7))
        for delivery in jobs.lease(7):
            delivery.nack(reason="no")
        # The handle is still open: a death is written at once.
        found = samples(any_pabal.ok("metrics", "--prometheus"))
    assert found['pabal_dead_letters_total{queue="jobs",reason="RETRY_LIMIT"}'] == 7
    assert found['pabal_leased_total{queue="jobs"}'] == 7
    document = json.loads(any_pabal.ok("metrics", "jobs", "--json"))
    assert document["queues"]["jobs"]["deadLetters"]["RETRY_LIMIT"] == {"total": 7}
    assert any_pabal("metrics", "--json", "--prometheus").code == 2


def test_looking_makes_nothing(pabal: Pabal, tmp_path: Path) -> None:
    for command in (("metrics",), ("check",)):
        assert pabal(*command).code == 3
    pabal.ok("publish", "jobs", "1")
    before = sorted(str(path) for path in pabal.place.rglob("*"))
    pabal.ok("metrics")
    pabal.ok("check", "--max-oldest", "1h")
    assert sorted(str(path) for path in pabal.place.rglob("*")) == before
    assert pabal("metrics", "jbos").code == 3


def test_check_is_one_line_and_an_exit_code(any_pabal: Pabal) -> None:
    any_pabal.ok("publish", "jobs", "1")
    assert any_pabal.ok("check").startswith("OK - 1 queue, 1 ready, oldest ")
    ran = any_pabal("check", "--max-oldest", "0")
    assert ran.code == 2 and ran.out.startswith("CRITICAL - jobs: the oldest ready message waits for ")
    receipt = json.loads(any_pabal.ok("consume", "jobs", "--json"))["receipt"]
    ran = any_pabal("check", "jobs", "--max-inflight-age", "0", "--max-oldest", "0")
    assert ran.code == 2 and ran.out.count("\n") == 1 and "held for" in ran.out and "waits for" not in ran.out
    any_pabal.ok("check", "--max-dead", "0", "--max-inflight-age", "10m")
    any_pabal.ok("nack", receipt, "--bury")
    ran = any_pabal("check", "--max-dead", "0")
    assert (ran.code, ran.out) == (2, "CRITICAL - jobs: 1 dead, 0 at most\n")
    any_pabal.ok("check", "--max-dead", "1")


def test_the_oldest_is_not_the_first_of_a_hundred(any_pabal: Pabal) -> None:
    with any_pabal.connect() as mq:
        mq.queue("jobs").publish("old", priority=-9)
        first = mq.store.oldest("jobs", State.READY)
        mq.queue("jobs").publish_many(range(150), priority=9)
        assert mq.store.oldest("jobs", State.READY) == first


def test_status_watches_until_it_is_stopped(pabal: Pabal) -> None:
    fill(pabal, 1)
    watching = pabal.start("status", "--watch", "--json")
    assert watching.stdout is not None
    assert [json.loads(watching.stdout.readline())["ready"] for _ in range(2)] == [1, 1]
    watching.send_signal(signal.SIGINT)
    assert watching.wait(10) == 130


def test_a_consumer_whose_file_lost_its_time_is_a_number(pabal: Pabal) -> None:
    pabal.ok("publish", "jobs", "1")
    with pabal.connect() as mq:
        mq.queue("jobs").lease()
    [file] = pabal.place.glob("store*.consumers/*.json")
    os.utime(file, (0, 0))
    [line] = [line for line in pabal.ok("metrics").splitlines() if line.startswith("pabal_consumer_seen_seconds{")]
    assert float(line.rpartition(" ")[2]) > 1e9
