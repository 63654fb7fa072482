"""The envoy as a process: speaks what is to be said, listens to Slack if there are tokens, answers HTTP if asked to."""

from __future__ import annotations

from contextlib import ExitStack, closing

from pabal.errors import NotSent
from pabal.kingdom.envoy.conversations import Conversations
from pabal.kingdom.envoy.http import HttpDoor
from pabal.kingdom.envoy.inbound import Inbound
from pabal.kingdom.envoy.outbound import Outbound
from pabal.kingdom.envoy.questions import Questions
from pabal.kingdom.envoy.settings import Settings, read_settings
from pabal.kingdom.envoy.slack import SlackChat, SlackSocket, client
from pabal.kingdom.envoy.tending import Tending
from pabal.kingdom.home import Home
from pabal.kingdom.layout import MESSAGES
from pabal.kingdom.reclaiming import reclaim
from pabal.kingdom.serving import role_lock, serve
from pabal.runtime.service import Task


class Listening:
    """A task that connects to Slack, and again until it succeeds; from then on the SDK keeps the connection."""

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
    """Serve until told to stop; what is in hand and not said is given back."""
    settings = read_settings(home.root)
    with closing(role_lock(home, "envoy")), ExitStack() as stack:
        reclaim(home, MESSAGES)
        serve(home, "envoy", home.watch(MESSAGES), *tasks(home, settings, stack))


def tasks(home: Home, settings: Settings, stack: ExitStack) -> list[Task]:
    """Return what an envoy does; `stack` closes what that needs."""
    questions, conversations = Questions(home), Conversations(home)
    token = home.variables.get(settings.slack.bot_token_variable, "")
    app_token = home.variables.get(settings.slack.app_token_variable, "")
    web = client(token, settings.slack.api) if token else None
    chat = SlackChat(web) if web is not None else None
    outbound = Outbound(home, settings, chat, conversations, questions)
    stack.callback(outbound.close)
    found: list[Task] = [outbound, Tending(home, settings.questions, questions, conversations)]
    if web is not None and app_token:
        inbound = Inbound(home, conversations, questions, chat)
        socket = SlackSocket(app_token, web, inbound.take)
        stack.callback(socket.close)
        found.append(Listening(home, socket))
    if settings.http.port:
        secret = home.variables.get(settings.http.token_variable, "")
        stack.enter_context(closing(HttpDoor(settings.http, secret, questions)))
    return found
