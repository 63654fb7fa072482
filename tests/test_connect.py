"""From a URL to a store, and clear words where it cannot be."""

import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.connect import parse_url
from pabal.errors import InvalidUrl, StoreClosed, StoreMissing


@pytest.mark.parametrize(
    ("url", "scheme", "path"),
    [
        ("sqlite:///var/lib/x.db", "sqlite", "/var/lib/x.db"),
        ("sqlite:x.db", "sqlite", "x.db"),
        ("file:///var/spool", "file", "/var/spool"),
        ("file:a/b", "file", "a/b"),
        ("hybrid:/srv/x", "hybrid", "/srv/x"),
        ("sqlite:///with%20space.db", "sqlite", "/with space.db"),
        ("mailbox:///run/pabal", "mailbox", "/run/pabal"),
        ("mailbox:.pabal/ipc", "mailbox", ".pabal/ipc"),
    ],
)
def test_urls_name_a_scheme_and_a_path(url: str, scheme: str, path: str) -> None:
    assert parse_url(url) == (scheme, Path(path))


def test_a_path_may_begin_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert parse_url("file:~/spool") == ("file", Path("/home/ann/spool"))
    assert parse_url("file:a/~/spool") == ("file", Path("a/~/spool"))
    assert parse_url("sqlite:~odd.db") == ("sqlite", Path("~odd.db"))


def test_the_path_of_topics_may_begin_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    pabal.connect_topics("sqlite:~/events.db").close()
    assert (tmp_path / "events.db").exists()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("jobs.db", "begins with one of sqlite, file, hybrid, mailbox"),
        ("redis://localhost", "begins with one of"),
        ("postgres://me@db/jobs", "write postgresql:"),
        ("sqlite://var/x.db", "sqlite:///var/x.db for an absolute path or sqlite:var/x.db"),
        ("sqlite:", "a scheme and a path"),
        ("sqlite:x.db?mode=ro", "options of this store are busy, index, kv, template"),
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


@pytest.mark.parametrize("scheme", ["sqlite", "file", "hybrid"])
def test_looking_makes_no_store(scheme: str, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with pytest.raises(StoreMissing, match="no store at"):
        pabal.connect(f"{scheme}:{place}", create=False)
    assert list(tmp_path.iterdir()) == []
    pabal.connect(f"{scheme}:{place}").close()
    pabal.connect(f"{scheme}:{place}", create=False).close()


def test_looking_leaves_what_is_somebody_elses_alone(tmp_path: Path) -> None:
    notes, text, other = tmp_path / "notes", tmp_path / "text.db", tmp_path / "other.db"
    notes.mkdir()
    (notes / "a.txt").write_text("mine")
    text.write_text("no database at all, but long enough to look like one" * 20)
    with sqlite3.connect(other) as database:
        database.execute("create table theirs (a)")
    database.close()
    before = sorted(tmp_path.rglob("*"))
    for url in (f"file:{notes}", f"sqlite:{text}", f"sqlite:{other}", f"hybrid:{notes}"):
        with pytest.raises(StoreMissing):
            pabal.connect(url, create=False)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("url", [Path("jobs.db"), b"sqlite:jobs.db", None])
def test_a_url_that_is_no_text_says_what_to_write(url: Any) -> None:
    with pytest.raises(InvalidUrl, match="as in 'sqlite:jobs.db'; found"):
        pabal.connect(url)
    with pytest.raises(InvalidUrl, match="as in 'sqlite:events.db'; found"):
        pabal.connect_topics(url)


def test_what_stays_in_its_process_says_what_to_send_instead(tmp_path: Path) -> None:
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        queue = mq.queue("jobs")
        queue.publish("x")
        [delivery] = queue.lease()
        for thing in (mq, queue, delivery):
            with pytest.raises(TypeError, match=f"a {type(thing).__name__} cannot be .*: send the URL of the store"):
                pickle.dumps(thing)
        delivery.ack()
