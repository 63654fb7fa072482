"""PostgreSQL under load while clients are killed, the server is killed or restarted, and links are cut.

Nothing is lost, nothing settled comes back, no stale receipt is taken. The server flushes all but leases.
"""

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from pabal.clock import SystemClock
from pabal.stores.postgres import PostgresStore
from pabal.testing.history import History, Report, check_history, read_history
from tests.crash.harness import ROOT, SHARE, SOAK, one_state_each
from tests.crash.recorder import Recorder
from tests.crash.sleepers import check_sleepers
from tests.services.cutting_proxy import CuttingProxy
from tests.services.postgres import PostgresServer, running

ROLES = ("publish", "publish", "consume", "consume", "consume")
CLIENT_KILLS = 500 if SOAK else 15
SERVER_CRASHES = 20 if SOAK else 3
CUTS = 200 if SOAK else 15
SLEEPS = 50 if SOAK else 3
MESSAGES = 1_000_000 * SHARE if SOAK else 1_000
ROUND_KILLS = 30 if SOAK else 4  # a round has a schema of its own
AHEAD = """
create or replace function {0}.steady() returns double precision language sql volatile
  as 'select extract(epoch from clock_timestamp())::double precision + 7200'"""


class Crew:
    """Busy processes at one schema, of which each can be killed and replaced."""

    def __init__(self, url: str, schema: str, folder: Path, seed: int, roles: Sequence[str]) -> None:
        self._start = [sys.executable, "-m", "tests.crash.postgres_busy", url, schema]
        self._folder = folder
        self._chance = random.Random(seed)
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._number = 0
        for role in roles:
            self._add(role)

    def kill_one(self) -> None:
        role, process = self._running.pop(self._chance.randrange(len(self._running)))
        _kill(process)
        self._add(role)

    def work(self, shortest: float, longest: float) -> None:
        time.sleep(self._chance.uniform(shortest, longest))
        ended = [(role, process.returncode) for role, process in self._running if process.poll() is not None]
        assert ended == [], "a busy process ended by itself"

    def wait_until_busy(self) -> None:
        end = time.monotonic() + 60
        while len([path for path in self._folder.glob("*.jsonl") if path.stat().st_size]) < len(self._running):
            assert time.monotonic() < end, "the processes do not start"
            time.sleep(0.02)

    def kill_all(self) -> None:
        for _, process in self._running:
            _kill(process)
        self._running.clear()

    def _add(self, role: str) -> None:
        history = self._folder / f"{role[0]}{self._number}.jsonl"
        self._number += 1
        arguments = [*self._start, str(history), role, str(self._chance.randrange(10**9))]
        self._running.append((role, subprocess.Popen(arguments, cwd=ROOT)))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


@pytest.fixture
def server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server of this test's own, that may be killed."""
    with running() as server:
        assert server.execute("show fsync") == [("on",)]
        yield server


def judge(server: PostgresServer, schema: str, folder: Path) -> Report:
    """Let every lease run out, drain what is left, and check all that was written down."""
    store = PostgresStore(server.url, schema=schema)
    try:
        one_state_each(store)
        server.execute(AHEAD.format(schema))
        history = History(folder / "judge.jsonl", clock=_Later())
        Recorder(store, history, _Later()).drain()
        one_state_each(store)
        history.close()
        assert store.check(repair=False) == []
    finally:
        store.close()
    return check_history(read_history(folder.glob("*.jsonl")))


class _Later(SystemClock):
    def boot(self) -> float:
        return super().boot() + 7200.0


def storm(
    server: PostgresServer, url: str, folder: Path, harm: Callable[[Crew], None], roles: Sequence[str] = ROLES
) -> Report:
    """Let a crew work while harm is done to it, and return what it came to."""
    seed = random.randrange(10**6)
    with server.schema() as schema:
        PostgresStore(server.url, schema=schema).close()
        crew = Crew(url, schema, folder, seed, roles)
        try:
            crew.wait_until_busy()
            harm(crew)
        finally:
            crew.kill_all()
        report = judge(server, schema, folder)
    print(  # noqa: T201  the figures are the point of a soak
        f"seed {seed}: {report.published} published, {report.acked} acked, {report.duplicate} delivered again,"
        f" {report.uncertain} uncertain, harm {report.harm}"
    )
    assert report.harm == {}, f"seed {seed}"
    return report


@pytest.mark.timeout(1800 if SOAK else 300)
def test_random_kills_of_clients_harm_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    def harm(crew: Crew) -> None:
        for _ in range(CLIENT_KILLS):
            crew.work(0.05, 0.4)
            crew.kill_one()

    report = storm(postgres, postgres.url, tmp_path, harm)
    assert report.published > CLIENT_KILLS and report.acked > CLIENT_KILLS


@pytest.mark.timeout(7200 if SOAK else 300)
def test_of_very_many_messages_none_is_lost_or_comes_back(postgres: PostgresServer, tmp_path: Path) -> None:
    def harm(crew: Crew) -> None:
        for _ in range(ROUND_KILLS):
            crew.work(0.3, 0.9)
            crew.kill_one()

    published = rounds = 0
    while published < MESSAGES:
        folder = tmp_path / f"round-{rounds}"
        folder.mkdir()
        roles = ("publish_many", "publish", "consume_many", "consume_many", "consume")
        published += storm(postgres, postgres.url, folder, harm, roles).published
        rounds += 1
        shutil.rmtree(folder)
    print(f"{rounds * ROUND_KILLS} kills, {published} acknowledged, no harm")  # noqa: T201  the figures are the point


@pytest.mark.timeout(1800 if SOAK else 300)
def test_a_server_killed_and_restarted_under_load_loses_nothing(server: PostgresServer, tmp_path: Path) -> None:
    history = History(tmp_path / "server.jsonl", clock=SystemClock())

    def harm(crew: Crew) -> None:
        for number in range(SERVER_CRASHES):
            crew.work(0.5, 2.0)
            server.kill() if number % 4 else server.stop()
            history.note("cut")  # the last leases may be undone, which the judge allows for, and nothing else
            server.start()
        crew.work(1.0, 2.0)

    report = storm(server, server.url, tmp_path, harm)
    assert report.published > SERVER_CRASHES and report.acked > SERVER_CRASHES


@pytest.mark.timeout(1800 if SOAK else 300)
def test_links_cut_at_random_lose_nothing(postgres: PostgresServer, tmp_path: Path) -> None:
    proxy = CuttingProxy(postgres.port)

    def harm(crew: Crew) -> None:
        for number in range(CUTS):
            crew.work(0.05, 0.4)
            if number % 3 == 0:
                proxy.cut()
            elif number % 3 == 1:
                proxy.wound(20_000)
            else:
                proxy.wound(0)
                postgres.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where application_name = 'pabal' and random() < 0.5"
                )
        proxy.wound(0)
        crew.work(1.0, 2.0)

    try:
        report = storm(postgres, postgres.url_at(proxy.port), tmp_path, harm)
    finally:
        proxy.close()
    assert proxy.cuts > CUTS and report.published > CUTS and report.acked > CUTS


def test_g5_who_sleeps_through_its_lease_is_told(postgres: PostgresServer) -> None:
    with postgres.schema() as schema:
        check_sleepers(lambda: PostgresStore(postgres.url, schema=schema), SLEEPS)
