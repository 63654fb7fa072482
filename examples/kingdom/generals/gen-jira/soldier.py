#!/usr/bin/env python3
"""Plans a ticket: those that are done already are skipped, and a large one asks how to begin."""

import json
import os
from pathlib import Path

task = json.loads(Path(os.environ["KINGDOM_TASK_PATH"]).read_text())
payload = task["payload"]
result = {"task_id": task["id"]}
if task["type"] == "resume":
    result |= {"status": "success", "summary": f"begins with: {payload['human_response']}"}
elif payload.get("status") in ("Done", "Closed"):
    result |= {"status": "skipped", "summary": "nothing to do", "reason": f"{payload['ticket_key']} is done already"}
elif "large" in payload.get("labels", []):
    options = ["the tests", "the code", "a plan"]
    question = f"{payload['ticket_key']} is large. What comes first?"
    result |= {"status": "needs_human", "summary": "asks", "question": question, "kind": "choose", "options": options}
else:
    result |= {"status": "success", "summary": f"{payload.get('ticket_key', 'the ticket')} is planned"}
Path(os.environ["KINGDOM_RESULT_PATH"]).write_text(json.dumps(result))
