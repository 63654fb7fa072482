"""Sending: one message for each recipient, checked before anything is written, all of them in one call to the store.

Every file shows the whole To and Cc. A recipient that is no agent, a type that nobody knows and a body that lacks what
its type needs are refused here, with what was expected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Required, TypedDict, Unpack

from pabal.codecs.mime import fields
from pabal.codecs.mime.addresses import Recipients, split
from pabal.errors import InvalidInput
from pabal.ignite import types
from pabal.ignite.workspace import Workspace
from pabal.jsontext import Json, check
from pabal.message import Message, check_message, priority_of
from pabal.store import Draft, Published, Terms


class Letter(TypedDict, total=False):
    """What a letter says, beside the workspace it is sent in."""

    sender: Required[str]
    to: Required[str | Sequence[str]]
    type: Required[str]
    body: Required[Json]
    cc: str | Sequence[str]
    priority: str | int
    thread_id: str
    in_reply_to: str
    repository: str
    issue: str
    headers: Mapping[str, str] | None
    id: str
    delay: float
    ttl: float


def send(workspace: Workspace, **letter: Unpack[Letter]) -> list[Published]:
    """Send a message to each recipient; when it returns, every one is on disk. Repeating it with its id is safe."""
    return workspace.store.publish(compose(workspace, **letter))


def compose(
    workspace: Workspace,
    *,
    sender: str,
    to: str | Sequence[str],
    type: str,
    body: Json,
    cc: str | Sequence[str] = (),
    priority: str | int = "normal",
    thread_id: str = "",
    in_reply_to: str = "",
    repository: str = "",
    issue: str = "",
    headers: Mapping[str, str] | None = None,
    id: str = "",
    delay: float = 0.0,
    ttl: float = 0.0,
) -> list[Draft]:
    """Make what `send` would send, without sending it: for `ack(then=…)`. `ttl` is how long it may wait, 0 no limit."""
    team = workspace.team
    check(body)
    types.check(type, body)
    recipients = Recipients(_names(workspace, to), _names(workspace, cc))
    if not recipients.to:
        raise InvalidInput("To must name at least one agent")
    fresh, at = workspace.fresh()
    said = {fields.IN_REPLY_TO: _message_id(in_reply_to), fields.REPOSITORY: repository, fields.ISSUE: issue}
    message = Message(
        id=id or fresh,
        body=body,
        type=type,
        sender=team.sender_of(sender),
        priority=priority_of(priority),
        thread_id=thread_id,
        headers={**{name: value for name, value in said.items() if value}, **(headers or {})},
        created_at=at,
        expires_at=at + ttl if ttl else None,
    )
    policy = team.policy
    terms = Terms(policy.dedup_window, policy.max_bytes, policy.max_waiting)
    return [
        Draft(name, check_message(each), delay, given_id=bool(id), terms=terms)
        for name, each in split(message, recipients)
    ]


def _names(workspace: Workspace, given: str | Sequence[str]) -> tuple[str, ...]:
    listed = given.split(",") if isinstance(given, str) else given
    return tuple(dict.fromkeys(workspace.team.name_of(name.strip()) for name in listed if name.strip()))


def _message_id(id: str) -> str:
    return f"<{id}@ignite.local>" if id and not id.startswith("<") else id
