"""Keeps questions and conversations in order: reminders, expiry, answers whose event a crash left unmade."""

from __future__ import annotations

from pabal.kingdom.documents import instant
from pabal.kingdom.envoy.conversations import Conversations
from pabal.kingdom.envoy.questions import Question, Questions
from pabal.kingdom.envoy.settings import Asking
from pabal.kingdom.home import Home
from pabal.kingdom.layout import MESSAGES

INTERVAL = 60.0  # seconds


class Tending:
    """A task of the envoy's service."""

    def __init__(self, home: Home, asking: Asking, questions: Questions, conversations: Conversations) -> None:
        self._home = home
        self._asking = asking
        self._questions = questions
        self._conversations = conversations
        self._due = home.clock.boot()

    def step(self) -> None:
        if self.next_due() > 0:
            return
        self._due = self._home.clock.boot() + INTERVAL
        now = self._home.clock.now()
        for question in self._questions.all():
            if question.state == "answered" and not question.emitted:
                self._questions.emit(question)
        for question in self._questions.expire(now):
            self._tell(question, f"[question] ran out without an answer: {question.text}", "expired")
        for question in self._questions.open() if self._asking.reminder_seconds else []:
            self._remind(question, int((now - instant(question.asked_at)) // self._asking.reminder_seconds))
        self._conversations.expire()

    def next_due(self) -> float:
        return max(0.0, self._due - self._home.clock.boot())

    def _remind(self, question: Question, times: int) -> None:
        if times > question.reminded:
            self._tell(question, f"[question] still open: {question.text}", f"reminder-{times}")
            self._questions.change(question.task_id, reminded=times)

    def _tell(self, question: Question, text: str, what: str) -> None:
        place = {"thread_ts": question.thread_ts, **({"channel": question.channel} if question.channel else {})}
        notice = self._home.notice("thread_update", text, task_id=question.task_id, **place)
        self._home.queue(MESSAGES).publish_many([self._home.draft(notice, key=f"{what}-{question.task_id}")])
