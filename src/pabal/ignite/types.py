"""Every type of message that agents send one another, and the check of its body.

A body is checked and never changed: fields that its type does not name stay in it.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from pabal.errors import UnknownType, ValidationFailed
from pabal.ignite import bodies_notices as notices
from pabal.ignite import bodies_planning as planning
from pabal.ignite import bodies_work as work
from pabal.ignite.bodies_planning import Body
from pabal.jsontext import Json


class MessageType(NamedTuple):
    name: str
    body: type[Body]
    usual: str  # who sends it to whom; others may
    means: str


_ALL = (
    MessageType("user_goal", planning.UserGoal, "user → leader", "a goal to reach"),
    MessageType("strategy_request", planning.StrategyRequest, "leader → strategist", "asks for a strategy"),
    MessageType("strategy_response", planning.StrategyResponse, "strategist → leader", "a strategy"),
    MessageType("task_list", planning.TaskList, "strategist or leader → coordinator", "the tasks of a goal"),
    MessageType("architecture_request", planning.ArchitectureRequest, "leader → architect", "asks for a design"),
    MessageType("architecture_response", planning.ArchitectureResponse, "architect → leader", "a design"),
    MessageType(
        "design_review_request", planning.DesignReviewRequest, "strategist → architect", "asks to review a strategy"
    ),
    MessageType("design_review_response", planning.DesignReviewResponse, "architect → strategist", "that review"),
    MessageType(
        "quality_plan_request", planning.QualityPlanRequest, "strategist → evaluator", "asks how to judge the tasks"
    ),
    MessageType("quality_plan_response", planning.QualityPlanResponse, "evaluator → strategist", "how to judge them"),
    MessageType("insight_request", planning.InsightRequest, "strategist → innovator", "asks for better ways"),
    MessageType("insight_response", planning.InsightResponse, "innovator → strategist", "better ways"),
    MessageType("task_assignment", work.TaskAssignment, "coordinator → ignitian_N", "a task to do"),
    MessageType("task_completed", work.TaskCompleted, "ignitian_N → coordinator", "how a task ended"),
    MessageType("revision_request", work.RevisionRequest, "coordinator → ignitian_N", "a task to do better"),
    MessageType("evaluation_request", work.EvaluationRequest, "coordinator → evaluator", "asks for a judgement"),
    MessageType("evaluation_result", work.EvaluationResult, "evaluator → leader", "that judgement"),
    MessageType("improvement_request", work.ImprovementRequest, "evaluator → innovator", "asks to mend issues"),
    MessageType("improvement_suggestion", work.ImprovementSuggestion, "innovator → leader", "a proposal"),
    MessageType("improvement_suggestion_ack", work.ImprovementSuggestionAck, "leader → innovator", "what became of it"),
    MessageType("improvement_completed", work.ImprovementCompleted, "innovator → leader", "issues are mended"),
    MessageType("progress_update", work.ProgressUpdate, "coordinator → leader", "how far the work is"),
    MessageType("help_request", work.HelpRequest, "ignitian_N → coordinator", "a task is stuck"),
    MessageType("help_ack", work.HelpAck, "coordinator → ignitian_N", "what is done about it"),
    MessageType("help_request_forwarded", work.HelpRequestForwarded, "coordinator → leader", "a grave one, passed on"),
    MessageType("issue_proposal", work.IssueProposal, "ignitian_N → coordinator", "something found by the way"),
    MessageType("issue_proposal_ack", work.IssueProposalAck, "coordinator → ignitian_N", "what became of it"),
    MessageType(
        "issue_proposal_forwarded", work.IssueProposalForwarded, "coordinator → leader", "a grave one, passed on"
    ),
    MessageType("system_init", notices.SystemInit, "system → leader", "the system has started"),
    MessageType("github_event", notices.GithubEvent, "github_watcher → leader", "something happened on GitHub"),
    MessageType("github_task", notices.GithubTask, "github_watcher → leader", "somebody asks for work on GitHub"),
    MessageType("slack_event", notices.SlackEvent, "slack_watcher → leader", "something was said on Slack"),
    MessageType("slack_task", notices.SlackTask, "slack_watcher → leader", "somebody asks for work on Slack"),
    MessageType("escalation", notices.Escalation, "queue_monitor → leader", "a message could not be delivered"),
    MessageType("dead_letter", notices.DeadLetter, "queue_monitor → leader", "that message, and why"),
)
TYPES: Mapping[str, MessageType] = MappingProxyType({known.name: known for known in _ALL})


def check(type: str, body: Json | bytes) -> Body:
    """Return the body as its type reads it; raise UnknownType or ValidationFailed if it cannot."""
    known = TYPES.get(type)
    if known is None:
        near = get_close_matches(type[:100], TYPES, n=1)
        hint = f"did you mean {near[0]}?" if near else "docs/reference/ignite-types.md lists them"
        raise UnknownType(f"no message type {type!r:.60}; {hint}")
    try:
        return msgspec.convert(_said(body), known.body)
    except msgspec.ValidationError as exc:
        raise ValidationFailed(f"{type}: {exc}") from exc


def _said(value: object) -> object:
    """Return the value without fields that are null: whoever left one empty said nothing."""
    if isinstance(value, dict):
        return {key: _said(item) for key, item in value.items() if item is not None}
    return [_said(item) for item in value] if isinstance(value, list) else value
