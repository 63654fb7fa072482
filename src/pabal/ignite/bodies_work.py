"""The bodies of messages about work under way: tasks, evaluations, improvements, progress, calls for help."""

from typing import Annotated, Any, Literal

import msgspec

from pabal.ignite.bodies_planning import Body, Deliverable, Estimate, Issue, Number, Text, Whole

Severity = Literal["critical", "major", "minor", "suggestion"]


class AcceptanceCriteria(Body, frozen=True):
    must: list[str] = []
    should: list[str] = []


class TaskAssignment(Body, frozen=True):
    task_id: Text
    title: Text
    description: str = ""
    instructions: str = ""
    deliverables: list[str | Deliverable] = []
    skills_required: list[str] = []
    estimated_time: Estimate | None = None
    task_type: Literal["implement", "analyze", "document", "review", "github_ops"] | None = None
    acceptance_criteria: AcceptanceCriteria | None = None
    team_memory_context: Any = None
    repository: str = ""
    issue_number: Issue | None = None


class TaskError(Body, frozen=True):
    message: Text
    type: str = ""
    details: Any = None


class TaskCompleted(Body, frozen=True):
    task_id: Text
    title: Text
    status: Literal["success", "error"]
    deliverables: list[str | Deliverable] = []
    error: TaskError | None = None
    execution_time: Number | None = None
    notes: str = ""

    def __post_init__(self) -> None:
        if self.status == "error" and self.error is None:
            raise ValueError("status error needs the field error")


class RevisionRequest(Body, frozen=True):
    task_id: Text
    title: str = ""
    feedback: Any = None
    issues: list[Any] = []
    deliverables: list[str | Deliverable] = []


class EvaluationRequest(Body, frozen=True):
    task_id: Text
    title: Text
    deliverables: list[str | Deliverable]
    requirements: list[str] = []
    criteria: list[str] = []


class Check(Body, frozen=True):
    check: Text
    status: Text
    details: Any = None


class IssueFound(Body, frozen=True):
    description: Text
    severity: str = ""
    location: str = ""
    recommendation: str = ""


class EvaluationResult(Body, frozen=True):
    task_id: Text
    title: Text
    overall_status: Text
    repository: str = ""
    score: Number | None = None
    checks_performed: list[str | Check] = []
    issues_found: list[str | IssueFound] = []
    recommendations: list[Any] = []
    next_action: str = ""


class ImprovementIssue(Body, frozen=True):
    issue: Text
    severity: str = ""
    location: str = ""
    suggested_fix: str = ""


class ImprovementRequest(Body, frozen=True):
    task_id: Text
    target: Text
    issues: list[str | ImprovementIssue]


class Situation(Body, frozen=True):
    description: Text
    issues: list[Any] = []


class Proposal(Body, frozen=True):
    description: Text
    approach: str = ""
    benefits: list[Any] = []


class Step(Body, frozen=True):
    action: Text
    step: int | str | None = None
    effort: str = ""


class ImprovementSuggestion(Body, frozen=True):
    title: Text
    proposed_improvement: Proposal
    category: str = ""
    current_situation: Situation | None = None
    implementation_plan: list[str | Step] = []
    priority: str = ""
    estimated_effort: Estimate | None = None


class ImprovementSuggestionAck(Body, frozen=True):
    title: Text
    decision: Text
    reason: str = ""


class ImprovementCompleted(Body, frozen=True):
    task_id: Text
    target: str = ""
    summary: str = ""
    changes: list[Any] = []


class ProgressUpdate(Body, frozen=True):
    repository: Text
    summary: Text
    issue: Issue | None = None
    stage: str = ""
    percent: Annotated[int, msgspec.Meta(ge=0, le=100)] | None = None
    message: str = ""
    total_tasks: Whole | None = None
    completed: Whole | None = None
    in_progress: Whole | None = None
    pending: Whole | None = None
    final: bool = False


class HelpContext(Body, frozen=True):
    duration_minutes: Number | None = None
    attempts: Whole | None = None
    error_summary: str = ""


class HelpRequest(Body, frozen=True):
    task_id: Text
    title: Text
    help_type: Literal["stuck", "failed", "blocked", "timeout"]
    attempted_solutions: Annotated[list[Any], msgspec.Meta(min_length=1)]
    context: HelpContext | None = None
    current_state: Any = None


class HelpAck(Body, frozen=True):
    task_id: Text
    action: Literal["investigating", "reassigning", "escalating", "resolved"]
    guidance: str = ""
    expected_resolution: Any = None


class HelpRequestForwarded(HelpRequest, frozen=True):
    original_from: str = ""


class IssueProposal(Body, frozen=True):
    task_id: Text
    title: Text
    severity: Severity
    description: str = ""
    suggested_action: Any = None


class IssueProposalAck(Body, frozen=True):
    task_id: Text
    decision: Literal["received", "forwarded", "merged", "needs_clarification"]
    title: str = ""
    reason: str = ""


class IssueProposalForwarded(IssueProposal, frozen=True):
    original_from: str = ""
