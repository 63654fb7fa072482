"""Each component of a database has its own version, and a newer one is refused by name."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pabal.errors import StoreRefused
from pabal.sql.connection import Connection, connect
from pabal.sql.migrate import META, fact, migrate, set_fact, version


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    folder = tmp_path / "drivers_under_test"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "birds_1.sql").write_text("create table birds (name text);")
    (folder / "birds_2.sql").write_text(
        "alter table birds add column song text; insert into birds values ('owl', 'hu');"
    )
    (folder / "fish_1.sql").write_text("create table fish (name text);")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder.name
    sys.modules.pop(folder.name, None)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Connection]:
    connection = connect(tmp_path / "x.db")
    yield connection
    connection.close()


def test_migrations_run_in_order_and_once(db: Connection, package: str) -> None:
    assert migrate(db, "birds", package) == 2
    assert migrate(db, "birds", package) == 2
    assert db.execute("select * from birds").fetchall() == [("owl", "hu")]


def test_components_move_on_their_own(db: Connection, package: str) -> None:
    migrate(db, "birds", package)
    assert (version(db, "birds"), version(db, "fish")) == (2, 0)
    migrate(db, "fish", package)
    assert version(db, "fish") == 1


def test_a_newer_schema_is_refused_by_name(db: Connection, package: str) -> None:
    migrate(db, "birds", package)
    set_fact(db, "schema.birds", 3)
    with pytest.raises(StoreRefused, match="schema 3 of birds; this release knows 2"):
        migrate(db, "birds", package)


def test_facts_are_kept(db: Connection) -> None:
    db.execute(META)
    assert fact(db, "weather") is None
    set_fact(db, "weather", "fair")
    assert fact(db, "weather") == "fair"
