"""An ignitian: writes what it is asked to, and does it better when asked again."""

from pathlib import Path
from typing import Any

from agent import Answer, save, take_turn

Task = dict[str, Any]


def chapter(task: Task) -> str:
    lines = [f"# {task['title']}", "", f"{task['description']}, as couriers knew it."]
    # The second chapter forgets its summary, until the evaluator asks for it.
    if task["task_id"] != "chapter_2" or task.get("issues"):
        lines += ["", "## Summary", "", "It was fast because nobody rode far."]
    return "\n".join([*lines, ""])


def guide(task: Task) -> str:
    parts = [Path(made["location"]).read_text() for each in task["inputs"] for made in each["deliverables"]]
    return "\n".join([f"# {task['title']}", "", *parts])


def work(message: dict[str, Any]) -> list[Answer]:
    task = message["body"]
    [deliverable] = task["deliverables"]
    save(Path(deliverable["location"]), guide(task) if task.get("inputs") else chapter(task))
    report = {
        "task_id": task["task_id"],
        "title": task["title"],
        "status": "success",
        "deliverables": task["deliverables"],
    }
    return [{"to": "coordinator", "type": "task_completed", "body": report}]


take_turn({"task_assignment": work, "revision_request": work})
