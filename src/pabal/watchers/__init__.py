"""Watchers: look at something outside and turn what is new into events, for teams and for kingdoms."""

from pabal.watchers.contract import Event, Found, Look, Watcher
from pabal.watchers.loop import Memory, WatchLoop

__all__ = ["Event", "Found", "Look", "Memory", "WatchLoop", "Watcher"]
