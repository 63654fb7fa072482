"""The lock of a data root, the log, and the sweeps of all queues."""

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.connect import connect
from pabal.errors import AlreadyRunning
from pabal.manager.config import read_config
from pabal.manager.manager import LOG, root_lock
from pabal.manager.metrics import Metrics
from pabal.manager.report import Report
from pabal.manager.sweeper import RETENTION_INTERVAL, Sweeper
from pabal.policy.policy import DeadLetterPolicy, Policy, RetryPolicy
from pabal.policy.retention import LOOK_SECONDS
from pabal.runtime.logs import event_of, log_lines
from pabal.store import State
from pabal.testing import ManualClock


def test_a_second_manager_is_told_who_has_the_root(tmp_path: Path) -> None:
    first = root_lock(tmp_path / "root", 1_700_000_000.0)
    with pytest.raises(AlreadyRunning, match=rf"served already: pid {os.getpid()} since 2023-11-14T22:13:20Z"):
        root_lock(tmp_path / "root", 1_700_000_001.0)
    first.close()
    root_lock(tmp_path / "root", 1_700_000_002.0).close()


def test_a_killed_manager_leaves_no_lock_behind(tmp_path: Path) -> None:
    held = f"held = root_lock(Path({str(tmp_path)!r}), 1.0)"
    script = f"from pabal.manager.manager import *; {held}; print('x', flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        with pytest.raises(AlreadyRunning, match=f"pid {child.pid}"):
            root_lock(tmp_path, 2.0)
        child.kill()
    root_lock(tmp_path, 3.0).close()


def test_the_log_is_one_json_object_per_line_and_survives_rotation(tmp_path: Path) -> None:
    log = logging.getLogger("pabal.test")
    with log_lines("edge-1", tmp_path / LOG):
        log.info("one %s", "thing\nmore", extra={"pabal": {"queue": "jobs", "count": 3}})
        (tmp_path / LOG).rename(tmp_path / "old")
        try:
            raise ValueError("odd \ud800")
        except ValueError:
            log.exception("broken")
    [first] = (tmp_path / "old").read_text().splitlines()
    [second] = (tmp_path / LOG).read_text().splitlines()
    line = json.loads(first)
    assert line.pop("at").endswith("Z")
    fields = {"queue": "jobs", "count": 3}
    assert line == {"level": "info", "node": "edge-1", "event": "one", "message": "one thing\nmore", **fields}
    assert "ValueError: odd ?" in json.loads(second)["traceback"]


@pytest.mark.parametrize(
    ("text", "args", "event"),
    [
        ("serving", (), "serving"),
        ("100 % sure", (), "100 % sure"),
        ("cannot sweep %s: %s", ("jobs", "no"), "cannot sweep"),
        ("%s ended with %d", ("child", 3), "ended with"),
        ("the %s failed: %s", ("store", "x"), "the failed"),
        ("%s", ("anything",), "somewhere"),
        ("%(child)s ended with %(status)d", ({"child": "a", "status": 3},), "ended with"),
    ],
)
def test_an_event_is_a_fixed_name(text: str, args: tuple[object, ...], event: str) -> None:
    assert event_of(logging.LogRecord("pabal", logging.INFO, "", 1, text, args, None, "somewhere")) == event


def test_values_given_by_name_are_fields(tmp_path: Path) -> None:
    with log_lines("edge-1", tmp_path / LOG):
        logging.getLogger("pabal").warning("%(queue)s waits: %(error)s", {"queue": "jobs", "error": "no", "many": 3})
    line = json.loads((tmp_path / LOG).read_text())
    assert (line["event"], line["message"]) == ("waits", "jobs waits: no")
    assert (line["queue"], line["error"], line["many"]) == ("jobs", "no", 3)


def test_sweeps_judge_what_ran_out_in_every_queue(tmp_path: Path) -> None:
    clock = ManualClock()
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        sweeps = Sweeper(mq, clock=clock, interval=1.0)
        for name in ("a", "b"):
            mq.queue(name).configure(Policy(visibility=5, retry=RetryPolicy(limit=1)))
            mq.queue(name).publish(1)
            mq.queue(name).lease()
        sweeps.step()
        clock.advance(6)
        assert sweeps.next_due() == 0.0
        assert sweeps.step() == 2 and sweeps.step() == 0
        assert mq.queue("a").counts()[State.DEAD] == mq.queue("b").counts()[State.DEAD] == 1
        assert sweeps.next_due() == 1.0


def test_the_dead_and_the_done_are_kept_no_longer_than_the_policy_says(tmp_path: Path) -> None:
    clock = ManualClock()
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        jobs = mq.queue("jobs")
        jobs.configure(Policy(dead_letters=DeadLetterPolicy(retention_days=1)))
        jobs.publish_many([1, 2])
        for number, delivery in enumerate(jobs.lease(2)):
            delivery.ack() if number else delivery.bury()
        sweeps = Sweeper(mq, clock=clock, interval=1.0)
        clock.advance(601)
        sweeps.step()
        assert jobs.counts().get(State.DONE, 0) == 0 and jobs.counts()[State.DEAD] == 1
        clock.advance(86400)
        sweeps.step()
        clock.advance(LOOK_SECONDS)
        sweeps.step()
        assert jobs.counts().get(State.DEAD, 0) == 0


def test_an_idle_queue_is_only_asked_until_it_is_time_to_tidy(tmp_path: Path) -> None:
    clock = ManualClock()
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        jobs = mq.queue("jobs")
        jobs.publish(1)
        sweeps = Sweeper(mq, clock=clock, interval=1.0)
        sweeps.step()
        swept: list[str] = []
        purge = mq.store.purge
        mq.store.purge = lambda queue, *args, **options: swept.append(queue) or purge(queue, *args, **options)  # type: ignore[method-assign, func-returns-value]  # a spy, since what must not happen leaves no trace
        for _ in range(int(RETENTION_INTERVAL) - 1):
            clock.advance(1)
            sweeps.step()
        assert swept == []
        clock.advance(1)
        sweeps.step()
        assert swept


def test_queues_get_their_policies_and_a_paused_one_stays_so(tmp_path: Path) -> None:
    clock = ManualClock()
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        sweeps = Sweeper(mq, clock=clock, interval=1.0)
        wanted = {"a": Policy(visibility=5), "b": Policy()}
        assert sweeps.configure(wanted, Policy(), 1.0) == ["a", "b"]
        assert sweeps.configure(wanted, Policy(), 1.0) == []
        mq.queue("a").pause()
        assert sweeps.configure({"a": Policy(visibility=6)}, Policy(), 1.0) == ["a"]
        assert mq.queue("a").policy == Policy(visibility=6) and mq.queue("a").paused


def test_a_queue_that_nobody_named_gets_the_default_policy(tmp_path: Path) -> None:
    clock = ManualClock()
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        sweeps = Sweeper(mq, clock=clock, interval=1.0)
        sweeps.configure({}, Policy(visibility=9), 1.0)
        mq.queue("own").configure(Policy(visibility=3))
        mq.queue("new").publish(1)
        sweeps.step()
        assert (mq.queue("new").policy.visibility, mq.queue("own").policy.visibility) == (9, 3)


def test_a_policy_that_cannot_be_read_stops_no_other_queue(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    with connect(f"sqlite:{tmp_path}/a.db", clock=clock) as mq:
        mq.store.configure("a", {"visibilityTimeoutSec": "never"})
        mq.queue("b").configure(Policy(visibility=5, retry=RetryPolicy(limit=1)))
        mq.queue("b").publish(1)
        mq.queue("b").lease()
        clock.advance(6)
        with caplog.at_level(logging.ERROR, "pabal"):
            assert Sweeper(mq, clock=clock, interval=1.0).step() == 1
        assert "cannot sweep a" in caplog.text
        report = Report(read_config(None, folder=tmp_path), mq, Metrics(clock), clock)
        queues = report.metrics()["queues"]
        assert {name: found["paused"] for name, found in queues.items()} == {"a": False, "b": False}
