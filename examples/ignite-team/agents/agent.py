"""What every agent here does: read the message, do its part, and answer in one step with being done.

An agent that is killed anywhere before that step gets the message again; after it, the answers are on their way.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pabal.apps.ignite import mail
from pabal.apps.ignite.workspace import Workspace

WORK = Path("work")
Answer = dict[str, Any]
Part = Callable[[dict[str, Any]], list[Answer]]


def take_turn(parts: Mapping[str, Part]) -> None:
    """Do the part that fits the message on stdin; messages that ask for nothing are done when read."""
    message = json.load(sys.stdin)
    part = parts.get(message["type"])
    answers = part(message) if part else []
    with Workspace.open(os.environ["IGNITE_ROOT"]) as workspace:
        drafts = [draft for answer in answers for draft in mail.compose(workspace, **_addressed(message, answer))]
        workspace.queue(message["agent"]).ack(message["receipt"], then=drafts)
    said = ", ".join(f"{answer['type']} to {answer['to']}" for answer in answers)
    print(f"{message['type']} from {message['from']}: {said or 'noted'}", flush=True)


def save(path: Path, text: str) -> None:
    """Write a file so that nobody ever reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)


def _addressed(message: dict[str, Any], answer: Answer) -> dict[str, Any]:
    thread = message["thread_id"] or message["id"]
    return {"sender": message["agent"], "thread_id": thread, "in_reply_to": message["id"], **answer}
