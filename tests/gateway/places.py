"""A team and a kingdom in the folder of a store, for the tests of what a gateway shows of them."""

from __future__ import annotations

from pathlib import Path

from pabal.apps.ignite.questions import Question, Questions
from pabal.apps.ignite.workspace import Workspace
from pabal.apps.kingdom.documents import stamp
from pabal.apps.kingdom.envoy.questions import Question as KingdomQuestion
from pabal.apps.kingdom.envoy.questions import Questions as KingdomQuestions
from pabal.apps.kingdom.home import Home
from pabal.clock import SystemClock

TEAM = "agents: {leader: {wake: hook}, worker: {wake: hook}}\n"


def make_team(folder: Path) -> Path:
    """Make a team in a folder; return its workspace."""
    root = folder / ".ignite"
    root.mkdir(parents=True)
    (root / "team.yaml").write_text(TEAM)
    with Workspace.open(root) as workspace:
        workspace.prepare()
    return root


def make_kingdom(folder: Path) -> Path:
    Home.make(folder).close()
    return folder


def ask_in_team(root: Path, text: str, options: tuple[str, ...] = (), *, urgent: bool = False) -> Question:
    with Workspace.open(root) as workspace:
        return Questions(workspace).ask(asker="worker", to="user", text=text, options=options, urgent=urgent)


def answer_in_team(root: Path, id: str) -> Question:
    """Return a question of the team as it is now."""
    with Workspace.open(root) as workspace:
        return Questions(workspace).find(id)


def ask_in_kingdom(root: Path, task_id: str, text: str, options: tuple[str, ...] = ()) -> None:
    at, kind = stamp(SystemClock().now()), "choose" if options else "text"
    with Home.open(root) as home:
        question = KingdomQuestion(task_id=task_id, text=text, kind=kind, options=list(options), asked_at=at)  # type: ignore[arg-type]  # one of its kinds
        KingdomQuestions(home).ask(question)


def answer_in_kingdom(root: Path, task_id: str) -> KingdomQuestion:
    with Home.open(root) as home:
        return KingdomQuestions(home).find(task_id)
