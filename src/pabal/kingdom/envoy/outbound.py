"""What is said to people: notices in their order, those of a task strictly so, each acknowledged once it is said.

Killed between saying and acknowledging, the envoy says a notice again: once for each such death. What Slack refuses is
tried three times and then lies in `failed/`; while Slack cannot be reached or asks for patience, everything waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress

from pabal.delivery import Delivery
from pabal.errors import InvalidInput, LeaseLost, NotSent
from pabal.kingdom.documents import Notice, read, stamp
from pabal.kingdom.envoy.chat import Chat
from pabal.kingdom.envoy.conversations import Conversation, Conversations
from pabal.kingdom.envoy.questions import Question, Questions
from pabal.kingdom.envoy.settings import Settings
from pabal.kingdom.home import Home
from pabal.kingdom.layout import MESSAGES
from pabal.store import FailureCode

BATCH = 20
TRIES = 3  # that are refused for the same reason; a death of the envoy is no try
_MOST = 10  # times that a notice is taken, after which any refusal is the last
_PAUSES = (5.0, 30.0)  # seconds before the second and the third try
_REACTIONS = {"success": "white_check_mark", "failed": "x", "killed": "x", "skipped": "fast_forward"}
_LAST_WORDS = ("✅", "❌", "⏭️")  # a notice that begins so is the last one in its thread
RECEIVED = "eyes"


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
        self._more = False  # of a task only one notice is in hand at a time
        self._until = float("-inf")
        self._extended = 0.0
        self.problem = ""

    def step(self) -> None:
        self._keep()
        if self._home.clock.boot() < self._until:
            return
        if not self._held:
            self._extended = self._home.clock.boot()
            self._held.extend(self._home.queue(MESSAGES).lease(BATCH, self._home.config.lease_seconds))
            self._more = bool(self._held)
        if self._held:
            self._say(self._held[0])

    def next_due(self) -> float:
        rest = self._until - self._home.clock.boot()
        if rest > 0:
            return min(rest, self._home.config.lease_seconds / 4)
        return 0.0 if self._held or self._more else self._settings.interval_seconds

    def close(self) -> None:
        """Give back what is not said."""
        while self._held:
            with suppress(LeaseLost):
                self._held.popleft().release()

    def _keep(self) -> None:
        """Keep the leases of what is in hand; let go of what was lost."""
        seconds = self._home.config.lease_seconds
        if self._held and self._home.clock.boot() - self._extended >= seconds / 3:
            self._extended = self._home.clock.boot()
            for delivery in list(self._held):
                try:
                    delivery.extend(seconds)
                except LeaseLost:
                    self._held.remove(delivery)

    def _say(self, delivery: Delivery) -> None:
        try:
            notice = read(Notice, delivery.message.body)
            self._deliver(notice)
            self.problem = ""
            self._settle(delivery.ack)
            if notice.content.startswith(_LAST_WORDS) and notice.task_id:
                # Not before: if we died in between, it would be said again outside its thread.
                self._conversations.closed(notice.task_id)
            self._home.journal.note("message.sent", "envoy", message=notice.id, type=notice.type, task=notice.task_id)
        except InvalidInput as exc:
            reason = f"{exc.code}: {exc}"
            self._settle(lambda: delivery.fail(FailureCode.VALIDATION_ERROR, reason, final=True))
        except NotSent as exc:
            self._not_sent(delivery, exc)

    def _not_sent(self, delivery: Delivery, exc: NotSent) -> None:
        self.problem = str(exc)
        if not exc.counts:
            self._until = self._home.clock.boot() + exc.after
            return
        before = delivery.failure
        tries = before.repeats + 1 if before is not None and before.reason == str(exc) else 1
        final = tries >= TRIES or delivery.attempt >= _MOST
        pause = _PAUSES[min(tries, len(_PAUSES)) - 1]
        self._settle(lambda: delivery.fail(FailureCode.HANDLER_ERROR, str(exc), delay=pause, final=final))
        self._home.journal.note("system.warning", "envoy", message=delivery.message.id, problem=str(exc))

    def _settle(self, settle: Callable[[], object]) -> None:
        self._held.popleft()
        with suppress(LeaseLost):  # somebody else has it, and says it
            settle()

    def _deliver(self, notice: Notice) -> None:
        question = self._ask(notice) if notice.type == "human_input_request" else None
        if self._chat is None or (question is not None and question.state != "open"):
            return
        channel, thread = self._place(notice)
        ts = self._chat.post(channel, _text(notice, question), thread)
        if question is not None:
            self._questions.change(question.task_id, channel=channel, thread_ts=thread or ts)
        if notice.type == "thread_start" and notice.task_id:
            self._conversations.opened(notice.task_id, channel, ts)
        if notice.track_conversation:
            self._track(notice, channel, thread or ts)
        self._react(notice)

    def _ask(self, notice: Notice) -> Question:
        """Write the question down before anybody hears it."""
        context, now = notice.context, self._home.clock.now()
        asked = context.get("expire_seconds")
        expiry = asked if isinstance(asked, int | float) and asked > 0 else self._settings.questions.expire_seconds
        return self._questions.ask(
            read(
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
        )

    def _place(self, notice: Notice) -> tuple[str, str]:
        """Return channel and thread: those named, else the thread of the task unless another channel is named."""
        known = self._conversations.thread_of(notice.task_id) if notice.task_id else None
        channel = notice.channel or (known.channel if known else "")
        if not channel:
            raise NotSent("no channel is named: set slack.default_channel in config/king.yaml")
        if notice.thread_ts or notice.type == "thread_start":
            return channel, notice.thread_ts
        return channel, known.thread_ts if known and known.channel == channel else ""

    def _track(self, notice: Notice, channel: str, thread: str) -> None:
        told = notice.track_conversation
        ttl, context = told.get("ttl_seconds"), told.get("reply_context")
        seconds = float(ttl) if isinstance(ttl, int | float) else 3600.0
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
        """Mark the message that it all began with; not worth a second try."""
        source, name = notice.source_ref, _REACTIONS.get(str(notice.context.get("status")))
        if self._chat is not None and name and source.get("channel") and source.get("message_ts"):
            with suppress(NotSent):
                self._chat.react(str(source["channel"]), str(source["message_ts"]), name, instead_of=RECEIVED)


def _text(notice: Notice, question: Question | None) -> str:
    if question is None:
        return notice.content
    hint = {"confirm": "\nAnswer in this thread: yes or no.", "choose": "\nAnswer in this thread with one of:\n"}
    options = "\n".join(f"{number}. {option}" for number, option in enumerate(question.options, 1))
    return notice.content + hint.get(question.kind, "\nAnswer in this thread.") + options
