"""Sending mail: one message for each recipient, all checked before the first is written, published in one call.

Every message shows the whole To and Cc. An unknown recipient, an unknown type and a body that does not fit its type
are refused here, with what was expected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Required, TypedDict, Unpack

from pabal.apps.ignite import types
from pabal.apps.ignite.mail_store import over_limit
from pabal.apps.ignite.workspace import Workspace
from pabal.codecs.mime import fields
from pabal.codecs.mime.addresses import Recipients, copy_for, fixed_id, is_split, named, split
from pabal.errors import InvalidInput, QueueUnknown, TooLarge
from pabal.jsontext import Json, check
from pabal.message import Message, check_message, priority_of, replace
from pabal.names import is_id
from pabal.store import Draft, Published, Terms


class Mail(TypedDict, total=False):
    """The arguments of `send` and `compose`, beside the workspace."""

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


def send(workspace: Workspace, **arguments: Unpack[Mail]) -> list[Published]:
    """Send a message to each recipient; when it returns, all are durable. Repeating it with the same id is safe."""
    return publish(workspace, compose(workspace, **arguments))


def publish(workspace: Workspace, drafts: Sequence[Draft]) -> list[Published]:
    """Publish what `compose` made."""
    with limit_explained(workspace, drafts):
        return workspace.store.publish(drafts)


@contextmanager
def limit_explained(workspace: Workspace, drafts: Sequence[Draft]) -> Iterator[None]:
    """Raise the error that names the limit of the team, in place of the one that names the policy of its queue."""
    try:
        yield
    except TooLarge as exc:
        # Its own limits, of headers and of YAML, are checked by encoding it.
        sizes = [len(workspace.layout.codec.encode(draft.message, queue=draft.queue)) for draft in drafts]
        raise over_limit(workspace.team.limits.bytes, max(sizes, default=0)) from exc


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
    """Make the drafts of `send`, for `ack(then=…)`. `ttl` is how long a message may wait; 0: no limit."""
    team = workspace.team
    check(body)
    types.check(type, body, team.types)
    recipients = Recipients(_names(workspace, to), _names(workspace, cc))
    if not recipients.to:
        raise InvalidInput("To must name at least one agent")
    fresh, at = workspace.fresh()
    extra = {fields.IN_REPLY_TO: _message_id(in_reply_to), fields.REPOSITORY: repository, fields.ISSUE: issue}
    message = Message(
        id=id or fresh,
        body=body,
        type=type,
        sender=team.sender_of(sender),
        priority=priority_of(priority),
        thread_id=thread_id,
        headers={**{name: value for name, value in extra.items() if value}, **(headers or {})},
        created_at=at,
        expires_at=at + ttl if ttl else None,
    )
    policy = team.policy
    terms = Terms(policy.dedup_window, policy.max_bytes, policy.max_waiting)
    return [
        Draft(name, check_message(each), delay, given_id=bool(id), terms=terms)
        for name, each in split(message, recipients)
    ]


def distribute(workspace: Workspace, queue: str, message: Message) -> tuple[list[Draft], list[str]]:
    """Return the copies of a message that a program put into one queue, and the recipients that are no agents.

    The agent of that queue gets a copy too. There are no copies if nobody else is named, or if this is one of them.
    Copies have numbered ids and no dedup key, because the message itself has taken both in its queue.
    """
    if is_split(message):
        return [], []
    known, unknown = {queue: None}, []
    for name in named(message).all:
        try:
            known[workspace.team.recipient_of(name)] = None
        except QueueUnknown:
            unknown.append(name)
    if len(known) == 1:
        return [], unknown
    headers = {name: text for name, text in message.headers.items() if name != "Message-ID"}
    # To the millisecond: then the names of their files have a part of the id, and a file that was copied from another
    # message, with its time, takes no name of that one.
    at = int(message.created_at * 1000) / 1000
    plain = replace(message, headers=headers, dedup_key="", unique="", created_at=at)
    id = message.id if is_id(f"{message.id}-{len(known)}") else fixed_id(f"copy/{message.id}")
    # However many messages wait: the program that dropped the file cannot be asked to try again.
    return [
        Draft(name, copy_for(plain, name, f"{id}-{number}"), terms=Terms()) for number, name in enumerate(known, 1)
    ], unknown


def _names(workspace: Workspace, given: str | Sequence[str]) -> tuple[str, ...]:
    texts = (given,) if isinstance(given, str) else given
    listed = (name.strip() for text in texts for name in text.split(","))
    return tuple(dict.fromkeys(workspace.team.recipient_of(name) for name in listed if name))


def _message_id(id: str) -> str:
    return f"<{id}@ignite.local>" if id and not id.startswith("<") else id
