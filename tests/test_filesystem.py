"""Safe reads, and the lock that is taken rarely."""

import os
import subprocess
from pathlib import Path

import pytest

from pabal import filesystem
from pabal.errors import LinkedFile, NotARegularFile, TooLarge
from pabal.filesystem import lock_holders, locked, mount_of, mounts, read_plain, read_whole
from pabal.policy.policy import LARGEST_MAX_BYTES


def test_a_file_is_read_whole_with_its_time(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100_000)
    os.utime(path, (1, 5))
    assert read_whole(path) == (b"x" * 100_000, 5.0)
    assert read_plain(path) == b"x" * 100_000


def test_links_are_followed_only_where_the_caller_allows_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    (tmp_path / "symlink").symlink_to(tmp_path / "a")
    with pytest.raises(NotARegularFile):
        read_whole(tmp_path / "symlink")
    assert read_plain(tmp_path / "symlink") == b"x"
    os.link(tmp_path / "a", tmp_path / "second")
    with pytest.raises(LinkedFile):
        read_whole(tmp_path / "a")
    assert read_plain(tmp_path / "a") == b"x"


def test_a_fifo_is_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(NotARegularFile, match="only a plain file is read; found 'p'"):
        read_whole(tmp_path / "fifo")
    with pytest.raises(OSError, match="only a plain file is read"):
        read_plain(tmp_path / "fifo")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "a").open("wb") as file:
        file.truncate(LARGEST_MAX_BYTES + 1)
    with pytest.raises(TooLarge):
        read_whole(tmp_path / "a")
    with pytest.raises(OSError, match="bytes at most"):
        read_plain(tmp_path / "a")


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    for read in (read_whole, read_plain):
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "a")


@pytest.mark.parametrize("replaced", [True, False])
def test_a_file_that_is_replaced_as_it_is_opened_is_read_and_a_removed_one_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    path, other = tmp_path / "a", tmp_path / "b"
    path.write_bytes(b"old")
    other.write_bytes(b"new")
    opened = filesystem.open_into

    def open_into(fds: list[int], path: Path, flags: int) -> int:
        fd = opened(fds, path, flags)
        if not replaced:
            path.unlink()
        elif other.exists():
            other.rename(path)
        return fd

    monkeypatch.setattr(filesystem, "open_into", open_into)
    if replaced:
        assert read_whole(path)[0] == b"new"
    else:
        with pytest.raises(FileNotFoundError):
            read_whole(path)


def test_a_lock_keeps_other_processes_out_and_is_free_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with locked(path):
        assert subprocess.run(["flock", "--nonblock", str(path), "true"], check=False).returncode != 0
    assert subprocess.run(["flock", "--nonblock", str(path), "true"], check=False).returncode == 0


def test_a_lock_is_free_afterwards_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    reading, writing = os.pipe()
    with locked(path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)  # until the parent closes the pipe
            os._exit(0)
    try:
        assert subprocess.run(["flock", "--nonblock", str(path), "true"], check=False).returncode == 0
    finally:
        os.close(writing)
        os.close(reading)
        os.waitpid(child, 0)


def test_a_lock_of_another_device_is_not_ours(tmp_path: Path) -> None:
    path, table = tmp_path / "lock", tmp_path / "locks"
    path.touch()
    mount = mount_of(path, mounts())
    assert mount is not None
    inode, line = path.stat().st_ino, "1: FLOCK  ADVISORY  WRITE {} {}:{} 0 EOF\n"
    table.write_text(line.format(1, "f0:0f", inode))
    assert lock_holders([path], table) == []
    table.write_text(line.format(1, mount.device, inode) + line.format(os.getpid(), mount.device, inode))
    (shown,) = lock_holders([path], table)
    assert shown.startswith("process 1 (") and shown.endswith(f"holds {path}")
