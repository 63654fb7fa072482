"""Large bodies and long queues over HTTP: nothing is cut off by mistake, and memory is bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import pabal
from pabal.store import BROWSE_BYTES, State
from tests.gateway.conftest import Running, gateway
from tests.gateway.http_client import Client, ask

MIB = 1 << 20


@pytest.fixture(scope="module", params=["sqlite", "file", "hybrid"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a store of each kind; `url` is in it."""
    folder = tmp_path_factory.mktemp("large")
    (folder / "url").write_text(f"{request.param}:{folder}/store")
    return folder


@pytest.fixture(scope="module")
def large(place: Path) -> Iterator[Running]:
    url = (place / "url").read_text()
    with pabal.connect(url) as mq:
        queue = mq.queue("large")
        queue.configure(pabal.Policy(max_bytes=64 * MIB))
        for number in range(12):
            queue.publish({"n": number, "text": "x" * (9 * MIB)}, id=f"m{number:02}")
        queue.publish(b"\x00<script>" + bytes(40 * MIB), id="binary")
        queue.publish("a" * (64 * MIB - 2000), id="whole")
    with gateway(url, place / "log") as running:
        yield running


def test_lists_and_searches_read_a_few_large_bodies_at_a_time_and_miss_none(large: Running) -> None:
    client = Client(large)
    for search in ("", "xxxx"):
        after, found, requests = "", [], 0
        while True:
            page = client("list_messages", queue="large", search=search, after=after, limit=50)
            found += [(each["id"], each["body"] is None, each["body_bytes"] > 9 * MIB) for each in page["messages"]]
            assert all(len(each["body_text"]) <= 2000 for each in page["messages"])
            requests += 1
            if (after := page["next"]) is None:
                break
        ids = [f"m{number:02}" for number in range(12)] + ([] if search else ["binary", "whole"])
        assert found == [(id, True, True) for id in ids]
        assert requests >= 2


def test_a_body_of_the_largest_size_is_shown_in_part_and_downloaded_whole(large: Running) -> None:
    client = Client(large)
    shown = client("show_message", queue="large", id="whole")
    assert shown["body"] is None and shown["body_bytes"] == 64 * MIB - 1998 and len(shown["body_text"]) == 2000
    assert client("download_body", queue="large", id="whole") == b'"' + b"a" * (64 * MIB - 2000) + b'"'
    answer = ask(large.address, "GET", "/queues/large/messages/binary/body", authorization=client.authorization)
    assert answer.body == b"\x00<script>" + bytes(40 * MIB)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == 'attachment; filename="binary"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in answer.headers["content-security-policy"]


def test_a_page_of_the_store_ends_early_if_its_messages_are_large(large: Running) -> None:
    with pabal.connect(large.url) as mq:
        queue = mq.queue("large")
        page = queue.browse(State.READY)
        assert len(page) == 2 and 9 * MIB < BROWSE_BYTES < 18 * MIB
        assert [entry.id for entry in queue.entries(State.READY)][-2:] == ["binary", "whole"]
