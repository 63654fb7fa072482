"""From a URL to topics, loaded only when asked for, and the connection that hands them out."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlsplit

from pabal.appending import Topic
from pabal.clock import Clock
from pabal.connect import database_path
from pabal.errors import InvalidUrl, StoreMissing
from pabal.topic import Topics

_KAFKA_OPTIONS = ("config", "min_insync", "replication", "timeout")


class TopicConnection:
    """Where topics live. Threads may share it; use it in a `with` block or close it."""

    def __init__(self, topics: Topics) -> None:
        self.driver = topics

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. It is made with `create`."""
        return Topic(name, self.driver)

    def topics(self) -> list[str]:
        """Name every topic, sorted."""
        return self.driver.topics()

    def close(self) -> None:
        """Release files and handles. Members that were not closed are replaced when their session is over."""
        self.driver.close()

    def __enter__(self) -> TopicConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connect_topics(url: str, *, create: bool = True, clock: Clock | None = None) -> TopicConnection:
    """Open the topics that the URL names: sqlite:///path.db for one machine, kafka://host:port,host:port for many.

    A SQLite file may hold queues too. One that is not there is made, unless `create` is False: then StoreMissing.
    Kafka takes options behind a question mark: replication, min_insync, timeout (seconds) and config, a file of
    librdkafka settings with passwords and the like.
    """
    if not isinstance(url, str):
        raise InvalidUrl(f"a topics URL is text with a scheme, as in 'sqlite:events.db'; found {url!r:.80}")
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return TopicConnection(_sqlite(url, create, clock))
    if parts.scheme == "kafka":
        return TopicConnection(_kafka(url))
    raise InvalidUrl(f"a topics URL begins with sqlite: or kafka://; found {url!r:.80}")


def _sqlite(url: str, create: bool, clock: Clock | None) -> Topics:
    from pabal.topics.sqlite import SqliteTopics

    path = database_path(url)
    if not create and not SqliteTopics.exists(path):
        raise StoreMissing(f"no topics in {path}: make one with `pabal topic create`, or correct {url!r:.80}")
    return SqliteTopics(path, clock=clock)


def _kafka(url: str) -> Topics:
    parts = urlsplit(url)
    if not parts.netloc or parts.path.strip("/") or parts.fragment or "@" in parts.netloc:
        raise InvalidUrl(
            "write kafka://host:port, several separated by commas; passwords belong into a file that ?config= names"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := options.keys() - set(_KAFKA_OPTIONS):
        raise InvalidUrl(f"options of kafka are {', '.join(_KAFKA_OPTIONS)}; found {min(unknown)!r:.40}")
    from pabal.topics.kafka import KafkaTopics
    from pabal.topics.kafka.settings import settings_of

    return KafkaTopics(settings_of(parts.netloc, options))
