"""Every type of message: its body passes in both shapes, what it lacks is named, what it adds is kept."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pabal.apps.ignite.bodies import HelpRequest, ProgressUpdate, TaskList
from pabal.apps.ignite.errors import UnknownType
from pabal.apps.ignite.types import TYPES, check
from pabal.codecs.yaml import read
from pabal.errors import ValidationFailed

STRATEGY = {"approach": "in steps", "phases": [{"phase": 1, "name": "first", "description": "begin"}, "second"]}
TASKS = [
    {"task_id": "task_001", "title": "a", "phase": 1, "priority": "high", "estimated_time": 60, "dependencies": []},
    {"task_id": "task_002", "title": "b", "dependencies": ["task_001"], "deliverables": ["x", {"file": "y"}]},
]
HELP = {"task_id": "t", "title": "a", "help_type": "stuck", "attempted_solutions": ["restart"]}
PROPOSAL = {"task_id": "t", "title": "a", "severity": "major", "description": "b"}

# At least one body of each type, as their documents show them.
BODIES: dict[str, list[dict[str, Any]]] = {
    "message": [{"text": "hello"}],
    "question": [{"text": "which?", "kind": "choose", "options": ["a", "b"]}, {"text": "why?"}],
    "answer": [{"text": "a", "question": "which?"}, {"text": "", "expired": True}],
    "user_goal": [{"goal": "write a README", "context": "why"}, {"goal": "g"}],
    "strategy_request": [{"goal": "g", "requirements": ["one"], "context": "c"}],
    "strategy_response": [{"goal": "g", "strategy": STRATEGY, "task_count": 3, "estimated_duration": 300, "risks": []}],
    "task_list": [
        {"goal": "g", "strategy_summary": "s", "tasks": TASKS},
        {"goal": "g", "tasks": TASKS, "repository": "owner/repo", "issue_number": 7},
    ],
    "architecture_request": [{"goal": "g", "requirements": ["r"], "question": "q"}],
    "architecture_response": [{"goal": "g", "proposed_architecture": {"structure": "src/"}, "risks": ["r"]}],
    "design_review_request": [{"goal": "g", "proposed_strategy": STRATEGY, "tasks": TASKS, "question": "q"}],
    "design_review_response": [{"goal": "g", "review_result": "approved", "comments": ["c"]}],
    "quality_plan_request": [{"goal": "g", "tasks": TASKS, "question": "q"}],
    "quality_plan_response": [{"goal": "g", "quality_criteria": [{"task_id": "t", "criteria": ["c"]}]}],
    "insight_request": [{"goal": "g", "proposed_strategy": STRATEGY, "question": "q"}],
    "insight_response": [{"goal": "g", "insights": ["i"], "alternative_approaches": []}],
    "task_assignment": [
        {"task_id": "t", "title": "a", "instructions": "do\n", "deliverables": ["d"], "estimated_time": 60},
        {
            "task_id": "t",
            "title": "a",
            "task_type": "implement",
            "acceptance_criteria": {"must": ["m"], "should": []},
            "team_memory_context": "c",
            "repository": "owner/repo",
            "issue_number": 42,
        },
    ],
    "task_completed": [
        {"task_id": "t", "title": "a", "status": "success", "deliverables": [{"file": "f"}], "execution_time": 90},
        {"task_id": "t", "title": "a", "status": "error", "error": {"type": "x", "message": "m", "details": "d"}},
    ],
    "revision_request": [{"task_id": "t", "feedback": "again"}],
    "evaluation_request": [{"task_id": "t", "title": "a", "deliverables": [{"file": "f", "location": "l"}]}],
    "evaluation_result": [
        {
            "task_id": "t",
            "title": "a",
            "overall_status": "pass",
            "score": 95,
            "checks_performed": [{"check": "c", "status": "pass"}],
            "issues_found": [{"severity": "minor", "description": "d"}],
            "next_action": "approve",
        }
    ],
    "improvement_request": [{"task_id": "t", "target": "f", "issues": [{"issue": "i", "severity": "minor"}]}],
    "improvement_suggestion": [
        {
            "title": "t",
            "category": "performance",
            "current_situation": {"description": "d", "issues": ["i"]},
            "proposed_improvement": {"description": "d", "approach": "a\n", "benefits": ["b"]},
            "implementation_plan": [{"step": 1, "action": "a", "effort": "medium"}],
            "estimated_effort": "2 days",
        }
    ],
    "improvement_suggestion_ack": [{"title": "t", "decision": "accepted"}],
    "improvement_completed": [{"task_id": "t", "summary": "s"}],
    "progress_update": [
        {"repository": "r", "total_tasks": 3, "completed": 1, "in_progress": 2, "pending": 0, "summary": "s\n"},
        {
            "repository": "r",
            "summary": "s",
            "issue": 7,
            "stage": "review",
            "percent": 100,
            "message": "m",
            "final": True,
        },
    ],
    "help_request": [{**HELP, "context": {"duration_minutes": 15, "attempts": 3}, "current_state": "s"}],
    "help_ack": [{"task_id": "t", "action": "investigating", "guidance": "g", "expected_resolution": "soon"}],
    "help_request_forwarded": [{**HELP, "original_from": "ignitian_1"}],
    "issue_proposal": [PROPOSAL],
    "issue_proposal_ack": [{"task_id": "t", "decision": "forwarded"}],
    "issue_proposal_forwarded": [{**PROPOSAL, "original_from": "ignitian_1"}],
    "system_init": [{}, {"message": "up", "agents": ["leader"]}],
    "github_event": [
        {"event_type": "issue_created", "repository": "o/r", "issue_number": 1, "author": "a", "url": "u"}
    ],
    "github_task": [{"trigger": "implement", "repository": "o/r", "issue_number": 1, "requested_by": "a"}],
    "slack_event": [{"text": "hello", "channel": "C1", "user_id": "U1"}],
    "slack_task": [{"text": "please", "trigger": "mention", "thread_context": [{"text": "before"}]}],
    "escalation": [{"task_id": "t", "failure_reason": "f", "title": "a", "retry_count": 3, "dlq_path": "p"}],
    "dead_letter": [
        {"original_file": "f", "failure_info": {"retry_count": 3, "last_error": "e"}, "original_message": "m"}
    ],
}


def test_every_type_of_the_protocol_is_known() -> None:
    assert set(BODIES) == set(TYPES)
    for name in "user_goal system_init github_task escalation dead_letter help_ack slack_task".split():
        assert name in TYPES


@pytest.mark.parametrize("type", TYPES)
def test_bodies_pass_in_every_shape_and_keep_what_they_add(type: str) -> None:
    for body in BODIES[type]:
        given = {**body, "an_extra_field": {"of": ["any", "kind"]}}
        before = copy.deepcopy(given)
        assert isinstance(check(type, given), TYPES[type].body)
        assert given == before


@pytest.mark.parametrize("type", TYPES)
def test_a_missing_or_empty_field_is_refused_by_its_name(type: str) -> None:
    for field in msgspec.structs.fields(TYPES[type].body):
        if not field.required:
            continue
        for body in BODIES[type]:
            for broken in ({**body, field.name: None}, {name: body[name] for name in body if name != field.name}):
                with pytest.raises(ValidationFailed, match=field.name) as caught:
                    check(type, broken)
                assert str(caught.value).startswith(f"{type}: ")


@pytest.mark.parametrize("type", TYPES)
def test_what_is_no_object_is_refused(type: str) -> None:
    for body in (None, "text", ["list"], 1, b"bytes"):
        with pytest.raises(ValidationFailed):
            check(type, body)


@pytest.mark.parametrize("type", TYPES)
def test_a_field_left_empty_says_nothing(type: str) -> None:
    optional = {field.name: None for field in msgspec.structs.fields(TYPES[type].body) if not field.required}
    assert check(type, {**optional, **BODIES[type][0]})


@pytest.mark.parametrize(
    ("type", "body", "says"),
    [
        ("help_request", {**HELP, "attempted_solutions": []}, "attempted_solutions"),
        ("help_request", {**HELP, "help_type": "bored"}, "help_type"),
        ("task_completed", {"task_id": "t", "title": "a", "status": "error"}, "error"),
        ("task_completed", {"task_id": "t", "title": "a", "status": "done"}, "status"),
        ("task_list", {"goal": "g", "tasks": []}, "tasks"),
        ("task_list", {"goal": "g", "tasks": [{"task_id": "a"}]}, "title"),
        ("task_list", {"goal": "g", "tasks": [{"task_id": "a", "title": "t"}] * 2}, "'a' is there twice"),
        ("progress_update", {"repository": "r", "summary": "s", "percent": 101}, "percent"),
        ("issue_proposal", {**PROPOSAL, "severity": "terrible"}, "severity"),
        ("user_goal", {"goal": ""}, "goal"),
        ("user_goal", {"goal": 5}, "goal"),
    ],
)
def test_a_field_of_the_wrong_kind_is_refused_by_its_name(type: str, body: Any, says: str) -> None:
    with pytest.raises(ValidationFailed, match=says):
        check(type, body)


def test_an_unknown_type_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(UnknownType, match="did you mean task_completed"):
        check("task_complete", {})
    with pytest.raises(UnknownType, match="ignite-types.md"):
        check("", {})


def test_a_checked_body_is_read_by_name() -> None:
    tasks = check("task_list", read(b"goal: g\ntasks:\n  - task_id: a\n    title: t\n    dependencies: [b]\n"))
    assert isinstance(tasks, TaskList) and tasks.tasks[0].dependencies == ["b"]
    progress = check("progress_update", {"repository": "r", "summary": "s", "percent": 50})
    assert isinstance(progress, ProgressUpdate) and progress.percent == 50
    assert isinstance(check("help_request", HELP), HelpRequest)


def test_the_reference_page_is_the_one_made_from_the_types() -> None:
    root = Path(__file__).parents[3]
    made = subprocess.run(
        [sys.executable, root / "scripts/ignite_types.py"], capture_output=True, text=True, check=True
    )
    written = root / "docs/reference/ignite-types.md"
    assert written.read_text() == made.stdout, "run: python scripts/ignite_types.py > docs/reference/ignite-types.md"
