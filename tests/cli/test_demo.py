"""`pabal demo`: a message fails and dies, a worker is killed and its message comes back, nothing is lost."""

import os
import re
import signal
import time
from pathlib import Path

from pabal.cli.demo_view import Scene, frame
from pabal.cli.text import width
from pabal.store import State
from tests.cli.command import Pabal


def test_it_shows_the_point_of_it_all_and_loses_nothing(pabal: Pabal) -> None:
    ran = pabal.run("demo", "--seconds", "5")
    assert ran.code == 0, ran
    assert ran.err == ""
    for sentence in (
        r"flaky-\d+ failed at attempt 1, connection reset: again in",
        r"flaky-\d+ done at attempt 2",
        r"broken-\d+ failed at attempt 3, no such address: set aside as dead",
        r"kill -9 \d+: the worker is gone",
        r"slow-001 came back when its lease ran out: attempt 2",
        r"\d+ published: \d+ done, \d+ dead; 0 lost",
    ):
        assert re.search(sentence, ran.out), sentence
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    pabal.env["PABAL_URL"] = "sqlite:.pabal/demo/pabal.db"
    suggested = [line.split("  ")[1] for line in ran.out.splitlines() if line.startswith("  pabal ")]
    assert len(suggested) == 3
    for line in suggested:
        assert pabal.run(*line.split()[1:]).code == 0, line


def test_it_ends_with_sigterm_and_leaves_no_process_behind(pabal: Pabal) -> None:
    running = pabal.start("demo", "--seconds", "60", "--store", "sqlite")
    time.sleep(3)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert len(children) == 2
    second = pabal.run("demo")
    assert second.code == 2 and "another demo is running" in second.err
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait(timeout=30) == 143
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def test_the_frame_is_a_rectangle_whatever_happens() -> None:
    scene = Scene("sqlite:/a/very/long/place/indeed/that/does/not/fit/in/the/title/of/the/frame.db", elapsed=12.3)
    scene.counts = {State.READY: 10**9, State.DEAD: 1}
    scene.worker = "worker 123456"
    for number in range(30):
        scene.events.append((number, "bad", "x" * number * 5))
    lines = frame(scene)
    assert {width(line) for line in lines} == {78}
    assert len(lines) == len(frame(Scene("u")))
