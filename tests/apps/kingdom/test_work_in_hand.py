"""The folder of a soldier that asked: it is there until the work that goes on with it is over."""

import os
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.kingdom.chamberlain.role import clean
from pabal.apps.kingdom.chamberlain.settings import Retention
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.layout import TASKS
from pabal.apps.kingdom.manifests import FOLDER, Table, load
from pabal.apps.kingdom.operate import retry
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import Realm, eventually

ASKS_OR_RESUMES = """\
import json, os, sys, time
task = json.load(open(os.environ["KINGDOM_TASK_PATH"]))
result = {"task_id": "x", "status": "success", "summary": " ".join(sorted(os.listdir(".")))}
if task["payload"].get("ask"):
    open("work-in-hand", "w").write("mine")
    result |= {"status": "needs_human", "question": "go on?"}
elif os.path.exists(os.environ["KINGDOM_TASK_PATH"] + ".fail"):
    sys.exit("quota")
elif os.path.exists(os.environ["KINGDOM_TASK_PATH"] + ".wait"):
    open(os.environ["KINGDOM_TASK_PATH"] + ".waits", "w")
    time.sleep(1000)
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(result))
"""


def resumed(realm: Realm, **fields: Any) -> str:
    """Let a soldier ask in a worktree, and answer it; return the task that goes on."""
    realm.general(script=ASKS_OR_RESUMES, **fields)
    realm.event("evt-ask", repo="our/repo", payload={"ask": True})
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    [question] = Questions(realm.home).open()
    Questions(realm.home).answer(question.task_id, "yes", responder="ann", via="terminal")
    realm.run_kingdom()
    [task] = realm.tasks()
    return str(task["id"])


def summary(realm: Realm) -> str:
    return next(str(result["summary"]) for result in realm.results() if result["type"] == "resume")


def worktrees(realm: Realm) -> list[str]:
    return [path.name for path in (realm.root / "workspace/gen-pr/our").glob("repo@*")]


def told(realm: Realm, task: str, word: str) -> Path:
    """Tell the soldier of a task what to do."""
    path = realm.root / f"state/prompts/{task}.json.{word}"
    path.touch()
    return path


def test_an_answer_finds_the_work_in_hand_although_another_task_used_the_repository(
    realm: Realm, upstream: Path
) -> None:
    task = resumed(realm)
    realm.event("evt-other", repo="our/repo")
    realm.run_kingdom()
    told(realm, task, "fail")  # the first try of the work that goes on
    realm.lead()
    realm.lead()
    realm.run_kingdom()
    assert [each["id"] for each in realm.bodies(TASKS, State.DELAYED)] == [task]
    assert "work-in-hand" not in realm.results()[-1]["summary"]
    told(realm, task, "fail").unlink()
    assert isinstance(realm.clock, ManualClock)
    realm.clock.advance(61)
    realm.lead()
    assert "work-in-hand" in summary(realm) and "one" in summary(realm)
    assert worktrees(realm) == [], "removed when the work is over"


@pytest.mark.parametrize("kind", ["files"], indirect=True)
def test_the_work_in_hand_outlives_a_stop_a_lost_lease_and_the_daily_cleaning(realm: Realm, upstream: Path) -> None:
    task = resumed(realm)
    waits = told(realm, task, "wait")
    general, watch = realm.general_of()

    def begin() -> None:
        def begun() -> bool:
            general.step()
            return told(realm, task, "wait").with_suffix(".waits").exists()

        eventually(begun)
        told(realm, task, "wait").with_suffix(".waits").unlink()

    begin()
    [kept] = worktrees(realm)
    for path in (
        realm.root / f"workspace/gen-pr/our/{kept}",
        *(realm.root / "state/results").glob("*-checkpoint.json"),
    ):
        os.utime(path, (1, 1))
    trial = realm.root / "workspace/gen-pr/trial-task-20260101-001"
    trial.mkdir()
    os.utime(trial, (1, 1))
    clean(realm.home, Retention(), realm.clock.now())
    assert not trial.exists()
    assert worktrees(realm) == [kept], "a soldier works in it"
    assert list((realm.root / "state/results").glob("*-checkpoint.json")), "which every try reads"
    assert isinstance(realm.clock, ManualClock)
    realm.clock.advance(31)
    realm.home.queue(TASKS).sweep()  # the general hung, and its task is ready again
    begin()  # the lease that was lost is seen first
    general.finish()
    assert worktrees(realm) == [kept]
    waits.unlink()
    realm.lead()
    assert "work-in-hand" in summary(realm) and worktrees(realm) == []


@pytest.mark.parametrize("kind", ["files"], indirect=True)
def test_work_that_went_on_and_failed_can_be_retried_with_what_was_in_hand(realm: Realm, upstream: Path) -> None:
    task = resumed(realm, retry={"max_attempts": 0})
    told(realm, task, "fail")
    realm.lead()
    realm.run_kingdom()
    again = retry(realm.home, Table(load(realm.root / FOLDER)), task)
    realm.lead()
    [result] = [each for each in realm.results() if each["task_id"] == again]
    assert "work-in-hand" in result["summary"] and worktrees(realm) == []
