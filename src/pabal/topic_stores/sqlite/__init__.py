"""Topics in one SQLite file, for the processes of one machine."""

from pabal.topic_stores.sqlite.store import SqliteTopics

__all__ = ["SqliteTopics"]
