"""How soon an agent's command runs: from the rename that moves a message into the queue to the command's first act."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from footprint import Latency, percentiles
from pabal.apps.ignite import mail
from pabal.apps.ignite.workspace import Workspace
from pabal.store import Draft
from scale import Scale

BACKLOG = 10_000
GAP = 0.06, 0.12  # seconds between messages, so that the agent is idle each time
_UP = [sys.executable, "-c", "from pabal.cli.main import main; main()", "ignite", "--root"]
_TEAM = """
agents:
  leader: {wake: hook}
  worker: {wake: exec, command: [/bin/sh, -c, "echo $IGNITE_MESSAGE_ID $(date +%s%N) >> got"]}
limits: {waiting: 0}
"""
_BODY = {"task_id": "t", "title": "x", "description": "y" * 500}
_STEP = 500


def latency(place: Path, scale: Scale, chance: random.Random, backlog: int) -> Latency | str:
    """Move messages in at random moments, with so many others that wait in the same queue for their time."""
    root = place / "team"
    root.mkdir(parents=True)
    (root / "team.yaml").write_text(_TEAM)
    with Workspace.open(root) as workspace:
        workspace.prepare()
        for start in range(0, backlog, _STEP):
            many = [_draft(workspace, delay=86400.0) for _ in range(min(_STEP, backlog - start))]
            workspace.store.publish([draft for drafts in many for draft in drafts])
        served = subprocess.Popen([*_UP, str(root), "up"], stdout=subprocess.PIPE)
        try:
            assert served.stdout is not None and served.stdout.readline().startswith(b"serving")
            return _measured(workspace, place, scale, chance)
        finally:
            served.send_signal(signal.SIGTERM)
            served.communicate()


def _measured(workspace: Workspace, place: Path, scale: Scale, chance: random.Random) -> Latency | str:
    moved = [_move_in(workspace, place) for _ in range(1)]  # the first finds everything cold
    if not _await(place, 1, scale.fill_seconds):
        return f"none within {scale.fill_seconds:g} s"
    for _ in range(scale.samples):
        time.sleep(chance.uniform(*GAP))
        moved.append(_move_in(workspace, place))
    if not _await(place, len(moved), scale.latency_seconds):
        return f"not all within {scale.latency_seconds:g} s"
    ran = dict(line.split() for line in (place / "got").read_text().splitlines())
    return percentiles([int(ran[id]) - at for id, at in moved[1:]])


def _draft(workspace: Workspace, delay: float = 0.0) -> list[Draft]:
    return mail.compose(workspace, sender="user", to="worker", type="task_assignment", body=_BODY, delay=delay)


def _move_in(workspace: Workspace, place: Path) -> tuple[str, int]:
    """Write a message beside the queue and move it in, as any program may; say its id and the moment before."""
    [draft] = _draft(workspace)
    path = place / "draft"
    path.write_bytes(workspace.layout.codec.encode(draft.message, queue="worker"))
    target = workspace.root / "queue/worker" / f"{workspace.layout.stem(draft.message)}.mime"
    at = time.time_ns()
    os.rename(path, target)
    return draft.message.id, at


def _await(place: Path, count: int, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if (place / "got").exists() and (place / "got").read_bytes().count(b"\n") >= count:
            return True
        time.sleep(0.02)
    return False
