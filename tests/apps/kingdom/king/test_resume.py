"""What a person answers goes on at once with the task that asked."""

import json
from pathlib import Path
from typing import Any

import pytest

from pabal.apps.kingdom.status import report
from tests.apps.kingdom.realm import Realm, everywhere, saying


def asked(realm: Realm) -> dict[str, Any]:
    """Let a soldier ask; return the notice."""
    realm.general(script=saying(status="needs_human", question="merge?", session_id="s-1"))
    realm.event(repo=None, payload={"channel": "D1", "message_ts": "10.5"})
    realm.run_kingdom()
    realm.lead()
    realm.run_kingdom()
    notice: dict[str, Any] = realm.notices()[-1]
    return notice


@everywhere
@pytest.mark.parametrize("type", ["slack.thread.reply", "slack.human_response"])
def test_an_answer_becomes_a_resume_task_with_the_checkpoint(realm: Realm, type: str) -> None:
    notice = asked(realm)
    said = {"text": "yes", "human_response": "yes", "channel": "D1", "thread_ts": "10.5"}
    realm.event("evt-slack-reply-10-5-1", type, payload={**said, "reply_context": notice["reply_context"]})
    realm.run_kingdom()
    [task] = realm.tasks()
    assert (task["type"], task["priority"], task["target_general"]) == ("resume", "high", "gen-pr")
    payload = task["payload"]
    assert payload["original_task_id"] == notice["task_id"] and payload["human_response"] == "yes"
    assert (payload["session_id"], payload["channel"], payload["thread_ts"]) == ("s-1", "D1", "10.5")
    checkpoint = json.loads(Path(payload["checkpoint_path"]).read_text())
    assert checkpoint["task_id"] == notice["task_id"] and checkpoint["target_general"] == "gen-pr"
    update = realm.notices()[-1]
    assert (update["type"], update["task_id"], update["thread_ts"]) == ("thread_update", notice["task_id"], "10.5")


def test_the_older_form_names_its_task_in_the_payload(realm: Realm) -> None:
    notice = asked(realm)
    realm.event("evt-1b", "slack.human_response", payload={"task_id": notice["task_id"], "human_response": "no"})
    realm.run_kingdom()
    assert realm.tasks()[0]["payload"]["human_response"] == "no"


@everywhere
def test_an_answer_passes_gate_and_cap(realm: Realm) -> None:
    notice = asked(realm)
    (realm.root / "state/resources.json").write_text("")
    realm.king(concurrency={"max_soldiers": 1})
    realm.event("evt-a", "slack.thread.reply", payload={"text": "yes", "reply_context": notice["reply_context"]})
    realm.event("evt-c", priority="high")
    realm.run_kingdom()
    assert {task["event_id"] for task in realm.tasks()} == {"evt-a"} and realm.pending() == {"evt-c"}


def test_the_resumed_soldier_finds_the_answer_in_its_prompt(realm: Realm) -> None:
    notice = asked(realm)
    realm.event(
        "evt-a", "slack.thread.reply", payload={"text": "by all means", "reply_context": notice["reply_context"]}
    )
    realm.general(script=saying(status="success"))
    realm.run_kingdom()
    [task] = realm.tasks()
    realm.lead()
    prompt = (realm.root / f"state/prompts/{task['id']}.md").read_text()
    assert "by all means" in prompt and "Where it stopped" in prompt


@everywhere
@pytest.mark.parametrize(
    ("context", "reason"),
    [
        ({"task_id": "task-20260101-999", "general": "gen-pr"}, "no checkpoint"),
        ({"task_id": "../../config/king.yaml#", "general": "gen-pr"}, "is no task"),
        ({}, "is for nobody"),
        ({"general": "gen-gone"}, "is for gen-gone"),
    ],
)
def test_an_answer_that_leads_nowhere_is_told_and_over(realm: Realm, context: dict[str, str], reason: str) -> None:
    realm.general()
    realm.event("evt-a", "slack.thread.reply", payload={"text": "yes", "reply_context": context})
    realm.run_kingdom()
    assert realm.tasks() == [] and reason in realm.completed()["evt-a"]["reason"]
    assert any(reason in problem for problem in report(realm.home).problems)


def test_a_damaged_checkpoint_is_told(realm: Realm) -> None:
    realm.general()
    (realm.root / "state/results/task-20260101-001-checkpoint.json").write_text("{")
    realm.event("evt-a", "slack.thread.reply", payload={"text": "x", "reply_context": {"task_id": "task-20260101-001"}})
    realm.run_kingdom()
    assert "cannot be read" in realm.completed()["evt-a"]["reason"]


def test_a_word_in_a_conversation_goes_to_its_general_without_a_checkpoint(realm: Realm) -> None:
    realm.general()
    context = {"general": "gen-pr", "session_id": "s9", "repo": None}
    realm.event("evt-a", "slack.thread.reply", payload={"text": "and now?", "reply_context": context})
    realm.run_kingdom()
    [task] = realm.tasks()
    assert task["payload"]["session_id"] == "s9" and task["payload"]["checkpoint_path"] == ""
