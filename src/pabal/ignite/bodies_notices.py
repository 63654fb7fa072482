"""The bodies of messages from outside and from the system itself: watchers, dead letters, escalations."""

from typing import Any

from pabal.ignite.bodies_planning import Body, Issue, Text, Whole


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
