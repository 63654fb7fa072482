"""Calls for help, proposals and progress: who hears of them, and how often."""

from typing import Any

import pytest

from pabal.apps.ignite.coordinator.records import Outgoing
from pabal.apps.ignite.coordinator.tasks import report_pause
from pabal.errors import ValidationFailed
from tests.apps.ignite.coordinator.office import Office, assigned, sent, task


def call(help_type: str, **more: Any) -> dict[str, Any]:
    return {
        "task_id": "a",
        "title": "Write a",
        "help_type": help_type,
        "context": {"duration_minutes": 20, "attempts": 3, "error_summary": "the pen broke"},
        "attempted_solutions": ["another pen"],
        "current_state": "half a page",
        **more,
    }


@pytest.mark.parametrize(
    ("help_type", "action", "forwarded"),
    [
        ("timeout", "escalating", True),
        ("blocked", "escalating", True),
        ("failed", "reassigning", False),
        ("stuck", "investigating", False),
    ],
)
def test_every_call_is_answered_and_only_grave_ones_reach_the_leader(
    office: Office, help_type: str, action: str, forwarded: bool
) -> None:
    office.take_list(task("a"))
    outgoing = office.take("ignitian_1", "help_request", call(help_type))
    [ack] = sent(outgoing, "help_ack")
    assert (ack.to, ack.body["task_id"], ack.body["action"]) == ("ignitian_1", "a", action)
    assert ack.body["guidance"] and ack.body["expected_resolution"]
    assert [message.to for message in sent(outgoing, "help_request_forwarded")] == (["leader"] if forwarded else [])


def test_the_same_call_within_five_minutes_is_not_answered_twice(office: Office) -> None:
    office.take_list(task("a"))
    office.take("ignitian_1", "help_request", call("blocked"))
    office.clock.advance(299)
    assert not office.take("ignitian_1", "help_request", call("blocked"))
    assert office.take("ignitian_1", "help_request", call("stuck"))
    office.clock.advance(1)
    assert len(office.take("ignitian_1", "help_request", call("blocked"))) == 2


def test_asking_for_help_keeps_the_task(office: Office) -> None:
    office.take_list(task("a"))
    office.clock.advance(1700)
    office.take("ignitian_1", "help_request", call("stuck"))
    office.clock.advance(1700)
    assert not assigned(office.round())


def test_a_worker_that_failed_gives_its_task_to_another(office: Office) -> None:
    office.take_list(task("a"))
    outgoing = office.take("ignitian_1", "help_request", call("failed"))
    assert assigned(outgoing) == {"a": "ignitian_2"}
    assert "the pen broke" in str(sent(outgoing, "task_assignment")[0].body["previous_failure"])


def test_a_worker_that_failed_keeps_its_task_while_nobody_else_is_free(office: Office) -> None:
    office.take_list(task("a"), task("b"), task("c"))
    outgoing = office.take("ignitian_1", "help_request", call("failed"))
    assert [message.body["action"] for message in outgoing] == ["investigating"]
    assert office.task("a").assigned_to == "ignitian_1"


def test_a_call_before_anything_was_tried_is_refused(office: Office) -> None:
    with pytest.raises(ValidationFailed, match="attempted_solutions"):
        office.take("ignitian_1", "help_request", call("stuck", attempted_solutions=[]))


def propose(office: Office, severity: str, title: str = "A leak", description: str = "It drips") -> list[Outgoing]:
    proposal = {"task_id": "a", "title": title, "severity": severity, "description": description}
    return office.take("ignitian_1", "issue_proposal", proposal)


@pytest.mark.parametrize(
    ("severity", "decision", "forwarded"),
    [("critical", "forwarded", 1), ("major", "forwarded", 1), ("minor", "received", 0), ("suggestion", "received", 0)],
)
def test_a_grave_proposal_reaches_the_leader_and_a_small_one_is_noted(
    office: Office, severity: str, decision: str, forwarded: int
) -> None:
    outgoing = propose(office, severity)
    [ack] = sent(outgoing, "issue_proposal_ack")
    assert (ack.to, ack.body["decision"]) == ("ignitian_1", decision)
    assert len(sent(outgoing, "issue_proposal_forwarded")) == forwarded


def test_a_task_has_one_proposal(office: Office) -> None:
    propose(office, "minor")
    [ack] = propose(office, "critical", "A flood")
    assert ack.body["decision"] == "merged" and "A leak" in str(ack.body["reason"])


def test_a_grave_proposal_that_is_not_described_is_asked_to_say_more(office: Office) -> None:
    [ack] = propose(office, "major", description="")
    assert ack.body["decision"] == "needs_clarification"


def test_progress_tells_how_many_tasks_are_where(office: Office) -> None:
    [report] = sent(office.take_list(task("a"), task("b", "a")), "progress_update")
    assert report.to == "leader"
    counts = [report.body[name] for name in ("total_tasks", "completed", "in_progress", "pending", "final")]
    assert counts == [2, 0, 1, 1, False]
    assert "a Write a: in_progress by ignitian_1" in str(report.body["summary"])


def test_reports_keep_two_seconds_apart_and_what_is_held_back_follows(office: Office) -> None:
    assert sent(office.take_list(task("a"), task("b"), task("c")), "progress_update")
    assert not sent(office.succeed("ignitian_1", "a"), "progress_update")
    assert not sent(office.succeed("ignitian_2", "b"), "progress_update")
    [report] = sent(office.round(), "progress_update")
    assert report.body["completed"] == 2
    assert not office.round()


def test_the_last_report_is_never_held_back(office: Office) -> None:
    office.take_list(task("a"))
    [report] = sent(office.succeed("ignitian_1", "a"), "progress_update")
    assert (report.body["final"], report.body["percent"]) == (True, 100)
    assert not office.round()


def test_what_a_worker_says_of_its_progress_is_in_the_next_report(office: Office) -> None:
    office.take_list(task("a"))
    office.clock.advance(3)
    outgoing = office.take("ignitian_1", "progress_update", {"repository": "o/r", "summary": "s", "message": "page 3"})
    assert "(page 3)" in str(sent(outgoing, "progress_update")[0].body["summary"])


def test_five_in_ten_seconds_and_then_a_pause() -> None:
    assert report_pause([], 100.0) == 0.0
    assert report_pause([99.0], 100.0) == 1.0
    assert report_pause([98.0], 100.0) == 0.0
    assert report_pause([91.0, 92.5, 94.0, 95.5, 97.0], 100.0) == 1.0
    assert report_pause([90.0, 92.5, 94.0, 95.5, 97.0], 100.0) == 0.0
