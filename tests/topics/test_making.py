"""Who make one topic at the same time agree on what it is, or hear that it is something else."""

import threading
from collections.abc import Callable
from typing import Any

from pabal.connect import connect_topics
from pabal.errors import NameTaken
from pabal.ids import new_token
from pabal.topics.topic import Topic

MAKERS = 4
ROUNDS = 8


def made_at_once(url: str, name: str, make: Callable[[Topic, int], object]) -> list[int]:
    """Let several make a topic at once, each with a handle of its own; return those who were not refused."""
    start, content = threading.Barrier(MAKERS), []

    def run(number: int) -> None:
        with connect_topics(url) as topics:
            topic = topics.topic(name)
            topics.topics()  # connected
            start.wait()
            try:
                make(topic, number)
            except NameTaken:
                return
            content.append(number)

    threads = [threading.Thread(target=run, args=[number]) for number in range(MAKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return content


def schema(number: int) -> dict[str, Any]:
    return {"type": "object", "maxProperties": number}


def test_of_those_who_make_a_topic_with_different_schemas_at_once_one_is_content(topics_url: str) -> None:
    for turn in range(ROUNDS):
        name = f"topic-{new_token()}.v1"
        with connect_topics(topics_url) as topics:
            if turn % 2:  # the topic itself is there, and carries nothing yet: they are all equally fast
                topics.topic(name).create(1)
        content = made_at_once(topics_url, name, lambda topic, number: topic.create(1, schema=schema(number)))
        with connect_topics(topics_url) as topics:
            assert [schema(number) for number in content] == [topics.topic(name).schema]


def test_of_those_who_make_a_topic_with_different_partitions_at_once_one_is_content(topics_url: str) -> None:
    name = f"topic-{new_token()}.v1"
    content = made_at_once(topics_url, name, lambda topic, number: topic.create(1 + number))
    with connect_topics(topics_url) as topics:
        assert [1 + number for number in content] == [topics.topic(name).topics.shape(name).partitions]


def test_those_who_make_a_topic_with_the_same_schema_at_once_are_all_content(topics_url: str) -> None:
    name = f"topic-{new_token()}.v1"
    assert len(made_at_once(topics_url, name, lambda topic, number: topic.create(1, schema=schema(1)))) == MAKERS
