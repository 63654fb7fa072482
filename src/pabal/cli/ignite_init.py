"""`pabal ignite init | doctor`: make a workspace and teach its agents; check that each of them can be woken."""

from __future__ import annotations

import os
import re
import socket
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from pabal.cli.exits import Exit
from pabal.cli.ignite_session import DEFAULT_ROOT, command, current_root, named_root
from pabal.cli.session import json_option
from pabal.cli.text import clean, json_text, short_path
from pabal.errors import InvalidConfig, InvalidInput
from pabal.names import ascii_name, check_name, shown_name

if TYPE_CHECKING:
    from pabal.apps.ignite.wakes.tmux import Pane
    from pabal.apps.ignite.workspace import Workspace

_TEAM = """\
# The team: its agents, how each is woken, and what it runs. `pabal ignite up` serves it.
#
# wake: exec      runs `command` for each message: the path in $IGNITE_MESSAGE or for {{path}}; exit 0 is done
# wake: tmux      types the path into `pane`: id (%2), title or session:window.pane
# wake: hook      touches state/hooks/<agent>; `pabal ignite inbox AGENT --wait` returns
# wake: webhook   posts the path to `url` on this machine
# wake: claude-hook, codex-hook   through the hooks of a session; `pabal ignite hooks install claude`
#
# For a model:    {{wake: exec, preset: claude}} or {{wake: exec, preset: codex}}

agents:
{agents}
leader: {leader}   # is told about problems

limits:
  parallel: 9      # commands at once
  turn: 1800       # seconds that an agent may be silent while it has a message
  grace: 10        # seconds that commands may go on when the team is stopped
  waiting: 10000   # messages that may wait for one agent

retry: {{limit: 3, base: 5, cap: 300}}
keep: {{done: 1, dead: 14}}   # days
"""
_ROLES = """\
  leader: {{wake: hook}}
  strategist: {{wake: hook}}
  architect: {{wake: hook}}
  evaluator: {{wake: hook}}
  coordinator: {{wake: exec, command: [pabal, ignite, coordinate]}}
  innovator: {{wake: hook}}
  ignitian: {{wake: hook, count: {ignitians}}}
"""
_GITIGNORE = b"""\
# The team file may be shared; mail, state and logs stay on this machine.
*
!.gitignore
!team.yaml
"""
_SCRIPT = """\
#!/usr/bin/env python3
import os, sys
os.execvp("pabal", ["pabal", "mime", *sys.argv[1:]])
"""


class Chosen(NamedTuple):
    """An agent of a new team; `pane` is the id of its pane, if it has one."""

    name: str
    pane: str = ""


@command("init")
@click.option("--ignitians", type=click.IntRange(1, 1000), default=3, show_default=True, help="How many workers.")
@click.option(
    "--agents", "names", default="", metavar="A,B,C", help="The agents of the team, instead of the nine roles."
)
@click.option("--tmux", "tmux", is_flag=True, help="An agent for each pane of tmux; asks for the names.")
@click.option(
    "--socket", "tmux_socket", default="", metavar="NAME", help="The tmux server: a name (-L) or a path (-S)."
)
@click.option("--yes", is_flag=True, help="Take the names that are found, and ask nothing.")
@click.option("--no-teach", is_flag=True, help="Do not write AGENTS.md and the skill of Claude Code.")
@click.option("--scripts", is_flag=True, help="Also write scripts/lib/ignite_mime.py, which calls pabal mime.")
def init(ignitians: int, names: str, tmux: bool, tmux_socket: str, yes: bool, no_teach: bool, scripts: bool) -> None:
    """Make a workspace: a team file and a queue for every agent.

    A team file that is there already stays as it is, and its agents get their queues. The agents learn about their mail
    from a section of AGENTS.md and from a skill of Claude Code.

    \b
    Examples:
      pabal ignite init
      pabal ignite init --agents architect,painter,tester
      pabal ignite init --tmux
      pabal ignite init --root workspace --ignitians 5 --scripts
    """
    from pabal.apps.ignite.team import FILE, USER, read_team
    from pabal.apps.ignite.workspace import Workspace
    from pabal.durable import make_dirs, replace_whole

    if names and tmux:
        raise click.UsageError("give --agents or --tmux")
    root = Path(named_root() or DEFAULT_ROOT)
    server = tmux_socket or _own_server(os.environ)
    chosen = _from_panes(server, root, yes=yes) if tmux else [Chosen(name) for name in _names(names)]
    make_dirs(root)
    team = root / FILE
    if not (root / ".gitignore").exists():
        replace_whole(root / ".gitignore", _GITIGNORE)
    lines = _lines(chosen, server if tmux else "")
    if not team.exists():
        there = {each.name for each in chosen}
        text = _TEAM.format(
            agents=lines or _ROLES.format(ignitians=ignitians),
            leader="leader" if not chosen or "leader" in there else USER,
        )
        replace_whole(team, text.encode())
        try:
            read_team(team)
        except InvalidConfig:
            team.unlink()  # a name that is kept for others
            raise
    with Workspace.open(root) as workspace:
        missing = [each.name for each in chosen if ascii_name(each.name) not in workspace.team.agents]
        if missing:
            raise InvalidConfig(
                f"{short_path(team)} is there already and has no {', '.join(missing)}; add\n{lines.rstrip()}"
            )
        workspace.prepare()
        known = [shown_name(name) for name in workspace.team.agents]
        for each in chosen:
            if each.pane:
                _mark(workspace, each, server)
    click.echo(f"workspace {short_path(root)} with {len(known)} agents: {', '.join(known)}")
    if scripts:
        place = Path("scripts/lib/ignite_mime.py")
        make_dirs(place.parent)
        replace_whole(place, _SCRIPT.encode(), mode=0o700)
        click.echo(f"wrote {place}")
    if not no_teach:
        _teach(Path(os.path.abspath(root)).parent)
    option = "" if str(root) == ".ignite" else f" --root {short_path(root)}"
    click.echo(f"\nNext:\n  edit {short_path(team)}\n  pabal ignite{option} up\n  pabal ignite{option} doctor")
    first = chosen[0].name if chosen else "leader"
    click.echo(f"  pabal ignite{option} send --to {first} --type user_goal --body 'goal: write a README'")


def _names(text: str) -> list[str]:
    found = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    for name in found:
        _check(name)
    return found


def _check(name: str) -> str:
    check_name(ascii_name(name), "agent")
    if "-" in name or "." in name:
        raise InvalidInput(f"the name of an agent has letters, digits and '_'; found {name!r:.40}")
    return name


def _lines(chosen: Iterable[Chosen], server: str) -> str:
    """Return the entries of agents in a team file."""
    from pabal.codecs import yaml

    own = f", socket: {json_text(server)}" if server else ""
    text = ""
    for each in chosen:
        name = each.name if yaml.read(each.name.encode()) == each.name else json_text(each.name)  # such as null
        text += f"  {name}: {{wake: {f'tmux{own}' if each.pane else 'hook'}}}\n"
    return text


def _teach(project: Path) -> None:
    from pabal.apps.ignite.guide import PERMISSIONS, write_guide

    for path in write_guide(project):
        click.echo(f"wrote {short_path(path)}")
    click.echo(f"\nLet the agents run pabal without asking:\n{PERMISSIONS}")


# Panes of tmux


def _own_server(variables: Mapping[str, str]) -> str:
    """Return the socket of the tmux server that this command runs in, if it is not the usual one."""
    path = variables.get("TMUX", "").partition(",")[0]
    return "" if os.path.basename(path) == "default" else path


def _from_panes(server: str, root: Path, *, yes: bool) -> list[Chosen]:
    from pabal.apps.ignite.team import FILE, read_team
    from pabal.apps.ignite.wakes.tmux import agent_of_mark, panes

    found = panes(os.environ, server)
    agents = read_team(root / FILE).agents if (root / FILE).exists() else {}
    place = Path(os.path.abspath(root))
    known = {pane.id: shown_name(name) for pane in found if (name := agent_of_mark(place, agents, pane.mark))}
    proposed = _proposals(found, os.environ.get("TMUX_PANE", ""), known)
    if not yes:
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            listed = "\n".join(clean(f"  {pane.id} {pane.command}: {name or '(left out)'}") for pane, name in proposed)
            raise click.UsageError(f"give --yes to take these names, or run it on a terminal\n{listed}")
        click.echo("The panes of tmux. Enter takes the name, - leaves the pane out.")
        proposed = [(pane, _asked(pane, name)) for pane, name in proposed]
    chosen = [Chosen(name, pane.id) for pane, name in proposed if name]
    if not chosen:
        raise InvalidInput(f"no agent in {len(found)} panes: give a pane a name with `tmux select-pane -T NAME`")
    names = [each.name for each in chosen]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidInput(f"two panes are called {twice}")
    return chosen


def _asked(pane: Pane, name: str) -> str:
    question = clean(f"{pane.id}  {pane.window}  {pane.command}  {pane.title}")
    while True:
        answer = click.prompt(question, default=name or "-").strip()
        if answer == "-":
            return ""
        try:
            return _check(answer)
        except InvalidInput as exc:
            click.echo(str(exc))


def _proposals(found: list[Pane], own: str, known: Mapping[str, str]) -> list[tuple[Pane, str]]:
    """Return a name for each pane: its agent, its title or its window if that is a name, else its program.

    The pane of this command, and shells without a name, get none.
    """
    from pabal.apps.ignite.wakes.tmux import SHELLS

    proposed = []
    for pane in found:
        if pane.id in known:
            proposed.append((pane, known[pane.id]))
            continue
        words = [word for word in (pane.title, pane.window) if _is_name(word) and word != pane.command]
        name = words[0] if words else pane.command if _is_name(pane.command) else "agent"
        is_agent = pane.id != own and not pane.dead and (bool(words) or pane.command not in SHELLS)
        proposed.append((pane, name if is_agent else ""))
    names = [name for _, name in proposed]
    numbers: dict[str, int] = {}
    result = []
    for pane, name in proposed:
        if name and names.count(name) > 1:
            numbers[name] = numbers.get(name, 0) + 1
            name = f"{name}_{numbers[name]}"
        result.append((pane, name))
    return result


def _is_name(word: str) -> bool:
    from pabal.apps.ignite.wakes.tmux import SHELLS

    plain = re.fullmatch(r"\w{1,40}", word) is not None and f"_{word}".isidentifier()
    return plain and word not in SHELLS and word != socket.gethostname() and not word.isdecimal()


def _mark(workspace: Workspace, chosen: Chosen, server: str) -> None:
    """Mark the pane of an agent, so that it is found, and that commands in it know their agent."""
    from pabal.apps.ignite.wakes.tmux import MARK, mark_of, run_tmux

    name = workspace.team.name_of(chosen.name)
    about = workspace.team.agents[name]
    mark = mark_of(workspace.root, name, about)
    run_tmux(os.environ, about.socket or server, "set-option", "-p", "-t", chosen.pane, MARK, mark)


@command("doctor")
@json_option
def doctor(as_json: bool) -> int:
    """Check that every agent can be woken, and say what to do.

    Looks at the team file, the monitor, the commands, panes, addresses and hooks of the agents, and at dead letters. It
    changes nothing and wakes nobody; wake-test does. Ends with 1 if something is wrong.

    \b
    Examples:
      pabal ignite doctor
      pabal ignite doctor --json
    """
    from pabal.apps.ignite.doctor import examine

    found = list(examine(current_root(), os.environ))
    for each in found:
        if as_json:
            click.echo(json_text(each._asdict()))
        else:
            click.echo(clean(f"{'ok' if each.ok else '!!'}  {each.about}: {each.text}"))
            if each.remedy:
                click.echo(clean(f"    {each.remedy}"))
    return Exit.DONE if all(each.ok for each in found) else Exit.NOTHING
