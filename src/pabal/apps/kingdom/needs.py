"""What of a kingdom waits for a person: questions, documents that were set aside, roles and generals that are gone.

Everything here only reads, but for the answer that `KingdomPlace` passes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from msgspec.structs import asdict as fields_of

from pabal.apps.kingdom.documents import instant, plain_reason
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.lookup import unsent
from pabal.apps.kingdom.manifests import FOLDER, Table, load
from pabal.apps.kingdom.operate import path_of, set_aside
from pabal.apps.kingdom.sessions import Sessions
from pabal.apps.kingdom.status import absent_roles, open_tasks, orphaned_tasks, report, waiting_events
from pabal.apps.needs import Need
from pabal.store import State

_MOST = 100  # events and tasks in the report of a place


class KingdomPlace:
    """A kingdom, as `pabal needs-you` and the dashboard see it. `options` are those of the commands that answer."""

    source = "kingdom"

    def __init__(self, root: Path, variables: Callable[[Path], Mapping[str, str]], *, options: str = "") -> None:
        self.path = str(root)
        self._variables = variables
        self._options = options

    def needs(self) -> tuple[list[Need], int]:
        with self._open() as home:
            return [need._replace(answer=need.answer + self._options) for need in needs_of(home)], 0

    def answer(self, id: str, text: str, *, person: str, via: str) -> str:
        with self._open() as home:
            return Questions(home).answer(id, text, responder=person, via=via).answer

    def report(self) -> dict[str, Any]:
        """Return the report of `status`, with the soldiers that run, and the events and tasks that wait and why."""
        with self._open() as home:
            return {
                **asdict(report(home)),
                "sessions": [fields_of(session) for session in Sessions(home.root).all()],
                "events": waiting_events(home, _MOST),
                "tasks": open_tasks(home, _MOST),
            }

    def _open(self) -> Home:
        root = Path(self.path)
        return Home.open(root, variables=self._variables(root))


def needs_of(home: Home) -> list[Need]:
    """Return what waits for a person."""
    table = Table(load(home.root / FOLDER), home.config.engine)
    return [*_questions(home), *_set_aside(home), *_problems(home, table)]


def _questions(home: Home) -> Iterator[Need]:
    now = home.clock.now()
    for question in Questions(home).open():
        if not question.is_late(now):
            yield Need(
                source="kingdom",
                kind="question",
                id=question.task_id,
                sender=question.task_id,
                text=question.text,
                at=instant(question.asked_at),
                answer=f"pabal kingdom answer {question.task_id} TEXT",
                options=("yes", "no") if question.kind == "confirm" else tuple(question.options),
                expires_at=instant(question.expires_at) if question.expires_at else None,
            )


def _set_aside(home: Home) -> Iterator[Need]:
    for aside in set_aside(home):
        entry = aside.entry
        place = path_of(home, aside.queue, entry)
        words = {State.CORRUPT: f"malformed; mend {place or 'it'} or dismiss it", State.READY: "misplaced"}
        state = words.get(entry.state, "given up")
        text = f"{aside.id} is {state}: {plain_reason(entry.failure)}"
        at = entry.failure.at if entry.failure else home.clock.now()
        yield _problem(aside.id, aside.queue, text, at, f"pabal kingdom requeue {aside.id}")


def _problems(home: Home, table: Table) -> Iterator[Need]:
    now = home.clock.now()
    for name, reason in absent_roles(home, table).items():
        yield _problem(name, name, f"{name} is gone{reason}", now, "pabal kingdom logs --system")
    for name in table.unusable:
        [text] = [problem for problem in table.problems if name in problem][:1] or [f"{name} cannot be used"]
        yield _problem(name, "manifests", text, now, "pabal kingdom check")
    for id, general in orphaned_tasks(home, table).items():
        text = f"{id} is for {general or 'nobody'}, and there is no such general: cancel it, or give it to another one"
        yield _problem(id, "tasks", text, now, f"pabal kingdom retry {id} --general NAME")
    if reason := unsent(home):
        yield _problem("envoy", "envoy", reason, now, "pabal kingdom check --slack")


def _problem(id: str, sender: str, text: str, at: float, answer: str) -> Need:
    return Need(source="kingdom", kind="problem", id=id, sender=sender, text=text, at=at, answer=answer)
