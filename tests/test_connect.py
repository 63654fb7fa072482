"""From a URL to a store, and clear words where it cannot be."""

from pathlib import Path

import pytest

import pabal
from pabal.connect import parse_url
from pabal.errors import InvalidUrl, StoreClosed


@pytest.mark.parametrize(
    ("url", "scheme", "path"),
    [
        ("sqlite:///var/lib/x.db", "sqlite", "/var/lib/x.db"),
        ("sqlite:x.db", "sqlite", "x.db"),
        ("file:///var/spool", "file", "/var/spool"),
        ("file:a/b", "file", "a/b"),
        ("hybrid:/srv/x", "hybrid", "/srv/x"),
        ("sqlite:///with%20space.db", "sqlite", "/with space.db"),
    ],
)
def test_urls_name_a_scheme_and_a_path(url: str, scheme: str, path: str) -> None:
    assert parse_url(url) == (scheme, Path(path))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("jobs.db", "begins with one of sqlite, file, hybrid"),
        ("redis://localhost", "begins with one of"),
        ("sqlite://var/x.db", "sqlite:///var/x.db for an absolute path or sqlite:var/x.db"),
        ("sqlite:", "a scheme and a path"),
        ("sqlite:x.db?mode=ro", "a scheme and a path"),
        ("", "begins with"),
    ],
)
def test_a_wrong_url_says_what_to_write(url: str, says: str) -> None:
    with pytest.raises(InvalidUrl, match=says.replace("?", r"\?")):
        pabal.connect(url)


@pytest.mark.parametrize("scheme", ["sqlite", "file", "hybrid"])
def test_each_scheme_opens_its_store(scheme: str, tmp_path: Path) -> None:
    with pabal.connect(f"{scheme}:{tmp_path}/deep/down/store") as mq:
        assert mq.queues() == []
        mq.queue("jobs").publish("x")
        assert mq.queues() == ["jobs"]
        assert mq.store.facts()
    with pytest.raises(StoreClosed):
        mq.queue("jobs").publish("y")
    mq.close()
    with pabal.connect(f"{scheme}:{tmp_path}/deep/down/store") as mq:
        assert [delivery.body for delivery in mq.queue("jobs").consume(wait=0)] == ["x"]


def test_a_consumer_has_a_name_of_its_own(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        assert mq.queue("jobs").consumer
    with pabal.connect(f"sqlite:{tmp_path}/x.db", consumer="me") as mq:
        assert mq.queue("jobs").consumer == "me"
