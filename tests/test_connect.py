"""From a URL to a store, and clear words where it cannot be."""

import pickle
import sqlite3
from pathlib import Path
from typing import Any

import pytest

import pabal
from pabal.connect import absolute_topics, parse_url
from pabal.errors import InvalidUrl, StoreClosed, StoreFailed, StoreMissing


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
        ("sqlite:x.db?mode=ro", "options of this store are busy, index, kv"),
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
    for url in (f"file:{notes}", f"sqlite:{other}", f"hybrid:{notes}"):
        with pytest.raises(StoreMissing):
            pabal.connect(url, create=False)
    with pytest.raises(StoreFailed, match="is not a SQLite database: it begins with b'no database"):
        pabal.connect(f"sqlite:{text}", create=False)
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


@pytest.mark.parametrize(
    "url",
    [
        *(
            f"{scheme}{rest}"
            for scheme in ("sqlite:", "file:", "hybrid:", "mailbox:", "postgresql:", "kafka:", "redis:")
            for rest in (
                "//[x",
                "//x]",
                "//[::1",
                "a%00b",
                "///a%00b",
                "a%ffb",
                "\ud800",
                "a\0b",
                "a\nb",
                "x" * 5000,
                "//u:p@[",
                "?%00=1",
                "a?busy=nan",
                "a?ready=%00",
                "a?busy=%ff",
                "a?owner=%00",
                "a?kv=\ud800",
            )
        ),
        "[",
        "//[",
        "http://[x",
        "\0",
        "sqlite",
        ":",
        "://",
        "sqlite:a?db=%00",
        "hybrid:a?db=%00",
        "hybrid:a?bodies=a%00b",
        "kafka://h?config=%00",
        "kafka://h:1?timeout=nan",
        "kafka://h:1?replication=1e9",
        "kafka://h:bad",
        "kafka://h:99999",
        "postgresql://h/db?patience=nan",
        "postgresql://h/db?schema=%00",
        "postgresql://h/%00",
        "postgresql://h/%ff",
    ],
)
@pytest.mark.parametrize("create", [True, False])
def test_no_url_ends_in_a_traceback(url: str, create: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("pabal.sql.postgres._PAUSES", (1e9,))  # a server that cannot be reached is not tried again
    for opener in (pabal.connect, pabal.connect_topics):
        with pytest.raises(pabal.PabalError):
            opener(url, create=create).close()


@pytest.mark.parametrize("url", ["sqlite::memory:", "sqlite://:memory:", "hybrid::memory:"])
def test_a_database_in_memory_is_refused_with_the_store_for_tests(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUrl, match="write memory: for a test"):
        pabal.connect(url)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_store_is_for_tests_and_shared_by_name(caplog: pytest.LogCaptureFixture) -> None:
    with pabal.connect("memory:shared") as one, pabal.connect("memory:shared") as two, pabal.connect("memory:") as own:
        one.queue("jobs").publish("x")
        assert [delivery.body for delivery in two.queue("jobs").lease(wait=0.1)] == ["x"]
        assert own.queues() == []
    assert "lost when this process ends" in caplog.text
    with pytest.raises(InvalidUrl, match="memory:NAME"):
        pabal.connect("memory:///a")


def test_a_path_may_be_written_in_every_usual_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for url, file in {
        f"sqlite:///{tmp_path}/four-slashes.db": "four-slashes.db",
        f"sqlite://{tmp_path}//double.db": "double.db",
        "sqlite:folder//relative.db": "folder/relative.db",
        "sqlite:~/home.db": "home.db",
        "sqlite:a space.db": "a space.db",
        "sqlite:a%20code.db": "a code.db",
        f"sqlite://localhost{tmp_path}/host.db": "host.db",
    }.items():
        with pabal.connect(url) as mq:
            mq.queue("jobs").publish("x")
        with pabal.connect(url, create=False) as mq:
            assert len(mq.queue("jobs").lease()) == 1 and (tmp_path / file).is_file(), url


def test_topics_have_the_same_place_for_a_process_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert absolute_topics("sqlite:a%20b.db") == f"sqlite:{tmp_path}/a%20b.db"
    assert absolute_topics("sqlite:~/a.db") == f"sqlite:{tmp_path}/a.db"
    assert absolute_topics("sqlite:///var/a.db") == "sqlite:/var/a.db"
    assert absolute_topics("kafka://one:9092,two:9092") == "kafka://one:9092,two:9092"
    found = absolute_topics("kafka://one:9092?timeout=5&config=my%20kafka.conf")
    assert found == f"kafka://one:9092?timeout=5&config={tmp_path}/my%20kafka.conf"
    with pytest.raises(InvalidUrl, match=r"sqlite:path\.db"):
        absolute_topics("sqlite:")


@pytest.mark.parametrize("url", ["sqlite:s3cr3t@host/jobs.db", "file:s3cr3t@host/spool"])
def test_a_store_that_is_missing_is_named_without_what_may_be_a_password(url: str) -> None:
    with pytest.raises(StoreMissing, match="no store at") as found:
        pabal.connect(url, create=False)
    assert "s3cr3t" not in str(found.value)
