"""Results become what people read, once each, and then the event is over."""

import json
from typing import Any

import pytest

from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.king.archive import Archive, Ending
from pabal.apps.kingdom.layout import RESULTS
from pabal.apps.kingdom.status import report
from pabal.store import State
from pabal.testing import ManualClock
from tests.apps.kingdom.realm import Realm, everywhere

CHAT = {"channel": "D1", "message_ts": "10.5"}


def reported(realm: Realm, payload: dict[str, Any] | None = None, **result: Any) -> list[Any]:
    """Let a task have this result; return what people are told after its start."""
    realm.general()
    realm.event(payload=payload or {}, repo="a/b")
    realm.run_kingdom()
    [task] = realm.tasks()
    [held] = realm.home.queue("tasks", "gen-pr").lease()
    from pabal.apps.kingdom.documents import Task, read, result_of

    held.ack(then=[realm.home.draft(result_of(read(Task, task), {"summary": "short", **result}))])
    realm.run_kingdom()
    return realm.notices()[1:]


@everywhere
@pytest.mark.parametrize(
    ("result", "content"),
    [
        ({"status": "success"}, "✅ github.pr.assigned — short"),
        ({"status": "failed", "error": "no access"}, "❌ github.pr.assigned — no access"),
        ({"status": "killed", "error": "signal 9"}, "❌ github.pr.assigned — signal 9"),
        ({"status": "skipped", "reason": "merged already"}, "⏭️ github.pr.assigned — merged already"),
    ],
)
def test_every_outcome_is_told_with_its_mark(realm: Realm, result: dict[str, Any], content: str) -> None:
    [notice] = reported(realm, **result)
    assert (notice["type"], notice["channel"], notice["content"]) == ("notification", "C0MAIN", content)
    assert notice["urgency"] == "normal" and "evt-1" in realm.completed()
    assert realm.completed()["evt-1"]["status"] == "completed"


def test_a_chat_is_answered_in_its_thread_and_may_go_on(realm: Realm) -> None:
    [notice] = reported(realm, CHAT, status="success", session_id="s1")
    assert (notice["type"], notice["channel"], notice["thread_ts"]) == ("thread_reply", "D1", "10.5")
    assert notice["source_ref"] == {"channel": "D1", "message_ts": "10.5"}
    context = notice["track_conversation"]["reply_context"]
    assert context == {"general": "gen-pr", "session_id": "s1", "repo": "a/b"}


def test_the_soldier_may_name_another_channel(realm: Realm) -> None:
    [notice] = reported(realm, CHAT, status="success", notify_channel="C0OTHER")
    assert (notice["type"], notice["channel"]) == ("notification", "C0OTHER")


@everywhere
def test_a_proclamation_goes_to_its_own_channel_as_well(realm: Realm) -> None:
    told = reported(realm, status="success", proclamation={"channel": "C0TEAMCH", "message": "news"})
    [said] = [notice for notice in told if notice["content"] == "news"]
    task = realm.tasks(State.DONE)[0]["id"]
    assert (said["type"], said["task_id"], said["channel"]) == ("notification", f"proclamation-{task}", "C0TEAMCH")
    assert (said["content"], said["urgency"]) == ("news", "high")


@everywhere
def test_a_question_carries_what_is_needed_to_go_on_and_no_proclamation(realm: Realm) -> None:
    [asked] = reported(
        realm,
        CHAT,
        status="needs_human",
        question="merge?",
        options=["yes", "no"],
        session_id="s1",
        checkpoint_path="/x/checkpoint.json",
        proclamation={"channel": "C0TEAMCH", "message": "news"},
    )
    assert (asked["type"], asked["content"]) == ("human_input_request", "[question] merge?")
    assert asked["context"] == {"checkpoint_path": "/x/checkpoint.json", "kind": "choose", "options": ["yes", "no"]}
    context = asked["reply_context"]
    assert (context["general"], context["session_id"], context["repo"]) == ("gen-pr", "s1", "a/b")
    assert context["task_id"] == asked["task_id"] and asked["thread_ts"] == "10.5"
    assert "evt-1" in realm.completed(), "the task is over; the answer makes a new one"


def test_a_result_that_somebody_moved_in_is_taken(realm: Realm) -> None:
    realm.general()
    realm.event()
    realm.run_kingdom()
    [held] = realm.home.queue("tasks", "gen-pr").lease()
    held.ack()
    document = {"task_id": held.message.id, "status": "success", "summary": "by hand"}
    if realm.home.on_files:
        (realm.root / "draft").write_text(json.dumps(document))
        (realm.root / "draft").rename(realm.root / f"state/results/{held.message.id}.json")
    else:
        realm.home.queue(RESULTS).publish(document, id=held.message.id)
    realm.run_kingdom()
    assert realm.notices()[-1]["content"] == "✅ github.pr.assigned — by hand"
    assert "evt-1" in realm.completed()


def test_files_beside_the_results_are_no_results(realm: Realm, clock: ManualClock) -> None:
    for name in ("raw.json", "checkpoint.json", "failures.json", "heartbeat", "session-id"):
        (realm.root / f"state/results/task-20260207-001-{name}").write_text("{")
    clock.advance(10)
    realm.run_kingdom()
    assert sum(realm.home.queue(RESULTS).counts().values()) == 0


@everywhere
def test_an_unreadable_result_fails_its_task_after_a_minute(realm: Realm, clock: ManualClock) -> None:
    realm.general()
    realm.event()
    realm.run_kingdom()
    [held] = realm.home.queue("tasks", "gen-pr").lease()
    held.ack()
    if not realm.home.on_files:
        return  # nobody else writes there
    (realm.root / "draft").write_text('{"task_id": "task')
    (realm.root / "draft").rename(realm.root / f"state/results/{held.message.id}.json")
    clock.advance(5)
    realm.run_kingdom()
    assert len(realm.notices()) == 1
    assert any("malformed" in problem for problem in report(realm.home).problems)
    clock.advance(61)
    for _ in range(3):
        realm.run_kingdom()
    [told] = realm.notices()[1:]
    assert told["content"].startswith("❌ github.pr.assigned — its result cannot be read")
    assert "evt-1" in realm.completed()


@everywhere
def test_the_archive_is_made_good_at_start(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Archive, "complete", lambda self, reasons: None)  # killed just before it
        reported(realm, status="success")
        realm.event("evt-2", "nobody.cares")
        realm.run_kingdom()
    assert realm.completed() == {}
    realm.event("evt-3")
    realm.run_kingdom()
    assert realm.completed().keys() == {"evt-1", "evt-2"}
    assert len(realm.notices()) == 3, "nothing is told twice"


@everywhere
def test_archiving_twice_is_harmless(realm: Realm) -> None:
    reported(realm, status="success")
    archive = Archive(realm.home)
    archive.complete({"evt-1": Ending(), "evt-unknown": Ending()})
    assert archive.catch_up() == 0 and realm.completed().keys() == {"evt-1"}


def test_a_kept_result_is_read_by_the_schema_of_the_project(realm: Realm) -> None:
    from pabal.apps.kingdom.documents import Result, read

    reported(realm, status="failed", error="no access")
    [kept] = realm.bodies(RESULTS, State.DONE)
    assert read(Result, kept).error == "no access"


def test_a_home_without_a_kingdom_is_told(realm: Realm) -> None:
    from pabal.errors import StoreMissing

    with pytest.raises(StoreMissing, match="pabal kingdom init"):
        Home.open(realm.root / "nowhere")
