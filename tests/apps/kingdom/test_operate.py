"""What a person does by hand: retry, cancel, requeue, dismiss. Nothing is done twice, and nothing disappears."""

import errno
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from pabal.apps.kingdom.documents import Task
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import EVENTS, TASKS
from pabal.apps.kingdom.lookup import story
from pabal.apps.kingdom.manifests import FOLDER, Table, load
from pabal.apps.kingdom.operate import cancel, dismiss, requeue, retry, submit
from pabal.apps.kingdom.status import finished_tasks
from pabal.errors import MessageUnknown, NameTaken
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import SUCCESS, Realm, saying

on_files = pytest.mark.parametrize("kind", ["files"], indirect=True)
FAILS = saying(status="failed", error="no access")
ASKS = saying(status="needs_human", question="merge?")
WAITS = "import os, time\nopen('begun', 'a').write('1')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"


def again(realm: Realm, task: str, general: str = "") -> str:
    return retry(realm.home, Table(load(realm.root / FOLDER)), task, general)


def worked(realm: Realm, script: str, event: str = "evt-1") -> str:
    """Let a general work on one event to its end; return the task."""
    realm.general(script=script, retry={"max_attempts": 0})
    realm.event(event)
    realm.run_kingdom()
    [task] = realm.tasks()
    realm.lead()
    realm.run_kingdom()
    return str(task["id"])


@on_files
def test_a_task_that_is_made_again_is_taken_where_files_have_no_attributes(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*arguments: object, **options: object) -> Any:
        raise OSError(errno.EOPNOTSUPP, "no attributes")

    for name in ("setxattr", "getxattr"):
        monkeypatch.setattr(os, name, unsupported)
    first = worked(realm, FAILS)
    id = again(realm, first)
    with Home.open(realm.root, clock=realm.clock, variables=realm.variables) as other:
        [delivery] = other.queue(TASKS, "gen-pr").lease()
        assert delivery.message.id == id and realm.tasks(State.INFLIGHT)[0]["retry_of"] == first
        delivery.release()
    with pytest.raises(NameTaken, match=f"was made again already, as {id}"):
        again(realm, first)
    (realm.root / "generals/gen-pr/soldier.py").write_text(SUCCESS)
    realm.lead()
    assert {result["task_id"]: result["status"] for result in realm.results()} == {first: "failed", id: "success"}


def test_work_that_is_done_or_went_on_is_not_made_again_and_a_question_is_closed_by_it(realm: Realm) -> None:
    done = worked(realm, SUCCESS)
    with pytest.raises(NameTaken, match="succeeded"):
        again(realm, done)
    asking = worked(realm, ASKS, "evt-2")
    new = again(realm, asking)
    with pytest.raises(NameTaken, match="closed"):
        Questions(realm.home).answer(asking, "yes", responder="ann", via="terminal")
    realm.run_kingdom()
    assert [task["id"] for task in realm.tasks()] == [new]
    realm.lead()
    realm.run_kingdom()
    Questions(realm.home).answer(new, "yes", responder="ann", via="terminal")
    with pytest.raises(NameTaken, match="was answered"):
        again(realm, new)


def between(monkeypatch: pytest.MonkeyPatch, home: Home, act: Callable[[], object]) -> None:
    """Let something happen at the last moment before a task is removed from the queue."""
    purge = home.store.purge

    def later(*arguments: Any, **options: Any) -> int:
        monkeypatch.undo()
        act()
        return purge(*arguments, **options)

    monkeypatch.setattr(home.store, "purge", later)


@pytest.mark.parametrize("order", ["retry", "cancel"])
def test_a_task_that_its_general_takes_at_the_same_moment_is_worked_on_once(
    realm: Realm, monkeypatch: pytest.MonkeyPatch, order: str
) -> None:
    realm.general(script=f"{WAITS}{SUCCESS}", max_soldiers=2)
    realm.general("gen-b", subscribes=["b"])
    realm.event()
    realm.run_kingdom()
    [task] = realm.tasks()
    general, _ = realm.general_of()
    between(monkeypatch, realm.home, general.step)
    if order == "retry":
        new = again(realm, str(task["id"]), "gen-b")
    else:
        cancel(realm.home, str(task["id"]), "ann")
    general.step()
    (realm.root / "workspace/gen-pr").mkdir(exist_ok=True)
    (realm.root / "workspace/gen-pr/go").touch()
    realm.lead()
    if order == "retry":
        realm.lead("gen-b")
    realm.run_kingdom()
    [result] = realm.results()
    if order == "retry":
        assert (result["task_id"], result["status"]) == (new, "success")
    else:
        assert (result["task_id"], result["reason"]) == (task["id"], "cancelled by ann")
    assert not (realm.root / "workspace/gen-pr/begun").exists(), "no soldier was started"
    assert list(realm.completed()) == ["evt-1"]


def test_a_cancelled_task_can_be_made_again(realm: Realm) -> None:
    realm.general()
    realm.event(payload={"number": 7})
    realm.run_kingdom()
    [task] = realm.tasks()
    assert not cancel(realm.home, task["id"], "ann")
    realm.run_kingdom()
    assert [each["why"] for each in finished_tasks(realm.home, 100)] == ["skipped: cancelled by ann"]
    with pytest.raises(NameTaken, match="is over already"):
        cancel(realm.home, task["id"], "ann")
    again(realm, task["id"])
    realm.lead()
    assert {result["status"] for result in realm.results()} == {"skipped", "success"}
    assert realm.tasks(State.DONE)[-1]["payload"] == {"number": 7}


def test_an_open_question_is_closed_by_cancel_and_people_are_told(realm: Realm) -> None:
    task = worked(realm, ASKS)
    assert not cancel(realm.home, task, "ann")
    assert Questions(realm.home).open() == [] and Questions(realm.home).find(task).state == "closed"
    assert realm.notices()[-1]["content"] == "[question] closed by ann: merge?"
    realm.event("evt-late", "slack.human_response", payload={"task_id": task, "human_response": "yes"})
    realm.run_kingdom()
    assert realm.tasks() == [] and "was closed by ann" in realm.completed()["evt-late"]["reason"]
    with pytest.raises(NameTaken, match="is over already"):
        cancel(realm.home, task, "ann")


def test_an_event_that_was_discarded_is_taken_in_again(realm: Realm) -> None:
    submit(realm.home, [{"id": "evt-1", "type": "github.pr.assigned", "payload": {"number": 7}}])
    realm.run_kingdom()
    assert "no general subscribes" in realm.completed()["evt-1"]["reason"]
    realm.general()
    assert requeue(realm.home, "evt-1") == EVENTS
    assert isinstance(realm.clock, ManualClock)
    realm.clock.advance(2)
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    [task] = realm.tasks(State.DONE)
    assert task["payload"] == {"number": 7}
    completed = realm.completed()
    assert list(completed) == ["evt-1"] and completed["evt-1"]["task_id"] == task["id"]
    assert "reason" not in completed["evt-1"]
    with pytest.raises(NameTaken, match=f"became {task['id']}"):
        requeue(realm.home, "evt-1")
    with pytest.raises(MessageUnknown):
        requeue(realm.home, "evt-2")


@on_files
def test_what_cannot_be_taken_in_again_stays_where_it_is(realm: Realm) -> None:
    realm.general()
    submit(realm.home, [{"id": "evt-1", "type": "github.pr.assigned"}])
    realm.run_kingdom()
    kept = []
    for text in ("{oops", '{"id": "evt-1"'):
        (realm.root / "queue/events/pending/evt-1.json").write_text(text)
        os.utime(realm.root / "queue/events/pending/evt-1.json", (1, 1))
        realm.run_kingdom()
        [path] = (realm.root / "state/queues/events/corrupt").glob("evt-1*.json")
        if text == "{oops":
            path.write_text(json.dumps({"id": "evt-1", "type": "github.pr.assigned"}))
            with pytest.raises(NameTaken, match="was handed in before"):
                requeue(realm.home, "evt-1")
            assert path.exists()
        kept.append(dismiss(realm.home, "evt-1"))
    assert len(set(kept)) == 2 and all((realm.root / place).exists() for place in kept)


def test_the_story_of_a_finished_task_has_the_word_for_its_end(realm: Realm) -> None:
    task = worked(realm, FAILS)
    [found] = story(realm.home, task).tasks
    assert found.task is not None and found.task["status"] == "failed"


def test_the_tasks_that_ended_last_are_shown_first(realm: Realm) -> None:
    realm.general(max_soldiers=3)
    assert isinstance(realm.clock, ManualClock)
    ids = realm.home.task_ids
    tasks = [Task(id=id, type="x", event_id=f"evt-{id}", target_general="gen-pr") for id in ids.take(1003)[-6:]]
    for task in tasks:
        realm.home.store.publish([realm.home.draft(task)])
        realm.lead()
        realm.clock.advance(1)
    assert [task["id"] for task in finished_tasks(realm.home, 4)] == [task.id for task in tasks[:1:-1]]
