"""Waking: inotify, the bell, and what is left without them."""

import os
import select
import threading
import time
from pathlib import Path

import pytest

from pabal import watch
from pabal.watch import ARRIVALS, MOVED_TO, Inotify, PathWatch


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
        assert [fd for fd, _ in loop.poll(1)] == [watches[1].fileno()]
        assert watches[1].wait(0) and loop.poll(0) == []
        watches[0].wake()
        assert [fd for fd, _ in loop.poll(1)] == [watches[0].fileno()]
    for each in watches:
        each.close()
