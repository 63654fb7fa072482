"""Topics in one SQLite file, for the processes of one machine."""

from pabal.topics.sqlite.driver import SqliteTopics

__all__ = ["SqliteTopics"]
