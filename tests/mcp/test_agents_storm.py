"""Five agents work over MCP while they and their servers are killed at random: nothing is lost, nothing done twice.

In the ordinary run 200 messages and 8 kills; 5,000 and 400 with PABAL_SOAK=1.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.ignite import mail
from pabal.apps.ignite.workspace import Workspace
from pabal.connect import connect
from pabal.policy.policy import Policy, RetryPolicy
from pabal.queues.queue import Queue
from pabal.store import State
from tests.apps.ignite.table import Served
from tests.waiting import until

SOAK = os.environ.get("PABAL_SOAK") == "1"
MESSAGES, KILLS = (5000, 400) if SOAK else (200, 8)
AGENTS = [f"agent_{number}" for number in range(5)]
ROOT = Path(__file__).parent.parent.parent
TEAM = f"""
agents: {{leader: {{}}, {", ".join(f"{name}: {{}}" for name in AGENTS)}}}
retry: {{limit: 999, base: 0.01, cap: 0.05}}
"""


class Agents:
    """Five agents; one that dies is followed by another."""

    def __init__(self, place: Sequence[str], folder: Path, chance: random.Random) -> None:
        self._place, self._folder, self._chance = place, folder, chance
        self._agents = [self._start(name) for name in AGENTS]

    def _start(self, name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.mcp.scripted_agent", str(self._chance.random())]
        with (self._folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                [*command, *self._place, "--agent", name], cwd=ROOT, stdout=log, stderr=subprocess.DEVNULL
            )

    def kill_one(self) -> None:
        """Kill an agent or its server."""
        victim = self._chance.choice(self._agents).pid
        if self._chance.random() < 0.5:
            with suppress(OSError, IndexError):
                victim = int(Path(f"/proc/{victim}/task/{victim}/children").read_text().split()[0])
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        self.replace_dead()

    def replace_dead(self) -> None:
        for number, agent in enumerate(self._agents):
            if agent.poll() is not None:
                self._agents[number] = self._start(AGENTS[number])

    def end(self) -> None:
        for agent in self._agents:
            agent.kill()
            agent.wait()

    def confirmed(self) -> Counter[str]:
        """Return how many acknowledgements of each message were confirmed."""
        logs = self._folder.glob("agent_*.log")
        return Counter(line for log in logs for line in log.read_text().splitlines())


def storm(
    place: Sequence[str], folder: Path, send: Callable[[int], list[str]], replies: Queue, *, most: int
) -> list[str]:
    """Send messages while agents are killed; return the ids when each has a reply."""
    seed = random.randrange(1 << 32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    agents = Agents(place, folder, chance)
    sent: list[str] = []
    try:
        while len(sent) < most:
            sent += send(max(1, most // KILLS))
            time.sleep(chance.random())
            agents.kill_one()

        def finished() -> bool:
            agents.replace_dead()
            return replies.counts().get(State.READY, 0) >= len(sent)

        until(finished, 1800 if SOAK else 200)
    finally:
        agents.end()
    confirmed = agents.confirmed()
    assert set(confirmed) <= set(sent) and not [id for id, count in confirmed.items() if count > 1]
    return sent


def bodies(queue: Queue) -> Iterator[Any]:
    return (entry.message.body for entry in queue.entries(State.READY) if entry.message is not None)


def left(queue: Queue) -> dict[State, int]:
    return {state: count for state, count in queue.counts().items() if count and state is not State.DONE}


def test_agents_on_queues_that_are_killed_lose_nothing_and_do_nothing_twice(tmp_path: Path) -> None:
    url = f"sqlite:{tmp_path}/store.db"
    with connect(url) as mq:
        jobs, done = mq.queue("jobs"), mq.queue("done")
        jobs.configure(Policy(visibility=2.0, retry=RetryPolicy(limit=1_000_000, initial=0.01, max=0.05)))

        def send(count: int) -> list[str]:
            return [each.id for each in jobs.publish_many(range(count), reply_to="done")]

        sent = storm(["--url", url], tmp_path, send, done, most=MESSAGES)
        # One for each: the ack and its reply are one step.
        assert Counter(bodies(done)) == Counter(f"re {id}" for id in sent)
        assert left(jobs) == {}


@pytest.mark.parametrize("queues", ["", "queues: sqlite:state/mail.db"] if SOAK else [""])
def test_agents_of_a_team_that_are_killed_lose_no_mail_and_do_nothing_twice(tmp_path: Path, queues: str) -> None:
    root = tmp_path / "team"
    root.mkdir()
    (root / "team.yaml").write_text(TEAM + queues)
    served = Served(root)
    chance = random.Random()
    try:
        with Workspace.open(root) as workspace:

            def send(count: int) -> list[str]:
                names = [chance.choice(AGENTS) for _ in range(count)]
                body = {"text": "hello"}
                every = [mail.send(workspace, sender="user", to=name, type="message", body=body) for name in names]
                return [each.id for published in every for each in published]

            user = workspace.queue("user")
            sent = storm(["--workspace", str(root)], tmp_path, send, user, most=MESSAGES // 3)
            assert Counter(body["text"] for body in bodies(user)) == Counter(f"re {id}" for id in sent)
            assert [left(workspace.queue(name)) for name in AGENTS] == [{}] * len(AGENTS)
    finally:
        served.stop()
