"""Waking: inotify, the bell, and what is left without them."""

import os
import select
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from pabal import watch
from pabal.watch import ARRIVALS, MOVED_TO, Inotify, PathWatch


@pytest.fixture(autouse=True)
def own_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share no inotify instance with watches that other tests left behind."""
    monkeypatch.setattr(watch, "_shared", watch.SharedInotify())


def test_a_file_moved_in_is_seen(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    inotify = Inotify()
    number = inotify.add(tmp_path / "in", ARRIVALS)
    assert list(inotify.events()) == []
    (tmp_path / "a").write_text("x")
    (tmp_path / "a").rename(tmp_path / "in" / "b")
    [event] = inotify.events()
    assert (event.watch, event.mask, event.name) == (number, MOVED_TO, "b")
    inotify.close()


def test_more_events_than_fit_one_read_are_all_seen(tmp_path: Path) -> None:
    inotify = Inotify()
    inotify.add(tmp_path, ARRIVALS)
    names = [f"{number:04}-{'x' * 200}" for number in range(1000)]
    for name in names:
        (tmp_path / name).touch()
    assert [event.name for event in inotify.events()] == names
    inotify.close()


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    inotify = Inotify()
    with pytest.raises(FileNotFoundError):
        inotify.add(tmp_path / "nowhere", ARRIVALS)
    inotify.close()


def test_a_watch_that_cannot_be_had_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*flags: int) -> int:
        raise OSError(24, "Too many open files")

    for module, name in ((select, "epoll"), (os, "eventfd")):
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as context:
            context.setattr(module, name, refuse)
            with pytest.raises(OSError, match="Too many"):
                PathWatch({})
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_watch_rings_once_for_what_happened(tmp_path: Path) -> None:
    bell = PathWatch({str(tmp_path): ARRIVALS})
    assert bell.woken_by == "inotify"
    assert not bell.wait(0)
    (tmp_path / "a").touch()
    assert bell.wait(5)
    assert not bell.wait(0)
    bell.close()


def test_wake_ends_a_wait_from_another_thread(tmp_path: Path) -> None:
    bell = PathWatch({str(tmp_path): ARRIVALS})
    timer = threading.Timer(0.1, bell.wake)
    timer.start()
    assert bell.wait(30)
    timer.join()
    bell.close()
    bell.wake()  # harmless afterwards


def test_without_inotify_the_wait_only_sleeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: Inotify) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(watch.Inotify, "__init__", none_left)
    bell = PathWatch({str(tmp_path): ARRIVALS})
    assert bell.woken_by == "poll"
    (tmp_path / "a").touch()
    began = time.monotonic()
    assert not bell.wait(0.05)
    assert time.monotonic() - began >= 0.05
    bell.wake()
    assert bell.wait(5)
    bell.close()


def test_a_loop_may_wait_on_many_watches(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    watches = [PathWatch({str(tmp_path / name): ARRIVALS}) for name in ("a", "b")]
    with select.epoll() as loop:
        for each in watches:
            loop.register(each.fileno(), select.EPOLLIN)
        assert loop.poll(0) == []
        (tmp_path / "b" / "x").touch()
        assert watches[1].fileno() in [fd for fd, _ in loop.poll(1)]
        assert not watches[0].wait(0)  # it may have to pass on the event of another
        assert watches[1].wait(0) and loop.poll(0) == []
        watches[0].wake()
        assert [fd for fd, _ in loop.poll(1)] == [watches[0].fileno()]
    for each in watches:
        each.close()


def instances() -> int:
    """Count the inotify instances of this process."""
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}") == "anon_inode:inotify"
    return found


def test_all_watches_of_a_process_share_one_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_shared", watch.SharedInotify())
    before = instances()
    for number in range(20):
        (tmp_path / str(number)).mkdir()
    watches = [PathWatch({str(tmp_path / str(number)): ARRIVALS}) for number in range(20)]
    same = PathWatch({str(tmp_path / "7"): MOVED_TO})
    assert instances() == before + 1
    (tmp_path / "7" / "x").touch()
    assert [each.wait(0) for each in watches] == [False] * 7 + [True] + [False] * 12
    assert not same.wait(0)  # it did not ask for files that are written
    (tmp_path / "7" / "x").rename(tmp_path / "7" / "y")
    assert same.wait(0) and watches[7].wait(0)
    for each in watches:
        each.close()
    (tmp_path / "7" / "y").rename(tmp_path / "7" / "z")
    assert same.wait(0)
    same.close()
    assert instances() == before + 1  # kept: closing one takes the kernel long
    PathWatch({str(tmp_path): ARRIVALS}).close()
    assert instances() == before + 1


def test_an_event_read_by_one_thread_wakes_another(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    watches = {name: PathWatch({str(tmp_path / name): ARRIVALS}) for name in ("a", "b")}
    woken: dict[str, bool] = {}

    def wait(name: str) -> None:
        woken[name] = watches[name].wait(20)

    threads = [threading.Thread(target=wait, args=(name,)) for name in watches]
    for thread in threads:
        thread.start()
    for name in ("b", "a"):
        (tmp_path / name / "x").touch()
    for thread in threads:
        thread.join()
    assert woken == {"a": True, "b": True}
    for each in watches.values():
        each.close()


def test_a_watch_that_got_no_instance_gets_one_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(self: Inotify) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as context:
        context.setattr(watch.Inotify, "__init__", none_left)
        bell = PathWatch({str(tmp_path): ARRIVALS})
        assert bell.woken_by == "poll"
    bell._tried = float("-inf")
    assert bell.wait(0) and bell.woken_by == "inotify"  # something may have happened before
    (tmp_path / "a").touch()
    assert bell.wait(5) and not bell.wait(0)
    bell.close()


def test_a_forked_child_leaves_the_events_to_its_parent(tmp_path: Path) -> None:
    bell = PathWatch({str(tmp_path): ARRIVALS})
    child = os.fork()
    if child == 0:
        try:
            (tmp_path / "a").touch()
            found = bell.wait(0)  # its own instance sees only what comes from now on
            (tmp_path / "b").touch()
            os._exit(0 if not found and bell.wait(5) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert bell.wait(5)
    (tmp_path / "c").touch()
    assert bell.wait(5)
    bell.close()
