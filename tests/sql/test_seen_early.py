"""Commits that others see while they are on their way to the disk: who waits, and what a failure leaves."""

import errno
import gc
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import pytest

import pabal
from pabal.errors import StoreFailed, Uncertain
from pabal.sql import writer
from pabal.sql.connection import Connection, SqliteError, connect
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from pabal.stores.sqlite import SqliteStore
from pabal.testing.store_place import publish
from tests.sql.numbers import Interrupt, prepare, rows, run_together


def add(number: int, tx: Transaction) -> None:
    tx.run("insert into t values (?)", (number,))
    tx.wakeups["t"] = number


class Place:
    """A database of which every handle is open until the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.events: list[str] = []
        self._open: list[Database] = []

    def open(self, *, seen_early: bool = True) -> Database:
        database = Database(
            self.path, prepare=prepare, committed=lambda rings: self.events.append("rung"), seen_early=seen_early
        )
        self._open.append(database)
        return database

    def close(self) -> None:
        for database in self._open:
            database.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path / "x.db")
    yield place
    place.close()


def write(db: Database, number: int, *, durable: bool = True) -> None:
    db.write(lambda tx: add(number, tx), durable=durable)


def test_a_commit_is_seen_and_rung_before_it_is_synced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    db, other = place.open(), place.open()
    monkeypatch.setattr(writer, "sync_data", lambda fd: place.events.append(f"synced with {rows(other)} seen"))
    write(db, 1)
    assert place.events == ["rung", "synced with [1] seen"]


def test_others_write_while_a_commit_is_synced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    db, other = place.open(), place.open()
    monkeypatch.setattr(writer, "sync_data", lambda fd: write(other, 2, durable=False))
    write(db, 1)
    assert rows(other) == [1, 2]


def test_who_was_promised_nothing_does_not_wait_for_the_disk(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "sync_data", lambda fd: place.events.append("synced"))
    write(place.open(), 1, durable=False)
    assert place.events == ["rung"]


def test_who_changes_nothing_waits_for_what_it_has_seen(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the repeat of a publish might be told that the first is there, before that one is safe."""
    monkeypatch.setattr(writer, "sync_data", lambda fd: place.events.append("synced"))
    place.open().write(lambda tx: None, durable=True)
    assert place.events == ["synced"]


def test_elsewhere_nothing_is_seen_before_it_is_synced(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "sync_data", lambda fd: pytest.fail("SQLite syncs these itself"))
    levels: list[int] = []
    place.open(seen_early=False).write(lambda tx: levels.append(tx.run("pragma synchronous").get), durable=True)
    assert levels == [2]


def failing(fd: int) -> None:
    raise OSError(errno.EIO, "Input/output error")


def test_a_commit_that_cannot_be_synced_is_uncertain_and_the_handle_given_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    db = place.open()
    with monkeypatch.context() as patch:
        patch.setattr(writer, "sync_data", failing)
        with pytest.raises(Uncertain, match=r"x\.db was not synced .*Input/output error"):
            write(db, 1)
    with pytest.raises(StoreFailed, match="reopen"):
        write(db, 2)
    again = place.open()
    write(again, 3)
    assert rows(again) == [1, 3]


def test_a_failed_sync_concerns_only_those_who_were_promised_one(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "sync_data", failing)
    db = place.open()
    heard = dict[int, str]()

    def call(number: int, durable: bool) -> None:
        try:
            write(db, number, durable=durable)
            heard[number] = "fine"
        except Uncertain:
            heard[number] = "uncertain"

    run_together(db, [partial(call, number, number > 1) for number in (1, 2, 3)])
    assert heard == {1: "fine", 2: "uncertain", 3: "uncertain"}


def test_what_a_failed_sync_dropped_is_written_again_whoever_reads(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes the dropped pages for written: only what is written anew reaches the disk."""
    db, other, reader = place.open(), place.open(), connect(place.path)
    write(db, 1)
    reader.execute("begin; select x from t").fetchall()  # a backup, which may take minutes
    wal = Path(f"{place.path}-wal")
    home, held = place.path.read_bytes(), b""
    written: list[int] = []
    pwrite = os.pwrite

    def failing_once(fd: int) -> None:
        nonlocal held
        held = wal.read_bytes()
        monkeypatch.setattr(os, "pwrite", noted)
        monkeypatch.setattr(writer, "sync_data", lambda fd: place.events.append(f"synced {sum(written)} bytes"))
        failing(fd)

    def noted(fd: int, data: bytes, start: int) -> int:
        assert start == sum(written)
        written.append(pwrite(fd, data[:700], start))  # the kernel may take less than it is given
        return written[-1]

    monkeypatch.setattr(writer, "sync_data", failing_once)
    monkeypatch.setattr(writer, "_CHUNK", 1000)
    with pytest.raises(Uncertain):
        write(db, 2)
    assert place.events[-1] == f"synced {len(held)} bytes"
    assert (wal.read_bytes(), place.path.read_bytes()) == (held, home)
    reader.close()
    assert rows(other) == [1, 2]


def test_a_power_cut_after_a_failed_sync_finds_a_sound_database(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk takes nothing any more: what was synced is there, and no page that belongs to later ones."""
    db, other = place.open(), place.open()
    db.write(lambda tx: tx.run("create index i on t (x)").fetchall(), durable=True)
    db.write(lambda tx: tx.many("insert into t values (?)", ((number,) for number in range(3000))), durable=True)
    other.write(lambda tx: None, durable=False)  # has it open, so that the WAL stays
    connection = connect(place.path)
    connection.execute("pragma wal_checkpoint(truncate)").fetchall()
    connection.close()
    write(db, 5000)
    synced = Path(f"{place.path}-wal").read_bytes()
    monkeypatch.setattr(writer, "sync_data", failing)
    with pytest.raises(Uncertain):
        db.write(lambda tx: tx.change("delete from t where x = ?", (2999,)), durable=True)
    shutil.copy(place.path, tmp_path / "cut.db")
    (tmp_path / "cut.db-wal").write_bytes(synced)
    cut = connect(tmp_path / "cut.db")
    assert cut.execute("pragma integrity_check").get == "ok"
    assert cut.execute("select count(*) from t").get == 3001
    cut.close()


def test_a_commit_is_answered_though_a_reader_found_the_database_damaged_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "sync_data", lambda fd: place.events.append("synced"))
    db = place.open()

    def damaged(connection: Connection) -> None:
        raise SqliteError("database disk image is malformed")

    def work(tx: Transaction) -> str:
        add(1, tx)
        with pytest.raises(StoreFailed):
            db.read(damaged)
        return "stored"

    assert db.write(work, durable=True) == "stored"
    assert place.events == ["rung", "synced"]
    with pytest.raises(StoreFailed, match="given up"):
        write(db, 2)


@pytest.mark.parametrize("point", range(20))
def test_a_failed_sync_is_not_forgotten_when_a_signal_handler_raises_after_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, point: int
) -> None:
    """It raises where Python lets it: when a function begins or one of C has ended."""
    db, left = place.open(), iter(range(point, -1, -1))
    place.open()  # so that the WAL stays

    def handler(frame: FrameType, event: str, argument: object) -> None:
        if event in ("call", "c_return") and "pabal/sql" in frame.f_code.co_filename and next(left, -1) == 0:
            sys.setprofile(None)
            raise Interrupt

    def failing_once(fd: int) -> None:
        monkeypatch.setattr(writer, "sync_data", lambda fd: None)  # as a kernel does: told once
        gc.disable()  # what the collector does in passing is not meant
        sys.setprofile(handler)
        failing(fd)

    written = 0
    pwrite = os.pwrite

    def noted(fd: int, data: bytes, start: int) -> int:
        nonlocal written
        written += len(data)
        return pwrite(fd, data, start)

    monkeypatch.setattr(os, "pwrite", noted)
    write(db, 1)
    monkeypatch.setattr(writer, "sync_data", failing_once)
    try:
        with pytest.raises((Interrupt, Uncertain)):
            write(db, 2)
    finally:
        sys.setprofile(None)
        gc.enable()
    with pytest.raises(StoreFailed, match="given up"):
        write(db, 3)
    assert written >= Path(f"{place.path}-wal").stat().st_size  # what was dropped is on its way again
    write(place.open(), 4)  # nobody waits for what it held


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux, which lists the open files")
def test_no_file_has_to_be_opened_after_a_commit(place: Place) -> None:
    """A process that has no descriptor left is told so when it opens the database, not when it has written to it."""
    db = place.open()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open(os.devnull, os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
    try:
        write(db, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert rows(db) == [1]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux, which lists the open files")
def test_a_closed_database_leaves_no_file_open(place: Place) -> None:
    db = place.open()
    write(db, 1)
    wal = f"{place.path}-wal"
    assert _times_open(wal) == 2  # SQLite's own and ours
    db.close()
    assert _times_open(wal) == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux, which lists the open files")
def test_a_store_that_nobody_closed_leaves_no_file_open(tmp_path: Path) -> None:
    publish(store := SqliteStore(tmp_path / "x.db"), 1)
    assert _times_open(f"{tmp_path}/x.db.bells/jobs") == _times_open(f"{tmp_path}/x.db.lock") == 1
    del store
    gc.collect()
    assert not [link for link in _open_files() if link.startswith(str(tmp_path))]  # nor a WAL that was removed


def test_what_runs_at_the_end_of_a_process_can_publish(tmp_path: Path) -> None:
    script = """
import atexit, sys
atexit.register(lambda: queue.publish("at the end"))
import pabal
queue = pabal.connect(f"sqlite:{sys.argv[1]}/x.db").queue("jobs")
queue.publish("before")
"""
    done = subprocess.run([sys.executable, "-c", script, tmp_path], check=True, capture_output=True, text=True)
    assert not done.stderr
    with pabal.connect(f"sqlite:{tmp_path}/x.db") as mq:
        assert [delivery.body for delivery in mq.queue("jobs").lease(3)] == ["before", "at the end"]


def _times_open(path: str) -> int:
    return _open_files().count(path)


def _open_files() -> list[str]:
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one that lists them
            found.append(str(link.readlink()))
    return found
