"""What a database does with its callers, its errors and its file."""

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from pabal.errors import StoreBusy, StoreClosed, StoreFailed, StoreRefused, Uncertain
from pabal.sql.connection import Conflict, connect, require_version
from pabal.sql.disk_reserve import DiskReserve
from pabal.sql.sqlite import Database
from pabal.sql.writer import Transaction
from tests.sql.numbers import Interrupt, prepare, profiled, rows, run_together


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    database = Database(tmp_path / "x.db", prepare=prepare, committed=lambda rings: None)
    yield database
    database.close()


def add(number: int) -> Callable[[Transaction], None]:
    def work(tx: Transaction) -> None:
        tx.run("insert into t values (?)", (number,))

    return work


@pytest.mark.parametrize("found", ["3.7.0", "3.40.1", "3.51.2"])
def test_a_library_that_can_corrupt_a_shared_file_is_refused(found: str) -> None:
    with pytest.raises(StoreRefused, match=found):
        require_version(found)


def test_this_library_is_good_enough() -> None:
    require_version()


def test_the_file_is_in_wal_mode_and_private(db: Database) -> None:
    assert db.read(lambda connection: connection.execute("pragma journal_mode").get) == "wal"
    assert db.path.stat().st_mode & 0o077 == 0


def test_nobody_waits_for_one_who_was_interrupted(db: Database) -> None:
    """It raises where Python lets it: when a function begins or one of C has ended."""
    lock = os.open(f"{db.path}.lock", os.O_RDWR)
    seen = 0

    def handler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal seen
        if event in ("call", "c_return") and "pabal/sql" in frame.f_code.co_filename:
            seen += 1
            if seen == point:
                sys.setprofile(None)
                raise Interrupt

    point = 0
    while seen >= point:
        point, seen = point + 1, 0
        with suppress(Interrupt), profiled(handler):
            db.write(add(point), durable=True)
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(lock, fcntl.LOCK_UN)
    assert point > 10
    os.close(lock)
    db.write(add(0), durable=True)


def test_a_close_that_was_interrupted_is_made_good_by_another(db: Database) -> None:
    db.write(add(1), durable=True)

    def handler(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_name == "_drop_writer":
            sys.setprofile(None)
            raise Interrupt

    with pytest.raises(Interrupt), profiled(handler):
        db.close()
    db.close()
    assert not Path(f"{db.path}-wal").exists()


def test_nobody_waits_for_a_lock_that_could_not_be_let_go(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    other = Database(db.path, prepare=prepare, committed=lambda rings: None)

    def refusing() -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(db._lock, "unlock", refusing)
        db.write(add(1), durable=True)
    other.write(add(2), durable=True)
    db.write(add(3), durable=True)
    assert rows(db) == [1, 2, 3]
    other.close()


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs Linux, which lists the locks")
def test_another_handle_leaves_the_locks_of_the_first_in_place(db: Database) -> None:
    def locks() -> list[str]:
        inode = db.path.stat().st_ino
        return [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]

    db.write(add(1), durable=True)
    assert locks()
    other = Database(db.path, prepare=prepare, committed=lambda rings: None)
    assert locks()
    other.close()
    assert locks()


def test_synchronous_is_what_each_commit_was_promised(db: Database) -> None:
    levels: list[int] = []
    look: Callable[[Transaction], None] = lambda tx: levels.append(tx.run("pragma synchronous").get)  # noqa: E731
    db.write(look, durable=True)
    db.write(look, durable=False)
    db.write(look, durable=True)
    assert levels == [2, 1, 2]


def test_a_callers_own_error_comes_back_and_nothing_is_written(db: Database) -> None:
    def work(tx: Transaction) -> None:
        tx.run("insert into t values (1)")
        raise KeyError("mine")

    with pytest.raises(KeyError):
        db.write(work, durable=True)
    assert rows(db) == []
    db.write(add(2), durable=True)
    assert rows(db) == [2]


def test_a_conflict_fails_one_caller_and_leaves_the_handle_whole(db: Database) -> None:
    db.write(add(1), durable=True)
    with pytest.raises(Conflict):
        db.write(add(1), durable=True)
    assert rows(db) == [1]


def test_a_failure_within_a_shared_commit_fails_one_caller(db: Database) -> None:
    outcomes: dict[int, Any] = {}

    def call(number: int) -> None:
        try:
            outcomes[number] = db.write(add(5 if number in (5, 6) else number), durable=True)
        except Conflict:
            outcomes[number] = "conflict"

    run_together(db, [partial(call, number) for number in range(1, 9)])
    assert rows(db) == [1, 2, 3, 4, 5, 7, 8]
    assert sorted(map(str, outcomes.values())).count("conflict") == 1


def test_what_a_failed_caller_made_ready_is_not_told(tmp_path: Path) -> None:
    told: dict[str, int] = {}
    db = Database(tmp_path / "x.db", prepare=prepare, committed=told.update)

    def good(tx: Transaction) -> None:
        tx.wakeups["good"] = 1

    def bad(tx: Transaction) -> None:
        tx.wakeups["bad"] = 2
        raise KeyError

    def call(work: Callable[[Transaction], None]) -> None:
        with suppress(KeyError):
            db.write(work, durable=False)

    run_together(db, [partial(call, work) for work in (good, bad, good)])
    call(bad)
    db.close()
    assert told == {"good": 1}


def test_an_interrupted_change_of_synchronous_is_made_again(db: Database) -> None:
    assert db._writer is not None
    tx = db._writer._tx
    honest = tx.run

    def interrupted(statement: str, *bindings: Any) -> Any:
        answer = honest(statement, *bindings)
        if statement.startswith("pragma"):
            raise KeyboardInterrupt
        return answer

    tx.run = interrupted
    with pytest.raises(KeyboardInterrupt):
        db.write(add(1), durable=False)
    tx.run = honest
    levels: list[int] = []
    db.write(lambda tx: levels.append(tx.run("pragma synchronous").get), durable=True)
    assert levels == [2]


def test_a_closed_database_says_so(db: Database) -> None:
    db.close()
    db.close()
    with pytest.raises(StoreClosed):
        db.write(add(1), durable=True)
    with pytest.raises(StoreClosed):
        rows(db)


def test_a_commit_of_unknown_outcome_breaks_the_handle(db: Database) -> None:
    def work(tx: Transaction) -> None:
        tx.run("insert into t values (1)")
        unwritable = os.open("/dev/null", os.O_RDONLY)
        os.dup2(unwritable, _descriptor_of(f"{db.path}-wal"))  # from here on writing to the WAL fails
        os.close(unwritable)

    with pytest.raises(Uncertain):
        db.write(work, durable=True)
    for call in (lambda: db.write(add(2), durable=True), lambda: rows(db)):
        with pytest.raises(StoreFailed, match="reopen"):
            call()


def _descriptor_of(path: str) -> int:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == path:
                return int(name)
        except FileNotFoundError:
            continue
    raise AssertionError(f"{path} is not open")


def test_a_file_that_is_no_database_is_refused_clearly(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    path.write_bytes(b"this is a text about owls\n" * 200)
    with pytest.raises(StoreFailed, match="is not a SQLite database"):
        Database(path, prepare=prepare, committed=lambda rings: None)


def test_another_program_that_holds_the_lock_gives_a_clear_error(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    assert db._writer is not None
    db._writer.connection.set_busy_timeout(20)
    other = connect(db.path)
    other.execute("begin immediate")
    with pytest.raises(StoreBusy, match=f"process {os.getpid()} "):
        db.write(add(1), durable=True)
    other.execute("rollback")
    other.close()
    db.write(add(1), durable=True)
    assert rows(db) == [1]


def test_a_forked_child_and_its_parent_go_on_with_connections_of_their_own(db: Database) -> None:
    db.write(add(1), durable=True)
    assert rows(db) == [1]
    pid = os.fork()
    if pid == 0:
        try:
            db.write(add(2), durable=True)
            os._exit(0 if {1, 2} <= set(rows(db)) else 1)
        except BaseException:
            os._exit(2)
    db.write(add(3), durable=True)
    assert os.waitpid(pid, 0)[1] == 0
    assert rows(db) == [1, 2, 3]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux, which lists what is open")
def test_a_connection_that_only_read_since_the_last_fork_does_not_live_through_the_next(db: Database) -> None:
    def still_open() -> int:
        links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
        return sum(link.startswith(str(db.path)) for link in links)

    db.write(add(1), durable=True)
    for _ in range(2):
        pid = os.fork()
        if pid == 0:
            os._exit(still_open())
        assert os.waitpid(pid, 0)[1] == 0
        assert rows(db) == [1]
    db.close()
    assert still_open() == 0


def test_a_database_behind_a_link_finds_the_room_that_its_wal_takes_up(db: Database, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(db.path)
    db.write(lambda tx: tx.run("create table wide as select randomblob(100000)").fetchall(), durable=True)
    db.reserve.ballast.release()
    connection = connect(link)
    assert DiskReserve(link).make(connection)
    connection.close()
