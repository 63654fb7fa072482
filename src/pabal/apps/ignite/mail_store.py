"""The mail store contract: where a team's mail lies, and the files that agents hold.

An agent always gets its message as a file in `processed/`. There are two implementations: FileMail keeps all mail in
the folders, so that the held file is the message itself; DatabaseMail keeps it in a database and writes a held file for
each lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple, Protocol

from pabal.errors import TooLarge
from pabal.policy.policy import Policy
from pabal.queues.delivery import Delivery
from pabal.runtime.wake import PollableWatch
from pabal.store import Entry, Failure, Receipt, State, Store


class TurnOutcome(StrEnum):
    """What became of a message that an agent held."""

    HELD = "held"
    MOVING = "moving"  # between two folders: check again
    RETRY = "retry"
    DONE = "done"
    DEAD = "dead"
    REMOVED = "removed"


class Load(NamedTuple):
    """The numbers of one agent's messages; `oldest` is how long the message at the end of its queue has waited.

    `retrying` are those among ready and delayed whose last attempt failed.
    """

    name: str
    ready: int = 0
    delayed: int = 0
    inflight: int = 0
    done: int = 0
    dead: int = 0
    corrupt: int = 0
    oldest: float | None = None
    retrying: int = 0


class MailStore(Protocol):
    """The mail of one workspace."""

    @property
    def store(self) -> Store:
        """The store with the queues. Settling through it also removes held files."""
        ...

    def prepare(self, agent: str) -> None:
        """Make the folders of an agent's queue."""
        ...

    def claim(self, place: str, now: float) -> None:
        """Let only this workspace give out the mail; raise InvalidConfig if another one does."""
        ...

    def recover(self, agent: str) -> set[str]:
        """Bring leases and held files together after a crash; return the tokens whose files were written again."""
        ...

    def watch(self, agents: Sequence[str]) -> PollableWatch | None:
        """Return a watch that wakes when mail arrives; None if the folders show it."""
        ...

    def take_dropped(self, agent: str, policy: Policy, is_complete: Callable[[str], bool]) -> bool:
        """Publish files that programs dropped into an agent's queue; False if one is still being written."""
        ...

    def may_have_mail(self, agent: str) -> bool:
        """Return cheaply whether an agent may have waiting mail."""
        ...

    def hand_over(self, delivery: Delivery) -> str | None:
        """Return the held file of a lease; None if there is none. A message that cannot be a file is buried."""
        ...

    def outcome(self, receipt: Receipt) -> TurnOutcome:
        """Find out what became of a held message. One whose file the agent removed is acknowledged here."""
        ...

    def last_failure(self, receipt: Receipt) -> Failure | None:
        """Return why the attempt before the current one failed."""
        ...

    def set_aside(self, agent: str, state: State) -> Iterable[Entry]:
        """Go through dead or corrupt messages that are in no folder."""
        ...

    def load(self, agent: str) -> Load:
        """Count an agent's messages."""
        ...


def over_limit(limit: int, size: int) -> TooLarge:
    """Return the error for a message that is larger than its team allows."""
    return TooLarge(
        f"a message of this team has {limit} bytes at most, and this one has {size}:"
        " raise limits.bytes in team.yaml, or send the path of a file"
    )
