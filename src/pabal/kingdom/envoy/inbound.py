"""What people say in a chat: an answer to a question, a word in a conversation, or something new.

Messages come at least once and each becomes one event: ids are taken from the marks of the messages. Text is data all
the way; nothing here puts it on a command line.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pabal.errors import InvalidInput, NameTaken, NotSent
from pabal.kingdom.documents import Event
from pabal.kingdom.envoy.chat import Chat
from pabal.kingdom.envoy.conversations import Conversations
from pabal.kingdom.envoy.outbound import RECEIVED
from pabal.kingdom.envoy.questions import Question, Questions
from pabal.kingdom.home import Home

_TS = re.compile(r"\d{1,12}\.\d{1,9}", re.ASCII)


class Inbound:
    """Takes messages, one at a time."""

    def __init__(self, home: Home, conversations: Conversations, questions: Questions, chat: Chat | None) -> None:
        self._home = home
        self._conversations = conversations
        self._questions = questions
        self._chat = chat
        self._turn = threading.Lock()

    def take(self, event: Mapping[str, Any]) -> str:
        """Take in one event of the chat; return the id of what became of it, empty if nothing did."""
        if event.get("bot_id") or event.get("subtype"):
            return ""  # our own words too
        if event.get("type") not in ("message", "app_mention") or not _TS.fullmatch(str(event.get("ts"))):
            return ""
        with self._turn:
            return self._reply(event) if _in_thread(event) else self._new(event)

    def _reply(self, event: Mapping[str, Any]) -> str:
        channel, thread, ts = str(event.get("channel")), str(event["thread_ts"]), str(event["ts"])
        asked = [each for each in self._questions.all() if (each.channel, each.thread_ts) == (channel, thread)]
        if any(each.said == ts for each in asked):
            return ""  # it comes again
        if (question := next((each for each in asked if each.state == "open"), None)) is not None:
            return self._answer(question, event)
        if (found := self._conversations.find(channel, thread)) is not None:
            id = self._conversations.reply_id(thread, ts)
            payload = {**_payload(event), "thread_ts": thread, "reply_context": found.reply_context}
            return self._emit(Event(id=id, type="slack.thread.reply", source="slack", payload=payload, priority="high"))
        return self._new(event) if event.get("type") == "app_mention" else ""

    def _answer(self, question: Question, event: Mapping[str, Any]) -> str:
        text, user = str(event.get("text") or ""), str(event.get("user") or "")
        try:
            done = self._questions.answer(question.task_id, text, responder=user, via="slack", said=str(event["ts"]))
        except NameTaken:
            return ""  # somebody was faster
        except InvalidInput as exc:
            place = {"channel": question.channel, "thread_ts": question.thread_ts}
            self._home.tell(self._home.notice("thread_reply", f"Sorry: {exc}", task_id=question.task_id, **place))
            return ""
        return done.event_id

    def _new(self, event: Mapping[str, Any]) -> str:
        mention = event.get("type") == "app_mention"
        if not mention and event.get("channel_type") != "im":
            return ""  # talk of others
        mark = str(event["ts"]).replace(".", "-")
        kind, id = ("slack.app_mention", "mention") if mention else ("slack.channel.message", "msg")
        payload = {**_payload(event), **({"thread_ts": str(event["thread_ts"])} if _in_thread(event) else {})}
        done = self._emit(Event(id=f"evt-slack-{id}-{mark}", type=kind, source="slack", payload=payload))
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
