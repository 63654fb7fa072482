"""Dead letters: the messages that a death publishes, and the list of dead and corrupt messages.

The dead letter (for the person who investigates) and the escalation (for the leader) are follow-ups of the verdict
that buried the message: they exist if and only if the message is dead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pabal.apps.ignite.layout import DEAD_LETTERS, iso_time
from pabal.apps.ignite.team import MONITOR, Team
from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.errors import InvalidInput
from pabal.filesystem import UNREADABLE, read_whole
from pabal.jsontext import Json
from pabal.message import PRIORITIES, Message
from pabal.policy.policy import LARGEST_MAX_BYTES, Policy
from pabal.queues.verdicts import DeadLetterWriter
from pabal.store import Draft, Failure, State, Terms
from pabal.stores.files import corrupt_reason, read_failure

if TYPE_CHECKING:
    from pabal.apps.ignite.workspace import Workspace


# The death of one of these makes no escalation: that would never end.
_NEWS = frozenset({"escalation", "dead_letter"})
_NO_LIMIT = Terms(max_bytes=LARGEST_MAX_BYTES)
_LARGEST_COPY = 1 << 20  # characters of the original in its dead letter; the whole message stays where it died


def dead_letter_writer(team: Team, codec: Codec, fresh: Callable[[], tuple[str, float]]) -> DeadLetterWriter:
    """Return the writer of a team's dead letters; `fresh` gives the id and the time of a new message."""

    def write(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
        drafts = [_draft(DEAD_LETTERS, "dead_letter", _dead_letter(policy, codec, queue, message, failure), message)]
        if message.type not in _NEWS:
            drafts.append(_draft(team.leader, "escalation", _escalation(policy, queue, message, failure), message))
        return tuple(drafts)

    def _draft(to: str, type: str, body: dict[str, Json], about: Message) -> Draft:
        id, at = fresh()
        message = Message(
            id=id,
            body=body,
            type=type,
            sender=MONITOR,
            priority=PRIORITIES["critical"],
            thread_id=about.thread_id,
            # Also in the folder of dead letters it names the leader, which should read it.
            headers={"To": team.leader, "Cc": DEAD_LETTERS} if to == DEAD_LETTERS else {},
            created_at=at,
        )
        return Draft(to, message, given_id=False, terms=_NO_LIMIT)

    return write


def _dead_letter(policy: Policy, codec: Codec, queue: str, message: Message, failure: Failure) -> dict[str, Json]:
    try:
        text = codec.encode(message, queue=queue).decode("utf-8", "replace")
    except InvalidInput:  # a database may hold what no file can; that may be why it died
        text = JsonCodec().encode(message, queue=queue).decode("utf-8", "replace")
    if len(text) > _LARGEST_COPY:
        text = f"{text[:_LARGEST_COPY]}\n[cut: the whole message is kept as dead in {queue}]"
    return {
        "original_file": f"{queue}/{message.id}",
        "original_queue": queue,
        "original_id": message.id,
        "failure_info": {
            "retry_count": max(0, failure.attempt - 1),
            "max_retries": policy.retry.limit - 1,
            "last_error": f"{failure.code}: {failure.reason}",
            "moved_at": iso_time(failure.at),
        },
        "original_message": text,
    }


def _escalation(policy: Policy, queue: str, message: Message, failure: Failure) -> dict[str, Json]:
    body: Mapping[str, Json] = message.body if isinstance(message.body, dict) else {}
    return {
        "task_id": str(body.get("task_id") or message.id),
        "title": str(body.get("title") or body.get("goal") or message.type),
        "original_assignee": queue,
        "original_type": message.type,
        "failure_reason": f"{failure.code}: {failure.reason}",
        "retry_count": max(0, failure.attempt - 1),
        "max_retries": policy.retry.limit - 1,
        "recommended_action": "manual_review",
        "dlq_path": f"queue/{DEAD_LETTERS}/",
        "notes": f"pabal ignite replay {message.id} tries it again",
    }


class DeadLetter(NamedTuple):
    """A dead or corrupt message, with its reason. `path` is empty if it is in no folder."""

    queue: str
    id: str
    type: str
    state: str
    attempt: int
    at: float
    code: str
    reason: str
    path: str


_NO_REASON = Failure("UNKNOWN", "no reason was left")


def dead_letters_of(workspace: Workspace, agent: str) -> Iterator[DeadLetter]:
    """Go through the dead and corrupt messages of an agent's queue, the oldest first."""
    for state in (State.DEAD, State.CORRUPT):
        for entry in workspace.mail.set_aside(agent, state):
            failure = entry.failure or _NO_REASON
            type = entry.message.type if entry.message is not None else ""
            why = (failure.at, failure.code, failure.reason)
            yield DeadLetter(agent, entry.id, type, state.value, entry.attempt, *why, path="")
    for state in (State.DEAD, State.CORRUPT):
        folder = workspace.folders.directory(agent, state)
        try:
            names = sorted(os.listdir(folder))
        except FileNotFoundError:
            continue
        for name in names:
            if workspace.layout.admits(name) or (state is State.CORRUPT and not name.endswith(".why")):
                yield _of_file(workspace, agent, state, f"{folder}/{name}")


def _of_file(workspace: Workspace, agent: str, state: State, path: str) -> DeadLetter:
    name = os.path.basename(path)
    slot = workspace.folders.names.parse(name)
    failure = read_failure(f"{path}.why") if state is State.DEAD else _reason(f"{path}.why")
    failure = failure or _NO_REASON
    id, type = name, ""
    try:
        data, at = read_whole(path)
        message = workspace.layout.codec.decode(data, id=slot.id if slot else "", at=at)
        id, type = message.id, message.type
    except (OSError, *UNREADABLE):
        pass  # it is listed by its name
    attempt = slot.attempt if slot else 0
    return DeadLetter(agent, id, type, state.value, attempt, failure.at, failure.code, failure.reason, path)


def _reason(path: str) -> Failure | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return corrupt_reason(file.read(), os.fstat(file.fileno()).st_mtime)
    except OSError:
        return None
