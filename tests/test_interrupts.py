"""An exception out of a signal handler, at any moment of any call, leaves the handle usable and nothing lost."""

import subprocess
import sys
from pathlib import Path

import pytest

# In a process of its own: the test runner's own timeout lives on the same alarm.
STORM = """
import random, signal, sys, time
import pabal
from pabal import Policy, RetryPolicy, State

class Boom(BaseException):
    pass

def boom(*_):
    raise Boom

def interrupted(call):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, float(sys.argv[3])))
        try:
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Boom:
        return None

chance = random.Random(int(sys.argv[2]))
signal.signal(signal.SIGALRM, boom)
mq = pabal.connect(sys.argv[1])
jobs = mq.queue("jobs")
jobs.configure(Policy(visibility=0.2, retry=RetryPolicy(limit=10**6, initial=0, max=0)))
published, acked = set(), set()
end = time.monotonic() + 3
number = 0
while time.monotonic() < end:
    number += 1
    if interrupted(lambda: jobs.publish(number, id=f"m{number}", group=chance.choice(["", "g"]))):
        published.add(f"m{number}")
    for delivery in interrupted(lambda: jobs.lease(2)) or ():
        if interrupted(lambda: (delivery.ack(), True)):
            acked.add(delivery.message.id)
signal.signal(signal.SIGALRM, signal.SIG_IGN)
with pabal.connect(sys.argv[1]) as other:
    left = set()
    for delivery in other.queue("jobs").consume(wait=8):  # longer than an interrupted sweep holds what it took over
        left.add(delivery.message.id)
        delivery.ack()
    done = other.queue("jobs").counts()[State.DONE]
jobs.publish("still usable")
print(len(published), len(acked & left), done >= len(published))
"""


@pytest.mark.parametrize(("scheme", "seconds"), [("sqlite", 0.003), ("file", 0.02), ("hybrid", 0.02)])
def test_a_call_may_be_interrupted_anywhere(scheme: str, seconds: float, tmp_path: Path) -> None:
    script = tmp_path / "storm.py"
    script.write_text(STORM)
    done = subprocess.run(
        [sys.executable, str(script), f"{scheme}:{tmp_path}/store", "7", str(seconds)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    published, resurrected, all_done = done.stdout.split()
    assert int(published) > 5
    assert (resurrected, all_done) == ("0", "True")
