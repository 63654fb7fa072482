"""Questions to a person or an agent: durable records in `state/questions/`, one file for each question.

A question whose answer has arrived moves to `closed/`, so that looking for open ones stays quick.

A question is open until it is answered or expires; the first answer counts. Asking again with the same id joins the
question that is there. An agent also gets the question as mail, which wakes it; a person finds it in `needs-you`.

A process that waits for the answer holds a lock of the question. An answer that no process waits for, or whose waiter
died before it took it, is sent to the asker as mail. So no answer is lost, and the asker need not wait.
"""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from pabal.apps.ignite import mail
from pabal.apps.ignite.mail_store import over_limit
from pabal.apps.ignite.team import USER
from pabal.apps.ignite.workspace import STATE, Workspace
from pabal.apps.needs import accepted_answer
from pabal.codecs.mime.addresses import fixed_id
from pabal.durable import make_dirs, translated
from pabal.errors import InvalidInput, LeaseLost, MessageUnknown, NameTaken, PabalError, QueueUnknown, StoreError
from pabal.filesystem import locked
from pabal.message import PRIORITIES
from pabal.names import check_id, is_id
from pabal.runtime.state_file import DAMAGED, read_state, write_state
from pabal.store import Draft, State, Terms
from pabal.watch import MOVED_TO, PathWatch

log = logging.getLogger("pabal.ignite")

FOLDER = f"{STATE}/questions"
_CLOSED = "closed"
LONGEST = 20_000  # characters of a question
_QUOTED = 1000  # characters of the question that its answer repeats
_SLOW_POLL = 1.0  # seconds
Kind: TypeAlias = Literal["text", "choose", "confirm"]


class Question(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A question and its answer. `taken` is whether the asker has the answer."""

    id: str
    asker: str
    to: str
    text: str
    kind: Kind = "text"
    options: tuple[str, ...] = ()
    urgent: bool = False
    asked_at: float = 0.0
    expires_at: float | None = None
    state: Literal["open", "answered", "expired"] = "open"
    answer: str = ""
    responder: str = ""
    answered_at: float | None = None
    taken: bool = False


class Questions:
    """The questions of a workspace. Any number of processes may use them."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._folder = workspace.root / FOLDER

    def all(self, *, closed: bool = True) -> list[Question]:
        """Return every readable question, the oldest first; or only those whose answer has not arrived."""
        paths = [*self._folder.glob("*.json"), *((self._folder / _CLOSED).glob("*.json") if closed else ())]
        found = {path.stem: question for path in paths if (question := _read(path))}
        return sorted(found.values(), key=lambda question: (question.asked_at, question.id))

    def open(self, to: str = "") -> list[Question]:
        """Return the questions that wait for an answer; of one agent or person, or of all."""
        now, found = self._workspace.clock.now(), self.all(closed=False)
        return [each for each in found if each.state == "open" and not _late(each, now) and (not to or each.to == to)]

    def find(self, id: str) -> Question:
        """Return a question; raise MessageUnknown if there is none."""
        found = self._read(check_id(id))
        if found is None:
            raise MessageUnknown(f"no question {id!r:.80}; `pabal needs-you` lists those for you")
        return found

    def has(self, id: str) -> bool:
        """Return whether this is the id of a question."""
        return is_id(id) and self._read(id) is not None

    def ask(
        self,
        *,
        asker: str,
        to: str,
        text: str,
        options: Sequence[str] = (),
        confirm: bool = False,
        urgent: bool = False,
        ttl: float = 0.0,
        id: str = "",
    ) -> Question:
        """Store a question and give it to the agent or the person; or join the one that has this id.

        Raise NameTaken if that one asks something else.
        """
        workspace = self._workspace
        team = workspace.team
        fresh, at = workspace.fresh()
        if not text.strip() or len(text) > LONGEST:
            raise InvalidInput(f"a question has 1 to {LONGEST} characters; found {len(text.strip())}")
        if confirm and options:
            raise InvalidInput("a question is to confirm, or to choose among options: give one of both")
        wanted = Question(
            id=check_id(id or fresh),
            asker=team.recipient_of(asker),
            to=team.recipient_of(to),
            text=text.strip(),
            kind="confirm" if confirm else "choose" if options else "text",
            options=tuple(options),
            urgent=urgent,
            asked_at=at,
            expires_at=at + ttl if ttl else None,
        )
        drafts = self._mail_with(wanted)  # before it is stored: what cannot be mailed is not asked
        with self._locked():
            found = self._read(wanted.id)
            if found is None:
                self._write(wanted)
            elif (found.asker, found.to, found.text, found.options) != (
                *(wanted.asker, wanted.to, wanted.text, wanted.options),
            ):
                raise NameTaken(f"{wanted.id} is the id of another question, of {found.asker}: {found.text!r:.60}")
        if found is not None and found.state != "open":
            return found
        try:
            mail.publish(workspace, drafts)
        except PabalError:
            if found is None:  # the asker learns that nothing was asked
                self._place(wanted).unlink(missing_ok=True)
            raise
        return found or wanted

    def _mail_with(self, question: Question) -> list[Draft]:
        """Return the mail that wakes an agent with a question. The person is notified by the monitor."""
        if question.to == USER:
            return []
        return mail.compose(
            self._workspace,
            sender=question.asker,
            to=question.to,
            type="question",
            body={"text": question.text, "kind": question.kind, "options": list(question.options)},
            priority="critical" if question.urgent else "normal",
            id=question.id,
        )

    def answer(self, id: str, text: str, *, responder: str) -> Question:
        """Close a question with an answer, which its asker gets; raise NameTaken if it is closed already.

        An agent answers only what it was asked; the person may answer every question.
        """
        with self._locked():
            question = self.find(id)
            now = self._workspace.clock.now()
            if responder not in (question.to, USER):
                raise InvalidInput(f"{id} is a question to {question.to}, and {responder} cannot answer it")
            if question.state == "answered":
                raise NameTaken(f"{id} was answered already, by {question.responder}: {question.answer!r:.80}")
            if question.state == "expired" or _late(question, now):
                raise NameTaken(f"the question {id} has expired")
            question = replace(
                question,
                state="answered",
                answer=accepted_answer(question.kind, question.options, text),
                responder=responder,
                answered_at=now,
            )
            self._check_size(question)
            self._write(question)
        try:
            return self._settle(question)
        except StoreError as exc:
            about = {"id": id, "error": str(exc)}
            log.warning("the answer to %(id)s is stored, and the monitor sends it later: %(error)s", about)
            return question

    def _check_size(self, question: Question) -> None:
        """Refuse an answer that would be too large for the asker as mail."""
        workspace, limit = self._workspace, self._workspace.team.limits.bytes
        for draft in self._mail_of(question):
            size = len(workspace.layout.codec.encode(draft.message, queue=draft.queue))
            if size > limit:
                raise over_limit(limit, size)

    def _settle(self, question: Question) -> Question:
        """Do what follows an answer: end the mail with the question, and let the asker know. Repeating it is safe."""
        self._withdraw(question)
        return self._deliver(question)

    def _withdraw(self, question: Question) -> None:
        """Take the mail with a question from its agent: it is answered, or has expired."""
        if question.to == USER or question.to not in self._workspace.team.agents:
            return
        for state in (State.READY, State.DELAYED):
            self._workspace.store.purge(question.to, state, ids=[question.id], limit=1)
        for held in self._workspace.held(question.to):
            if held.message.id == question.id:
                with suppress(LeaseLost):
                    self._workspace.delivery(held).ack()

    def wait(self, id: str, seconds: float, *, stopped: Callable[[], bool] = lambda: False) -> Question:
        """Wait for the answer of a question; return the question as it is then, which may be open.

        A reader that is `stopped` takes no answer: it is sent as mail.
        """
        end = time.monotonic() + seconds
        make_dirs(self._folder)
        with self._waiting(id), closing(PathWatch({str(self._folder): MOVED_TO})) as watch:
            while True:
                question = self.find(id)
                late = question.state == "open" and _late(question, self._workspace.clock.now())
                left = end - time.monotonic()
                if question.state != "open" or late or left <= 0:
                    break
                watch.wait(min(left, _SLOW_POLL))
            if late:
                question = self._expire(question)
            if question.state == "answered" and not question.taken and not stopped():
                question = self._change(question.id, taken=True)
        return self._settle(question) if late else question

    def give_back(self, id: str) -> None:
        """Let an answer that was taken be sent as mail: its reader did not get it."""
        with self._locked():
            question = self.find(id)
            if question.taken and question.state == "answered":
                self._write(replace(question, taken=False))
                (self._folder / _CLOSED / f"{id}.json").unlink(missing_ok=True)

    def sweep(self) -> None:
        """Close questions that have expired, and send answers that nobody took."""
        now = self._workspace.clock.now()
        for question in self.all(closed=False):
            if question.state == "open" and not _late(question, now):
                continue
            try:
                self._settle(self._expire(question) if question.state == "open" else question)
            except StoreError:
                raise
            except PabalError as exc:  # it holds up no other question
                about = {"id": question.id, "to": question.asker, "code": exc.code, "error": str(exc)}
                log.warning("the answer to %(id)s cannot be sent to %(to)s: %(code)s: %(error)s", about)

    def forget(self, before: float) -> None:
        """Remove closed questions that were asked before this instant."""
        for question in self.all():
            if question.taken and question.asked_at < before:
                self._place(question).unlink(missing_ok=True)

    def _expire(self, question: Question) -> Question:
        with self._locked():
            found = self.find(question.id)
            if found.state == "open":
                found = replace(found, state="expired")
                self._write(found)
        return found

    def _deliver(self, question: Question) -> Question:
        """Send the answer as mail, unless a process waits for it."""
        if self._is_awaited(question.id):
            return question
        question = self.find(question.id)  # whoever waited for it has noted that before it let go of its lock
        if not question.taken:
            # However many messages wait for the asker: the answer must not be lost.
            drafts = [replace(draft, terms=Terms()) for draft in self._mail_of(question)]
            self._workspace.store.publish(drafts)
        return self._change(question.id, taken=True)  # also if a crash kept it from moving to the closed ones

    def _mail_of(self, question: Question) -> list[Draft]:
        """Return the answer of a question as mail; none if its asker has left the team."""
        team = self._workspace.team
        if question.asker not in team.recipients:
            return []
        expired = question.state == "expired"
        text = question.text if len(question.text) <= _QUOTED else f"{question.text[: _QUOTED - 1]}…"
        try:
            sender = team.sender_of(question.responder) if not expired else USER
        except QueueUnknown:
            sender = USER  # the responder has left the team
        return mail.compose(
            self._workspace,
            sender=sender,
            to=question.asker,
            type="answer",
            body={"question": text, "text": question.answer, "expired": expired},
            priority=PRIORITIES["critical"] if question.urgent else PRIORITIES["high"],
            in_reply_to=question.id,
            thread_id=question.id,
            id=fixed_id(f"answer/{question.id}"),
        )

    # Files

    def _change(self, id: str, *, taken: bool) -> Question:
        with self._locked():
            question = replace(self.find(id), taken=taken)
            self._write(question)
            return question

    def _read(self, id: str) -> Question | None:
        return _read(self._folder / _CLOSED / f"{id}.json") or _read(self._folder / f"{id}.json")

    def _write(self, question: Question) -> None:
        write_state(self._place(question), question)
        if question.taken:
            for path in (self._folder / f"{question.id}.json", self._lock_of(question.id)):
                path.unlink(missing_ok=True)

    def _place(self, question: Question) -> Path:
        return (self._folder / _CLOSED if question.taken else self._folder) / f"{question.id}.json"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as held:
            with translated("locking the questions"):
                make_dirs(self._folder)
                held.enter_context(locked(self._folder / ".lock"))
            yield

    @contextmanager
    def _waiting(self, id: str) -> Iterator[None]:
        """Hold the lock that says that a process waits for the answer; several may."""
        fd = os.open(self._lock_of(id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_SH)
            yield
        finally:
            os.close(fd)

    def _is_awaited(self, id: str) -> bool:
        try:
            fd = os.open(self._lock_of(id), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _lock_of(self, id: str) -> Path:
        return self._folder / f".{id}.wait"


def _read(path: Path) -> Question | None:
    try:
        return read_state(path, Question)
    except DAMAGED:
        return None


def _late(question: Question, now: float) -> bool:
    return question.expires_at is not None and question.expires_at <= now
