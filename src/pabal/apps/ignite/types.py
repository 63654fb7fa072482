"""The types of messages that agents send, and the check of a message's body.

A body is checked and never changed: fields that its type does not name stay in it.
"""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import msgspec

from pabal import jsontext
from pabal.apps.ignite import bodies
from pabal.apps.ignite.bodies import Body
from pabal.apps.ignite.errors import UnknownType
from pabal.errors import ValidationFailed
from pabal.jsontext import Json

# The types of a team's own, each with the check of its bodies; None: any body.
OwnTypes: TypeAlias = Mapping[str, Callable[[Any], object] | None]


class MessageType(NamedTuple):
    name: str
    body: type[Body]
    usual: str  # the usual sender and recipient; others are allowed
    means: str


_ALL = (
    MessageType("message", bodies.PlainMessage, "anybody → anybody", "free text"),
    MessageType("question", bodies.Question, "anybody → anybody", "a question; `pabal ignite reply` answers it"),
    MessageType("answer", bodies.Answer, "anybody → anybody", "the answer to a question"),
    MessageType("user_goal", bodies.UserGoal, "user → leader", "a goal to reach"),
    MessageType("strategy_request", bodies.StrategyRequest, "leader → strategist", "asks for a strategy"),
    MessageType("strategy_response", bodies.StrategyResponse, "strategist → leader", "a strategy"),
    MessageType("task_list", bodies.TaskList, "strategist or leader → coordinator", "the tasks of a goal"),
    MessageType("architecture_request", bodies.ArchitectureRequest, "leader → architect", "asks for a design"),
    MessageType("architecture_response", bodies.ArchitectureResponse, "architect → leader", "a design"),
    MessageType(
        "design_review_request", bodies.DesignReviewRequest, "strategist → architect", "asks to review a strategy"
    ),
    MessageType("design_review_response", bodies.DesignReviewResponse, "architect → strategist", "that review"),
    MessageType(
        "quality_plan_request", bodies.QualityPlanRequest, "strategist → evaluator", "asks how to judge the tasks"
    ),
    MessageType("quality_plan_response", bodies.QualityPlanResponse, "evaluator → strategist", "how to judge them"),
    MessageType("insight_request", bodies.InsightRequest, "strategist → innovator", "asks for better ways"),
    MessageType("insight_response", bodies.InsightResponse, "innovator → strategist", "better ways"),
    MessageType("task_assignment", bodies.TaskAssignment, "coordinator → ignitian_N", "a task to do"),
    MessageType("task_completed", bodies.TaskCompleted, "ignitian_N → coordinator", "how a task ended"),
    MessageType("revision_request", bodies.RevisionRequest, "coordinator → ignitian_N", "a task to do better"),
    MessageType("evaluation_request", bodies.EvaluationRequest, "coordinator → evaluator", "asks for a judgement"),
    MessageType("evaluation_result", bodies.EvaluationResult, "evaluator → leader", "that judgement"),
    MessageType("improvement_request", bodies.ImprovementRequest, "evaluator → innovator", "asks to mend issues"),
    MessageType("improvement_suggestion", bodies.ImprovementSuggestion, "innovator → leader", "a proposal"),
    MessageType(
        "improvement_suggestion_ack", bodies.ImprovementSuggestionAck, "leader → innovator", "what became of it"
    ),
    MessageType("improvement_completed", bodies.ImprovementCompleted, "innovator → leader", "issues are mended"),
    MessageType("progress_update", bodies.ProgressUpdate, "coordinator → leader", "how far the work is"),
    MessageType("help_request", bodies.HelpRequest, "ignitian_N → coordinator", "a task is stuck"),
    MessageType("help_ack", bodies.HelpAck, "coordinator → ignitian_N", "what is done about it"),
    MessageType(
        "help_request_forwarded", bodies.HelpRequestForwarded, "coordinator → leader", "a grave one, passed on"
    ),
    MessageType("issue_proposal", bodies.IssueProposal, "ignitian_N → coordinator", "something found by the way"),
    MessageType("issue_proposal_ack", bodies.IssueProposalAck, "coordinator → ignitian_N", "what became of it"),
    MessageType(
        "issue_proposal_forwarded", bodies.IssueProposalForwarded, "coordinator → leader", "a grave one, passed on"
    ),
    MessageType("system_init", bodies.SystemInit, "system → leader", "the system has started"),
    MessageType("github_event", bodies.GithubEvent, "github_watcher → leader", "something happened on GitHub"),
    MessageType("github_task", bodies.GithubTask, "github_watcher → leader", "somebody asks for work on GitHub"),
    MessageType("slack_event", bodies.SlackEvent, "slack_watcher → leader", "something was said on Slack"),
    MessageType("slack_task", bodies.SlackTask, "slack_watcher → leader", "somebody asks for work on Slack"),
    MessageType("escalation", bodies.Escalation, "queue_monitor → leader", "a message could not be delivered"),
    MessageType("dead_letter", bodies.DeadLetter, "queue_monitor → leader", "that message, and why"),
)
TYPES: Mapping[str, MessageType] = MappingProxyType({known.name: known for known in _ALL})


def check(type: str, body: Json | bytes, own: OwnTypes = MappingProxyType({})) -> object:
    """Return the body as a value of its type; raise UnknownType or ValidationFailed. `own` are the team's own types."""
    if type in own:
        return _check_own(type, body, own[type])
    known = TYPES.get(type)
    if known is None:
        near = get_close_matches(type[:100], [*TYPES, *own], n=1)
        hint = f"did you mean {near[0]}?" if near else "docs/reference/ignite-types.md lists them"
        raise UnknownType(f"no message type {type!r:.60}; {hint}; `types` in team.yaml adds others")
    try:
        return jsontext.convert(_without_nulls(body), known.body)
    except (msgspec.ValidationError, UnicodeEncodeError) as exc:  # the latter for a lone surrogate
        raise ValidationFailed(f"{type}: {exc}") from exc


def _check_own(type: str, body: Json | bytes, checked: Callable[[Any], object] | None) -> object:
    try:
        return body if checked is None else checked(body)
    except ValidationFailed as exc:
        raise ValidationFailed(f"{type}: {exc}") from exc


def _without_nulls(value: object) -> object:
    """Return the value without fields that are null: they count as missing."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
