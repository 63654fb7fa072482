#!/usr/bin/env python3
"""Tells how many events were completed, in a channel for everybody if $BRIEFING_CHANNEL names one."""

import json
import os
from pathlib import Path

home = Path(os.environ["KINGDOM_RESULT_PATH"]).parents[2]
count = len(list((home / "queue/events/completed").glob("*.json")))
text = f"{count} events completed so far"
result = {"task_id": os.environ["KINGDOM_TASK_ID"], "status": "success", "summary": text}
if channel := os.environ.get("BRIEFING_CHANNEL"):
    result["proclamation"] = {"channel": channel, "message": f"Good morning: {text}."}
Path(os.environ["KINGDOM_RESULT_PATH"]).write_text(json.dumps(result))
