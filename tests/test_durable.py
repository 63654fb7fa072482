"""Writing whole files, and the ballast."""

import errno
import os
from pathlib import Path

import pytest

from pabal.durable import Ballast, make_dirs, replace_whole, translated, write_new
from pabal.errors import StoreFailed, StoreFull


def test_a_new_file_is_private_and_whole(tmp_path: Path) -> None:
    os.close(write_new(tmp_path / "a", b"x" * 100_000))
    assert (tmp_path / "a").read_bytes() == b"x" * 100_000
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o600


def test_an_existing_file_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "a").symlink_to(tmp_path / "victim")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "a", b"x")
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_a_replaced_file_leaves_nothing_beside_it(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        replace_whole(tmp_path / "a", text)
    assert (tmp_path / "a").read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a"]


def test_directories_are_made_private(tmp_path: Path) -> None:
    make_dirs(tmp_path / "a" / "b")
    make_dirs(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("code", "error"), [(errno.ENOSPC, StoreFull), (errno.EDQUOT, StoreFull), (errno.EIO, StoreFailed)]
)
def test_system_errors_become_ours_and_stay_as_the_cause(code: int, error: type[Exception]) -> None:
    def fail() -> None:
        with translated("testing"):
            raise OSError(code, os.strerror(code))

    with pytest.raises(error, match="while testing") as caught:
        fail()
    assert isinstance(caught.value.__cause__, OSError)


def test_the_ballast_takes_real_room_and_gives_it_back(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", size=1 << 20)
    assert ballast.present is False
    ballast.restore()
    ballast.restore()
    assert os.listdir(tmp_path) == ["ballast"]
    assert (tmp_path / "ballast").stat().st_blocks * 512 >= 1 << 20
    assert ballast.release()
    assert not ballast.release()
    assert os.listdir(tmp_path) == []


def test_a_ballast_that_was_not_finished_is_not_there_and_is_made_again(tmp_path: Path) -> None:
    ballast = Ballast(tmp_path / "ballast", size=1 << 20)
    (tmp_path / "ballast").write_bytes(b"short")
    found = [ballast.present]
    ballast.restore()
    assert [*found, ballast.present] == [False, True]
    assert (tmp_path / "ballast").stat().st_size == 1 << 20


def test_the_ballast_is_not_made_where_room_is_short(tmp_path: Path) -> None:
    room = os.statvfs(tmp_path)
    ballast = Ballast(tmp_path / "ballast", size=room.f_bavail * room.f_frsize)
    ballast.restore()
    assert os.listdir(tmp_path) == []
