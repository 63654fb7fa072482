#!/usr/bin/env python3
"""Pretends to write tests for a moment, showing signs of life."""

import json
import os
import time
from pathlib import Path

for _ in range(3):
    Path(os.environ["KINGDOM_HEARTBEAT_PATH"]).touch()
    time.sleep(0.1)
result = {
    "task_id": os.environ["KINGDOM_TASK_ID"],
    "status": "success",
    "summary": "3 tests written",
    "memory_updates": ["the parser has no tests for empty input"],
}
Path(os.environ["KINGDOM_RESULT_PATH"]).write_text(json.dumps(result))
