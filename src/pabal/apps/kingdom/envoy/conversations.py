"""The chat threads that the envoy knows: the thread of each task, and threads with an open conversation.

Only the envoy's process writes them, under a lock.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec
from msgspec.structs import replace

from pabal.apps.kingdom.documents import instant, stamp
from pabal.apps.kingdom.envoy.questions import reply_id
from pabal.apps.kingdom.home import Home
from pabal.runtime.state_file import StateFile

MAPPINGS, CONVERSATIONS = "state/envoy/thread-mappings.json", "state/envoy/conversation-threads.json"
_LONGEST = 30 * 86400.0  # seconds that the thread of a task is remembered
_REMEMBERED = 3600.0  # seconds that the event id of a reply is remembered


class Thread(msgspec.Struct, frozen=True):
    """A thread: the id of its channel, its timestamp, and the name by which the channel was addressed."""

    channel: str
    thread_ts: str
    name: str = ""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A thread in which the messages of people go to a general."""

    channel: str
    thread_ts: str
    expires_at: str
    ttl_seconds: float
    task_id: str = ""
    reply_context: dict[str, Any] = {}


class _Mappings(msgspec.Struct, frozen=True):
    tasks: dict[str, Thread] = {}


class _Conversations(msgspec.Struct, frozen=True):
    threads: dict[str, Conversation] = {}
    replies: dict[str, str] = {}  # event id: timestamp of its message


class Conversations:
    """The known threads of a kingdom."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.RLock()
        self._mappings = StateFile(home.root / MAPPINGS, _Mappings)
        self._known = StateFile(home.root / CONVERSATIONS, _Conversations)

    def thread_of(self, task_id: str) -> Thread | None:
        return self._mappings.value.tasks.get(task_id)

    def opened(self, task_id: str, thread: Thread) -> None:
        """Remember the thread of a task."""
        with self._lock:
            self._mappings.save(_Mappings({**self._mappings.value.tasks, task_id: thread}))

    def closed(self, task_id: str) -> None:
        with self._lock:
            tasks = {id: thread for id, thread in self._mappings.value.tasks.items() if id != task_id}
            self._mappings.save(_Mappings(tasks))

    def track(self, conversation: Conversation) -> None:
        """Treat the messages in a thread as a conversation from now on."""
        with self._lock:
            key = _key(conversation.channel, conversation.thread_ts)
            threads = {**self._known.value.threads, key: conversation}
            self._known.save(replace(self._known.value, threads=threads))

    def find(self, channel: str, thread_ts: str) -> Conversation | None:
        """Return the open conversation of a thread, and extend its time."""
        with self._lock:
            found = self._known.value.threads.get(_key(channel, thread_ts))
            if found is None or instant(found.expires_at) <= self._home.clock.now():
                return None
            found = replace(found, expires_at=stamp(self._home.clock.now() + found.ttl_seconds))
            self.track(found)
            return found

    def reply_id(self, thread_ts: str, message_ts: str) -> str:
        """Return the event id of a reply: the same for the same message, different if two share a second."""
        whole, _, part = message_ts.partition(".")
        id = reply_id(thread_ts, int(whole))
        with self._lock:
            known = self._known.value.replies
            taken = (self._home.root / "state/sentinel/seen" / id).exists()
            if known.get(id, message_ts) != message_ts or (taken and id not in known):
                id = f"{id}-{part}"
            if id not in known:
                self._known.save(replace(self._known.value, replies={**known, id: message_ts}))
        return id

    def expire(self) -> None:
        """Forget conversations that are over, and old threads of tasks that never ended."""
        now = self._home.clock.now()
        with self._lock:
            known = self._known.value
            threads = {key: each for key, each in known.threads.items() if instant(each.expires_at) > now}
            replies = {id: ts for id, ts in known.replies.items() if float(ts) > now - _REMEMBERED}
            self._known.save(_Conversations(threads, replies))
            tasks = {id: each for id, each in self._mappings.value.tasks.items() if _time(each) > now - _LONGEST}
            self._mappings.save(_Mappings(tasks))


def _time(thread: Thread) -> float:
    """Return when a thread began, from its timestamp."""
    return float(thread.thread_ts or 0)


def _key(channel: str, thread_ts: str) -> str:
    return f"{channel}:{thread_ts}"
