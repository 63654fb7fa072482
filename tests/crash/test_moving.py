"""`pabal move` killed at random moments and started again: at the end every message is there once, as it was."""

import random
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from pabal.connect import connect
from pabal.errors import StoreError
from pabal.store import State
from tests.crash.harness import SOAK
from tests.queues.moving import QUEUE, fill, survey
from tests.services.postgres import PostgresServer

KILLS = 30 if SOAK else 4
MANY = 600 if SOAK else 60
PAIRS = [
    ("sqlite", "postgres"),
    ("files", "postgres"),
    ("postgres", "sqlite"),
    ("sqlite", "files"),
    ("files", "sqlite"),
]


def start(old: str, new: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-c", "from pabal.cli.main import main; main()", "move", "--from", old, "--to", new],
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )


def survive_kills(old: str, new: str, chance: random.Random) -> None:
    """Kill as many moves as the test says, each after it has had time to begin."""
    for _ in range(KILLS):
        process = start(old, new)
        _wait_for_progress(new, process, chance)
        process.kill()
        process.wait()


def _wait_for_progress(new: str, process: "subprocess.Popen[bytes]", chance: random.Random) -> None:
    end, before = time.monotonic() + 5, _carried(new)
    # One more is the mark by which a move sees that source and target are two.
    while process.poll() is None and time.monotonic() < end and _carried(new) <= before + 1:
        time.sleep(0.002)
    time.sleep(chance.uniform(0.0, 0.02))


def _carried(url: str) -> int:
    try:
        with closing(connect(url, create=False)) as mq:
            return sum(mq.store.counts(QUEUE).get(state, 0) for state in State)
    except StoreError:
        return 0


@pytest.mark.timeout(900 if SOAK else 300)
@pytest.mark.parametrize(("old", "new"), PAIRS, ids=lambda kind: str(kind))
def test_a_move_killed_at_random_loses_and_doubles_nothing(
    old: str, new: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    seed = random.randrange(10**6)
    with postgres.schema() as schema:
        urls = {
            "sqlite": f"sqlite:{tmp_path}/pabal.db",
            "files": f"file:{tmp_path}/spool",
            "postgres": f"{postgres.url}?schema={schema}",
        }
        with connect(urls[old]) as source:
            fill(source.store, MANY)
            before = survey(source.store)
        survive_kills(urls[old], urls[new], random.Random(seed))
        with start(urls[old], urls[new]) as last:
            assert last.wait(600) == 0
        with connect(urls[old]) as source, connect(urls[new]) as target:
            assert survey(target.store) == before, f"seed {seed}"
            assert survey(source.store) == {} and source.store.counts(QUEUE)[State.INFLIGHT] == 0
