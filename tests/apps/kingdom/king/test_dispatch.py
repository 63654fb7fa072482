"""Events become tasks: once each, by class and age, as gate and cap allow, and what nobody takes is told."""

import json
from typing import Any

import pytest

from pabal.apps.kingdom.documents import Event
from pabal.apps.kingdom.king.dispatch import BATCH
from pabal.apps.kingdom.status import report, waiting_events
from pabal.errors import InvalidInput
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import Realm, everywhere


@everywhere
def test_an_event_becomes_a_task_and_a_thread(realm: Realm) -> None:
    realm.general()
    realm.event("evt-1", repo="querypie/frontend", payload={"pr_number": "7"}, priority="high")
    realm.run_kingdom()
    [task] = realm.tasks()
    assert task["id"].startswith("task-") and task["id"].endswith("-001")
    assert (task["event_id"], task["target_general"], task["type"]) == ("evt-1", "gen-pr", "github.pr.assigned")
    assert (task["repo"], task["payload"], task["priority"]) == ("querypie/frontend", {"pr_number": "7"}, "high")
    [notice] = realm.notices()
    assert (notice["type"], notice["channel"], notice["task_id"]) == ("thread_start", "C0MAIN", task["id"])
    assert notice["content"] == "[start] github.pr.assigned — querypie/frontend"
    assert not realm.pending()


def test_the_default_repo_of_the_manifest_fills_in(realm: Realm) -> None:
    realm.general(default_repo="our/repo")
    realm.event()
    realm.run_kingdom()
    assert realm.tasks()[0]["repo"] == "our/repo"


def test_the_most_specific_subscription_wins(realm: Realm) -> None:
    realm.general("gen-all", subscribes=["*"])
    realm.general("gen-git", subscribes=["github.*"])
    realm.general("gen-pr", subscribes=["github.pr.assigned"])
    realm.king(concurrency={"max_soldiers": 10})
    for number, type in enumerate(("github.pr.assigned", "github.pr.mentioned", "jira.ticket.assigned")):
        realm.event(f"evt-{number}", type)
    realm.run_kingdom()
    assert {task["type"]: task["target_general"] for task in realm.tasks()} == {
        "github.pr.assigned": "gen-pr",
        "github.pr.mentioned": "gen-git",
        "jira.ticket.assigned": "gen-all",
    }


@everywhere
def test_what_nobody_subscribes_to_is_discarded_with_its_reason(realm: Realm) -> None:
    realm.general()
    realm.event("evt-1", "github.issue.comment")
    realm.run_kingdom()
    assert realm.tasks() == [] and realm.notices() == []
    assert realm.completed()["evt-1"]["reason"] == "no general subscribes to github.issue.comment"
    assert any("evt-1" in problem for problem in report(realm.home).problems)


@pytest.mark.parametrize("type", ["slack.channel.message", "slack.app_mention"])
def test_a_person_whom_no_general_understands_is_answered(realm: Realm, type: str) -> None:
    realm.general()
    realm.event("evt-slack-msg-1-2", type, payload={"text": "hi", "channel": "D1", "message_ts": "1.2"})
    realm.run_kingdom()
    [notice] = realm.notices()
    assert (notice["type"], notice["channel"], notice["thread_ts"]) == ("thread_reply", "D1", "1.2")
    assert "gen-pr" in notice["content"] and "evt-slack-msg-1-2" in realm.completed()


@everywhere
def test_high_comes_before_normal_before_low_and_older_before_younger(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    realm.king(concurrency={"max_soldiers": 1})
    for id, priority in (("evt-z", "low"), ("evt-y", "normal"), ("evt-b", "high"), ("evt-a", "high")):
        realm.home.emit([Event(id=id, type="github.pr.assigned", priority=priority)])  # type: ignore[arg-type]  # by name
        clock.advance(1)
    order = []
    for _ in range(4):
        realm.run_kingdom()
        [task] = realm.tasks()
        order.append(task["event_id"])
        realm.home.queue("tasks", "gen-pr").lease()[0].ack()
    assert order == ["evt-b", "evt-a", "evt-y", "evt-z"]


@everywhere
def test_one_dispatch_in_ten_goes_to_what_has_waited_long(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    realm.king(concurrency={"max_soldiers": 1000})
    realm.event("evt-old", priority="low")
    clock.advance(601)
    realm.home.emit([Event(id=f"evt-{n:02}", type="github.pr.assigned", priority="high") for n in range(30)])
    realm.event("evt-young", priority="low")
    realm.run_kingdom()
    order = [task["event_id"] for task in sorted(realm.tasks(), key=lambda task: str(task["id"]))]
    assert order.index("evt-old") == 9 and order[-1] == "evt-young"


def test_nothing_is_aged_before_its_time(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    realm.king(concurrency={"max_soldiers": 1000})
    realm.event("evt-low", priority="low")
    clock.advance(500)
    realm.home.emit([Event(id=f"evt-{n:02}", type="github.pr.assigned", priority="high") for n in range(30)])
    realm.run_kingdom()
    order = [task["event_id"] for task in sorted(realm.tasks(), key=lambda task: str(task["id"]))]
    assert order[-1] == "evt-low"


@everywhere
def test_over_the_cap_events_stay_pending_and_say_why(realm: Realm) -> None:
    realm.general()
    for number in range(5):
        realm.event(f"evt-{number}")
    realm.run_kingdom()
    assert len(realm.tasks()) == 3 and len(realm.pending()) == 2
    assert {event["why"] for event in waiting_events(realm.home, 10)} == {"held: gen-pr has 3 tasks to do"}
    realm.run_kingdom()
    assert len(realm.tasks()) == 3, "tasks that wait for their general count too"
    [running] = realm.home.queue("tasks", "gen-pr").lease()
    realm.run_kingdom()
    assert len(realm.tasks()) == 2, "and so do those that run"
    running.ack()
    realm.run_kingdom()
    assert len(realm.tasks()) == 3 and len(realm.pending()) == 1


@everywhere
def test_a_yellow_machine_takes_high_priority_only(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    resources(realm, health="yellow", timestamp=stamped(clock))
    realm.event("evt-normal")
    realm.event("evt-high", priority="high")
    realm.run_kingdom()
    assert [task["event_id"] for task in realm.tasks()] == ["evt-high"]
    assert [event["why"] for event in waiting_events(realm.home, 10)] == ["held: yellow, needs high"]
    resources(realm, health="green", timestamp=stamped(clock))
    realm.run_kingdom()
    assert len(realm.tasks()) == 2


@pytest.mark.parametrize("health", ["orange", "red"])
def test_an_orange_or_red_machine_takes_nothing_and_drops_nothing(
    realm: Realm, clock: ManualClock, health: str
) -> None:
    realm.general()
    resources(realm, health=health, timestamp=stamped(clock))
    realm.event("evt-high", priority="high")
    realm.run_kingdom()
    assert realm.tasks() == [] and realm.pending() == {"evt-high"}
    assert [event["why"] for event in waiting_events(realm.home, 10)] == [f"held: {health}"]


def test_a_manifest_that_changes_is_read_again(realm: Realm) -> None:
    dispatch = realm.dispatcher()
    realm.general(subscribes=["jira.*"])
    realm.event("evt-1", "jira.ticket.assigned")
    dispatch.step()
    assert [task["target_general"] for task in realm.tasks()] == ["gen-pr"]
    realm.general(subscribes=["github.pr.*", "jira.ticket.updated"])
    realm.event("evt-2", "jira.ticket.assigned")
    dispatch.step()
    assert "evt-2" in realm.completed()


@everywhere
def test_more_than_a_batch_is_dispatched_in_one_pass(realm: Realm) -> None:
    realm.general()
    realm.king(concurrency={"max_soldiers": 10_000})
    count = BATCH + 10
    realm.home.emit([Event(id=f"evt-{n}", type="github.pr.assigned") for n in range(count)])
    realm.run_kingdom()
    tasks = realm.tasks()
    assert len({task["id"] for task in tasks}) == len({task["event_id"] for task in tasks}) == count


def test_a_general_that_does_not_support_the_engine_gets_no_events(realm: Realm) -> None:
    realm.general(command=[], supported_engines=["codex"])
    realm.event()
    realm.run_kingdom()
    assert realm.tasks() == []
    assert any("supports codex, not claude" in problem for problem in report(realm.home).problems)


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        ({"id": "evt-1"}, "type"),
        ({"id": "evt-1", "type": ""}, "type is empty"),
        ({"id": "evt-1", "type": "a.b", "priority": 1}, "priority"),
        ({"id": "evt-1", "type": "a.b", "payload": [1]}, "payload"),
        ({"id": "evt-1", "type": "a.b", "created_at": "yesterday"}, "2026-02-07T10:00:00Z"),
        ({"id": "../evil", "type": "a.b"}, "message id"),
    ],
)
def test_a_malformed_event_is_set_aside_with_its_reason_and_all_else_works(
    realm: Realm, clock: ManualClock, document: dict[str, Any], reason: str
) -> None:
    if not realm.home.on_files and reason == "message id":
        return  # there the id of the message counts, which the store has checked
    realm.general()
    put(realm, document)
    realm.event("evt-good")
    clock.advance(3)
    realm.run_kingdom()
    realm.run_kingdom()
    assert [task["event_id"] for task in realm.tasks()] == ["evt-good"]
    [problem] = [event["why"] for event in waiting_events(realm.home, 10)]
    assert problem.startswith("malformed: ") and reason in problem
    assert any(reason in problem for problem in report(realm.home).problems)


def put(realm: Realm, document: dict[str, Any]) -> None:
    """Put a document into the events as another program would."""
    import json
    import os

    if realm.home.on_files:
        draft = realm.root / "draft.json"
        draft.write_text(json.dumps(document))
        os.utime(draft, (realm.clock.now(), realm.clock.now()))
        draft.rename(realm.root / "queue/events/pending/event.json")
    else:
        realm.home.queue("events").publish(document, type="event", target="normal")


def resources(realm: Realm, **fields: Any) -> None:
    import json

    (realm.root / "state/resources.json").write_text(json.dumps(fields))


def stamped(clock: ManualClock) -> str:
    from pabal.apps.kingdom.documents import stamp

    return stamp(clock.now())


@everywhere
def test_a_task_of_an_unknown_general_is_shown(realm: Realm) -> None:
    realm.general()
    realm.event()
    realm.run_kingdom()
    (realm.root / "config/generals/gen-pr.yaml").unlink()
    assert any("is for gen-pr: there is no such general" in problem for problem in report(realm.home).problems)


@everywhere
def test_the_same_event_twice_is_one_task(realm: Realm) -> None:
    realm.general()
    event = realm.event()
    realm.run_kingdom()
    assert realm.home.emit([event])[0].duplicate
    realm.run_kingdom()
    assert len(realm.tasks()) == 1 and realm.home.queue("events").counts()[State.READY] == 0


def test_what_was_seen_is_remembered_longer_than_the_queue_remembers_it(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    event = realm.event()
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    assert "evt-1" in realm.completed()
    clock.advance(29 * 86400)
    realm.home.queue("events").sweep()
    assert realm.home.emit([event])[0].duplicate
    (realm.root / "state/sentinel/seen/evt-1").unlink()  # as the chamberlain does after 30 days
    assert not realm.home.emit([event])[0].duplicate


def test_people_are_told_in_the_channel_of_the_configuration_else_in_that_of_the_variable(realm: Realm) -> None:
    assert realm.home.default_channel == "C0MAIN"
    realm.king(slack={"default_channel": "dev-eddy"})
    realm.general()
    realm.event()
    realm.run_kingdom()
    assert realm.notices()[0]["channel"] == "dev-eddy"


def test_an_event_that_is_no_event_cannot_be_emitted() -> None:
    with pytest.raises(InvalidInput):
        Event(id="no spaces please", type="x")


def test_events_that_came_under_one_file_name_are_completed_each_for_itself(realm: Realm) -> None:
    if not realm.home.on_files:
        return
    realm.general()
    for number in range(1, 4):
        document = {"id": f"evt-{number}", "type": "github.pr.assigned"}
        (realm.root / "queue/events/pending/next.json").write_text(json.dumps(document))
        realm.run_kingdom()
    for _ in range(3):
        realm.lead()
    realm.run_kingdom()
    assert realm.completed().keys() == {"evt-1", "evt-2", "evt-3"}
    assert list((realm.root / "queue/events/dispatched").iterdir()) == []
