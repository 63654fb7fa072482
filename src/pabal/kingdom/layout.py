"""Where the documents of a kingdom lie: the seed's own tree, to be read and written with `ls`, `cat` and `mv`.

    events    queue/events/pending    queue/events/dispatched
    tasks     queue/tasks/pending     queue/tasks/in_progress      queue/tasks/completed
    messages  queue/messages/pending  queue/messages/sent          queue/messages/failed
    results   state/results           state/results/archive

What has no folder there, and what is the store's own, lies below `state/queues/<queue>/`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pabal.codec import Codec
from pabal.kingdom.codec import KingdomCodec
from pabal.message import Message
from pabal.store import State
from pabal.stores.layout import admits

EVENTS, TASKS, RESULTS, MESSAGES = "events", "tasks", "results", "messages"
QUEUES = (EVENTS, TASKS, RESULTS, MESSAGES)
_PLACES: dict[tuple[str, State], str] = {
    (EVENTS, State.READY): "queue/events/pending",
    (EVENTS, State.DONE): "queue/events/dispatched",
    (TASKS, State.READY): "queue/tasks/pending",
    (TASKS, State.INFLIGHT): "queue/tasks/in_progress",
    (TASKS, State.DONE): "queue/tasks/completed",
    (RESULTS, State.READY): "state/results",
    (RESULTS, State.DONE): "state/results/archive",
    (MESSAGES, State.READY): "queue/messages/pending",
    (MESSAGES, State.DONE): "queue/messages/sent",
    (MESSAGES, State.DEAD): "queue/messages/failed",
}
COMPLETED = "queue/events/completed"
# Beside the results lie files of generals and soldiers: task-…-raw.json, task-…-checkpoint.json, task-…-heartbeat.
_BESIDE = re.compile(r"task-\d{8}-\d{3,}-.*", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class KingdomLayout:
    """`queue/<queue>/<state>/<id>.json`."""

    codec: Codec = KingdomCodec()
    native: bool = False
    mirror: bool = True
    removal_acks: bool = False

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
        """Take documents only, and of what lies beside the results only the results."""
        return name.endswith(".json") and admits(name) and not _BESIDE.fullmatch(name)
