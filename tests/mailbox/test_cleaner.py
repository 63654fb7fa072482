"""What nobody will come for any more is removed, and nothing else."""

import os
import tempfile
import time
from pathlib import Path

import pytest

from pabal.mailbox.folders import CLEAN_EVERY, Cleaner, Folders
from pabal.mailbox.settings import MailboxSettings
from pabal.testing import ManualClock


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    made = Folders(tmp_path / "ipc", MailboxSettings(answers_kept=300, dead_kept=1000))
    made.prepare()
    return made


def touch(path: str) -> str:
    Path(path).parent.mkdir(exist_ok=True, parents=True)
    Path(path).write_text("{}")
    return path


class Wall:
    """The time that files are compared with."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.time() + self.ahead


def clean(folders: Folders, ahead: float) -> None:
    clock, wall = ManualClock(), Wall()
    cleaner = Cleaner(folders, clock, wall)
    clock.advance(CLEAN_EVERY)
    wall.ahead = ahead
    assert cleaner.clean()


def test_old_answers_and_old_dead_are_removed(folders: Folders) -> None:
    answer = touch(f"{folders.responses}/me/r1.json")
    dead = [touch(f"{folders.dead}/r1.json"), touch(f"{folders.dead}/r1.json.reason")]
    clean(folders, 299)
    assert os.path.exists(answer)
    clean(folders, 301)
    assert not os.path.exists(answer) and all(map(os.path.exists, dead))
    clean(folders, 1001)
    assert not any(map(os.path.exists, dead))


def test_the_folder_of_a_client_goes_when_nothing_was_asked_for_long(folders: Folders) -> None:
    touch(f"{folders.responses}/me/.spare/answer-1")
    touch(f"{folders.responses}/you/r1.json")
    clean(folders, 299)
    assert sorted(os.listdir(folders.responses)) == ["me", "you"]
    clean(folders, 301)
    assert os.listdir(folders.responses) == []


def test_the_folder_of_a_user_stays() -> None:
    settings = MailboxSettings(answers_kept=300, clients={"me": os.geteuid()}, group=os.getegid())
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o711)
        folders = Folders(Path(place, "ipc"), settings)
        folders.prepare()
        clean(folders, 301)
        assert os.listdir(folders.responses) == ["me"]


def test_what_lies_dead_may_be_anything(folders: Folders) -> None:
    os.mkfifo(f"{folders.dead}/fifo")
    os.symlink("/etc/passwd", f"{folders.dead}/link")
    touch(f"{folders.dead}/folder/inside")
    clean(folders, 1001)
    assert os.listdir(folders.dead) == [] and os.path.exists("/etc/passwd")


def test_a_dead_request_is_kept_from_when_it_died(folders: Folders) -> None:
    dead = touch(f"{folders.dead}/r1.json")
    os.utime(dead, (1, 1))
    clean(folders, 0)
    assert os.path.exists(dead)


def test_drafts_that_were_never_finished_are_removed(folders: Folders) -> None:
    draft, request = touch(f"{folders.requests}/x.json.tmp"), touch(f"{folders.requests}/y.json")
    spare = touch(f"{folders.responses}/me/.spare/answer-1")
    clean(folders, 3601)
    assert not os.path.exists(draft) and not os.path.exists(spare) and os.path.exists(request)


def test_it_cleans_every_ten_seconds(folders: Folders) -> None:
    clock = ManualClock()
    cleaner = Cleaner(folders, clock)
    assert not cleaner.clean() and cleaner.next_due() == CLEAN_EVERY
    clock.advance(CLEAN_EVERY)
    assert cleaner.next_due() == 0 and cleaner.clean() and not cleaner.clean()


def test_a_step_of_the_wall_clock_makes_nothing_look_old(folders: Folders) -> None:
    answer = touch(f"{folders.responses}/me/r1.json")
    clock, wall = ManualClock(), Wall()
    cleaner = Cleaner(folders, clock, wall)
    clock.step_wall(3600)
    wall.ahead = 3600
    clock.advance(CLEAN_EVERY)
    cleaner.clean()
    assert os.path.exists(answer) and cleaner.next_due() > 300
    clock.advance(400)
    cleaner.clean()
    assert not os.path.exists(answer)
