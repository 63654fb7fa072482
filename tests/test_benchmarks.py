"""The benchmarks run and give every row; what they measure is never asserted here."""

import faulthandler
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

ROWS = """
sqlite: publish one at a time, to raw FULL
sqlite: lease + ack one at a time, to raw NORMAL
sqlite durable_acks: lease + ack one at a time, to raw FULL
sqlite: publish 100 per call, to raw FULL
sqlite: lease + ack 100 per call, to raw FULL
sqlite: lease + ack 100 per call, to raw NORMAL
as users call it: sqlite bytes, publish one at a time, to raw FULL
as users call it: hybrid bytes, publish one at a time, to raw FULL
as users call it: a bare psycopg loop (SKIP LOCKED) for comparison, publish one at a time, to raw FULL
as users call it: Redis Streams (appendfsync always) for comparison, publish one at a time, to raw FULL
as users call it: sqlite bytes, publish 100 per call, to raw FULL
as users call it: a bare psycopg loop (SKIP LOCKED) for comparison, publish 100 per call, to raw FULL
as users call it: Redis Streams (appendfsync always) for comparison, publish 100 per call, to raw FULL
as users call it: sqlite bytes, lease + ack one at a time, to raw FULL
as users call it: a bare psycopg loop (SKIP LOCKED) for comparison, lease + ack one at a time, to raw FULL
as users call it: Redis Streams (appendfsync always) for comparison, lease + ack one at a time, to raw FULL
as users call it: sqlite bytes, lease + ack 100 per call, to raw FULL
as users call it: a bare psycopg loop (SKIP LOCKED) for comparison, lease + ack 100 per call, to raw FULL
as users call it: Redis Streams (appendfsync always) for comparison, lease + ack 100 per call, to raw FULL
as users call it: sqlite bytes, consume(prefetch=32), to consume one at a time
as users call it: sqlite bytes, worker(concurrency=1), to consume one at a time
as users call it: sqlite bytes, worker(concurrency=8), to consume one at a time
as users call it: sqlite bytes, worker(concurrency=32), to consume one at a time
postgres: publish one at a time, to a bare psycopg loop
postgres: lease + ack one at a time, to a bare psycopg loop
postgres: publish 100 per call, to a bare psycopg loop
postgres: lease + ack 100 per call, to a bare psycopg loop
sqlite: 16 threads publishing one by one, to one
sqlite: 2 processes publishing one by one, to one
files: publish one at a time, to a raw file publish
hybrid: publish one at a time, to a raw file publish
files: publish 100 per call, to publish one at a time
hybrid: publish 100 per call, to publish one at a time
files: lease + ack one at a time, to a raw rename + unlink
hybrid: lease + ack one at a time, to a raw rename + unlink
sqlite: publish one at a time at a backlog of 40, to 20
sqlite: lease + ack one at a time at a backlog of 40, to 20
files: publish one at a time at a backlog of 40, to 20
files: lease + ack one at a time at a backlog of 40, to 20
hybrid: publish one at a time at a backlog of 40, to 20
hybrid: lease + ack one at a time at a backlog of 40, to 20
sqlite: lease + ack one at a time at a backlog of 60, to 20
sqlite topic: append 100 per call, to bare inserts
sqlite topic: read 100 per call, to bare selects
sqlite: counts of all queues, cost of one at 20, to 2
files: counts of all queues, cost of one at 20, to 2
hybrid: counts of all queues, cost of one at 20, to 2
sqlite: lease + ack 100 per call of delayed messages due at once, cost of one at 20, to 2
files: lease + ack 100 per call of delayed messages due at once, cost of one at 20, to 2
hybrid: lease + ack 100 per call of delayed messages due at once, cost of one at 20, to 2
sqlite: list dead messages, cost of one at 20, to 2
files: list dead messages, cost of one at 20, to 2
hybrid: list dead messages, cost of one at 20, to 2
sqlite: revive all dead messages, cost of one at 20, to 2
files: revive all dead messages, cost of one at 20, to 2
hybrid: revive all dead messages, cost of one at 20, to 2
sqlite: publish a duplicate, dedup keys, cost of one at 20, to 2
files: publish a duplicate, dedup keys, cost of one at 20, to 2
hybrid: publish a duplicate, dedup keys, cost of one at 20, to 2
sqlite: lease + ack of one group, cost of one at 20, to 2
files: lease + ack of one group, cost of one at 20, to 2
hybrid: lease + ack of one group, cost of one at 20, to 2
sqlite: purge of one group, cost of one at 20, to 2
files: purge of one group, cost of one at 20, to 2
hybrid: purge of one group, cost of one at 20, to 2
sqlite: first lease after opening, cost of one at 20, to 2
files: first lease after opening, cost of one at 20, to 2
hybrid: first lease after opening, cost of one at 20, to 2
sqlite: memory at a backlog of 40 above empty, MB
files: memory at a backlog of 40 above empty, MB
hybrid: memory at a backlog of 40 above empty, MB
sqlite: publish to receipt in another process, p50 / p99, ms
files: publish to receipt in another process, p50 / p99, ms
hybrid: publish to receipt in another process, p50 / p99, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, sqlite, p50, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, sqlite, p99, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, files, p50, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, files, p99, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, hybrid, p50, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, hybrid, p99, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, Redis Streams, p50, ms
as users call it: published 5 ms apart, lease(wait) in a loop in another process, Redis Streams, p99, ms
as users call it: sqlite, published and taken by processes at once, 2 to 1, per s
as users call it: sqlite, published and taken by processes at once, 2 to 4, per s
as users call it: files, lease + ack the first 300 of a new process at 40, to 20
as users call it: one message for many that wait, sqlite, 20 threads, until one has it, ms
as users call it: one message for many that wait, sqlite, 20 threads, CPU of all of them, ms
as users call it: one message for many that wait, sqlite, 2 processes, until one has it, ms
as users call it: one message for many that wait, sqlite, 2 processes, CPU of all of them, ms
as users call it: one message for many that wait, files, 20 threads, until one has it, ms
as users call it: one message for many that wait, files, 20 threads, CPU of all of them, ms
as users call it: one message for many that wait, files, 2 processes, until one has it, ms
as users call it: one message for many that wait, files, 2 processes, CPU of all of them, ms
workers as a command: functions that do nothing, 1 process, per s
workers as a command: functions that do nothing, 1 process, RQ for comparison, per s
workers as a command: functions that do nothing, 4 processes, per s
workers as a command: functions that do nothing, 4 processes, RQ for comparison, per s
asyncio: sqlite, 100 tasks that publish one each at a time, to one task
asyncio: sqlite, 100 tasks that publish one each at a time, the event loop is late, p99, ms
sqlite: CPU of a sleeping consumer, ms per s
files: CPU of a sleeping consumer, ms per s
hybrid: CPU of a sleeping consumer, ms per s
mailbox: publish one at a time, to raw FULL
mailbox: 2 processes publishing one by one, to raw FULL
mailbox: publish 1,000 per call, to the library on the same store
mailbox: round trip of a publish, p50, ms
mailbox: round trip of a publish, p99, ms
mailbox: an idle manager, CPU, ms per s
mailbox: an idle manager, memory, MB
ignite: moved in until its agent's command runs, 0 waiting, p50, ms
ignite: moved in until its agent's command runs, 0 waiting, p99, ms
ignite: moved in until its agent's command runs, 40 waiting, p50, ms
ignite: moved in until its agent's command runs, 40 waiting, p99, ms
SQS gateway on sqlite: send, one at a time, 1 client, to ElasticMQ, which does not sync
SQS gateway on sqlite: send, one at a time, 1 client, to moto, which does not sync
SQS gateway on sqlite: receive + delete, one at a time, 1 client, to ElasticMQ, which does not sync
SQS gateway on sqlite: receive + delete, one at a time, 1 client, to moto, which does not sync
SQS gateway on sqlite: send, one at a time, 16 clients, to ElasticMQ, which does not sync
SQS gateway on sqlite: send, one at a time, 16 clients, to moto, which does not sync
SQS gateway on sqlite: receive + delete, one at a time, 16 clients, to ElasticMQ, which does not sync
SQS gateway on sqlite: receive + delete, one at a time, 16 clients, to moto, which does not sync
SQS gateway on sqlite: send, in tens, 1 client, to ElasticMQ, which does not sync
SQS gateway on sqlite: send, in tens, 1 client, to moto, which does not sync
SQS gateway on sqlite: receive + delete, in tens, 1 client, to ElasticMQ, which does not sync
SQS gateway on sqlite: receive + delete, in tens, 1 client, to moto, which does not sync
SQS gateway on sqlite: send, in tens, 16 clients, to ElasticMQ, which does not sync
SQS gateway on sqlite: send, in tens, 16 clients, to moto, which does not sync
SQS gateway on sqlite: receive + delete, in tens, 16 clients, to ElasticMQ, which does not sync
SQS gateway on sqlite: receive + delete, in tens, 16 clients, to moto, which does not sync
dashboard on sqlite: publish + lease + ack, 10 viewers, to no gateway: open
dashboard on sqlite: publish + lease + ack, 10 viewers, to no gateway: open, CPU of the gateway, ms per s
dashboard on sqlite: publish + lease + ack, 10 viewers, to no gateway: closed
dashboard on sqlite: publish + lease + ack, 10 viewers, to no gateway: closed, CPU of the gateway, ms per s
kingdom: events dispatched, files, per s
kingdom: moved in until its soldier begins, p50, ms
kingdom: moved in until its soldier begins, p99, ms
kingdom: idle, six roles, CPU, ms per s
chat: sent until another client has it, p50, ms
chat: sent until another client has it, p99, ms
chat: messages through, to a bare python-socketio echo
chat: one room, until the last socket has a message, worst of 40, ms
""".strip().splitlines()


@pytest.mark.timeout(900)
def test_every_row_is_produced_and_nothing_is_left_behind(tmp_path: Path) -> None:
    faulthandler.cancel_dump_traceback_later()  # it may take longer than other tests, and has a limit of its own
    command = [sys.executable, str(BENCHMARKS / "run.py"), "--smoke", "--seed", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    table = [line.split(" | ") for line in done.stdout.splitlines() if line.startswith("| ")]
    found = {cells[0].removeprefix("| "): cells[1] for cells in table}
    assert [row for row in ROWS if row not in found] == []
    assert all(any(char.isdigit() for char in found[row]) for row in ROWS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ours", "aim", "peer", "lower", "said"),
    [
        (0.9, 0.88, 0.8, False, "met"),
        (0.66, 0.88, 0.8, False, "MISSED by 25%; BEHIND huey"),
        (0.5, 0.7, 0.8, True, "met"),
        (1.4, 0.7, 0.8, True, "MISSED by 100%; BEHIND huey"),
    ],
)
def test_the_verdict_names_missed_aims_and_peers_ahead(
    monkeypatch: pytest.MonkeyPatch, ours: float, aim: float, peer: float, lower: bool, said: str
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    table = importlib.import_module("table")
    assert table.verdict(table.Line("row", ours, aim, {"huey": peer}, lower_is_better=lower)) == said


def test_a_peer_that_does_not_sync_is_no_rival_where_syncing_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    table = importlib.import_module("table")
    assert table.verdict(table.Line("row", 0.9, 0.88, {"litequeue": 4.0}, synced=True)) == "met"


def test_sqlite_has_no_sync_in_its_latency_that_would_excuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    run, table = importlib.import_module("run"), importlib.import_module("table")
    found = {**dict.fromkeys(run.STORES, 0.9), "litequeue": 0.5}
    lines = run._by_store(run.LATENCY, "ms", found, {})
    assert [table.verdict(line) for line in lines] == ["BEHIND litequeue", "", ""]


def test_the_costs_on_a_board_are_measured() -> None:
    script = Path(__file__).parent.parent / "scripts/board.py"
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, check=True)
    names = [line[:24].rstrip() for line in ran.stdout.splitlines()]
    page = (Path(__file__).parent.parent / "docs/benchmarks.md").read_text()
    assert len(names) == 9 and all(f"\n{name} " in page for name in names)
