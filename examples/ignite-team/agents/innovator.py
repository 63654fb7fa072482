"""The innovator: mends small things and proposes larger ones."""

from pathlib import Path
from typing import Any

from agent import Answer, save, take_turn

MARK = "Contents: "


def improvement_request(message: dict[str, Any]) -> list[Answer]:
    request = message["body"]
    path = Path(request["target"])
    heading, _, rest = path.read_text().partition("\n")
    if MARK not in rest:
        chapters = [line[2:] for line in rest.splitlines() if line.startswith("# ")]
        save(path, f"{heading}\n\n{MARK}{'; '.join(chapters)}\n{rest}")
    done = {"task_id": request["task_id"], "target": request["target"], "summary": "contents added"}
    idea = {"title": "An index", "proposed_improvement": {"description": "List the words with their chapters"}}
    return [
        {"to": "leader", "type": "improvement_completed", "body": done},
        {"to": "leader", "type": "improvement_suggestion", "body": idea},
    ]


take_turn({"improvement_request": improvement_request})
