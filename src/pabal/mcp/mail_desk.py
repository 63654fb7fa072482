"""The desk of an agent of a team: its mail in an IGNITE workspace.

The monitor of the team gives out mail, one message at a time for each agent, and decides when an agent counts as lost.
So this desk leases nothing: `receive` waits until the agent holds a message, and every call is a sign of life.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from pabal import jsontext
from pabal.apps.ignite import inbox, mail
from pabal.apps.ignite.archive import MailItem, item_of
from pabal.apps.ignite.conversation import TYPE as MESSAGE
from pabal.apps.ignite.conversation import note_end, reply_drafts, subject_header
from pabal.apps.ignite.health import LOCK, report_of
from pabal.apps.ignite.memory import Fact
from pabal.apps.ignite.questions import Question, Questions
from pabal.apps.ignite.readers import beat, delivered, wait_for_mail
from pabal.apps.ignite.team import FILE, USER
from pabal.apps.ignite.turns import give_back
from pabal.apps.ignite.workspace import STATE, Held, Workspace
from pabal.clock import Clock, iso_stamp
from pabal.codecs import yaml
from pabal.errors import (
    InvalidConfig,
    InvalidInput,
    InvalidReceipt,
    PabalError,
    StoreClosed,
    StoreError,
    StoreFailed,
)
from pabal.mcp.desk import (
    REPEATED,
    body_fields,
    check_offset,
    check_question,
    extension,
    failure_text,
    message_document,
    waiting_time,
)
from pabal.mcp.leases import Call, Leases
from pabal.mcp.tools import (
    MAIL_TOOLS,
    MOST_SHOWN,
    AckMail,
    Arguments,
    AskHuman,
    Document,
    Extend,
    Fail,
    LookAtMail,
    ReceiveMail,
    SendMail,
    Status,
    Tool,
)
from pabal.names import shown_name
from pabal.queues.verdicts import lost_leases
from pabal.runtime.role_lock import holder
from pabal.store import FailureCode, Outcome, Receipt

_SLOW_POLL = 1.0  # seconds


class MailDesk:
    """Serves the tools on the mail of one agent. The workspace is opened at the first call, and again if it failed."""

    tools: Sequence[Tool] = MAIL_TOOLS

    def __init__(self, root: Path, agent: str, *, clock: Clock | None = None) -> None:
        self._root = root
        self._name = agent
        self._clock = clock
        self._lock = threading.Lock()
        self._workspace: Workspace | None = None
        self._team_file: tuple[int, int] = (0, 0)
        self._mistake = ""  # in the team file that was written since
        self._beats = Leases(self._beat_for, hold=0.0)  # only what `extend` asks for
        self._handing = threading.Lock()
        self._shown: set[Receipt] = set()  # what the last `receive` found in hand
        self._tools: Mapping[str, Callable[[Any, Call], Document]] = {
            "send": self._send,
            "receive": self._receive,
            "ack": self._ack,
            "fail": self._fail,
            "extend": self._extend,
            "look": self._look,
            "ask_human": self._ask_human,
            "status": self._status,
        }

    def serve(self, name: str, arguments: Arguments, call: Call) -> Document:
        workspace, agent = self._open()
        try:
            beat(workspace, agent)
            found = self._tools[name](arguments, call)
            # A busy agent gets no other mail, and should know that it is told to stop.
            waiting = [_glance(item) for item in inbox.urgent(workspace, agent)]
            return found | {"critical_mail_waits": waiting} if waiting else found
        except (StoreFailed, StoreClosed):
            self._forget(workspace)
            raise

    def release(self) -> None:
        """Leave mail in hand: the monitor gives it out again if nobody goes on with it."""

    def close(self, *, release: bool = True) -> None:
        self._beats.clear()
        if self._workspace is not None:
            self._forget(self._workspace)

    def _open(self) -> tuple[Workspace, str]:
        """Return the workspace with the team file of now, and the name of the agent."""
        with self._lock:
            path = self._root / FILE
            found = path.stat() if path.exists() else None
            version = (found.st_ino, found.st_mtime_ns) if found is not None else (0, 0)
            if self._workspace is None:
                self._workspace = Workspace.open(self._root, clock=self._clock)
                self._mistake = ""
            elif version != self._team_file:
                try:
                    self._workspace.reload()
                    self._mistake = ""
                except InvalidConfig as exc:  # the agent goes on with the team that it knows, as the monitor does
                    self._mistake = str(exc)
            self._team_file = version
            return self._workspace, self._workspace.team.name_of(self._name)

    def _forget(self, failed: Workspace) -> None:
        """Close a workspace that failed. One that another call has opened since then stays."""
        with self._lock:
            if self._workspace is failed:
                self._workspace = None
        with suppress(PabalError):
            failed.close()

    # Send and receive

    def _send(self, given: SendMail, call: Call) -> Document:
        workspace, agent = self._open()
        id = f"mcp-{sha256(f'{agent}/{given.dedup_key}'.encode()).hexdigest()[:32]}" if given.dedup_key else ""
        about = inbox.find(workspace, given.reply_to, own=agent) if given.reply_to else None
        published = mail.send(
            workspace,
            sender=agent,
            to=given.to,
            type=given.type or MESSAGE,
            body=_body(given.type, given.body),
            thread_id=given.thread_id or (about.thread if about is not None else ""),
            in_reply_to=about.id if about is not None else "",
            headers=subject_header(given.subject, about),
            priority=given.priority,
            delay=given.delay,
            id=id,
        )
        return {"ids": [each.id for each in published], "duplicate": all(each.duplicate for each in published)}

    def _receive(self, given: ReceiveMail, call: Call) -> Document:
        wait = waiting_time(given.wait)
        workspace, agent = self._open()
        held = self._known(workspace, agent)
        if not held:
            held = wait_for_mail(workspace, agent, wait, own=True, began=lambda watch: call.waits(watch.stop))
            # The agent was told by this call alone, so that nobody knows of it if the call is cancelled.
            call.took(partial(self._give_back, workspace, held))
        if not held:
            return {"messages": [], "note": self._why_nothing(workspace, wait)}
        now = workspace.clock.now()
        with suppress(StoreError):
            workspace.memory.record([Fact(agent, one.receipt.id, one.attempt, read_at=now) for one in held])
        return {"messages": [self._held(workspace, one) for one in held]}

    def _held(self, workspace: Workspace, held: Held) -> Document:
        item = item_of(held.receipt.queue, held.message)
        found = {"receipt": str(held.receipt), **message_document(held.message), "attempt": held.attempt}
        found |= {"from": shown_name(held.message.sender)} if held.message.sender else {}
        found |= {
            "subject": item.subject,
            "to": list(map(shown_name, item.to)),
            "thread_id": item.thread,
            "path": held.path,
        }
        if item.in_reply_to:
            found["in_reply_to"] = item.in_reply_to
        failure = workspace.mail.last_failure(held.receipt)
        if failure is not None and held.attempt > 1:
            found["failed_before"] = failure_text(failure)
        return found

    def _known(self, workspace: Workspace, agent: str) -> list[Held]:
        """Return what the agent has in hand already; from now on it knows of it, whatever call is cancelled."""
        with self._handing:
            held = delivered(workspace, agent)
            self._shown = {each.receipt for each in held}
        return held

    def _give_back(self, workspace: Workspace, held: Sequence[Held]) -> None:
        """Let the monitor give messages out again, without counting the attempt, unless another call returned them."""
        with self._handing, suppress(PabalError):  # if it fails, the agent is told again after `limits.turn`
            for each in [each for each in held if each.receipt not in self._shown]:
                give_back(workspace, workspace.delivery(each), each.path, "the call that received it was cancelled")

    def _why_nothing(self, workspace: Workspace, wait: float) -> str:
        if holder(workspace.root / STATE / LOCK) is None:
            start = f"pabal ignite up --root {workspace.root}"
            return f"nobody serves this workspace, so no mail is given out: ask a person to start `{start}`"
        return f"no mail came in {wait:g} seconds; call receive again to go on waiting"

    # Settle

    def _ack(self, given: AckMail, call: Call) -> Document:
        workspace, agent = self._open()
        receipt = self._own(given.receipt, agent)
        held = self._find_held(workspace, receipt)
        if held is None:
            workspace.queue(agent).ack(receipt)  # a repetition, or the lease is lost
            return {"done": receipt.id} | ({"note": REPEATED} if given.reply is not None else {})
        if given.reply is None:
            drafts = []
        elif (questions := Questions(workspace)).has(receipt.id):
            questions.answer(receipt.id, _text(given.reply), responder=agent)  # which ends the mail with the question
            return {"done": receipt.id}
        else:
            item, type = item_of(agent, held.message), given.type or MESSAGE
            drafts = reply_drafts(workspace, item, _body(given.type, given.reply), sender=agent, type=type)
        with mail.limit_explained(workspace, drafts):
            workspace.delivery(held).ack(then=drafts)
        self._beats.drop(receipt)
        note_end(workspace, held, done=True)
        return {"done": receipt.id} | ({"reply_ids": [draft.message.id for draft in drafts]} if drafts else {})

    def _fail(self, given: Fail, call: Call) -> Document:
        workspace, agent = self._open()
        receipt = self._own(given.receipt, agent)
        held = self._find_held(workspace, receipt)
        if held is None:
            queue = workspace.queue(agent)
            queue.bury(receipt, given.reason) if given.final else queue.nack(receipt, given.retry_in, given.reason)
        else:
            delivery = workspace.delivery(held)
            delivery.fail(FailureCode.NACKED, given.reason, delay=given.retry_in, final=given.final)
            self._beats.drop(receipt)
            note_end(workspace, held, error=given.reason)
        entry = workspace.store.find(agent, receipt.id)
        return {"id": receipt.id, "state": str(entry.state) if entry is not None else "dropped"}

    def _extend(self, given: Extend, call: Call) -> Document:
        workspace, agent = self._open()
        receipt = self._own(given.receipt, agent)
        seconds = extension(given.seconds)
        if self._find_held(workspace, receipt) is None:
            raise lost_leases([receipt])
        # The sign of life of this call is enough for `limits.turn`; further ones come from this process while it lives.
        self._beats.add(receipt, workspace.team.limits.turn, hold=seconds)
        return {"id": receipt.id, "seconds": seconds}

    def _beat_for(self, receipts: Sequence[Receipt], seconds: float) -> list[Outcome]:
        workspace, agent = self._open()
        found = [self._find_held(workspace, receipt) for receipt in receipts]
        if any(found):
            beat(workspace, agent)
        return [Outcome.LOST if held is None else Outcome.APPLIED for held in found]

    def _own(self, text: str, agent: str) -> Receipt:
        receipt = Receipt.parse(text)
        if receipt.queue != agent:
            raise InvalidReceipt(f"this is a receipt of {receipt.queue}, and you are {agent}")
        return receipt

    def _find_held(self, workspace: Workspace, receipt: Receipt) -> Held | None:
        return next((held for held in workspace.held(receipt.queue) if held.receipt == receipt), None)

    # Look

    def _look(self, given: LookAtMail, call: Call) -> Document:
        check_offset(given.offset)
        workspace, agent = self._open()
        if given.id:
            return {"messages": [_whole(inbox.find(workspace, given.id, own=agent), given.offset)]}
        name = workspace.team.recipient_of(given.agent) if given.agent else ""
        if given.thread:
            found = [item for item in inbox.thread(workspace, given.thread) if not name or name in item.to]
        elif given.search:
            found = inbox.search(workspace, given.search, to=name, limit=MOST_SHOWN)
        else:
            found = inbox.inbox(workspace, name or agent, limit=MOST_SHOWN)
        return {"messages": [_glance(item) for item in found[-MOST_SHOWN:]]}

    def _status(self, given: Status, call: Call) -> Document:
        workspace, agent = self._open()
        report = report_of(workspace)
        rows = []
        for load in report.loads:
            known = report.presences.get(load.name)
            counts = {name: count for name in _COUNTED if (count := getattr(load, name))}
            rows.append(
                {"agent": shown_name(load.name), "is": known.presence if known is not None else "unknown", **counts}
            )
        found: Document = {
            "place": str(workspace.root),
            "agent": shown_name(agent),
            "held": [str(held.receipt) for held in delivered(workspace, agent)],
            "team": rows,
        }
        if report.monitor is None:
            found["note"] = self._why_nothing(workspace, 0.0)
        return found | ({"mistake": self._mistake} if self._mistake else {})

    # Questions for people

    def _ask_human(self, given: AskHuman, call: Call) -> Document:
        wait = waiting_time(given.wait)
        check_question(given)
        workspace, agent = self._open()
        questions = Questions(workspace)
        if given.question:
            asked = questions.ask(asker=agent, to=USER, text=given.question, options=given.options)
        else:
            asked = questions.find(given.question_id)
            if asked.asker != agent:
                raise InvalidInput(f"{asked.id} is a question of {shown_name(asked.asker)}, who gets its answer")
        asked = self._answer(questions, asked.id, wait, call)
        found: Document = {"question_id": asked.id, "answered": asked.state == "answered"}
        if asked.state == "answered":
            return found | {"answer": asked.answer, "by": shown_name(asked.responder)}
        if asked.state == "expired":
            return found | {"note": "nobody answered in time, and nobody will"}
        return found | {"note": "no answer yet: it arrives as mail, or call ask_human with this question_id"}

    def _answer(self, questions: Questions, id: str, wait: float, call: Call) -> Question:
        """Wait for the answer of a question, in short steps, so that the call can be cancelled.

        The answer of a cancelled call arrives as mail.
        """
        stopped = threading.Event()
        call.waits(stopped.set)
        end = time.monotonic() + wait
        while True:
            left = end - time.monotonic()
            question = questions.wait(id, max(0.0, min(left, _SLOW_POLL)), stopped=stopped.is_set)
            if question.state == "answered":
                call.took(lambda: questions.give_back(id))
            if question.state != "open" or left <= 0 or stopped.is_set():
                return question


_COUNTED = ("ready", "delayed", "inflight", "dead")


def _body(type: str, body: str | dict[str, Any]) -> Any:
    """Return the body of mail as the agent gave it: an object, the YAML text of one, or free text."""
    if not isinstance(body, str):
        return body
    return yaml.read(body.encode()) if type and type != MESSAGE else {"text": body}


def _text(reply: str | dict[str, Any]) -> str:
    return reply if isinstance(reply, str) else jsontext.encode(reply).decode()


def _glance(item: MailItem) -> Document:
    """Return mail in one line of a list."""
    found: Document = {
        "id": item.id,
        "state": item.state,
        "from": shown_name(item.sender),
        "to": list(map(shown_name, item.to)),
        "type": item.type,
        "thread": item.thread,
        "subject": item.subject,
        "priority": item.priority,
        "sent": iso_stamp(item.at, timespec="seconds"),
    }
    return {name: value for name, value in found.items() if value}


def _whole(item: MailItem, offset: int) -> Document:
    return _glance(item) | body_fields(item.body, offset=offset)
