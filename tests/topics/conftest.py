"""A connection to topics on each driver, and a topic of its own for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.connect import TopicConnection, connect_topics
from pabal.ids import new_token
from pabal.topics.topic import Topic


@pytest.fixture(params=["sqlite", "kafka"])
def topics_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'topics.db'}"
    url: str = request.getfixturevalue("kafka").url
    return url


@pytest.fixture
def connection(topics_url: str) -> Iterator[TopicConnection]:
    with connect_topics(topics_url) as found:
        yield found


@pytest.fixture
def topic(connection: TopicConnection) -> Topic:
    return connection.topic(f"topic-{new_token()}.v1")
