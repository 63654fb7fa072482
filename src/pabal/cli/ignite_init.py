"""`pabal ignite init`: a workspace comes into being."""

from __future__ import annotations

from pathlib import Path

import click

from pabal.cli.ignite_session import command, current_root
from pabal.cli.screen import short

_TEAM = """\
# The team: who the agents are, how each is woken, what it runs. `pabal ignite up` serves it.
#
# wake: exec      runs `command` for each message: the path in $IGNITE_MESSAGE, JSON on stdin; exit 0 is done
# wake: tmux      types the path into `pane` (session:window.pane)
# wake: hook      touches state/hooks/<agent>; `pabal ignite inbox AGENT --wait` returns
# wake: webhook   posts the path to `url` on this machine
#
# For a model:    {{wake: exec, command: [claude, -p, "Read the file in $IGNITE_MESSAGE and do what it asks."]}}

agents:
  leader: {{wake: hook}}
  strategist: {{wake: hook}}
  architect: {{wake: hook}}
  evaluator: {{wake: hook}}
  coordinator: {{wake: exec, command: [pabal, ignite, coordinate]}}
  innovator: {{wake: hook}}
  ignitian: {{wake: hook, count: {ignitians}}}

limits:
  parallel: 9      # turns at once
  turn: 1800       # seconds that an agent may be silent while it has a message
  grace: 10        # seconds that commands may go on when the team is stopped
  waiting: 10000   # messages that may wait for one agent

retry: {{limit: 3, base: 5, cap: 300}}
keep: {{done: 1, dead: 14}}   # days
"""
_SCRIPT = """\
#!/usr/bin/env python3
import os, sys
os.execvp("pabal", ["pabal", "mime", *sys.argv[1:]])
"""


@command("init")
@click.option("--ignitians", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many workers.")
@click.option("--scripts", is_flag=True, help="Also write scripts/lib/ignite_mime.py, which calls pabal mime.")
def init(ignitians: int, scripts: bool) -> None:
    """Make a workspace: a team file and a queue for every agent.

    A team file that is there already stays as it is, and its agents get their queues.

    \b
    Examples:
      pabal ignite init
      pabal ignite init --root workspace --ignitians 5 --scripts
    """
    from pabal.ignite.team import FILE
    from pabal.ignite.workspace import Workspace

    root = current_root()
    root.mkdir(parents=True, exist_ok=True)
    team = root / FILE
    if not team.exists():
        team.write_text(_TEAM.format(ignitians=ignitians))
    with Workspace.open(root) as workspace:
        workspace.prepare()
        names = list(workspace.team.agents)
    click.echo(f"workspace {short(root)} with {len(names)} agents: {', '.join(names)}")
    if scripts:
        place = Path("scripts/lib/ignite_mime.py")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(_SCRIPT)
        place.chmod(0o755)
        click.echo(f"wrote {place}")
    option = "" if str(root) == ".ignite" else f" --root {short(root)}"
    click.echo(f"\nNext:\n  edit {short(team)}\n  pabal ignite{option} up")
    click.echo(f"  pabal ignite{option} send --to leader --type user_goal --body 'goal: write a README'")
