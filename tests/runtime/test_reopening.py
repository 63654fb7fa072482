"""A service whose store failed is opened anew, until it is stopped."""

from __future__ import annotations

from contextlib import closing

import pytest

from pabal.errors import StoreFailed
from pabal.runtime import reopening
from pabal.runtime.reopening import Reopening
from pabal.runtime.service import Service
from pabal.runtime.wake import FdWatch


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let no pause take time."""
    monkeypatch.setattr(reopening, "FIRST_PAUSE", 0.001)
    return []


class Fragile:
    """A service that fails as often as it is told to, then stops."""

    def __init__(self, pauses: list[float], failures: int) -> None:
        self.reopening = Reopening((StoreFailed,), failed=lambda exc, pause: pauses.append(pause))
        self.left = failures
        self.opened = 0

    def serve(self) -> None:
        self.opened += 1
        with closing(FdWatch()) as watch:
            self.reopening.began(Service(watch))
            if self.left:
                self.left -= 1
                raise StoreFailed("the disk is gone")
            self.reopening.passed()
            self.reopening.stop()


def test_a_service_is_opened_anew_with_growing_pauses_until_it_is_stopped(pauses: list[float]) -> None:
    fragile = Fragile(pauses, 3)
    fragile.reopening.run(fragile.serve)
    assert fragile.opened == 4 and pauses == [0.001, 0.002, 0.004]


def test_a_finished_pass_makes_the_next_failure_the_first_again(pauses: list[float]) -> None:
    fragile = Fragile(pauses, 2)
    usual = fragile.serve

    def serve() -> None:
        fragile.reopening.passed()
        usual()

    fragile.reopening.run(serve)
    assert pauses == [0.001, 0.001]


def test_what_never_worked_is_raised_at_once(pauses: list[float]) -> None:
    def serve() -> None:
        raise StoreFailed("there is no disk")

    with pytest.raises(StoreFailed):
        Fragile(pauses, 0).reopening.run(serve)
    assert pauses == []


def test_a_stop_just_before_the_pause_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(reopening, "LONGEST_PAUSE", 3600.0)
    stopped = Reopening((StoreFailed,), failed=lambda exc, pause: stopped.stop())

    def serve() -> None:
        with closing(FdWatch()) as watch:
            stopped.began(Service(watch))
            raise StoreFailed("the disk is gone")

    stopped.run(serve)
    assert stopped.stopping
