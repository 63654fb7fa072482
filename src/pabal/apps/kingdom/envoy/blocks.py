"""Questions as Slack shows them: a text, and buttons for a question to confirm or to choose (Block Kit)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from pabal.apps.kingdom.envoy.questions import Question

BLOCK = "question-"  # and the task, as the id of the block with the buttons
_ACTION = "answer-"
_USER = re.compile(r"[UW][A-Z0-9]{5,}", re.ASCII)
_MOST_BUTTONS = 25  # what Slack allows in a block, and the characters of its parts
_LONGEST_TEXT, _LONGEST_LABEL, _LONGEST_VALUE = 3000, 75, 2000


class Press(NamedTuple):
    """A button that a person pressed."""

    task_id: str
    answer: str
    person: str
    at: str
    channel: str
    thread_ts: str


def blocks_of(question: Question, text: str) -> list[dict[str, Any]]:
    """Return the blocks of a question; none if it has no buttons."""
    answers = ["yes", "no"] if question.kind == "confirm" else question.options if question.kind == "choose" else []
    if not 0 < len(answers) <= _MOST_BUTTONS or question.state != "open":
        return []
    return [
        _section(text),
        {"type": "actions", "block_id": f"{BLOCK}{question.task_id}", "elements": _buttons(answers)},
    ]


def closed_blocks(text: str) -> list[dict[str, Any]]:
    """Return the blocks of a question that is closed: without buttons."""
    return [_section(text)]


def question_text(question: Question) -> str:
    """Return the text of a question as it stands now, for everybody in the channel."""
    end = {
        "open": answer_hint(question),
        "expired": "\nRan out without an answer.",
        "closed": f"\nClosed by {shown_person(question.responder)}.",
        "answered": f"\nAnswered by {shown_person(question.responder)} ({question.via}): {question.answer}",
    }
    return f"[question] {question.text}{end[question.state]}"


def answer_hint(question: Question) -> str:
    """Return the lines that say how a question is answered."""
    hint = {"confirm": "\nAnswer here: yes or no.", "choose": "\nAnswer here with one of:\n"}
    options = "\n".join(f"{number}. {option}" for number, option in enumerate(question.options, 1))
    return hint.get(question.kind, "\nAnswer in this thread.") + options


def shown_person(responder: str) -> str:
    """Return a person as Slack shows people: the id of a user becomes a name."""
    return f"<@{responder}>" if _USER.fullmatch(responder) else responder


def _section(text: str) -> dict[str, Any]:
    return {"type": "section", "text": {"type": "mrkdwn", "text": text[:_LONGEST_TEXT]}}


def _buttons(answers: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "type": "button",
            "action_id": f"{_ACTION}{number}",
            "text": {"type": "plain_text", "text": answer[:_LONGEST_LABEL] or str(number)},
            "value": answer if len(answer) <= _LONGEST_VALUE else str(number),
        }
        for number, answer in enumerate(answers, 1)
    ]


def press_of(payload: Mapping[str, Any]) -> Press | None:
    """Return the answer in an interaction of Slack's; None if it is about something else."""
    actions, user = payload.get("actions"), payload.get("user")
    if payload.get("type") != "block_actions" or not isinstance(actions, list) or not isinstance(user, Mapping):
        return None
    container = payload.get("container")
    container = container if isinstance(container, Mapping) else {}
    for action in actions:
        block = str(action.get("block_id") or "") if isinstance(action, Mapping) else ""
        if block.startswith(BLOCK) and str(action.get("action_id") or "").startswith(_ACTION):
            return Press(
                block.removeprefix(BLOCK),
                str(action.get("value") or ""),
                str(user.get("username") or user.get("name") or user.get("id") or "somebody"),
                str(action.get("action_ts") or ""),
                str(container.get("channel_id") or ""),
                str(container.get("thread_ts") or container.get("message_ts") or ""),
            )
    return None
