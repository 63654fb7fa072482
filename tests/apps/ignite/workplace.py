"""A workspace with the usual team, opened for a test."""

from __future__ import annotations

from pathlib import Path

from pabal.apps.ignite.workspace import Workspace
from pabal.clock import Clock

TEAM = """\
agents:
  leader: {}
  strategist: {}
  architect: {}
  evaluator: {}
  coordinator: {wake: exec, command: [pabal, ignite, coordinate]}
  innovator: {}
  ignitian: {count: 3}
"""


def make_workspace(root: Path, *, more: str = "", clock: Clock | None = None) -> Workspace:
    root.mkdir(parents=True)
    (root / "team.yaml").write_text(TEAM + more)
    workspace = Workspace.open(root, clock=clock)
    workspace.prepare()
    return workspace
