"""hook: touches `state/hooks/<agent>`; who watches that file, or sleeps in `pabal ignite inbox --wait`, wakes up."""

from __future__ import annotations

import os

from pabal.errors import WakeFailed
from pabal.ignite.wakes import Surroundings, Turn


class HookWake:
    def __init__(self, place: Surroundings) -> None:
        self._folder = place.root / "state" / "hooks"

    def wake(self, turn: Turn) -> None:
        path = self._folder / turn.agent
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
            os.utime(path)
        except OSError as exc:
            raise WakeFailed(f"cannot touch {path}: {exc.strerror}") from exc

    def alive(self, turn: Turn) -> None:
        return None

    def stop(self, turn: Turn) -> None:
        """Nothing is to be taken back."""
