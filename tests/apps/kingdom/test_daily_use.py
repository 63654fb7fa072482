"""What a team meets in its first week with a kingdom: each test is a thing that went wrong once."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.kingdom.documents import Event
from pabal.apps.kingdom.envoy.questions import Questions
from pabal.apps.kingdom.id_sequence import IdSequence
from pabal.apps.kingdom.layout import EVENTS, TASKS
from pabal.apps.kingdom.status import report, waiting_events
from pabal.errors import InvalidConfig
from pabal.queues import cron
from pabal.queues.queue import Queue
from pabal.store import Entry, State
from pabal.testing import ManualClock
from tests.apps.kingdom.king.test_dispatch import resources, stamped
from tests.apps.kingdom.realm import SUCCESS, Realm, eventually, saying

FAILS = saying(status="failed", error="no access")


def why(realm: Realm) -> dict[str, str]:
    return {event["id"]: event["why"] for event in waiting_events(realm.home, 100)}


# Limits


def test_tasks_that_wait_for_a_retry_hold_nobody(realm: Realm) -> None:
    realm.general("gen-bad", script=FAILS, subscribes=["bad.*"])
    realm.general("gen-good", subscribes=["good.*"])
    for number in range(3):
        realm.event(f"evt-bad-{number}", "bad.x")
    realm.run_kingdom()
    for _ in range(3):
        realm.lead("gen-bad")
    assert realm.home.queue(TASKS).counts()[State.DELAYED] == 3
    realm.event("evt-good", "good.x")
    realm.run_kingdom()
    assert [task["event_id"] for task in realm.tasks()] == ["evt-good"]
    assert report(realm.home).soldiers == 1


def test_tasks_of_a_general_that_is_gone_hold_nobody_and_are_shown(realm: Realm) -> None:
    realm.general("gen-old", subscribes=["old.*"])
    realm.general("gen-new", subscribes=["new.*"])
    for number in range(3):
        realm.event(f"evt-{number}", "old.x")
    realm.run_kingdom()
    (realm.root / "config/generals/gen-old.yaml").unlink()
    realm.event("evt-new", "new.x")
    realm.run_kingdom()
    assert "evt-new" in {task["event_id"] for task in realm.tasks()}
    shown = [problem for problem in report(realm.home).problems if "is for gen-old" in problem]
    assert len(shown) == 3 and "pabal kingdom cancel" in shown[0]


def test_a_general_with_many_events_leaves_room_for_the_others_and_says_what_it_holds(realm: Realm) -> None:
    realm.general("gen-busy", subscribes=["busy.*"])
    realm.general("gen-free", subscribes=["free.*"])
    for number in range(5):
        realm.event(f"evt-busy-{number}", "busy.x", priority="high")
    realm.event("evt-free", "free.x", priority="low")
    realm.run_kingdom()
    dispatched = [task["event_id"] for task in sorted(realm.tasks(), key=lambda task: str(task["id"]))]
    assert dispatched == ["evt-busy-0", "evt-busy-1", "evt-busy-2", "evt-free"]
    assert why(realm) == dict.fromkeys(("evt-busy-3", "evt-busy-4"), "held: gen-busy has 3 tasks to do")
    assert [entry.attempt for entry in realm.home.queue(EVENTS).entries(State.READY)] == [0, 0], "looked at, not leased"


def test_a_long_list_of_events_is_not_read_for_each_dispatch_and_hides_nobody(
    realm: Realm, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    realm.general("gen-busy", subscribes=["busy.*"])
    realm.general("gen-free", subscribes=["free.*"])
    realm.king(concurrency={"max_soldiers": 2})
    busy = [Event(id=f"evt-{number:03}", type=f"busy.{number % 3}", priority="high") for number in range(650)]
    realm.home.emit([*busy, Event(id="evt-free", type="free.x", priority="low")])
    looks: list[str] = []
    entries = Queue.entries

    def counted(queue: Queue, state: State) -> Iterator[Entry]:
        looks.append(queue.name)
        return entries(queue, state)

    monkeypatch.setattr(Queue, "entries", counted)
    dispatch = realm.dispatcher()
    for _ in range(20):
        dispatch.step()
        for general in ("gen-busy", "gen-free"):
            for delivery in realm.home.queue(TASKS, general).lease(10):
                delivery.ack()
    done = {task["event_id"] for task in realm.tasks(State.DONE)}
    assert len(done) >= 20 and "evt-free" in done
    assert looks.count(EVENTS) <= 4, "it is read once, not for each dispatch"
    realm.home.emit([Event(id="evt-free-2", type="free.x", priority="high")])
    clock.advance(11)
    dispatch.step()
    assert "evt-free-2" in {task["event_id"] for task in realm.tasks()}


def test_a_general_has_as_many_soldiers_as_its_manifest_says(realm: Realm) -> None:
    script = (
        "import os, time\nopen(os.environ['KINGDOM_TASK_ID'], 'w')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
    )
    realm.general(script=script + SUCCESS, max_soldiers=2)
    for number in range(3):
        realm.event(f"evt-{number}")
    realm.run_kingdom()
    general, watch = realm.general_of()
    general.step()
    folder = realm.root / "workspace/gen-pr"
    eventually(lambda: len(list(folder.glob("task-*"))) == 2)
    general.step()
    assert general.soldiers == 2 and len(realm.tasks()) == 1 and report(realm.home).soldiers == 2
    (folder / "go").touch()
    realm.lead()
    realm.lead()
    assert len(realm.results()) == 3


# Stop


@pytest.mark.parametrize("way", ["down", "SIGINT", "SIGTERM", "removed"])
@pytest.mark.parametrize("kind", ["files"], indirect=True)
def test_a_stop_waits_for_soldiers_and_gives_back_what_does_not_end(living: Realm, way: str) -> None:
    living.system(roles=["king"], stop_seconds=4)
    waits = "import os, signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nopen('begun', 'a').write('1')\n"
    living.general(script=f"{waits}while not os.path.exists('go'): time.sleep(0.02)\n{SUCCESS}")
    living.general("gen-slow", script=f"{waits}time.sleep(1000)", subscribes=["slow.*"], max_soldiers=3)
    living.king(concurrency={"max_soldiers": 4})
    living.event()
    slow = {f"evt-slow-{number}" for number in range(3)}
    for id in slow:
        living.event(id, "slow.x")
    up = living.start("up")
    begun = {living.root / "workspace" / name / "begun": count for name, count in (("gen-pr", 1), ("gen-slow", 3))}

    def all_begun() -> bool:
        return all(path.exists() and path.stat().st_size == count for path, count in begun.items())

    eventually(all_begun, lambda: living.log)
    if way == "removed":
        (living.root / "config/generals/gen-slow.yaml").unlink()
        eventually(lambda: len(living.journal("task.given_back")) == 3, lambda: living.log)
        way = "SIGTERM"
    done = living.start("down") if way == "down" else None
    if done is None:
        up.send_signal(signal.Signals[way])
    (living.root / "workspace/gen-pr/go").touch()
    if done is not None:
        assert done.wait(60) == 0, living.log
    assert up.wait(60) == 0, living.log
    assert [result["status"] for result in living.results()] == ["success"]
    given_back = [each["task"] for each in living.journal("task.given_back")]
    assert sorted(given_back) == sorted(task["id"] for task in living.tasks())
    assert {(task["event_id"], task["status"]) for task in living.tasks()} == {(id, "pending") for id in slow}
    assert not list((living.root / "state/results").glob("*-failures.json")), "no try was counted"


# Events


def submit(realm: Realm, document: dict[str, Any], name: str) -> None:
    (realm.root / "draft").write_text(json.dumps(document))
    (realm.root / "draft").rename(realm.root / f"queue/events/pending/{name}")


@pytest.mark.parametrize("phase", ["dispatched", "completed"])
@pytest.mark.parametrize("kind", ["files"], indirect=True)
def test_an_id_that_comes_again_makes_no_second_task_and_no_phantom(realm: Realm, phase: str) -> None:
    realm.general()
    document = {"id": "evt-1", "type": "github.pr.assigned"}
    submit(realm, document, "evt-1.json")
    realm.run_kingdom()
    if phase == "completed":
        realm.lead()
        realm.run_kingdom()
    told = len(realm.notices())
    for name in ("evt-1.json", "other.json"):
        submit(realm, document, name)
        realm.run_kingdom()
    assert len(realm.notices()) == told
    realm.lead()
    realm.run_kingdom()
    assert len(realm.tasks(State.DONE)) == 1
    assert not list((realm.root / "queue/events/dispatched").iterdir())
    completed = realm.completed()
    assert completed["evt-1"]["task_id"] == realm.tasks(State.DONE)[0]["id"] and "reason" not in completed["evt-1"]
    again = [body for name, body in completed.items() if name.startswith("evt-1-repeated")]
    assert again and all("was handled before" in body["reason"] for body in again)


def test_an_event_that_is_published_without_target_and_id_waits_at_the_gate_and_is_completed(
    realm: Realm, clock: ManualClock
) -> None:
    if realm.home.on_files:
        return
    realm.general()
    resources(realm, health="red", timestamp=stamped(clock))
    realm.home.queue(EVENTS).publish({"type": "github.pr.assigned", "priority": "urgent"})
    realm.run_kingdom()
    assert realm.tasks() == [] and set(why(realm).values()) == {"held: red"}
    (realm.root / "state/resources.json").unlink()
    clock.advance(11)
    realm.run_kingdom()
    [task] = realm.tasks()
    assert task["priority"] == "normal"
    realm.lead()
    realm.run_kingdom()
    assert list(realm.completed()) == [task["event_id"]]


def test_low_priority_comes_in_its_turn_although_it_was_looked_at_all_the_time(
    realm: Realm, clock: ManualClock
) -> None:
    realm.general()
    realm.king(concurrency={"max_soldiers": 1})
    dispatch = realm.dispatcher()
    realm.event("evt-low", priority="low")
    order: list[str] = []
    for number in range(80):
        realm.home.emit([Event(id=f"evt-{number:03}", type="github.pr.assigned", priority="high")])
        dispatch.step()
        [task] = realm.tasks()
        order.append(task["event_id"])
        realm.home.queue(TASKS, "gen-pr").lease()[0].ack()
        clock.advance(20)
        if "evt-low" in order:
            break
    assert 29 < order.index("evt-low") <= 40, "after ten minutes, within ten dispatches"


# Answers


def asked(realm: Realm, **fields: Any) -> str:
    realm.general(script=saying(status="needs_human", question="merge?", **fields))
    realm.event(payload={"channel": "D1", "message_ts": "10.5"})
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    [question] = Questions(realm.home).open()
    return question.task_id


def answers(realm: Realm, task: str, *texts: str) -> None:
    for number, text in enumerate(texts):
        payload = {
            "task_id": task,
            "human_response": text,
            "user_id": f"U{number}",
            "channel": "D1",
            "thread_ts": "9.9",
        }
        realm.event(f"evt-answer-{number}", "slack.human_response", payload=payload)
    realm.run_kingdom()


def test_of_answers_as_events_the_first_counts_and_the_others_are_told(realm: Realm) -> None:
    task = asked(realm)
    answers(realm, task, "yes", "no", "perhaps")
    [resumed] = realm.tasks()
    assert resumed["payload"]["human_response"] == "yes"
    question = Questions(realm.home).find(task)
    assert (question.state, question.answer, question.responder, question.via) == ("answered", "yes", "U0", "event")
    reasons = [body["reason"] for body in realm.completed().values() if "reason" in body]
    assert len(reasons) == 2 and all("was answered already, by U0" in reason for reason in reasons)
    told = [notice for notice in realm.notices() if "answered already" in notice["content"]]
    assert [(notice["channel"], notice["thread_ts"]) for notice in told] == [("D1", "9.9")] * 2
    with pytest.raises(ValueError, match="answered already"):
        Questions(realm.home).answer(task, "no", responder="ann", via="terminal")


def test_an_answer_in_the_terminal_is_first_too_and_a_wrong_one_leaves_the_question_open(realm: Realm) -> None:
    task = asked(realm, kind="confirm")
    answers(realm, task, "perhaps")
    assert realm.tasks() == [] and len(Questions(realm.home).open()) == 1
    Questions(realm.home).answer(task, "yes", responder="ann", via="terminal")
    realm.event("evt-late", "slack.human_response", payload={"task_id": task, "human_response": "no"})
    realm.run_kingdom()
    assert [each["payload"]["human_response"] for each in realm.tasks()] == ["yes"]


# Workspaces


def test_tasks_of_one_repository_work_side_by_side_and_plugins_are_not_untracked(realm: Realm, upstream: Path) -> None:
    (realm.root / "plugins/friday").mkdir()
    script = """\
import os, subprocess, time
mine = os.environ["KINGDOM_RESULT_PATH"]
open(f"{mine}.here", "w")
while len([name for name in os.listdir(os.path.dirname(mine)) if name.endswith(".here")]) < 2:
    time.sleep(0.02)
left = subprocess.run(["git", "status", "--porcelain"], stdout=subprocess.PIPE, text=True).stdout
assert left == "" and os.path.isdir(".claude/plugins/friday"), left
"""
    realm.general(script=script + SUCCESS, max_soldiers=2, cc_plugins=["friday"], retry={"max_attempts": 0})
    realm.event("evt-1", repo="our/repo")
    realm.event("evt-2", repo="our/repo")
    realm.run_kingdom()
    realm.lead()
    assert [(result["status"], result.get("error")) for result in realm.results()] == [("success", None)] * 2


# Results


@pytest.mark.parametrize(
    ("text", "reason"),
    [("", "left an empty result file"), ("{oops", "it begins: {oops"), ("[1]", "must be a JSON object")],
)
def test_a_broken_result_is_judged_at_once_and_quoted_with_the_last_output(
    realm: Realm, text: str, reason: str
) -> None:
    script = f"import os, sys\nopen(os.environ['KINGDOM_RESULT_PATH'], 'w').write({text!r})\nsys.exit('quota exceeded')"
    realm.general(script=script, retry={"max_attempts": 0})
    realm.event()
    realm.run_kingdom()
    realm.lead()
    [result] = realm.results()
    assert reason in result["error"]
    assert "quota exceeded" in result["error"] or text == "[1]"


@pytest.mark.parametrize("kind", ["files"], indirect=True)
def test_a_general_that_was_written_by_hand_is_served_to_the_end(realm: Realm) -> None:
    realm.general("gen-hand", subscribes=["hand.*"], external=True, command=[])
    realm.event("evt-1", "hand.x")
    realm.run_kingdom()
    pending, taken = realm.root / "queue/tasks/pending", realm.root / "queue/tasks/in_progress"
    [path] = pending.glob("task-*.json")
    path.rename(taken / path.name)
    realm.run_kingdom()
    assert report(realm.home).soldiers == 1 and (taken / path.name).exists()
    document = {"task_id": path.stem, "status": "failed", "error": "no access"}
    (realm.root / "draft").write_text(json.dumps(document))
    (realm.root / "draft").rename(realm.root / f"state/results/{path.name}")
    realm.run_kingdom()
    assert realm.notices()[-1]["content"] == "❌ hand.x — no access"
    assert realm.completed()["evt-1"]["task_id"] == path.stem
    assert list(taken.iterdir()) == [] and report(realm.home).soldiers == 0
    finished = json.loads((realm.root / "queue/tasks/completed" / path.name).read_text())
    assert finished["status"] == "failed"
    assert json.loads((realm.root / "state/results/archive" / path.name).read_text())["error"] == "no access"


@pytest.mark.parametrize("kind", ["files"], indirect=True)
@pytest.mark.parametrize(
    ("result", "word"),
    [
        ({"status": "success"}, "completed"),
        ({"status": "failed", "error": "x"}, "failed"),
        ({"status": "needs_human", "question": "x"}, "needs_human"),
        ({"status": "skipped", "reason": "x"}, "skipped"),
    ],
)
def test_a_finished_task_has_a_plain_name_and_the_word_for_its_end(
    realm: Realm, result: dict[str, Any], word: str
) -> None:
    script = f"import os\nopen(os.environ['KINGDOM_RESULT_PATH'], 'w').write({json.dumps(result)!r})\n"
    realm.general(script=script, retry={"max_attempts": 0})
    realm.event()
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    [path] = (realm.root / "queue/tasks/completed").iterdir()
    [kept] = (realm.root / "state/results/archive").iterdir()
    assert path.name == kept.name == f"{realm.tasks(State.DONE)[0]['id']}.json"
    assert json.loads(path.read_text())["status"] == word
    path.unlink()
    kept.unlink()
    realm.run_kingdom()
    assert path.exists() and kept.exists(), "a King that died before it could write them makes them good"


# Numbers and times


@pytest.mark.parametrize("line", ["*/10 * * * * *", "0 22 * *", "@daily", ""])
def test_a_cron_line_has_five_fields(line: str) -> None:
    with pytest.raises(InvalidConfig, match="daily: a cron line has five fields"):
        cron.check(line, "", "daily")


def test_ids_go_on_after_a_stop_without_a_gap(tmp_path: Path, clock: ManualClock) -> None:
    def sequence() -> IdSequence:
        found = IdSequence(tmp_path / "seq", "task", clock, lambda prefix: 0)
        found.block = 20
        return found

    first, other = sequence(), sequence()
    numbers = [int(first.take()[0].rpartition("-")[2]) for _ in range(3)]
    first.give_back()
    first.give_back()
    numbers += [int(other.take()[0].rpartition("-")[2])]
    numbers += [int(first.take()[0].rpartition("-")[2])]
    other.give_back()  # too late: the other has reserved more
    numbers += [int(first.take()[0].rpartition("-")[2])]
    assert numbers == [1, 2, 3, 4, 24, 25]


def test_a_retry_wakes_its_general_in_time_and_counts(realm: Realm, clock: ManualClock) -> None:
    script = """\
import json, os
count = json.load(open(os.environ["KINGDOM_TASK_PATH"]))["retry_count"]
result = {"status": "success", "summary": f"retry {count}"} if count else {"status": "failed", "error": "once"}
open(os.environ["KINGDOM_RESULT_PATH"], "w").write(json.dumps(result))
"""
    realm.general(script=script, retry={"max_attempts": 2, "backoff_seconds": 1})
    realm.event()
    realm.run_kingdom()
    realm.lead()
    general, _ = realm.general_of()
    assert 0 < general.next_due() <= 1
    clock.advance(1.1)
    realm.lead()
    [result] = realm.results()
    assert (result["summary"], result["attempts"]) == ("retry 1", 2)
    assert general.next_due() == 10
