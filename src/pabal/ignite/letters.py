"""What is written when a message dies: the dead letter for whoever looks into it, the escalation for the leader.

Both are follow-ups of the verdict that buried it: they are there if and only if it is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from pabal.codec import Codec
from pabal.codecs.json import JsonCodec
from pabal.errors import InvalidInput
from pabal.ignite.layout import DEAD_LETTERS
from pabal.ignite.team import MONITOR, Team
from pabal.jsontext import Json
from pabal.judge import Letters
from pabal.message import PRIORITIES, Message
from pabal.policy import LARGEST_MAX_BYTES, Policy
from pabal.store import Draft, Failure, Terms

# Their own death is not told to the leader: that would never end.
_NEWS = frozenset({"escalation", "dead_letter"})
_NO_LIMIT = Terms(max_bytes=LARGEST_MAX_BYTES)
_LARGEST_COPY = 1 << 20  # characters of the original in its dead letter; whole, it stays where it died


def letters_of(team: Team, codec: Codec, fresh: Callable[[], tuple[str, float]]) -> Letters:
    """Return what writes the letters of a team; `fresh` gives each its id and its instant."""

    def write(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
        drafts = [_draft(DEAD_LETTERS, "dead_letter", _dead_letter(policy, codec, queue, message, failure), message)]
        if message.type not in _NEWS:
            drafts.append(_draft(team.leader, "escalation", _escalation(policy, queue, message, failure), message))
        return tuple(drafts)

    def _draft(to: str, type: str, body: dict[str, Json], about: Message) -> Draft:
        id, at = fresh()
        letter = Message(
            id=id,
            body=body,
            type=type,
            sender=MONITOR,
            priority=PRIORITIES["critical"],
            thread_id=about.thread_id,
            # Also where it lies in the folder of dead letters: it is for the leader to read.
            headers={"To": team.leader, "Cc": DEAD_LETTERS} if to == DEAD_LETTERS else {},
            created_at=at,
        )
        return Draft(to, letter, given_id=False, terms=_NO_LIMIT)

    return write


def _dead_letter(policy: Policy, codec: Codec, queue: str, message: Message, failure: Failure) -> dict[str, Json]:
    try:
        text = codec.encode(message, queue=queue).decode("utf-8", "replace")
    except InvalidInput:  # a database holds what no file can, and that may be why it died
        text = JsonCodec().encode(message, queue=queue).decode("utf-8", "replace")
    if len(text) > _LARGEST_COPY:
        text = f"{text[:_LARGEST_COPY]}\n[cut: the whole message is kept as dead in {queue}]"
    return {
        "original_file": f"{queue}/{message.id}",
        "original_queue": queue,
        "original_id": message.id,
        "failure_info": {
            "retry_count": max(0, failure.attempt - 1),
            "max_retries": policy.retry.limit,
            "last_error": f"{failure.code}: {failure.reason}",
            "moved_at": _instant(failure.at),
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
        "max_retries": policy.retry.limit,
        "recommended_action": "manual_review",
        "dlq_path": f"queue/{DEAD_LETTERS}/",
        "notes": f"pabal ignite replay {message.id} tries it again",
    }


def _instant(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
