"""Letters in the manager's hands that wait for their turn: a line for each client, so that a flood delays only itself.

A client's letters keep their order. Across clients each gives one letter in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from pabal.mailbox.protocol import Problem, Request

MOST_HELD = 50_000  # letters
MOST_BYTES = 32 << 20


class Letter:
    """A claimed file with its requests and, by and by, their answers."""

    __slots__ = ("answers", "claimed", "client", "many", "name", "open", "reason", "requests", "size", "written_at")

    def __init__(
        self,
        name: str,
        claimed: str,
        client: str,
        requests: Sequence[Request | Problem],
        *,
        many: bool = False,
        size: int = 0,
        written_at: float = 0.0,
    ) -> None:
        self.name = name
        self.claimed = claimed
        self.client = client
        self.requests = requests
        self.many = many  # answered by an array
        self.size = size
        self.written_at = written_at
        self.answers: list[dict[str, Any] | None] = [None] * len(requests)
        self.open = len(requests)
        self.reason = ""  # why the file is set aside once it is answered

    def answer(self, index: int, document: dict[str, Any]) -> None:
        self.answers[index] = document
        self.open -= 1


class Lines:
    def __init__(self) -> None:
        self._lines: dict[str, deque[Letter]] = {}  # in the order of their turns
        self._bytes = 0
        self.held = 0

    @property
    def full(self) -> bool:
        return self.held >= MOST_HELD or self._bytes >= MOST_BYTES

    def length(self, client: str) -> int:
        return len(self._lines.get(client, ()))

    def add(self, letter: Letter) -> None:
        self._lines.setdefault(letter.client, deque()).append(letter)
        self.held += 1
        self._bytes += letter.size

    def take(self, most: int) -> list[Letter]:
        """Take letters in turn until they hold this many requests."""
        taken: list[Letter] = []
        while self._lines and most > 0:
            client = next(iter(self._lines))
            line = self._lines.pop(client)
            letter = line.popleft()
            if line:
                self._lines[client] = line  # behind all others
            taken.append(letter)
            most -= len(letter.requests)
            self.held -= 1
            self._bytes -= letter.size
        return taken
