"""Notices to people: sent in order, strictly so within a task, each acknowledged after it was sent.

An envoy that is killed between sending and acknowledging sends the notice again. A notice that Slack refuses is tried
three times and then moved to `failed/`. All notices wait while Slack cannot be reached, its rate limit is used up, it
refuses the tokens, or the app is not in the default channel; `state/envoy/problem.json` has the reason.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol

import msgspec

from pabal.apps.kingdom.documents import LONGEST_EXPIRY, Notice, read, stamp
from pabal.apps.kingdom.envoy.blocks import answer_hint
from pabal.apps.kingdom.envoy.conversations import Conversation, Conversations, Thread
from pabal.apps.kingdom.envoy.questions import Question, Questions, question_of
from pabal.apps.kingdom.envoy.settings import Settings
from pabal.apps.kingdom.errors import NotSent
from pabal.apps.kingdom.home import Home
from pabal.apps.kingdom.layout import MESSAGES
from pabal.errors import InvalidInput, LeaseLost
from pabal.queues.delivery import Delivery
from pabal.runtime.state_file import StateFile
from pabal.store import FailureCode

BATCH = 20
TRIES = 3  # refusals for the same reason; a crash of the envoy does not count
_MOST = 10  # attempts after which any refusal is the last
_PAUSES = (5.0, 30.0)  # seconds before the second and the third try
_REACTIONS = {"success": "white_check_mark", "failed": "x", "killed": "x", "skipped": "fast_forward"}
_FINAL_MARKS = ("✅", "❌", "⏭️")  # a notice that begins so is the last one of its thread
RECEIVED = "eyes"
PROBLEM = "state/envoy/problem.json"
_SET_UP = 30.0  # seconds until the default channel is tried again


class Problem(msgspec.Struct, frozen=True):
    """Why no notice can be sent."""

    reason: str = ""


class Posted(NamedTuple):
    """Where a message is: the id of its channel, which may have been addressed by name, and its timestamp."""

    channel: str
    ts: str


class Chat(Protocol):
    """A chat with channels, threads and reactions. Its methods raise NotSent."""

    def post(self, channel: str, text: str, thread_ts: str = "", question: Question | None = None) -> Posted:
        """Post a text to a channel, by id or name, in a thread if one is given. A question may get buttons."""
        ...

    def show_question(self, question: Question) -> None:
        """Show how a question stands where it was posted."""
        ...

    def react(self, channel: str, message_ts: str, name: str, *, instead_of: str = "") -> None:
        """Add a reaction to a message, and remove another one."""
        ...


class Outbound:
    """A task of the envoy's service."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        chat: Chat | None,
        conversations: Conversations,
        questions: Questions,
    ) -> None:
        self._home = home
        self._settings = settings
        self._chat = chat
        self._conversations = conversations
        self._questions = questions
        self._held: deque[Delivery] = deque()
        self._more = False  # only one notice of a task is leased at a time
        self._until = float("-inf")
        self._extended = 0.0
        self._problem = StateFile(home.root / PROBLEM, Problem)

    def step(self) -> None:
        self._extend()
        if self._home.clock.boot() < self._until:
            return
        if not self._held:
            self._extended = self._home.clock.boot()
            self._held.extend(self._home.queue(MESSAGES).lease(BATCH, visibility=self._home.config.lease_seconds))
            self._more = bool(self._held)
        if self._held:
            self._send(self._held[0])

    def next_due(self) -> float:
        rest = self._until - self._home.clock.boot()
        if rest > 0:
            return min(rest, self._home.config.lease_seconds / 4)
        return 0.0 if self._held or self._more else self._settings.interval_seconds

    def close(self) -> None:
        """Release the notices that were not sent."""
        while self._held:
            with suppress(LeaseLost):
                self._held.popleft().release()

    def _extend(self) -> None:
        """Extend the leases in time; drop notices whose lease was lost."""
        seconds = self._home.config.lease_seconds
        if self._held and self._home.clock.boot() - self._extended >= seconds / 3:
            self._extended = self._home.clock.boot()
            for delivery in list(self._held):
                try:
                    delivery.extend(seconds)
                except LeaseLost:
                    self._held.remove(delivery)

    def _send(self, delivery: Delivery) -> None:
        try:
            notice = read(Notice, delivery.message.body)
            self._deliver(notice)
            self._set_problem("")
            self._settle(delivery.ack)
            if notice.content.startswith(_FINAL_MARKS) and notice.task_id:
                # Not earlier: after a crash in between, the notice would be sent again outside its thread.
                self._conversations.closed(notice.task_id)
            self._home.journal.note("message.sent", "envoy", message=notice.id, type=notice.type, task=notice.task_id)
        except InvalidInput as exc:
            reason = f"{exc.code}: {exc}"
            self._settle(lambda: delivery.fail(FailureCode.VALIDATION_ERROR, reason, final=True))
        except NotSent as exc:
            self._not_sent(delivery, exc)

    def _not_sent(self, delivery: Delivery, exc: NotSent) -> None:
        if not exc.counts:
            self._set_problem(str(exc))
            self._until = self._home.clock.boot() + exc.after
            return
        before = delivery.failure
        tries = before.repeats + 1 if before is not None and before.reason == str(exc) else 1
        final = tries >= TRIES or delivery.attempt >= _MOST
        pause = _PAUSES[min(tries, len(_PAUSES)) - 1]
        self._settle(lambda: delivery.fail(FailureCode.HANDLER_ERROR, str(exc), delay=pause, final=final))
        self._home.journal.note("system.warning", "envoy", message=delivery.message.id, problem=str(exc))

    def _set_problem(self, reason: str) -> None:
        """Record why all notices wait; empty if they do not."""
        if reason != self._problem.value.reason:
            self._problem.save(Problem(reason))
            if reason:
                self._home.journal.note("system.warning", "envoy", problem=reason)

    def _settle(self, settle: Callable[[], object]) -> None:
        self._held.popleft()
        with suppress(LeaseLost):  # another process has the notice, and sends it
            settle()

    def _deliver(self, notice: Notice) -> None:
        asks = notice.type == "human_input_request"
        # The King has recorded it, unless another program made the notice.
        question = self._questions.ask(question_of(self._home, notice)) if asks else None
        if self._chat is None or (question is not None and question.state != "open"):
            return
        channel, thread = self._place(notice)
        try:
            posted = self._chat.post(channel, _text(notice, question), thread, question)
        except NotSent as exc:
            if exc.of_channel and notice.channel in ("", self._home.default_channel):
                raise NotSent(str(exc), after=_SET_UP, counts=False) from exc
            raise
        # The id counts from here on: replies carry it, whatever name the configuration has for the channel.
        if question is not None:
            place = {"channel": posted.channel, "thread_ts": thread or posted.ts, "message_ts": posted.ts}
            self._questions.change(question.task_id, **place)
        if notice.type == "thread_start" and notice.task_id:
            self._conversations.opened(notice.task_id, Thread(posted.channel, posted.ts, name=channel))
        if notice.track_conversation:
            self._track(notice, posted.channel, thread or posted.ts)
        self._react(notice)

    def _place(self, notice: Notice) -> tuple[str, str]:
        """Return the channel and the thread of a notice; by default the thread of its task."""
        known = self._conversations.thread_of(notice.task_id) if notice.task_id else None
        if known is not None and notice.channel in ("", known.name):
            channel = known.channel
        else:
            channel = notice.channel
        if not channel:
            raise NotSent("no channel is named: set slack.default_channel in config/king.yaml")
        if notice.thread_ts or notice.type == "thread_start":
            return channel, notice.thread_ts
        return channel, known.thread_ts if known and known.channel == channel else ""

    def _track(self, notice: Notice, channel: str, thread: str) -> None:
        wanted = notice.track_conversation
        ttl, context = wanted.get("ttl_seconds"), wanted.get("reply_context")
        seconds = min(float(ttl), LONGEST_EXPIRY) if isinstance(ttl, int | float) else 3600.0
        self._conversations.track(
            Conversation(
                channel=channel,
                thread_ts=thread,
                expires_at=stamp(self._home.clock.now() + seconds),
                ttl_seconds=seconds,
                task_id=notice.task_id,
                reply_context=context if isinstance(context, dict) else {},
            )
        )

    def _react(self, notice: Notice) -> None:
        """Put a reaction on the message that started the task; a failure is ignored."""
        source, name = notice.source_ref, _REACTIONS.get(str(notice.context.get("status")))
        if self._chat is not None and name and source.get("channel") and source.get("message_ts"):
            with suppress(NotSent):
                self._chat.react(str(source["channel"]), str(source["message_ts"]), name, instead_of=RECEIVED)


def _text(notice: Notice, question: Question | None) -> str:
    return notice.content if question is None else notice.content + answer_hint(question)
