"""A workspace: the folder of a team, with its mail, its state and its logs, opened by whoever takes part.

    team.yaml  queue/<agent>/  queue/<agent>/processed/  queue/dead_letter/  state/  logs/

Any number of processes may have it open; only the monitor, one at a time, gives messages to agents.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pabal.clock import Clock, SystemClock
from pabal.connect import connect, parse_url
from pabal.delivery import Delivery
from pabal.durable import make_dirs, translated
from pabal.errors import InvalidConfig, MessageUnknown, StoreMissing
from pabal.ignite.layout import DEAD_LETTERS, PROCESSED, QUEUES, IgniteLayout
from pabal.ignite.letters import letters_of
from pabal.ignite.memory import FILE as MEMORY
from pabal.ignite.memory import Memory
from pabal.ignite.papered import PaperedStore
from pabal.ignite.papers import Papers
from pabal.ignite.team import FILE, Team, read_team
from pabal.message import Message
from pabal.policy import DeadLetterPolicy, Policy
from pabal.queue import Queue
from pabal.store import Failure, Lease, Receipt, Store
from pabal.stores.files import FileStore
from pabal.stores.files.names import Names, Slot
from pabal.stores.files.reading import UNREADABLE, read_failure, read_whole

DEFAULT_ROOT = Path(".ignite")
STATE, LOGS, HOOKS, BEATS = "state", "logs", "state/hooks", "state/beats"
_DIGITS = 16


class Held(NamedTuple):
    """A message that an agent has in hand: where its file is, and what settles it."""

    path: str
    receipt: Receipt
    message: Message
    attempt: int


def counted(attempt: int, failure: Failure | None) -> int:
    """Return which attempt this is, not counting those that were given back: a failure says how many were before it."""
    return attempt if failure is None else min(attempt, failure.attempt + 1)


class Workspace:
    """One team's folder. Close it, or use it in a `with` block."""

    layout = IgniteLayout()
    names = Names(native=False, extension=layout.codec.extension)

    def __init__(self, root: Path, team: Team, clock: Clock) -> None:
        self.root = Path(os.path.abspath(root))
        self.team = team
        self.clock = clock
        for part in (STATE, LOGS, HOOKS, BEATS):
            make_dirs(self.root / part)
        self.papered: PaperedStore | None = None  # where the mail lies in a database
        if team.queues:
            papers = Papers(self.root, self.layout, self.names, clock)
            self.papered = PaperedStore(connect(self._url(), clock=clock).store, papers)
        self.store: Store = self.papered or FileStore(self.root, clock=clock, layout=self.layout)

    @classmethod
    def open(cls, root: Path | str = DEFAULT_ROOT, *, clock: Clock | None = None) -> Workspace:
        """Open a workspace that `pabal ignite init` made."""
        place = Path(root)
        if not (place / FILE).is_file():
            raise StoreMissing(f"no workspace at {place}: `pabal ignite init` makes one, or give --root DIR")
        return cls(place, read_team(place / FILE), clock or SystemClock())

    def _url(self) -> str:
        """Return the URL of the team's database; a path in it is meant from the workspace."""
        scheme, path = parse_url(self.team.queues)
        if scheme == "postgresql" or path.is_absolute():
            return self.team.queues
        return f"{scheme}:{self.root}/{self.team.queues.partition(':')[2]}"

    def reload(self) -> None:
        """Read the team file again; raise InvalidConfig and keep the old team if it has mistakes."""
        team = read_team(self.root / FILE)
        if team.queues != self.team.queues:
            raise InvalidConfig(str(self.root / FILE), ("queues: changes when the team is started anew",))
        self.team = team

    def prepare(self) -> None:
        """Give every agent its queue and its policy."""
        wanted = dict.fromkeys(self.team.agents, self.team.policy)
        keep = DeadLetterPolicy(retention_days=self.team.keep.dead)
        wanted[DEAD_LETTERS] = Policy(dead_letters=keep)
        for name, policy in wanted.items():
            queue = self.queue(name)
            if self.papered is not None:
                self.papered.papers.make(name)
            if self.store.settings(name) is None or queue.policy != policy:
                queue.configure(policy)

    def queue(self, name: str) -> Queue:
        """Return the queue of an agent, whose dead are told to the leader."""
        letters = letters_of(self.team, self.layout.codec, self.fresh)
        return Queue(name, self.store, clock=self.clock, consumer=name, letters=letters)

    @cached_property
    def memory(self) -> Memory:
        return Memory.open(self.root / STATE / MEMORY)

    # Names that nobody else has

    def stamp(self) -> int:
        """Return the microseconds of now, a number that no other message of this workspace has or gets."""
        path = self.root / STATE / "stamp"
        with translated(f"counting in {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX)
                last = os.pread(fd, _DIGITS, 0)
                stamp = max(int(self.clock.now() * 1_000_000), int(last) + 1 if last.isdigit() else 0)
                stamp += stamp % 1000 == 0  # whole milliseconds are left to those who cannot count finer
                os.pwrite(fd, f"{stamp:0{_DIGITS}}".encode(), 0)
            finally:
                os.close(fd)
        return stamp

    def fresh(self) -> tuple[str, float]:
        """Return an id for a new message and its instant; of one process, later ids are larger."""
        stamp = self.stamp()
        seconds, micros = divmod(stamp, 1_000_000)
        return f"{seconds}.{os.getpid()}.{micros:05x}{os.urandom(5).hex()}", stamp / 1_000_000

    # What agents have in hand

    def processed(self, agent: str) -> str:
        return f"{self.root}/{QUEUES}/{agent}/{PROCESSED}"

    def held(self, agent: str) -> list[Held]:
        """Return what an agent has in hand, by the names of the files and without touching anything else."""
        return [found for name, slot in self.held_names(agent) if (found := self._read(agent, name, slot))]

    def held_names(self, agent: str) -> Iterator[tuple[str, Slot]]:
        """Go through the files that are leased, as (name, slot)."""
        try:
            names = os.listdir(self.processed(agent))
        except FileNotFoundError:
            return
        for name in names:
            slot = self.names.parse(name)
            if slot is not None and slot.leased:
                yield name, slot

    def _read(self, agent: str, name: str, slot: Slot) -> Held | None:
        path = f"{self.processed(agent)}/{name}"
        try:
            data, at = read_whole(path)
            message = self.layout.codec.decode(data, id=slot.id, at=at)
        except (FileNotFoundError, *UNREADABLE):
            return None
        return Held(path, Receipt(agent, message.id, slot.token), message, slot.attempt)

    def find_held(self, id: str, *, receipt: str = "") -> Held:
        """Return the message of this id, file name or path that an agent has in hand.

        One sent to several agents has one id for each; a receipt says which without a search.
        """
        agents = [Receipt.parse(receipt).queue] if receipt else list(self.team.agents)
        wanted = os.path.basename(id)
        for agent in agents:
            for held in self.held(agent):
                stem = os.path.basename(held.path).partition("~")[0]
                if id == held.message.id or wanted in (os.path.basename(held.path), stem, f"{stem}.mime"):
                    return held
        raise MessageUnknown(f"no agent has {id!r:.80} in hand; `pabal ignite inbox AGENT` shows what each has")

    def delivery(self, held: Held) -> Delivery:
        """Return what settles a message that is in hand."""
        failure, message = self._failure(held.receipt), held.message
        lease = Lease(held.receipt, message, counted(held.attempt, failure), message.created_at, failure)
        return Delivery(self.queue(held.receipt.queue), lease, self.team.policy.visibility)

    def _failure(self, receipt: Receipt) -> Failure | None:
        """Return why the attempt before this one failed."""
        if self.papered is not None:
            found = self.papered.find(receipt.queue, receipt.id)
            return found.failure if found is not None else None
        return read_failure(f"{self.root}/{self.layout.private(receipt.queue)}/why/{receipt.id}.why")

    def relative(self, path: str) -> str:
        return os.path.relpath(path, self.root)

    def close(self) -> None:
        if "memory" in self.__dict__:
            self.memory.close()
        self.store.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
