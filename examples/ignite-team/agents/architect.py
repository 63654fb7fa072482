"""The architect: says where everything goes."""

from typing import Any

from agent import WORK, Answer, take_turn


def architecture_request(message: dict[str, Any]) -> list[Answer]:
    body = message["body"]
    tasks = [
        {**task, "deliverables": [{"file": f"{task['task_id']}.md", "location": str(WORK / f"{task['task_id']}.md")}]}
        for task in body["context"]["tasks"]
    ]
    design = {"goal": body["goal"], "proposed_architecture": f"One file for each task in {WORK}/", "tasks": tasks}
    return [{"to": "leader", "type": "architecture_response", "body": design}]


take_turn({"architecture_request": architecture_request})
