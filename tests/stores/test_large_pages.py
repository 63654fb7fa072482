"""A page of large messages ends early, and no message is left out or listed twice."""

from __future__ import annotations

from pathlib import Path

import pytest

import pabal
from pabal.store import BROWSE_BYTES, State


@pytest.fixture(params=["sqlite", "file", "hybrid", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param != "postgres":
        return f"{request.param}:{tmp_path}/store"
    server, schema = request.getfixturevalue("postgres"), request.getfixturevalue("schema")
    return f"{server.url}?schema={schema}"


def test_large_messages_of_many_targets_groups_and_priorities_are_all_listed_once(url: str) -> None:
    with pabal.connect(url) as mq:
        queue = mq.queue("large")
        queue.configure(pabal.Policy(max_bytes=32 << 20))
        text = "x" * (BROWSE_BYTES * 3 // 8)
        options: list[dict[str, object]] = [
            {"target": "ann"},
            {"target": "ann", "priority": 5},
            {},
            {"priority": 5},
            {"group": "g"},
            {"group": "g"},  # it is held, and comes after all that are free
            {"group": "g", "priority": 9},
            {"target": "ben"},
            {},
        ]
        ids = [queue.publish(text, **each).id for each in options]  # type: ignore[arg-type]  # options of publish
        small = [queue.publish(1, group="g").id, queue.publish(2).id]
        pages, after = [], ""
        while page := queue.browse(State.READY, after=after):
            pages.append([entry.id for entry in page])
            after = page[-1].cursor
        found = [id for page in pages for id in page]
        assert sorted(found) == sorted(ids + small)
        assert all(len(set(page) & set(ids)) <= 3 for page in pages)
        assert found == [entry.id for entry in queue.entries(State.READY)]
        one_by_one, after = [], ""
        while page := queue.browse(State.READY, after=after, limit=1):
            one_by_one.append(page[0].id)
            after = page[-1].cursor
        assert one_by_one == found
        for delivery in queue.lease(4):
            delivery.bury("why")
        dead = list(queue.entries(State.DEAD))
        assert len({entry.id for entry in dead}) == len(dead) == 4
