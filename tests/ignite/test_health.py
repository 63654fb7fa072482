"""Counting a team's mail by the names of its files."""

import json

from pabal.ignite.health import load_of, write_health
from pabal.testing import ManualClock
from tests.ignite.conftest import Lay


def test_every_state_is_counted_and_strange_names_do_no_harm(lay: Lay, clock: ManualClock) -> None:
    table = lay(clock=clock)
    table.send()
    held = table.hand()
    table.send(), table.send(delay=60)
    clock.advance(10)
    for name in ("x~dzz.mime", "plain", ".hidden", "half.tmp"):
        (table.root / "queue/worker" / name).write_text("?")
    load = load_of(table.workspace, "worker")
    assert (load.ready, load.delayed, load.inflight, load.done, load.dead) == (3, 1, 1, 0, 0)
    assert load.oldest is not None and 9 < load.oldest < 11
    table.workspace.delivery(held).ack()
    assert load_of(table.workspace, "worker").done == 1
    write_health(table.workspace)
    health = json.loads((table.root / "state/task_health.json").read_text())
    [queue] = [each for each in health["queues"] if each["name"] == "worker"]
    assert (queue["pending"], queue["retrying"], queue["delivered"]) == (3, 1, 1)
    assert {agent["name"] for agent in health["agents"]} == {"leader", "worker"}
