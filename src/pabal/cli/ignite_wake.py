"""`pabal ignite wake-test`: proves that an agent can be woken."""

from __future__ import annotations

import os
import select
import time
from typing import TYPE_CHECKING

import click

from pabal.cli.ignite_session import agent_argument, command, opened
from pabal.cli.screen import short
from pabal.cli.text import span
from pabal.cli.values import lasting
from pabal.errors import WakeFailed

if TYPE_CHECKING:
    from pabal.ignite.wakes import Running, Turn


@command("wake-test")
@agent_argument
@click.option("--wait", "patience", type=lasting, default="60", metavar="TIME", help="How long a command may run; 60s.")
def wake_test(agent: str, patience: float) -> None:
    """Wake an agent with a test message.

    Says whether it worked. The message is of type system_init and lies in state/, not in a queue: nothing waits for an
    answer. A command is run to its end. Ends with 6 and the reason if the agent cannot be woken.

    \b
    Examples:
      pabal ignite wake-test leader
      pabal ignite wake-test ignitian_1 --wait 5m
    """
    from pabal.durable import replace_whole
    from pabal.ignite import wakes
    from pabal.message import Message
    from pabal.store import Receipt

    with opened() as workspace:
        name = workspace.team.name_of(agent)
        about = workspace.team.agents[name]
        id, at = workspace.fresh()
        message = Message(id=id, type="system_init", body={"test": True}, sender="system", created_at=at)
        path = workspace.root / "state" / f"wake-test-{name}.mime"
        replace_whole(path, workspace.layout.codec.encode(message, queue=name))
        folder = workspace.root.parent
        wake = wakes.load(about.wake)(wakes.Surroundings(workspace.root, folder, os.environ))
        turn = wakes.Turn(name, about, str(path), Receipt(name, id, "wake-test"), message, 1)
        began = time.monotonic()
        try:
            wake.wake(turn)
            if isinstance(wake, wakes.Running):
                _run(wake, turn, patience)
        finally:
            wake.stop(turn)
    click.echo(f"{name} was woken by {about.wake} in {span(time.monotonic() - began)}; the message was {short(path)}")


def _run(wake: Running, turn: Turn, patience: float) -> None:
    ready, _, _ = select.select([wake.descriptor(turn)], [], [], patience)
    ending = wake.ending(turn) if ready else None
    if ending is None:
        raise WakeFailed(f"its command still runs after {patience:g} seconds")
    if ending.kind != "done":
        raise WakeFailed(f"its command ended with {ending.reason}; see logs/{turn.agent}.log")
