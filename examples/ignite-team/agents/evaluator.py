"""The evaluator: checks what was made against what was asked for."""

from pathlib import Path
from typing import Any

from agent import Answer, take_turn

CHECKS = {
    "heading": lambda text: text.startswith("# "),
    "summary": lambda text: "## Summary" in text,
    "chapters": lambda text: text.count("## Summary") == 3,
}


def evaluation_request(message: dict[str, Any]) -> list[Answer]:
    request = message["body"]
    [made] = request["deliverables"]
    text = Path(made["location"]).read_text()
    checks = [{"check": name, "status": "pass" if CHECKS[name](text) else "fail"} for name in request["requirements"]]
    failed = [check["check"] for check in checks if check["status"] == "fail"]
    result = {
        "task_id": request["task_id"],
        "title": request["title"],
        "overall_status": "fail" if failed else "pass",
        "score": 100 - 50 * len(failed),
        "checks_performed": checks,
        "issues_found": [{"severity": "major", "description": f"there is no {name}"} for name in failed],
        "next_action": "revise" if failed else "approve",
    }
    answers = [{"to": "leader", "cc": "coordinator", "type": "evaluation_result", "body": result}]
    if request["task_id"] == "guide" and not failed:
        issues = [{"issue": "the guide has no contents", "severity": "minor", "location": made["location"]}]
        body = {"task_id": "guide", "target": made["location"], "issues": issues}
        answers.append({"to": "innovator", "type": "improvement_request", "body": body})
    return answers


take_turn({"evaluation_request": evaluation_request})
