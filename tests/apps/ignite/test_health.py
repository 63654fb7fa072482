"""Counting a team's mail by the names of its files."""

import json

from pabal.apps.ignite.health import write_health
from pabal.testing import ManualClock
from tests.apps.ignite.conftest import Lay


def test_every_state_is_counted_and_strange_names_do_no_harm(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    table.send()
    held = table.hand()
    table.send(), table.send(delay=60)
    clock.advance(10)
    for name in ("x~dzz.mime", "plain", ".hidden", "half.tmp"):
        (table.root / "queue/worker" / name).write_text("?")
    load = table.workspace.mail.load("worker")
    assert (load.ready, load.delayed, load.inflight, load.done, load.dead) == (3, 1, 1, 0, 0)
    assert load.oldest is not None and 9 < load.oldest < 11
    table.workspace.delivery(held).ack()
    assert table.workspace.mail.load("worker").done == 1
    write_health(table.workspace)
    health = json.loads((table.root / "state/task_health.json").read_text())
    [queue] = [each for each in health["queues"] if each["name"] == "worker"]
    assert (queue["pending"], queue["retrying"], queue["delivered"], queue["completed"]) == (4, 0, 0, 1)
    assert {agent["name"] for agent in health["agents"]} == {"leader", "worker"}
