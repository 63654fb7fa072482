"""The folders of a kingdom's documents, made to be read and written with `ls`, `cat` and `mv`.

    events    queue/events/pending    queue/events/dispatched
    tasks     queue/tasks/pending     queue/tasks/in_progress
    messages  queue/messages/pending  queue/messages/sent          queue/messages/failed
    results   state/results

States without a folder here, and the store's own files, lie below `state/queues/<queue>/`. What is over has plain names
in folders of the archive (`king/archive.py`): queue/events/completed, queue/tasks/completed, state/results/archive.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pabal.apps.kingdom.codec import KingdomCodec
from pabal.codec import Codec
from pabal.message import Message
from pabal.store import State
from pabal.stores.layout import admits

EVENTS, TASKS, RESULTS, MESSAGES = "events", "tasks", "results", "messages"
QUEUES = (EVENTS, TASKS, RESULTS, MESSAGES)
OPEN_STATES = (State.READY, State.DELAYED, State.INFLIGHT)  # of a task that is not finished
_PLACES: dict[tuple[str, State], str] = {
    (EVENTS, State.READY): "queue/events/pending",
    (EVENTS, State.DONE): "queue/events/dispatched",
    (TASKS, State.READY): "queue/tasks/pending",
    (TASKS, State.INFLIGHT): "queue/tasks/in_progress",
    (RESULTS, State.READY): "state/results",
    (MESSAGES, State.READY): "queue/messages/pending",
    (MESSAGES, State.DONE): "queue/messages/sent",
    (MESSAGES, State.DEAD): "queue/messages/failed",
}
COMPLETED = "queue/events/completed"
COMPLETED_TASKS = "queue/tasks/completed"
RESULTS_ARCHIVE = "state/results/archive"
# Beside the results lie files of generals and soldiers: task-…-raw.json, task-…-checkpoint.json, task-…-heartbeat.
_BESIDE = re.compile(r"task-\d{8}-\d{3,}-.*", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class KingdomLayout:
    """`queue/<queue>/<state>/<id>.json`."""

    codec: Codec = KingdomCodec()
    native: bool = False
    mirror: bool = True
    removal_acks: bool = False
    portable: bool = False

    def directory(self, queue: str, state: State) -> str:
        waiting = State.READY if state is State.DELAYED else state
        if place := _PLACES.get((queue, waiting)):
            return place
        return f"{self.private(queue)}/{waiting}"

    def private(self, queue: str) -> str:
        return f"state/queues/{queue}"

    def queues(self, root: Path) -> list[str]:
        return [queue for queue in QUEUES if (root / self.private(queue)).is_dir()]

    def stem(self, message: Message) -> str:
        return message.id

    def admits(self, name: str) -> bool:
        """Admit documents only; in the folder of results, only the results themselves."""
        return name.endswith(".json") and admits(name) and not _BESIDE.fullmatch(name)
