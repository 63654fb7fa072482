"""Plain messages: say something to an agent or a person, and reply.

A reply belongs to the thread of the message that it answers. If the answering agent has that message in hand, the reply
is sent and the message becomes done in one step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from pabal.apps.ignite import inbox, mail
from pabal.apps.ignite.archive import MailItem, item_of
from pabal.apps.ignite.memory import Fact
from pabal.apps.ignite.questions import Questions
from pabal.apps.ignite.team import USER
from pabal.apps.ignite.workspace import Held, Workspace
from pabal.errors import InvalidInput, QueueUnknown, StoreError
from pabal.jsontext import Json
from pabal.store import Draft, Published, State

TYPE = "message"
_RE = "Re: "


def say(
    workspace: Workspace,
    *,
    sender: str,
    to: str | Sequence[str],
    text: str,
    subject: str = "",
    reply_to: str = "",
    urgent: bool = False,
    id: str = "",
) -> list[Published]:
    """Send plain text; with `reply_to` in the thread of that message. Repeating it with the same id is safe."""
    about = inbox.find(workspace, reply_to, own=sender) if reply_to else None
    drafts = mail.compose(
        workspace,
        sender=sender,
        to=to,
        type=TYPE,
        body={"text": text},
        priority="critical" if urgent else "normal",
        thread_id=about.thread if about is not None else "",
        in_reply_to=about.id if about is not None else "",
        headers=subject_header(subject, about),
        id=id,
    )
    return mail.publish(workspace, drafts)


def reply(
    workspace: Workspace, id: str, text: str, *, sender: str = "", urgent: bool = False, keep: bool = False
) -> str:
    """Answer a message or a question; return the id of the answer.

    `sender` is by default the agent or person who got the message. With `keep`, a message that it has in hand stays
    there.
    """
    questions = Questions(workspace)
    if questions.has(id):
        responder = workspace.team.recipient_of(sender) if sender else questions.find(id).to
        return questions.answer(id, text, responder=responder).id
    item = inbox.find(workspace, id, own=sender)
    own = workspace.team.recipient_of(sender) if sender else item.agent
    drafts = reply_drafts(workspace, item, {"text": text}, sender=own, urgent=urgent)
    if item.receipt and item.agent == own and not keep:
        held = workspace.find_held(item.id, receipt=item.receipt)
        with mail.limit_explained(workspace, drafts):
            workspace.delivery(held).ack(then=drafts)
        note_end(workspace, held, done=True)
    elif item.state == inbox.WAITING and item.agent == own == USER and not keep:
        put_away(workspace, item.id, then=drafts)
    else:
        mail.publish(workspace, drafts)
    return drafts[0].message.id


def reply_drafts(
    workspace: Workspace, item: MailItem, body: Json, *, sender: str, type: str = TYPE, urgent: bool = False
) -> list[Draft]:
    """Make the answer to a message, in its thread; raise InvalidInput if its sender gets no mail."""
    try:
        to = workspace.team.recipient_of(item.sender)
    except QueueUnknown:
        raise InvalidInput(
            f"{item.sender or 'nobody'} sent {item.id} and gets no mail: end it without an answer, nobody would read it"
        ) from None
    return mail.compose(
        workspace,
        sender=sender,
        to=to,
        type=type,
        body=body,
        priority="critical" if urgent else "normal",
        thread_id=item.thread,
        in_reply_to=item.id,
        headers=subject_header("", item),
    )


def subject_header(subject: str, about: MailItem | None) -> dict[str, str] | None:
    """Return the header with the subject: the given one, or that of the message that is answered."""
    if not subject and about is not None:
        subject = about.subject if about.subject.startswith(_RE) else f"{_RE}{about.subject}"
    return {"Subject": subject} if subject else None


def put_away(workspace: Workspace, id: str, *, then: Sequence[Draft] = ()) -> MailItem:
    """Take a message out of the inbox of the person and publish answers; it stays in the archive.

    The answers come first: a crash in between leaves the message in the inbox. Raise MessageUnknown if it is not there.
    """
    stem = os.path.basename(id).removesuffix(".mime")
    for entry in workspace.queue(USER).entries(State.READY):
        message = entry.message
        if message is not None and (message.id == id or workspace.layout.stem(message) == stem):
            workspace.archive.add([item_of(USER, message)])
            mail.publish(workspace, then)
            workspace.store.purge(USER, State.READY, ids=[message.id], limit=1)
            return item_of(USER, message, state=str(State.DONE))
    raise workspace.not_held(id)


def note_end(workspace: Workspace, held: Held, *, done: bool = False, error: str = "") -> None:
    """Note in the history how a turn ended that its agent ended itself."""
    at = workspace.clock.now() if done else None
    outcome = "done" if done else ""
    fact = Fact(held.receipt.queue, held.receipt.id, held.attempt, done_at=at, outcome=outcome, error=error)
    with suppress(StoreError):
        workspace.memory.record([fact])
