"""The strategist: breaks a goal into tasks that depend on one another."""

from typing import Any

from agent import Answer, take_turn

CHAPTERS = ("Horses", "Stations", "Letters")


def strategy_request(message: dict[str, Any]) -> list[Answer]:
    goal = message["body"]["goal"]
    chapters = [
        {
            "task_id": f"chapter_{number}",
            "title": f"Chapter {number}: {name}",
            "description": f"Write the chapter on {name.lower()}",
            "phase": 1,
            "priority": "high",
            "dependencies": [],
            "acceptance_criteria": {"must": ["heading", "summary"]},
        }
        for number, name in enumerate(CHAPTERS, 1)
    ]
    whole = {
        "task_id": "guide",
        "title": "The guide",
        "description": "Put the chapters together",
        "phase": 2,
        "dependencies": [task["task_id"] for task in chapters],
        "acceptance_criteria": {"must": ["heading", "chapters"]},
    }
    phases = [{"phase": 1, "name": "Chapters"}, {"phase": 2, "name": "The whole"}]
    body = {
        "goal": goal,
        "strategy": {"approach": "Parts at the same time, then the whole", "phases": phases},
        "task_count": len(chapters) + 1,
        "tasks": [*chapters, whole],
    }
    return [{"to": "leader", "type": "strategy_response", "body": body}]


take_turn({"strategy_request": strategy_request})
