"""Messages from people in a chat: an answer to a question, a reply in a conversation, or something new.

The chat delivers at least once and each message becomes one event, because ids come from the timestamps of messages.
Text stays data; it is never put on a command line.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pabal.apps.kingdom.documents import Event
from pabal.apps.kingdom.envoy.blocks import press_of, shown_person
from pabal.apps.kingdom.envoy.conversations import Conversations
from pabal.apps.kingdom.envoy.outbound import RECEIVED, Chat
from pabal.apps.kingdom.envoy.questions import Question, Questions
from pabal.apps.kingdom.errors import NotSent
from pabal.apps.kingdom.home import Home
from pabal.errors import InvalidInput, MessageUnknown

_TS = re.compile(r"\d{1,12}\.\d{1,9}", re.ASCII)


class Inbound:
    """Handles messages, one at a time."""

    def __init__(self, home: Home, conversations: Conversations, questions: Questions, chat: Chat | None) -> None:
        self._home = home
        self._conversations = conversations
        self._questions = questions
        self._chat = chat
        self._lock = threading.Lock()

    def take(self, event: Mapping[str, Any]) -> str:
        """Handle one event of the chat; return the id of the event that it became, empty if none."""
        if event.get("bot_id") or event.get("subtype"):
            return ""  # messages of bots, our own too
        if event.get("type") not in ("message", "app_mention") or not _TS.fullmatch(str(event.get("ts"))):
            return ""
        with self._lock:
            return self._reply(event) if _in_thread(event) else self._new(event)

    def press(self, payload: Mapping[str, Any]) -> str:
        """Handle a button that was pressed; return the id of the event that it became, empty if none."""
        press = press_of(payload)
        if press is None:
            return ""
        with self._lock:
            try:
                known = self._questions.find(press.task_id)
                if known.said == press.at and known.answer:
                    return ""  # a repeated delivery
                done = self._questions.answer(
                    press.task_id, press.answer, responder=press.person, via="slack", said=press.at
                )
            except (InvalidInput, MessageUnknown) as exc:  # such as another answer that was first
                place = {"channel": press.channel, "thread_ts": press.thread_ts}
                self._home.publish_notices(self._home.notice("thread_reply", f"Sorry: {exc}", **place))
                return ""
        return done.event_id

    def _reply(self, event: Mapping[str, Any]) -> str:
        channel, thread, ts = str(event.get("channel")), str(event["thread_ts"]), str(event["ts"])
        asked = [each for each in self._questions.all() if (each.channel, each.thread_ts) == (channel, thread)]
        if any(each.said == ts for each in asked):
            return ""  # a repeated delivery
        if (question := next((each for each in asked if each.state == "open"), None)) is not None:
            return self._answer(question, event)
        if (found := self._conversations.find(channel, thread)) is not None:
            id = self._conversations.reply_id(thread, ts)
            payload = {**_payload(event), "thread_ts": thread, "reply_context": found.reply_context}
            return self._emit(Event(id=id, type="slack.thread.reply", source="slack", payload=payload, priority="high"))
        if event.get("type") == "app_mention":
            return self._new(event)
        if asked:
            self._tell_closed(asked[-1], str(event.get("user") or ""))
        return ""

    def _tell_closed(self, question: Question, user: str) -> None:
        """Tell a person once that a question is closed, and by whom."""
        if user in ("", question.responder, *question.told):
            return
        self._questions.change(question.task_id, told=[*question.told, user])
        self._sorry(question, self._questions.why_closed(question))

    def _sorry(self, question: Question, reason: str) -> None:
        if question.responder:
            reason = reason.replace(question.responder, shown_person(question.responder), 1)
        place = {"channel": question.channel, "thread_ts": question.thread_ts}
        self._home.publish_notices(
            self._home.notice("thread_reply", f"Sorry: {reason}", task_id=question.task_id, **place)
        )

    def _answer(self, question: Question, event: Mapping[str, Any]) -> str:
        text, user = str(event.get("text") or ""), str(event.get("user") or "")
        try:
            done = self._questions.answer(question.task_id, text, responder=user, via="slack", said=str(event["ts"]))
        except InvalidInput as exc:  # such as another answer that was first
            self._sorry(question, str(exc))
            return ""
        return done.event_id

    def _new(self, event: Mapping[str, Any]) -> str:
        mention = event.get("type") == "app_mention"
        if not mention and event.get("channel_type") != "im":
            return ""  # not addressed to us
        stamp = str(event["ts"]).replace(".", "-")
        kind, id = ("slack.app_mention", "mention") if mention else ("slack.channel.message", "msg")
        payload = {**_payload(event), **({"thread_ts": str(event["thread_ts"])} if _in_thread(event) else {})}
        done = self._emit(Event(id=f"evt-slack-{id}-{stamp}", type=kind, source="slack", payload=payload))
        if done and self._chat is not None:
            with suppress(NotSent):
                self._chat.react(payload["channel"], payload["message_ts"], RECEIVED)
        return done

    def _emit(self, event: Event) -> str:
        [published] = self._home.emit([event])
        return "" if published.duplicate else event.id


def _in_thread(event: Mapping[str, Any]) -> bool:
    thread = event.get("thread_ts")
    return thread is not None and thread != event.get("ts") and bool(_TS.fullmatch(str(thread)))


def _payload(event: Mapping[str, Any]) -> dict[str, str]:
    names = {"text": "text", "user_id": "user", "channel": "channel", "message_ts": "ts"}
    return {name: str(event.get(theirs) or "") for name, theirs in names.items()}
