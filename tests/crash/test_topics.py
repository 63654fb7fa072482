"""Appenders and consumers of topics killed at random, servers restarted: nothing lost, skipped or out of order."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from pabal.connect import connect_topics
from pabal.ids import new_token
from tests.crash.harness import SOAK
from tests.crash.topic_busy import BATCH
from tests.crash.topic_crew import TopicCrew, Verdict, judge
from tests.services.kafka import KafkaServer, running

KILLS = 300 if SOAK else 15
KAFKA_KILLS = 40 if SOAK else 4
RESTARTS = 8 if SOAK else 1
COMMITS = 3 * BATCH  # what may be handled and not committed yet when a consumer is killed, at the very most


def storm(url: str, place: Path, blows: list[Callable[[TopicCrew], None]], *, session: float) -> Verdict:
    """Let a crew work and deal it one blow after the other; then let it finish."""
    seed = random.randrange(10**6)
    name = f"storm-{new_token()}"
    histories = place / "histories"
    histories.mkdir()
    with connect_topics(url) as topics:
        topic = topics.topic(name)
        topic.create(4)
        crew = TopicCrew(url, name, histories, seed=seed, session=session)
        try:
            crew.start("append", "append", "consume", "consume", "consume")
            crew.wait_until_busy()
            for blow in blows:
                crew.pause(0.05, 0.5)
                blow(crew)
            crew.stop_appending()
            crew.wait_until_drained(topic)
        finally:
            crew.end()
        verdict = judge(topic, histories)
    assert verdict.harm == [], f"seed {seed}"
    assert verdict.handled == verdict.stored >= verdict.appended > 0
    return verdict


@pytest.mark.timeout(900 if SOAK else 300)
def test_t5_kills_at_random_skip_and_lose_nothing_on_sqlite(tmp_path: Path) -> None:
    verdict = storm(f"sqlite:{tmp_path / 'topics.db'}", tmp_path, [TopicCrew.kill_one] * KILLS, session=1.0)
    assert verdict.duplicates <= KILLS * COMMITS


@pytest.mark.timeout(900 if SOAK else 300)
def test_t5_kills_and_restarts_skip_and_lose_nothing_on_kafka(tmp_path: Path, kafka: KafkaServer) -> None:
    with running() as server:  # not the one that other tests use

        def crash(crew: TopicCrew) -> None:
            server.kill()
            server.start()

        def restart(crew: TopicCrew) -> None:
            server.stop()
            server.start()

        kills: list[Callable[[TopicCrew], None]] = [TopicCrew.kill_one] * (KAFKA_KILLS // (RESTARTS + 1))
        blows = [*kills]
        for turn in range(RESTARTS):
            blows += [crash if turn % 2 == 0 else restart, *kills]
        verdict = storm(server.url, tmp_path, blows, session=2.0)
    assert verdict.duplicates <= (KAFKA_KILLS + 3 * RESTARTS) * COMMITS


@pytest.mark.timeout(900 if SOAK else 300)
def test_t8_consumers_that_come_and_go_in_good_order_handle_nothing_twice(tmp_path: Path) -> None:
    url, relieved = f"sqlite:{tmp_path / 'topics.db'}", 30 if SOAK else 4
    verdict = storm(url, tmp_path, [TopicCrew.relieve_one] * relieved, session=60.0)
    assert verdict.duplicates == 0
