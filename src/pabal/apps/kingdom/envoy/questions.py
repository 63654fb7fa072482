"""Questions to people: durable records in `state/questions/`, one for each task that asked.

A question is open until it is answered, expires, or is closed by a person who cancels or retries its task. The first
answer closes it, from any channel. The answer and the id of its event are saved before the event is published, so an
answer is never lost and never published twice. The King opens a question again if he cannot use its answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from pabal.apps.kingdom.documents import LONGEST_EXPIRY, Event, Notice, QuestionKind, instant, read, stamp
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import MESSAGES
from pabal.apps.needs import accepted_answer
from pabal.durable import make_dirs, translated
from pabal.errors import MessageUnknown, NameTaken
from pabal.filesystem import locked
from pabal.names import check_id
from pabal.runtime.state_file import DAMAGED, read_state, write_state

FOLDER = "state/questions"
QuestionState: TypeAlias = Literal["open", "answered", "expired", "closed"]


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a task. Times are ISO 8601; an empty time means never."""

    task_id: str
    text: str
    kind: QuestionKind = "text"
    options: list[str] = []
    asked_at: str = ""
    expires_at: str = ""
    state: QuestionState = "open"
    channel: str = ""
    thread_ts: str = ""
    message_ts: str = ""  # of the chat message with the question
    shown: str = "open"  # the state that this message shows
    reply_context: dict[str, Any] = {}
    reminded: int = 0
    answer: str = ""
    responder: str = ""
    via: str = ""
    said: str = ""  # the timestamp of the chat message that was the answer
    told: list[str] = []  # the people who answered later and were told
    answered_at: str = ""
    event_id: str = ""
    emitted: bool = False

    def __post_init__(self) -> None:
        for text in (self.asked_at, self.expires_at):
            if text:
                instant(text)

    def is_late(self, now: float) -> bool:
        return bool(self.expires_at) and instant(self.expires_at) <= now

    def accepted(self, text: str) -> str:
        """Return the answer that a text means; raise InvalidInput with the accepted answers."""
        return accepted_answer(self.kind, self.options, text)


class Questions:
    """The questions of a kingdom. Any number of processes and threads may use them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.root / FOLDER

    def all(self) -> list[Question]:
        """Return every readable question, the oldest first."""
        found = [question for path in self._folder.glob("*.json") if (question := self._read(path.stem))]
        return sorted(found, key=lambda question: (question.asked_at, question.task_id))

    def damaged(self) -> list[str]:
        """Return the names of the files that cannot be used."""
        names = (path.name for path in self._folder.glob("*.json"))
        return sorted(name for name in names if self._read(name.removesuffix(".json")) is None)

    def changed(self) -> int:
        """Return a number that changes whenever a question does."""
        try:
            return self._folder.stat().st_mtime_ns
        except OSError:
            return 0

    def open(self) -> list[Question]:
        return [question for question in self.all() if question.state == "open"]

    def find(self, task_id: str) -> Question:
        """Return the question of a task; raise MessageUnknown if there is none."""
        check_id(task_id)
        found = self._read(task_id)
        if found is None:
            raise MessageUnknown(f"{task_id} asked nothing; `pabal kingdom questions` lists what is open")
        return found

    def ask(self, question: Question) -> Question:
        """Save a question, unless it exists; return the saved one."""
        check_id(question.task_id)
        with self._locked():
            if (found := self._read(question.task_id)) is not None:
                return found
            self._write(question)
            return question

    def change(self, task_id: str, **fields: Any) -> Question:
        """Change fields of a question."""
        with self._locked():
            question = replace(self.find(task_id), **fields)
            self._write(question)
            return question

    def answer(self, task_id: str, text: str, *, responder: str, via: str, said: str = "") -> Question:
        """Close a question with an answer and publish its event; raise NameTaken if it is closed already."""
        with self._locked():
            question = self.find(task_id)
            self._check_open(question)
            now = self._home.clock.now()
            question = replace(
                question,
                state="answered",
                answer=question.accepted(text),
                responder=responder,
                via=via,
                said=said,
                answered_at=stamp(now),
                event_id=self._event_id(question, int(now)),
            )
            self._write(question)
        return self.emit(question)

    def answer_with_event(self, task_id: str, text: str, event_id: str, *, responder: str) -> Question:
        """Close a question with the answer of an event; the same event may come again.

        Raise NameTaken if another answer was first. A task without a recorded question gets one that is answered.
        """
        check_id(task_id)
        with self._locked():
            question = self._read(task_id) or Question(task_id=task_id, text="", asked_at=stamp(self._home.clock.now()))
            if question.state == "answered" and question.event_id == event_id:
                return question
            self._check_open(question)
            answered = stamp(self._home.clock.now())
            facts = {"answer": question.accepted(text), "responder": responder, "answered_at": answered}
            question = replace(question, state="answered", via="event", event_id=event_id, emitted=True, **facts)
            self._write(question)
            return question

    def reopen(self, task_id: str, event_id: str) -> None:
        """Open a question again whose answer, the one with this event, cannot be used."""
        check_id(task_id)
        with self._locked():
            question = self._read(task_id)
            if question is not None and question.state == "answered" and question.event_id == event_id:
                unanswered = dict.fromkeys(("answer", "responder", "via", "answered_at", "event_id"), "")
                self._write(replace(question, state="open", emitted=False, **unanswered))

    def close(self, task_id: str, person: str) -> Question:
        """Close an open question without an answer; return it, also if it was not open."""
        with self._locked():
            question = self.find(task_id)
            if question.state == "open":
                question = replace(
                    question, state="closed", responder=person, answered_at=stamp(self._home.clock.now())
                )
                self._write(question)
            return question

    def _event_id(self, question: Question, second: int) -> str:
        """Return the event id of an answer, with a suffix if another reply in the thread has the same second."""
        id = reply_id(question.thread_ts or question.task_id, second)
        known = {each.event_id for each in self.all()}
        ids = (id, f"{id}-{question.task_id}", *(f"{id}-{question.task_id}-{number}" for number in range(2, 1000)))
        return next(each for each in ids if each not in known and not self._home.was_seen(each))

    def emit(self, question: Question) -> Question:
        """Publish the event of an answer; repeated after a crash if necessary."""
        payload = {
            "text": question.answer,
            "channel": question.channel,
            "thread_ts": question.thread_ts,
            "user_id": question.responder,
            "via": question.via,
            "reply_context": {**question.reply_context, "task_id": question.task_id},
        }
        event = Event(id=question.event_id, type="slack.thread.reply", source="slack", payload=payload, priority="high")
        self._home.emit([event])
        done = self.change(question.task_id, emitted=True)
        self._home.journal.note("message.human_response", "envoy", task=question.task_id, via=question.via)
        return done

    def notify(self, question: Question, text: str, key: str) -> None:
        """Tell people something in the thread of a question, once for each `key`."""
        place = {"thread_ts": question.thread_ts, **({"channel": question.channel} if question.channel else {})}
        notice = self._home.notice("thread_update", text, task_id=question.task_id, **place)
        self._home.queue(MESSAGES).publish_many([self._home.draft(notice, key=f"{key}-{question.task_id}")])

    def expire(self, now: float) -> None:
        """Close the questions that have expired, and tell people."""
        for each in [each for each in self.open() if each.is_late(now)]:
            # Before it is closed: after a crash in between, it is told once all the same.
            self.notify(each, f"[question] ran out without an answer: {each.text}", "expired")
            self._expired(each.task_id)

    def _expired(self, task_id: str) -> None:
        with self._locked():
            question = self.find(task_id)
            if question.state == "open":
                self._write(replace(question, state="expired"))

    def _check_open(self, question: Question) -> None:
        if reason := self.why_closed(question):
            raise NameTaken(reason)

    def why_closed(self, question: Question) -> str:
        """Return why a question takes no answer; empty if it is open."""
        if question.state == "answered":
            responder = f"{question.responder} ({question.via})"
            return f"{question.task_id} was answered already, by {responder}: {question.answer!r:.80}"
        if question.state == "closed":
            return f"the question of {question.task_id} was closed by {question.responder}"
        if question.state == "expired" or question.is_late(self._home.clock.now()):
            return f"the question of {question.task_id} ran out at {question.expires_at}"
        return ""

    def _read(self, task_id: str) -> Question | None:
        try:
            found = read_state(self._folder / f"{task_id}.json", Question)
        except DAMAGED:
            return None
        return found if found.task_id == task_id and found.asked_at else None

    def _write(self, question: Question) -> None:
        write_state(self._folder / f"{question.task_id}.json", question)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as held:
            with translated("locking the questions"):
                make_dirs(self._folder)
                held.enter_context(locked(self._folder / ".lock"))
            yield


def question_of(home: Home, notice: Notice) -> Question:
    """Return the question in a notice; its expiry is the notice's own, else that of `config/envoy.yaml`."""
    context, now = notice.context, home.clock.now()
    asked = context.get("expire_seconds")
    expiry = asked if isinstance(asked, int | float) and asked > 0 else home.envoy.questions.expire_seconds
    expiry = min(expiry, LONGEST_EXPIRY)
    return read(
        Question,
        {
            "task_id": notice.task_id,
            "text": notice.content.removeprefix("[question]").strip(),
            "kind": context.get("kind") or "text",
            "options": context.get("options") or [],
            "asked_at": stamp(now),
            "expires_at": stamp(now + expiry) if expiry else "",
            "channel": notice.channel,
            "thread_ts": notice.thread_ts,
            "reply_context": notice.reply_context,
        },
    )


def reply_id(thread: str, second: int) -> str:
    """Return the id of a reply's event."""
    return f"evt-slack-reply-{thread.replace('.', '-')}-{second}"
