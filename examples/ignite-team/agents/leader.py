"""The leader: turns a goal into a plan, approves it, and closes the goal when every task has passed."""

import json
from typing import Any

from agent import WORK, Answer, save, take_turn

Message = dict[str, Any]


def user_goal(message: Message) -> list[Answer]:
    return [{"to": "strategist", "type": "strategy_request", "body": {"goal": message["body"]["goal"]}}]


def strategy_response(message: Message) -> list[Answer]:
    body = message["body"]
    request = {"goal": body["goal"], "context": {"tasks": body["tasks"]}, "question": "Where does each part go?"}
    return [{"to": "architect", "type": "architecture_request", "body": request}]


def architecture_response(message: Message) -> list[Answer]:
    body = message["body"]
    save(WORK / "tasks.json", json.dumps([task["task_id"] for task in body["tasks"]]))
    approved = {"goal": body["goal"], "strategy_summary": "Parts first, then the whole", "tasks": body["tasks"]}
    return [{"to": "coordinator", "type": "task_list", "body": approved}]


def evaluation_result(message: Message) -> list[Answer]:
    result = message["body"]
    save(WORK / "evaluations" / f"{result['task_id']}.json", json.dumps(result))
    found = [json.loads(path.read_text()) for path in sorted((WORK / "evaluations").glob("*.json"))]
    passed = [one for one in found if one["overall_status"] == "pass"]
    if len(passed) == len(json.loads((WORK / "tasks.json").read_text())):
        lines = [f"- {one['title']}: {one['overall_status']}, {one['score']} points" for one in passed]
        save(WORK / "result.md", "\n".join(["# The goal is reached", "", *lines, ""]))
    return []


def improvement_suggestion(message: Message) -> list[Answer]:
    ack = {"title": message["body"]["title"], "decision": "noted", "reason": "for the next guide"}
    return [{"to": "innovator", "type": "improvement_suggestion_ack", "body": ack}]


take_turn(
    {
        "user_goal": user_goal,
        "strategy_response": strategy_response,
        "architecture_response": architecture_response,
        "evaluation_result": evaluation_result,
        "improvement_suggestion": improvement_suggestion,
    }
)
