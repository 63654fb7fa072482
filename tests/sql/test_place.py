"""Where a database may lie: one name, one WAL. And what is said of files that hold only remains."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pabal.connect import connect, connect_topics
from pabal.errors import StoreFailed, StoreRefused
from pabal.sql.place import table_names
from tests.crash.conftest import need

OPENERS = {"queues": connect, "topics": connect_topics}


@pytest.mark.parametrize("open", OPENERS.values(), ids=OPENERS)
def test_a_database_with_two_hard_links_is_refused(tmp_path: Path, open: type) -> None:
    open(f"sqlite:{tmp_path}/q.db").close()
    os.link(tmp_path / "q.db", tmp_path / "other.db")
    for name in ("q.db", "other.db"):
        with pytest.raises(StoreRefused, match="2 names.*symlink"):
            open(f"sqlite:{tmp_path}/{name}")
    (tmp_path / "other.db").unlink()
    open(f"sqlite:{tmp_path}/q.db").close()


@pytest.mark.parametrize("owner", ["", "?owner=any"])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("end", ["-wal", "-shm"])
@pytest.mark.parametrize("open", OPENERS.values(), ids=OPENERS)
def test_a_link_in_place_of_a_file_of_sqlite_is_named(
    tmp_path: Path, open: type, end: str, there: bool, owner: str
) -> None:
    place = tmp_path / "q.db"
    if there:
        open(f"sqlite:{place}").close()
    Path(f"{place}{end}").unlink(missing_ok=True)
    Path(f"{place}{end}").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreRefused, match=f"q.db{end} is a symbolic link.*remove the link"):
        open(f"sqlite:{place}{owner if open is connect else ''}")
    assert not (tmp_path / "elsewhere").exists()
    Path(f"{place}{end}").unlink()
    open(f"sqlite:{place}").close()


def test_a_file_that_is_mounted_by_itself_is_refused(tmp_path: Path) -> None:
    need("root and unshare for a bind mount", os.geteuid() == 0 and shutil.which("unshare") is not None)
    connect(f"sqlite:{tmp_path}/q.db").close()
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/q.db").touch()
    script = 'mount --bind q.db inner/q.db && exec "$0" -c \'import pabal; pabal.connect("sqlite:inner/q.db")\''
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, sys.executable], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 1 and "StoreRefused" in done.stderr, done.stderr


def test_a_symlink_has_the_lock_the_bells_and_the_ballast_of_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link.db").symlink_to("real/q.db")
    with connect(f"sqlite:{tmp_path}/link.db") as mq, connect(f"sqlite:{tmp_path}/real/q.db") as other:
        watch = other.queue("jobs").watch()
        assert watch is not None
        mq.queue("jobs").publish(1)
        assert watch.wait(0.5)  # far less than the slow poll
        watch.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.db", "real"]


@pytest.mark.parametrize("open", OPENERS.values(), ids=OPENERS)
def test_a_wal_whose_first_commit_cannot_be_read_is_not_taken_for_no_store(tmp_path: Path, open: type) -> None:
    live = tmp_path / "live"
    live.mkdir()
    opened = open(f"sqlite:{live}/q.db")
    shutil.copytree(live, tmp_path / "killed", ignore=shutil.ignore_patterns("*-shm"))
    opened.close()
    path, wal = tmp_path / "killed/q.db", tmp_path / "killed/q.db-wal"
    assert table_names(path)
    data = bytearray(wal.read_bytes())
    data[1000] ^= 1
    wal.write_bytes(data)
    with pytest.raises(StoreFailed, match="holds no tables, but its WAL of .* cannot be read: keep a copy"):
        open(f"sqlite:{path}", create=False)
    assert wal.read_bytes() == data
    open(f"sqlite:{path}").close()  # a new store keeps a copy of what was there
    [kept] = path.parent.glob("q.db.damaged-*-wal")
    assert kept.read_bytes() == data


def test_a_store_whose_maker_was_killed_in_the_first_commit_can_be_made_again(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()
    opened = connect(f"sqlite:{live}/q.db")
    path = tmp_path / "q.db"
    shutil.copy(live / "q.db", path)
    wal = (live / "q.db-wal").read_bytes()
    opened.close()
    ends = [at for at in range(32, len(wal), 4096 + 24) if wal[at + 4 : at + 8] != bytes(4)]
    (tmp_path / "q.db-wal").write_bytes(wal[: ends[0]])
    with connect(f"sqlite:{path}") as mq:
        mq.queue("jobs").publish(1)
    assert not list(tmp_path.glob("*damaged*"))
