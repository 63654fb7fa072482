"""The file store when something runs out for a moment: nothing that waits is lost to sight, few files are open."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pabal import filesystem
from pabal.errors import QueueFull, StoreError, StoreFailed, StoreFull
from pabal.store import Done, Outcome, Settlement, State, Terms
from pabal.stores.files import FileStore
from pabal.testing.store_place import QUEUE, ack, draft, drain, publish, take


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def descriptors(most: int) -> Iterator[None]:
    """Let this process have so many files open at most."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


# Nothing is lost to sight


def once_failing(call: Callable[..., object], code: int, part: str, times: int = 1) -> Callable[..., object]:
    """Return a call that fails so many times where a path has this part."""
    left = [times]

    def work(*paths: str) -> object:
        if left[0] and any(part in str(path) for path in paths):
            left[0] -= 1
            raise OSError(code, os.strerror(code), paths[0])
        return call(*paths)

    return work


_STARVED = """
import os, resource, sys
from pathlib import Path
from pabal.errors import StoreFailed
from pabal.stores.files import FileStore

store = FileStore(Path(sys.argv[1]))
store.settings("jobs")
if sys.argv[2] == "fed":
    store.facts()  # it has its inotify instance
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
for spare in range(4):
    full = []
    try:
        while True:
            full.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for fd in full[:spare]:
        os.close(fd)
    try:
        store.lease("jobs", 1, 60.0)
    except StoreFailed as exc:
        assert "too many open files" in str(exc)
    for fd in full[spare:]:
        os.close(fd)
print(len(store.lease("jobs", 10, 60.0)))
"""


@pytest.mark.parametrize("feed", ["fed", "unfed"])
def test_a_process_that_had_no_descriptors_left_for_a_moment_sees_what_waits(root: Path, feed: str) -> None:
    with closing(FileStore(root)) as store:
        publish(store, *range(10))
    run = subprocess.run([sys.executable, "-c", _STARVED, str(root), feed], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    leased = 10 - len(os.listdir(root / QUEUE / "ready"))
    assert leased == 10 and int(run.stdout) >= 6


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOENT])
@pytest.mark.parametrize("group", ["", "g"])
def test_a_listing_that_failed_is_made_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, code: int, group: str
) -> None:
    publish(store, 1, 2, group=group)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", once_failing(os.listdir, code, f"/{QUEUE}/"))
        with pytest.raises(StoreFailed):
            take(store)
    assert drain(store) == [1, 2]


def test_a_listing_that_failed_does_not_let_more_in_than_the_limit(
    store: FileStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", once_failing(os.listdir, errno.EMFILE, "/ready"))
        with pytest.raises(StoreFailed):
            publish(store, 3, terms=Terms(max_waiting=2))
    with pytest.raises(QueueFull):
        publish(store, 3, terms=Terms(max_waiting=2))


@pytest.mark.parametrize("group", ["", "g"])
def test_a_message_whose_lease_found_no_room_is_offered_again(
    store: FileStore, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    publish(store, 1, 2, 3, group=group)
    with monkeypatch.context() as patch:
        # Also after the ballast was given up.
        patch.setattr(os, "rename", once_failing(os.rename, errno.ENOSPC, "/inflight/", times=3))
        with pytest.raises(StoreFull):
            take(store)
    assert drain(store) == [1, 2, 3]


# Few files are open


def test_a_store_of_many_queues_keeps_few_files_open(store: FileStore) -> None:
    before = open_files()
    queues = [f"queue-{n}" for n in range(300)]
    with descriptors(before + 220):  # tests before this one may have left some open
        for queue in queues:
            publish(store, queue, queue=queue)
        assert open_files() <= before + 2
        for queue in queues:
            (lease,) = take(store, queue=queue)
            assert ack(store, lease) is Outcome.APPLIED
        for queue in reversed(queues):
            assert store.counts(queue)[State.DONE] == 1
    assert open_files() <= before + filesystem.kept_open() + 2


def test_a_lock_that_is_held_is_not_closed_for_others(root: Path) -> None:
    idle = filesystem.IdleLocks()
    os.makedirs(root)
    held, *others = (filesystem.FileLock(f"{root}/{n}", idle) for n in range(filesystem.kept_open() * 2))
    with held:
        pass
    entered, done = threading.Event(), threading.Event()

    def hold() -> None:
        with held:
            entered.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    entered.wait(10)
    try:
        for lock in others:
            with lock:
                pass
        taken = subprocess.run(["flock", "--nonblock", f"{root}/0", "true"], check=False).returncode == 0
        assert not taken
    finally:
        done.set()
        thread.join()
    with others[0], others[1]:
        for lock in others[2:]:
            with lock:
                pass
        assert subprocess.run(["flock", "--nonblock", f"{root}/1", "true"], check=False).returncode != 0
    assert len(idle) <= filesystem.kept_open()
    for lock in (held, *others):
        lock.close()
    assert not idle


def test_a_queue_that_cannot_be_made_leaves_no_file_open(store: FileStore, monkeypatch: pytest.MonkeyPatch) -> None:
    publish(store, 1)
    before = open_files()

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", no_room)
        for n in range(3):
            with pytest.raises(StoreError):
                publish(store, 1, queue=f"other-{n}")
    assert open_files() == before


@pytest.mark.parametrize(("settlements", "each"), [(100, 12), (3, 500), (7, 140)])
def test_many_settlements_with_many_follow_ups_need_few_descriptors(
    store: FileStore, settlements: int, each: int
) -> None:
    publish(store, *range(settlements))
    leases = take(store, settlements)
    with descriptors(open_files() + 350):
        outcomes = store.settle(
            [
                Settlement(lease.receipt, Done(then=tuple(draft([n, i], queue="next") for i in range(each))))
                for n, lease in enumerate(leases)
            ]
        )
    assert outcomes == [Outcome.APPLIED] * settlements
    assert store.counts("next")[State.READY] == settlements * each


# Few directories are listed


def test_no_directory_is_listed_for_an_id_that_is_not_of_our_making(store: FileStore, listed: list[str]) -> None:
    publish(store, 0)
    listed.clear()
    for digit in "9ab":
        publish(store, digit, id=f"01933b5e-7d2c-7abc-{digit}def-0123456789ab")
    assert listed == []
    publish(store, "8", id="01933b5e-7d2c-7abc-8def-0123456789ab")
    assert listed


_FEW = """
import resource, sys
from pathlib import Path
from pabal.errors import StoreError
from pabal.stores.files import FileStore
from pabal.testing.store_place import draft

store = FileStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24))
failed = []
for number in range(120):
    try:
        store.publish([draft(number, queue=f"q{number % 40}", id=f"m{number}", group="g")])
    except StoreError as exc:
        failed.append(number)
leased = [lease for number in range(40) for lease in store.lease(f"q{number}", 9, 60.0)]
print(len(failed), len(leased))
"""


def test_after_too_many_open_files_fewer_locks_are_kept_open(root: Path) -> None:
    run = subprocess.run([sys.executable, "-c", _FEW, str(root)], capture_output=True, text=True, timeout=60)
    failed, leased = map(int, run.stdout.split())
    assert failed <= 3 and leased == 40, run.stderr
