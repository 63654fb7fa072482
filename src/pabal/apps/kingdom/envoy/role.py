"""The envoy as a process: sends notices, receives from Slack if there are tokens, and serves HTTP if set up."""

from __future__ import annotations

from contextlib import ExitStack, closing

from pabal.apps.kingdom.config import read_config
from pabal.apps.kingdom.documents import instant
from pabal.apps.kingdom.envoy.conversations import Conversations
from pabal.apps.kingdom.envoy.http import HttpServer
from pabal.apps.kingdom.envoy.inbound import Inbound
from pabal.apps.kingdom.envoy.outbound import Chat, Outbound
from pabal.apps.kingdom.envoy.questions import Question, Questions
from pabal.apps.kingdom.envoy.settings import FILE, QuestionSettings, Settings
from pabal.apps.kingdom.envoy.slack import SlackChat, SlackSocket, client
from pabal.apps.kingdom.errors import NotSent
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import MESSAGES
from pabal.apps.kingdom.roles import reclaim, role_lock, serve
from pabal.runtime.service import Task

INTERVAL = 60.0  # seconds


class SlackConnection:
    """A task that connects to Slack, until it succeeds once; from then on the SDK keeps the connection."""

    def __init__(self, home: Home, socket: SlackSocket) -> None:
        self._home = home
        self._socket = socket
        self._due = home.clock.boot()
        self._done = False
        self._problem = ""

    def step(self) -> None:
        if self._done or self._home.clock.boot() < self._due:
            return
        try:
            self._socket.connect()
            self._done = True
        except NotSent as exc:
            self._due = self._home.clock.boot() + exc.after
            if str(exc) != self._problem:
                self._problem = str(exc)
                self._home.journal.note("system.warning", "envoy", problem=str(exc))

    def next_due(self) -> float | None:
        return None if self._done else max(0.0, self._due - self._home.clock.boot())


def run(home: Home) -> None:
    """Run until stopped; leased notices that were not sent are released."""
    settings = read_config(home.root / FILE, Settings)
    with closing(role_lock(home, "envoy")), ExitStack() as stack:
        reclaim(home, MESSAGES)
        serve(home, "envoy", home.watch(MESSAGES), *tasks(home, settings, stack))


def tasks(home: Home, settings: Settings, stack: ExitStack) -> list[Task]:
    """Return the tasks of the envoy; `stack` closes what they need."""
    questions, conversations = Questions(home), Conversations(home)
    token = home.variables.get(settings.slack.bot_token_variable, "")
    app_token = home.variables.get(settings.slack.app_token_variable, "")
    web = client(token, settings.slack.api) if token else None
    chat = SlackChat(web) if web is not None else None
    outbound = Outbound(home, settings, chat, conversations, questions)
    stack.callback(outbound.close)
    found: list[Task] = [
        outbound,
        ClosedQuestions(home, questions, chat),
        Upkeep(home, settings.questions, questions, conversations),
    ]
    if web is not None and app_token:
        inbound = Inbound(home, conversations, questions, chat)
        socket = SlackSocket(app_token, web, inbound.take, inbound.press)
        stack.callback(socket.close)
        found.append(SlackConnection(home, socket))
    if settings.http.port:
        secret = home.variables.get(settings.http.token_variable, "")
        stack.enter_context(closing(HttpServer(settings.http, secret, questions)))
    return found


class ClosedQuestions:
    """A task that shows in the chat how questions stand, wherever they were answered or closed."""

    def __init__(self, home: Home, questions: Questions, chat: Chat | None) -> None:
        self._home = home
        self._questions = questions
        self._chat = chat
        self._seen = 0  # when the folder of questions changed last
        self._due = float("-inf")

    def step(self) -> None:
        changed = self._questions.changed()
        if self._chat is None or self._home.clock.boot() < self._due or changed == self._seen:
            return
        for question in self._questions.all():
            if question.state != question.shown and question.message_ts:
                try:
                    self._chat.show_question(question)
                except NotSent as exc:
                    if not exc.counts:  # Slack is away: again later
                        self._due = self._home.clock.boot() + exc.after
                        return
                self._questions.change(question.task_id, shown=question.state)
        self._seen = changed

    def next_due(self) -> float | None:
        rest = self._due - self._home.clock.boot()
        return rest if rest > 0 else None


class Upkeep:
    """A task that sends reminders of open questions, and forgets old conversations."""

    def __init__(
        self, home: Home, asking: QuestionSettings, questions: Questions, conversations: Conversations
    ) -> None:
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
        for question in self._questions.open() if self._asking.reminder_seconds else []:
            self._remind(question, int((now - instant(question.asked_at)) // self._asking.reminder_seconds))
        self._conversations.expire()

    def next_due(self) -> float:
        return max(0.0, self._due - self._home.clock.boot())

    def _remind(self, question: Question, times: int) -> None:
        if times > question.reminded:
            self._questions.notify(question, f"[question] still open: {question.text}", f"reminder-{times}")
            self._questions.change(question.task_id, reminded=times)
