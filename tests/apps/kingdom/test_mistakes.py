"""Mistakes of people and programs: none of them loses an event, an answer or a result."""

import json
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.kingdom.chamberlain.hung_roles import RoleCheck
from pabal.apps.kingdom.chamberlain.role import Chamberlain
from pabal.apps.kingdom.chamberlain.settings import Roles
from pabal.apps.kingdom.chamberlain.settings import Settings as Chamber
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.envoy.role import tasks as envoy_tasks
from pabal.apps.kingdom.envoy.settings import Settings
from pabal.apps.kingdom.king.role import tasks
from pabal.apps.kingdom.layout import EVENTS, MESSAGES, RESULTS, TASKS
from pabal.apps.kingdom.lookup import story
from pabal.apps.kingdom.needs import needs_of
from pabal.apps.kingdom.operate import dismiss_aside, requeue, set_aside
from pabal.apps.kingdom.status import report, waiting_events
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import SUCCESS, Realm, eventually, saying

on_files = pytest.mark.parametrize("kind", ["files"], indirect=True)


def manifest(realm: Realm, name: str = "gen-pr") -> Path:
    return realm.root / f"config/generals/{name}.yaml"


def asked(realm: Realm, **fields: Any) -> str:
    """Let a soldier ask; return its task."""
    realm.general(script=saying(status="needs_human", question="merge?", **fields))
    realm.event("evt-ask")
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    [question] = Questions(realm.home).open()
    return question.task_id


# Manifests


def test_a_typing_mistake_in_a_manifest_changes_nothing_for_roles_that_run(realm: Realm) -> None:
    realm.general()
    realm.general("gen-all", subscribes=["*"])
    king = tasks(realm.home)
    for task in king:
        task.step()
    general, _ = realm.general_of()
    good = manifest(realm).read_text()
    manifest(realm).write_text(good[: len(good) // 2])
    realm.event()
    for task in king:
        task.step()
    assert [task["target_general"] for task in realm.tasks()] == ["gen-pr"]
    realm.lead()
    assert [result["status"] for result in realm.results()] == ["success"]
    assert any("the version before counts" in each["problem"] for each in realm.journal("system.warning"))


def test_an_event_waits_for_a_manifest_that_was_never_usable(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    good = manifest(realm).read_text()
    manifest(realm).write_text("name: [")
    realm.event()
    realm.event("evt-reply", "slack.thread.reply", payload={"text": "hi", "reply_context": {"general": "gen-pr"}})
    realm.run_kingdom()
    assert realm.completed() == {} and realm.notices() == []
    why = {event["id"]: event["why"] for event in waiting_events(realm.home, 10)}
    assert "gen-pr.yaml cannot be used" in why["evt-1"]
    manifest(realm).write_text(good)
    clock.advance(11)
    realm.run_kingdom()
    assert {task["event_id"] for task in realm.tasks()} == {"evt-1", "evt-reply"}


@on_files
def test_a_supervised_general_outlives_a_typing_mistake_in_its_manifest(living: Realm) -> None:
    living.system(roles=["king"])
    waits = "import os, time\nopen('begun', 'a').write('1')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    living.general(script=f"{waits}{SUCCESS}")
    living.event()
    living.start("up")
    folder = living.root / "workspace/gen-pr"
    eventually((folder / "begun").exists, lambda: living.log)
    good = manifest(living).read_text()
    manifest(living).write_text("name: [")
    living.event("evt-2")
    eventually(lambda: bool(living.tasks()), lambda: living.log)
    (folder / "go").touch()
    eventually(lambda: len(living.completed()) == 2, lambda: living.log)
    manifest(living).write_text(good)
    assert (folder / "begun").read_text() == "11" and living.journal("task.given_back") == []


# Answers


def test_an_answer_that_cannot_be_used_opens_its_question_again_and_people_are_told(realm: Realm) -> None:
    task = asked(realm)
    good = manifest(realm).read_text()
    manifest(realm).unlink()
    Questions(realm.home).answer(task, "yes", responder="ann", via="terminal")
    realm.run_kingdom()
    assert realm.tasks() == [] and [each.task_id for each in Questions(realm.home).open()] == [task]
    told = realm.notices()[-1]
    assert told["task_id"] == task and "no such general; the question is open again" in told["content"]
    manifest(realm).write_text(good)
    checkpoint = realm.root / f"state/results/{task}-checkpoint.json"
    saved = checkpoint.read_text()
    checkpoint.write_text("{")
    Questions(realm.home).answer(task, "yes", responder="ann", via="terminal")
    realm.run_kingdom()
    assert realm.tasks() == [] and "cannot be read" in realm.notices()[-1]["content"]
    checkpoint.write_text(saved)
    Questions(realm.home).answer(task, "no", responder="bob", via="terminal")
    realm.run_kingdom()
    [resumed] = realm.tasks()
    assert resumed["payload"]["human_response"] == "no"
    assert Questions(realm.home).find(task).responder == "bob"


def test_an_answer_whose_process_died_is_published_in_a_kingdom_without_an_envoy(
    realm: Realm, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = asked(realm, expire_seconds=100)
    questions = Questions(realm.home)
    with monkeypatch.context() as patch:
        patch.setattr(questions, "emit", lambda question: question)
        questions.answer(task, "yes", responder="ann", via="terminal")
    realm.run_kingdom()
    assert [each["payload"]["human_response"] for each in realm.tasks()] == ["yes"]
    assert questions.find(task).emitted


def test_a_question_runs_out_in_a_kingdom_without_an_envoy(realm: Realm, clock: ManualClock) -> None:
    task = asked(realm, expire_seconds=100)
    clock.advance(101)
    realm.run_kingdom()
    assert Questions(realm.home).find(task).state == "expired"
    assert realm.notices()[-1]["content"] == "[question] ran out without an answer: merge?"


def test_a_task_that_is_spelled_differently_is_no_second_answer(realm: Realm) -> None:
    task = asked(realm)
    Questions(realm.home).answer(task, "yes", responder="ann", via="terminal")
    before = sorted(path.name for path in (realm.root / "state/results").iterdir())
    odd = [f"../results/{task}", f"archive/../{task}", f"./{task}", f"{task}/", "x" * 300, "a b"]
    for number, spelling in enumerate(odd):
        payload = {"task_id": spelling, "human_response": "no", "channel": "D1", "thread_ts": "9.9"}
        realm.event(f"evt-odd-{number}", "slack.human_response", payload=payload)
    realm.run_kingdom()
    assert [each["payload"]["human_response"] for each in realm.tasks()] == ["yes"]
    assert sorted(path.name for path in (realm.root / "state/results").iterdir()) == before
    assert Questions(realm.home).find(task).answer == "yes"
    reasons = {realm.completed()[f"evt-odd-{number}"]["reason"] for number in range(len(odd))}
    assert all("is no task" in reason for reason in reasons)
    assert reasons <= {each["content"] for each in realm.notices()}, "people are told"


# A general that was written by hand


@on_files
def test_a_refused_result_of_a_general_that_was_written_by_hand_ends_its_task(realm: Realm, clock: ManualClock) -> None:
    realm.general("gen-hand", subscribes=["hand.*"], external=True, command=[])
    realm.event("evt-1", "hand.x")
    realm.run_kingdom()
    [path] = (realm.root / "queue/tasks/pending").glob("task-*.json")
    path.rename(realm.root / "queue/tasks/in_progress" / path.name)
    result = realm.root / f"state/results/{path.name}"
    result.write_text(json.dumps({"task_id": path.stem, "status": "failed"}))
    for _ in range(4):
        realm.run_kingdom()
        clock.advance(61)
    numbers = [notice["id"] for notice in realm.notices()]
    assert "must have error" in realm.notices()[-1]["content"] and realm.notices()[-1]["content"].startswith(
        "❌ hand.x"
    )
    assert realm.completed()["evt-1"]["task_id"] == path.stem and report(realm.home).soldiers == 0
    assert list((realm.root / "queue/tasks/in_progress").iterdir()) == []
    [id] = realm.home.notice_ids.take()
    assert int(id[-3:]) == int(numbers[-1][-3:]) + 1, "reported once, and no number is spent on a look"


@on_files
def test_a_general_that_was_written_by_hand_has_no_heartbeat_and_is_not_missed(
    realm: Realm, clock: ManualClock
) -> None:
    realm.general("gen-hand", subscribes=["hand.*"], external=True, command=[])
    realm.system(roles=[])
    check = RoleCheck(realm.home, Roles())
    assert check.check() == []
    clock.advance(130)
    assert check.check() == [] and [role.state for role in report(realm.home).roles] == ["external"]


def test_a_general_that_was_written_by_hand_needs_queues_that_are_files(realm: Realm) -> None:
    realm.general("gen-hand", subscribes=["hand.*"], external=True, command=[])
    found = [problem for problem in report(realm.home).problems if "gen-hand" in problem]
    assert bool(found) is not realm.home.on_files
    assert all("takes tasks from files, and the queues are in a database" in problem for problem in found)


# Odd files


ODD = {
    "bytes": b"\xff\xfe\x00",
    "empty": b"",
    "list": b"[1, 2]",
    "deep": b"[" * 5000,
    "event": b'{"type": "github.pr.assigned"}',
    "name": b'{"id": "a/../b", "type": "github.pr.assigned"}',
}
ODD_TASKS: list[dict[str, Any]] = [
    {"type": "x", "payload": {"workspace": "../..", "original_task_id": ["a"], "channel": 7}},
    {"type": "resume", "repo": "our/repo", "payload": {"workspace": 7, "checkpoint_path": "/etc/shadow"}},
    {"type": "x", "retry_of": 5},
]
ODD_RESULTS: list[dict[str, Any]] = [
    {"status": "success"},
    {"status": "success", "event_id": "evt-none", "origin": {"channel": 1}},
    {"status": "needs_human", "question": "q?", "kind": "choose", "options": ["a"] * 200},
    {"status": "needs_human", "question": "q?", "expire_seconds": 1e300},
]
ODD_ANSWERS: list[dict[str, Any]] = [
    {"task_id": 5},
    {"reply_context": [1]},
    {"reply_context": {"task_id": {"a": 1}}},
    {"reply_context": {"general": ["x"]}},
    {"text": "hi", "reply_context": {"general": "gen-pr", "session_id": ["-x"], "repo": 5, "workspace": ["x"]}},
]
ODD_NOTICES: list[dict[str, Any]] = [
    {"type": "human_input_request", "content": "x", "task_id": "../../etc"},
    {"type": "human_input_request", "content": "x", "task_id": "task-1", "context": {"expire_seconds": 1e300}},
    {"type": "report", "content": "x", "track_conversation": {"ttl_seconds": 1e308, "reply_context": 5}},
]
ODD_QUESTIONS: list[Any] = [
    {"task_id": "../x", "text": "?"},
    {"task_id": "task-20260101-001", "text": "?", "asked_at": "never", "expires_at": "soon"},
    {"task_id": "task-20260101-002", "text": "?"},
    7,
]


@on_files
def test_files_that_are_made_by_hand_and_odd_stop_no_role_and_can_be_put_away(realm: Realm, clock: ManualClock) -> None:
    realm.general(retry={"max_attempts": 0})
    root, old = realm.root, clock.now() - 100

    def put(folder: str, name: str, data: bytes) -> None:
        (root / folder).mkdir(exist_ok=True)
        (root / folder / name).write_bytes(data)
        os.utime(root / folder / name, (old, old))

    queues = ("queue/events/pending", "queue/tasks/pending", "queue/messages/pending", "state/results")
    for folder in (*queues, "queue/tasks/in_progress", "state/questions", "queue/events/completed"):
        for name, data in ODD.items():
            put(folder, f"{name}.json", data)
        os.symlink("/etc/passwd", root / folder / "link.json")
        os.mkfifo(root / folder / "fifo.json")
    for number, document in enumerate(ODD_TASKS):
        id = f"task-20260101-10{number}"
        put(
            queues[1],
            f"{id}.json",
            json.dumps({"id": id, "event_id": id, "target_general": "gen-pr", **document}).encode(),
        )
    for number, document in enumerate(ODD_RESULTS):
        id = f"task-20260101-20{number}"
        put(queues[3], f"{id}.json", json.dumps({"task_id": id, **document}).encode())
    for number, payload in enumerate(ODD_ANSWERS):
        event = {"id": f"evt-odd-{number}", "type": "slack.thread.reply", "payload": payload}
        put(queues[0], f"evt-odd-{number}.json", json.dumps(event).encode())
    for number, document in enumerate(ODD_NOTICES):
        put(queues[2], f"msg-odd-{number}.json", json.dumps({"id": f"msg-odd-{number}", **document}).encode())
    for number, document in enumerate(ODD_QUESTIONS):
        put("state/questions", f"task-20260101-00{number}.json", json.dumps(document).encode())
    put("state/results", "task-20260101-300-cancelled.json", b"[]")
    put("state/results", "task-20260101-300-failures.json", b'{"a": 1}')
    realm.event("evt-after")
    with ExitStack() as stack:
        roles = [*tasks(realm.home), *envoy_tasks(realm.home, Settings(), stack), Chamberlain(realm.home, Chamber())]
        for _ in range(8):
            for role in roles:
                role.step()
            realm.lead()
            clock.advance(61)
    assert json.loads((root / "queue/events/completed/evt-after.json").read_text())["task_id"]
    needs_of(realm.home)
    found = report(realm.home)
    assert any("misplaced: it is no document of tasks, but of events" in problem for problem in found.problems)
    assert sum("state/questions/" in problem for problem in found.problems) >= len(ODD_QUESTIONS)
    for aside in set_aside(realm.home):
        assert (root / dismiss_aside(realm.home, aside)).exists()
    assert set_aside(realm.home) == []
    left = {name: counts["pending"] for name, counts in report(realm.home).queues.items() if name != MESSAGES}
    assert left == {EVENTS: 0, TASKS: 0, RESULTS: 0}


@on_files
def test_a_document_in_the_queue_of_another_kind_is_taken_to_its_own(realm: Realm) -> None:
    realm.general()
    path = realm.root / "queue/messages/pending/evt-1.json"
    path.write_text('{"id": "evt-1", "type": "github.pr.assigned"}')
    os.utime(path, (1, 1))
    assert requeue(realm.home, "evt-1") == EVENTS
    realm.run_kingdom()
    assert [task["event_id"] for task in realm.tasks()] == ["evt-1"] and set_aside(realm.home) == []


def test_the_story_of_an_event_goes_on_after_an_answer(realm: Realm) -> None:
    task = asked(realm)
    Questions(realm.home).answer(task, "yes", responder="ann", via="terminal")
    realm.general(script=SUCCESS)
    realm.run_kingdom()
    [resumed] = realm.tasks()
    realm.lead()
    for id in ("evt-ask", task, resumed["id"]):
        found = story(realm.home, id)
        assert found.id == "evt-ask" and [each.id for each in found.tasks] == [task, resumed["id"]]
        assert found.tasks[0].went_on_as == [resumed["id"]]
        result = found.tasks[1].result
        assert result is not None and result["status"] == "success"
