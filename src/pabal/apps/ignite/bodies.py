"""The bodies of all message types: planning, work under way, and messages from outside and from the system."""

from typing import Annotated, Any, Literal

import msgspec

Text = Annotated[str, msgspec.Meta(min_length=1)]
Number = int | float
Estimate = int | float | str  # agents write 60 as well as "2 days"
Whole = Annotated[int, msgspec.Meta(ge=0)]
Issue = int | str


class Body(msgspec.Struct, frozen=True):
    """The base of every body: known fields are checked, other fields are ignored."""


class Phase(Body, frozen=True):
    name: Text
    phase: int | str | None = None
    description: str = ""


class Strategy(Body, frozen=True):
    approach: Text
    phases: list[str | Phase] = []


class Deliverable(Body, frozen=True):
    file: Text
    description: str = ""
    location: str = ""


class Task(Body, frozen=True):
    task_id: Text
    title: Text
    description: str = ""
    phase: int | str | None = None
    priority: str = "normal"
    estimated_time: Estimate | None = None
    dependencies: list[str] = []
    skills_required: list[str] = []
    deliverables: list[str | Deliverable] = []


class UserGoal(Body, frozen=True):
    goal: Text
    context: Any = None


class StrategyRequest(Body, frozen=True):
    goal: Text
    requirements: list[str] = []
    context: Any = None


class StrategyResponse(Body, frozen=True):
    goal: Text
    strategy: Strategy
    task_count: Whole | None = None
    estimated_duration: Estimate | None = None
    risks: list[Any] = []
    recommendations: list[Any] = []


class TaskList(Body, frozen=True):
    goal: Text
    tasks: Annotated[list[Task], msgspec.Meta(min_length=1)]
    strategy_summary: str = ""

    def __post_init__(self) -> None:
        ids = [task.task_id for task in self.tasks]
        twice = next((id for id in ids if ids.count(id) > 1), None)
        if twice is not None:
            raise ValueError(f"task_id {twice!r:.60} is there twice")


class ArchitectureRequest(Body, frozen=True):
    goal: Text
    requirements: list[str] = []
    context: Any = None
    question: str = ""


class ArchitectureResponse(Body, frozen=True):
    goal: Text
    proposed_architecture: Any
    recommendations: list[Any] = []
    risks: list[Any] = []


class DesignReviewRequest(Body, frozen=True):
    goal: Text
    proposed_strategy: Strategy | None = None
    tasks: list[Any] = []
    question: str = ""


class DesignReviewResponse(Body, frozen=True):
    goal: Text
    review_result: Text
    comments: list[Any] = []
    suggestions: list[Any] = []
    design_concerns: list[Any] = []
    risks: list[Any] = []


class QualityPlanRequest(Body, frozen=True):
    goal: Text
    tasks: list[Any] = []
    question: str = ""


class QualityCriteria(Body, frozen=True):
    task_id: Text
    criteria: list[str]
    evaluation_method: str = ""


class QualityPlanResponse(Body, frozen=True):
    goal: Text
    quality_criteria: list[QualityCriteria]


class InsightRequest(Body, frozen=True):
    goal: Text
    proposed_strategy: Strategy | None = None
    question: str = ""


class InsightResponse(Body, frozen=True):
    goal: Text
    insights: list[Any]
    alternative_approaches: list[Any] = []
    recommendations: list[Any] = []


# Work under way: tasks, evaluations, improvements, progress, requests for help.


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


# Plain text between agents and people.


class PlainMessage(Body, frozen=True):
    text: Text


class Question(Body, frozen=True):
    text: Text
    kind: Literal["text", "choose", "confirm"] = "text"
    options: list[str] = []


class Answer(Body, frozen=True):
    text: str
    question: str = ""
    expired: bool = False


# Messages from outside and from the system: watchers, dead letters, escalations.


class SystemInit(Body, frozen=True):
    message: str = ""
    agents: list[str] = []


class GithubEvent(Body, frozen=True):
    event_type: Text
    repository: Text
    issue_number: Issue | None = None
    issue_title: str = ""
    comment_id: Issue | None = None
    author: str = ""
    author_type: str = ""
    body: str = ""
    url: str = ""


class GithubTask(Body, frozen=True):
    trigger: Text
    repository: Text
    issue_number: Issue | None = None
    issue_title: str = ""
    issue_body: str = ""
    requested_by: str = ""
    trigger_comment: str = ""
    branch_prefix: str = ""
    url: str = ""


class SlackEvent(Body, frozen=True):
    text: Text
    event_type: str = ""
    channel: str = ""
    user_id: str = ""
    message_ts: str = ""
    thread_ts: str = ""
    thread_context: Any = None


class SlackTask(SlackEvent, frozen=True):
    trigger: str = ""


class FailureInfo(Body, frozen=True):
    retry_count: Whole
    last_error: str = ""
    max_retries: Whole | None = None
    moved_at: str = ""


class DeadLetter(Body, frozen=True):
    original_file: Text
    failure_info: FailureInfo
    original_message: str = ""


class Escalation(Body, frozen=True):
    task_id: Text
    failure_reason: Text
    title: str = ""
    original_assignee: str = ""
    retry_count: Whole | None = None
    max_retries: Whole | None = None
    recommended_action: str = "manual_review"
    dlq_path: str = ""
    notes: str = ""
