"""The manager in this process: what it does when its store fails, and what it answers by itself."""

import logging
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pabal.clock import Clock, SystemClock
from pabal.connect import Connection, connect
from pabal.errors import StoreFailed, StoreRefused
from pabal.manager.config import Config, read_config
from pabal.manager.manager import Manager
from pabal.manager.report import Report


def managed(config: Config, passed: Any) -> Manager:
    return Manager(config, clock=SystemClock(), reread=lambda: config, passed=passed)


def test_a_store_that_fails_is_opened_again_and_serving_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened: list[Connection] = []

    def open_anew(url: str, *, clock: Clock) -> Connection:
        mq = connect(url, clock=clock)
        opened.append(mq)
        if len(opened) == 1:

            def fail() -> list[str]:
                raise StoreFailed("the disk gave up")

            mq.store.queues = fail  # type: ignore[method-assign]  # the fault under test
        return mq

    monkeypatch.setattr("pabal.manager.manager.connect", open_anew)
    manager: Manager
    passes: list[dict[str, Any]] = []

    def passed(report: Report) -> None:
        passes.append(report.health())
        manager.stop()

    manager = managed(read_config(None, folder=tmp_path), passed)
    with caplog.at_level(logging.INFO, "pabal"):
        manager.run()
    manager.close()
    assert len(opened) == 2 and len(passes) == 1
    told = [record.getMessage() for record in caplog.records]
    assert told == ["serving", "the store failed: the disk gave up", "serving", "stopped"]


def test_a_store_that_cannot_be_opened_at_all_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "pabal.toml").write_text('[sqlite]\ndbPath = "."\n')
    manager = managed(read_config(tmp_path / "pabal.toml", folder=tmp_path), lambda report: None)
    with pytest.raises((StoreFailed, StoreRefused)):
        manager.run()
    manager.close()


def test_a_reload_changes_nothing_that_needs_a_new_start(tmp_path: Path) -> None:
    before = read_config(None, folder=tmp_path)
    after = read_config(None, folder=tmp_path, root=tmp_path / "elsewhere", lease={"sweepIntervalMs": 50})
    passes = iter(range(100))
    manager: Manager

    def passed(report: Report) -> None:
        if next(passes) == 0:
            os.kill(os.getpid(), signal.SIGHUP)
        else:
            manager.stop()

    manager = Manager(before, clock=SystemClock(), reread=lambda: after, passed=passed)
    manager.run()
    manager.close()
    assert (manager.config.root, manager.config.store_url) == (before.root, before.store_url)
    assert manager.config.sweep_interval == 0.05 and not (tmp_path / "elsewhere").exists()


def test_metrics_and_health_tell_of_every_queue(tmp_path: Path) -> None:
    manager: Manager
    told: list[dict[str, Any]] = []
    with connect(f"sqlite:{tmp_path}/.pabal/pabal.db") as mq:
        mq.queue("jobs").publish(1)
        mq.queue("jobs").pause()

    def passed(report: Report) -> None:
        told.extend([report.health(), report.metrics()])
        manager.stop()

    manager = managed(read_config(None, folder=tmp_path), passed)
    manager.run()
    manager.close()
    health, metrics = told[:2]
    assert health["backend"] == "sqlite" and health["freeBytes"] > 0 and health["store"]["place"].endswith("pabal.db")
    jobs = metrics["queues"]["jobs"]
    assert (jobs["ready"], jobs["inflight"], jobs["paused"]) == (1, 0, True)
    assert jobs["oldestReadySeconds"] >= 0 and metrics["process"]["residentBytes"] > 0
