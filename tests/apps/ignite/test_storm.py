"""A storm: many agents and messages, monitor and agents killed at random; nothing is lost, nothing acknowledged twice.

Each agent writes down what it begins, and what it acknowledged after the store has said so. At the end every message
is done or dead with a reason, and nobody saw an acknowledged message again. `PABAL_SOAK=1` runs it with the whole
numbers: 35 agents, 10,000 messages, 200 kills; a tenth of the messages where the mail lies in a database.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from pabal.apps.ignite import mail
from pabal.apps.ignite.dead_letters import dead_letters_of
from pabal.apps.ignite.workspace import Workspace
from pabal.store import State
from tests.apps.ignite.table import TASK, Place, Served, everywhere, soon

SOAK = bool(os.environ.get("PABAL_SOAK"))
EXECS, HOOKS, MESSAGES, KILLS = (25, 10, 10_000, 200) if SOAK else (5, 3, 200, 12)
_PATIENCE = 3600.0 if SOAK else 120.0

# An agent that is run for each message: sometimes it fails, sometimes it acknowledges by itself.
EXEC = """\
#!/bin/sh
echo "begin $IGNITE_MESSAGE_ID $$" >> "$IGNITE_ROOT/story/$IGNITE_AGENT"
case "$IGNITE_MESSAGE_ID" in
*[02468]) sleep 0.1;;
*1) exit 75;;
*3) rm -f "$IGNITE_MESSAGE";;
esac
"""

# An agent that lives beside the team, is woken by its hook and acknowledges by its own call.
HOOK = """
import os, random, sys, time
from pabal.errors import PabalError
from pabal.apps.ignite.workspace import Workspace
root, name = os.environ["IGNITE_ROOT"], os.environ["IGNITE_AGENT"]
with Workspace.open(root) as workspace, open(f"{root}/story/{name}", "a", buffering=1) as story:
    print(f"alive - {os.getpid()}", file=story)
    while True:
        for held in workspace.held(name):
            print(f"begin {held.message.id} {os.getpid()}", file=story)
            try:
                workspace.delivery(held).ack()
            except PabalError:
                continue
            print(f"acked {held.message.id} {os.getpid()}", file=story)
        time.sleep(0.005)
"""


def make(place: Path, kind: Place) -> Workspace:
    root = place / "team"
    (root / "story").mkdir(parents=True)
    (place / "agent.sh").write_text(EXEC)
    (place / "agent.sh").chmod(0o755)
    (place / "agent.py").write_text(HOOK)
    (root / "team.yaml").write_text(
        f"""
agents:
  leader: {{wake: exec, command: [./agent.sh]}}
  worker: {{count: {EXECS - 1}, wake: exec, command: [./agent.sh]}}
  reader: {{count: {HOOKS}, wake: hook, process: [{sys.executable}, {place}/agent.py]}}
limits: {{parallel: 40, turn: 60, grace: 1, waiting: 0, starts: 1000000}}
retry: {{limit: 12, base: 0.05, cap: 0.5}}
keep: {{done: 10, dead: 10}}
"""
        + (f"queues: {kind.queues}" if kind.queues else "")
    )
    workspace = Workspace.open(root)
    workspace.prepare()
    return workspace


def story(workspace: Workspace, agent: str) -> list[list[str]]:
    path = workspace.root / "story" / agent
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def kill_somebody(rng: random.Random, served: Served, workspace: Workspace) -> str:
    """Kill the monitor, which takes its commands along, or one agent that lives or works at this moment."""
    if rng.random() < 0.3:
        served.kill()
        served.start()
        return "monitor"
    end = time.monotonic() + 5.0  # after the monitor was killed, agents take a while to be there again
    while not (living := [pid for agent in workspace.team.agents if is_ours(pid := latest(workspace, agent))]):
        if time.monotonic() > end:
            return "nobody"
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(rng.choice(living), signal.SIGKILL)
    return "agent"


def latest(workspace: Workspace, agent: str) -> int:
    """Return the last process that wrote the story of an agent."""
    with suppress(OSError, ValueError, IndexError), open(workspace.root / "story" / agent, "rb") as file:
        file.seek(max(0, os.path.getsize(file.name) - 200))
        return int(file.read().splitlines()[-1].split()[2])
    return 0


def is_ours(pid: int) -> bool:
    with suppress(OSError):
        return pid > 0 and b"agent." in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def waiting(workspace: Workspace) -> int:
    loads = [workspace.mail.load(name) for name in workspace.team.agents]
    return sum(load.ready + load.delayed + load.inflight for load in loads)


@everywhere
@pytest.mark.timeout(_PATIENCE + 60)
def test_a_storm_of_kills_loses_nothing_and_acknowledges_nothing_twice(
    tmp_path: Path, kind: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = random.randrange(1 << 30)
    rng, began = random.Random(seed), time.monotonic()
    messages, kills = (MESSAGES, KILLS) if not kind.queues else (max(100, MESSAGES // 10), KILLS // 2)
    workspace = make(tmp_path, kind)
    agents = list(workspace.team.agents)
    served = Served(workspace.root)
    sent: dict[str, str] = {}
    killed: Counter[str] = Counter()
    try:
        for _ in range(messages):
            agent = rng.choice(agents)
            [each] = mail.send(workspace, sender="user", to=agent, type="task_assignment", body=TASK)
            sent[each.id] = agent
            if rng.random() < kills / messages:
                killed[kill_somebody(rng, served, workspace)] += 1
        while killed["monitor"] + killed["agent"] < kills:
            time.sleep(0.02)
            killed[kill_somebody(rng, served, workspace)] += 1
            if killed["nobody"] > 50 * kills:
                break
        end = time.monotonic() + _PATIENCE
        assert soon(lambda: waiting(workspace) == 0, end - time.monotonic()), f"seed {seed}: it never ended"
        assert served.stop() == 0
        report = check(workspace, sent)
    finally:
        served.kill()
        workspace.close()
    took = time.monotonic() - began
    with capsys.disabled():
        told = {
            "seed": seed,
            "mail": kind.queues.partition(":")[0] or "files",
            "agents": len(agents),
            "kills": dict(killed),
            **report,
            "seconds": round(took, 1),
        }
        sys.stdout.write(f"\nstorm: {json.dumps(told)}\n")


def check(workspace: Workspace, sent: dict[str, str]) -> dict[str, int]:
    """Say what became of every message; fail if one is lost, or was seen again after it was acknowledged."""
    ends: Counter[str] = Counter()
    begun = {
        agent: Counter(line[1] for line in story(workspace, agent) if line[0] == "begin")
        for agent in workspace.team.agents
    }
    for agent in workspace.team.agents:
        done = {entry.id for entry in workspace.queue(agent).entries(State.DONE)}
        dead = {letter.id: letter for letter in dead_letters_of(workspace, agent)}
        for id in (id for id, to in sent.items() if to == agent):
            if id in done:
                ends["done"] += 1
            elif id in dead:
                assert dead[id].reason, f"{id} is dead without a reason"
                ends["dead"] += 1
            else:
                assert begun[agent][id], f"{id} for {agent} is lost: it was never given to its agent"
                assert id.endswith("3"), f"{id} for {agent} is lost"  # removed by its reader: done
                ends["removed"] += 1
        acked: set[str] = set()
        for what, id, *_ in story(workspace, agent):
            assert not (what == "begin" and id in acked), f"{id} was given out again after it was acknowledged"
            assert not (what == "acked" and id in acked), f"{id} was acknowledged twice"
            if what == "acked":
                acked.add(id)
        both = done & set(dead)
        assert not both, f"{both} are done and dead"
    assert sum(ends.values()) == len(sent)
    again = sum(count - 1 for counts in begun.values() for count in counts.values())
    return {"messages": len(sent), **ends, "begun again": again}
