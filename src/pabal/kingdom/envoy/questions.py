"""Questions to people: durable records in `state/questions/`, one for each task that asked.

A question is open until it is answered or runs out. Whoever answers first closes it, from wherever; what was said is
written down before it becomes an event, and the event's id with it: so an answer is never lost and never given twice.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from pabal import jsontext
from pabal.durable import make_dirs, read_plain, replace_whole, translated
from pabal.errors import InvalidInput, MessageUnknown, NameTaken
from pabal.kingdom.documents import Event, QuestionKind, instant, stamp
from pabal.kingdom.home import Home
from pabal.names import check_id

FOLDER = "state/questions"
LONGEST = 40_000  # characters of an answer
QuestionState: TypeAlias = Literal["open", "answered", "expired"]
_YES, _NO = frozenset({"yes", "y", "ok", "true", "1"}), frozenset({"no", "n", "false", "0"})


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a task wants to know. Times are ISO 8601; an empty one is never."""

    task_id: str
    text: str
    kind: QuestionKind = "text"
    options: list[str] = []
    asked_at: str = ""
    expires_at: str = ""
    state: QuestionState = "open"
    channel: str = ""
    thread_ts: str = ""
    reply_context: dict[str, Any] = {}
    reminded: int = 0
    answer: str = ""
    responder: str = ""
    via: str = ""
    said: str = ""  # the mark of the message that was the answer, where messages have one
    answered_at: str = ""
    event_id: str = ""
    emitted: bool = False

    def is_late(self, now: float) -> bool:
        return bool(self.expires_at) and instant(self.expires_at) <= now

    def accepted(self, text: str) -> str:
        """Return what a text means as an answer; raise InvalidInput that says what would do."""
        said = text.strip()
        if not said or len(said) > LONGEST:
            raise InvalidInput(f"an answer has 1 to {LONGEST} characters; found {len(said)}")
        if self.kind == "confirm":
            if said.lower() not in _YES | _NO:
                raise InvalidInput(f"answer yes or no; found {said!r:.60}")
            return "yes" if said.lower() in _YES else "no"
        if self.kind == "choose" and self.options:
            return self._chosen(said)
        return said

    def _chosen(self, said: str) -> str:
        for option in self.options:
            if said.lower() == option.lower():
                return option
        if said.isdecimal() and 1 <= int(said[:9]) <= len(self.options):
            return self.options[int(said[:9]) - 1]
        known = ", ".join(f"{number} {option}" for number, option in enumerate(self.options, 1))
        raise InvalidInput(f"answer with one of: {known}; found {said!r:.60}")


class Questions:
    """The questions of a kingdom. Any number of processes and threads may use them."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._folder = home.root / FOLDER

    def all(self) -> list[Question]:
        """Return every question that can be read, the oldest first."""
        found = [question for path in self._folder.glob("*.json") if (question := self._read(path.stem))]
        return sorted(found, key=lambda question: (question.asked_at, question.task_id))

    def open(self) -> list[Question]:
        return [question for question in self.all() if question.state == "open"]

    def find(self, task_id: str) -> Question:
        """Return one; raise MessageUnknown if there is none."""
        check_id(task_id)
        found = self._read(task_id)
        if found is None:
            raise MessageUnknown(f"{task_id} asked nothing; `pabal kingdom questions` lists what is open")
        return found

    def ask(self, question: Question) -> Question:
        """Write a question down, unless it is there already; return it as it stands."""
        check_id(question.task_id)
        with self._locked():
            if (found := self._read(question.task_id)) is not None:
                return found
            self._write(question)
            return question

    def change(self, task_id: str, **fields: Any) -> Question:
        """Change what is known of a question."""
        with self._locked():
            question = replace(self.find(task_id), **fields)
            self._write(question)
            return question

    def answer(self, task_id: str, text: str, *, responder: str, via: str, said: str = "") -> Question:
        """Close a question with an answer and let it become an event; raise NameTaken if it is closed already."""
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

    def _event_id(self, question: Question, second: int) -> str:
        """Return the id of an answer's event, with a suffix where another reply in this thread has the second."""
        id = reply_id(question.thread_ts or question.task_id, second)
        taken = (self._home.root / "state/sentinel/seen" / id).exists()
        return f"{id}-{question.task_id}" if taken or any(each.event_id == id for each in self.all()) else id

    def emit(self, question: Question) -> Question:
        """Make the event of an answer; done again for what a crash left undone."""
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

    def expire(self, now: float) -> list[Question]:
        """Close what has run out; return that."""
        late = [each for each in self.open() if each.is_late(now)]
        return [self._expired(each.task_id) for each in late]

    def _expired(self, task_id: str) -> Question:
        with self._locked():
            question = self.find(task_id)
            if question.state == "open":
                question = replace(question, state="expired")
                self._write(question)
            return question

    def _check_open(self, question: Question) -> None:
        if question.state == "answered":
            who = f"{question.responder} ({question.via})"
            raise NameTaken(f"{question.task_id} was answered already, by {who}: {question.answer!r:.80}")
        if question.state == "expired" or question.is_late(self._home.clock.now()):
            raise NameTaken(f"the question of {question.task_id} ran out at {question.expires_at}")

    def _read(self, task_id: str) -> Question | None:
        try:
            return msgspec.convert(jsontext.read(read_plain(self._folder / f"{task_id}.json")), Question)
        except (OSError, InvalidInput, msgspec.ValidationError):
            return None

    def _write(self, question: Question) -> None:
        document = msgspec.to_builtins(question)
        with translated(f"writing the question of {question.task_id}"):
            replace_whole(self._folder / f"{question.task_id}.json", jsontext.pretty(document))

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with translated("locking the questions"):
            make_dirs(self._folder)
            fd = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            os.close(fd)


def reply_id(thread: str, second: int) -> str:
    """Return the id of the event that a reply becomes."""
    return f"evt-slack-reply-{thread.replace('.', '-')}-{second}"
