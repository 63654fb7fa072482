"""Task lists: stored whole, assigned when their dependencies are done, taken back when lost."""

import pytest

from pabal.apps.ignite.coordinator.records import Outgoing, Records, Status
from pabal.errors import ValidationFailed
from pabal.policy.retention import LOOK_SECONDS
from tests.apps.ignite.coordinator.office import Office, assigned, sent, task


def test_only_tasks_without_open_dependencies_are_assigned(office: Office) -> None:
    outgoing = office.take_list(task("a"), task("b"), task("c", "a", "b"))
    assert assigned(outgoing) == {"a": "ignitian_1", "b": "ignitian_2"}
    assert office.standing() == {"a": Status.IN_PROGRESS, "b": Status.IN_PROGRESS, "c": Status.QUEUED}


def test_a_task_is_assigned_when_the_last_of_its_dependencies_is_completed(office: Office) -> None:
    office.take_list(task("a"), task("b"), task("c", "a", "b"))
    assert not assigned(office.succeed("ignitian_1", "a"))
    outgoing = office.succeed("ignitian_2", "b")
    assert assigned(outgoing) == {"c": "ignitian_1"}
    [message] = sent(outgoing, "task_assignment")
    assert message.body["inputs"] == [
        {"task_id": "a", "deliverables": [{"file": "a.md"}]},
        {"task_id": "b", "deliverables": [{"file": "b.md"}]},
    ]


def test_a_worker_has_one_task_at_a_time_and_urgent_ones_come_first(office: Office) -> None:
    outgoing = office.take_list(*(task(name) for name in "abcd"), task("e", priority="critical"))
    assert assigned(outgoing) == {"e": "ignitian_1", "a": "ignitian_2", "b": "ignitian_3"}
    assert assigned(office.succeed("ignitian_2", "a")) == {"c": "ignitian_2"}


def test_an_assignment_keeps_what_the_list_says_and_carries_thread_and_repository(office: Office) -> None:
    [message, *_] = office.take_list(task("a", description="First", phase=1, colour="red", repository="owner/repo"))
    assert message.body == {
        "task_id": "a",
        "title": "Write a",
        "description": "First",
        "colour": "red",
        "repository": "owner/repo",
        "instructions": "First",
    }
    assert (message.thread_id, message.repository) == ("goal-1", "owner/repo")


def test_a_completed_task_goes_to_the_evaluator_once(office: Office) -> None:
    office.take_list(task("a", acceptance_criteria={"must": ["is true"], "should": ["is short"]}))
    [message] = sent(office.succeed("ignitian_1", "a"), "evaluation_request")
    assert message.to == "evaluator"
    assert message.body["deliverables"] == [{"file": "a.md"}]
    assert (message.body["requirements"], message.body["criteria"]) == (["is true"], ["is short"])
    assert not sent(office.succeed("ignitian_1", "a"), "evaluation_request")


def test_a_message_that_comes_again_gets_the_same_answer_and_changes_nothing(office: Office) -> None:
    message = office.message("leader", "task_list", {"goal": "A guide", "tasks": [task("a"), task("b")]})
    first = office.decisions.decide(message, office.roster(), office.clock.now())
    office.clock.advance(60)
    assert office.decisions.decide(message, office.roster(), office.clock.now()) == first
    assert [each.tries for each in office.decisions.tasks()] == [1, 1]


def test_a_list_that_is_sent_again_adds_only_what_is_new(office: Office) -> None:
    office.take_list(task("a"))
    assert assigned(office.take_list(task("a"), task("b"))) == {"b": "ignitian_2"}


def test_two_goals_may_use_the_same_task_ids(office: Office) -> None:
    office.take_list(task("task_001"), thread="goal-1")
    office.take_list(task("task_001"), thread="goal-2")
    office.succeed("ignitian_2", "task_001", thread="goal-2")
    assert office.task("task_001", "goal-1").status is Status.IN_PROGRESS
    assert office.task("task_001", "goal-2").status is Status.COMPLETED


def test_a_report_without_its_thread_is_of_the_task_its_sender_has(office: Office) -> None:
    office.take_list(task("task_001"), thread="goal-1")
    office.take_list(task("task_001"), thread="goal-2")
    office.succeed("ignitian_1", "task_001", thread="")
    assert office.task("task_001", "goal-1").status is Status.COMPLETED
    assert office.task("task_001", "goal-2").status is Status.IN_PROGRESS


@pytest.mark.parametrize(
    ("tasks", "reason"),
    [
        ([task("a", "b"), task("b", "c"), task("c", "a")], "wait for each other"),
        ([task("a", "a")], "wait for each other"),
        ([task("a", "nowhere")], "depends on nowhere"),
        ([task("a"), task("a")], "'a' is there twice"),
    ],
)
def test_a_list_that_could_never_be_finished_is_refused_whole(
    office: Office, tasks: list[dict[str, object]], reason: str
) -> None:
    with pytest.raises(ValidationFailed, match=reason):
        office.take_list(*tasks)
    assert not office.decisions.tasks()


def test_a_failed_task_is_tried_by_another_and_given_up_after_three_tries(office: Office) -> None:
    office.take_list(task("a"), task("b", "a"))
    outgoing = office.fail("ignitian_1", "a", "no paper")
    assert assigned(outgoing) == {"a": "ignitian_2"}
    [again] = sent(outgoing, "task_assignment")
    assert (again.body["attempt"], again.body["previous_failure"]) == (2, "disk: no paper")
    office.fail("ignitian_2", "a")
    outgoing = office.fail("ignitian_1", "a", "no ink")
    assert not assigned(outgoing)
    [escalation] = sent(outgoing, "escalation")
    assert (escalation.to, escalation.priority) == ("leader", "critical")
    assert escalation.body["task_id"] == "a" and escalation.body["title"] == "Write a"
    assert escalation.body["original_assignee"] == "ignitian_1"
    assert escalation.body["failure_reason"] == "disk: no ink"
    assert office.standing() == {"a": Status.FAILED, "b": Status.QUEUED}


def test_a_task_that_was_given_up_starts_over_when_it_is_listed_again(office: Office) -> None:
    office.take_list(task("a"))
    for worker in ("ignitian_1", "ignitian_2", "ignitian_1"):
        office.fail(worker, "a")
    assert assigned(office.take_list(task("a", description="Another way"))) == {"a": "ignitian_1"}
    assert office.task("a").tries == 1


def test_a_task_without_a_sign_for_half_an_hour_goes_to_another_worker(office: Office) -> None:
    office.take_list(task("a"))
    office.clock.advance(1790)
    assert not assigned(office.round())
    office.clock.advance(10)
    outgoing = office.round()
    assert assigned(outgoing) == {"a": "ignitian_2"}
    assert "no sign from ignitian_1" in str(sent(outgoing, "task_assignment")[0].body["previous_failure"])


def test_a_sign_of_progress_keeps_a_task(office: Office) -> None:
    office.take_list(task("a"))
    office.clock.advance(1700)
    office.take("ignitian_1", "progress_update", {"repository": "o/r", "summary": "half", "message": "half done"})
    office.clock.advance(1700)
    assert not assigned(office.round())


def test_the_task_of_an_agent_that_is_gone_goes_to_another_at_once(office: Office) -> None:
    office.take_list(task("a"))
    office.gone = frozenset({"ignitian_1"})
    assert assigned(office.round()) == {"a": "ignitian_2"}


def test_nothing_is_given_to_an_agent_that_is_gone(office: Office) -> None:
    office.gone = frozenset({"ignitian_1", "ignitian_2"})
    assert assigned(office.take_list(task("a"), task("b"))) == {"a": "ignitian_3"}
    office.gone = frozenset()
    assert assigned(office.round()) == {"b": "ignitian_1"}


def test_the_first_success_counts_also_from_a_worker_that_lost_the_task(office: Office) -> None:
    office.take_list(task("a"))
    office.clock.advance(1801)
    assert assigned(office.round()) == {"a": "ignitian_2"}
    assert not assigned(office.fail("ignitian_1", "a"))
    assert office.task("a").status is Status.IN_PROGRESS
    assert sent(office.succeed("ignitian_1", "a"), "evaluation_request")
    assert not sent(office.succeed("ignitian_2", "a"), "evaluation_request")


def test_a_round_that_could_not_send_sends_the_same_letters_next_time(office: Office) -> None:
    office.take_list(task("a"))
    office.gone = frozenset({"ignitian_1"})
    found: list[str] = []

    def refuse(outgoing: object) -> None:
        found.extend(id for id, _ in office.database.read(lambda db: Records(db).outbox()))
        raise OSError("no room")

    office.sweep._send = refuse
    office.clock.advance(5)
    with pytest.raises(OSError, match="no room"):
        office.sweep.step()
    office.sweep._send = office.post
    assert assigned(office.round()) == {"a": "ignitian_2"}
    assert [id for id, _ in office.posted] == found
    assert not office.round()


def judge(office: Office, status: str) -> list[Outgoing]:
    issues = [] if status == "pass" else [{"description": "too short", "severity": "major"}]
    judgement = {"task_id": "a", "title": "Write a", "overall_status": status, "issues_found": issues}
    return office.take("evaluator", "evaluation_result", judgement)


def test_what_the_evaluator_does_not_pass_goes_back_to_its_worker_and_is_evaluated_again(office: Office) -> None:
    office.take_list(task("a"))
    office.succeed("ignitian_1", "a")
    outgoing = judge(office, "fail")
    [revision] = sent(outgoing, "revision_request")
    assert revision.to == "ignitian_1"
    assert revision.body["issues"] == [{"description": "too short", "severity": "major"}]
    assert revision.body["previous_failure"] == "evaluated as fail: too short"
    assert sent(office.succeed("ignitian_1", "a"), "evaluation_request")


def test_what_the_evaluator_passes_is_left_alone(office: Office) -> None:
    office.take_list(task("a"))
    office.succeed("ignitian_1", "a")
    assert not judge(office, "pass")
    assert office.task("a").status is Status.COMPLETED


def test_a_task_that_never_passes_is_given_up(office: Office) -> None:
    office.take_list(task("a"))
    for _ in range(2):
        office.succeed("ignitian_1", "a")
        judge(office, "fail")
    office.succeed("ignitian_1", "a")
    [escalation] = sent(judge(office, "fail"), "escalation")
    assert escalation.body["failure_reason"] == "evaluated as fail: too short"


def test_what_is_over_for_a_month_is_forgotten_and_what_is_open_is_not(office: Office) -> None:
    office.take_list(task("a"), thread="over")
    office.succeed("ignitian_1", "a", thread="over")
    office.take_list(task("b"), task("c", "b"))
    for worker in ("ignitian_1", "ignitian_2", "ignitian_1"):
        office.fail(worker, "b")
    office.clock.advance(29 * 86400)
    office.round()
    assert len(office.decisions.tasks()) == 3
    office.clock.advance(2 * 86400)
    office.round()
    office.clock.advance(LOOK_SECONDS)
    office.round()
    assert office.standing() == {"b": Status.FAILED, "c": Status.QUEUED}


def test_a_report_on_a_task_that_is_in_no_list_counts(office: Office) -> None:
    assert sent(office.succeed("ignitian_1", "lost"), "evaluation_request")
    assert [message.type for message in office.fail("ignitian_1", "other")] == ["escalation", "progress_update"]
    assert assigned(office.take_list(task("lost"), task("next", "lost"))) == {"next": "ignitian_1"}


def test_a_message_that_is_not_for_a_coordinator_is_refused(office: Office) -> None:
    with pytest.raises(ValidationFailed, match="a coordinator takes task_list"):
        office.take("user", "user_goal", {"goal": "x"})
