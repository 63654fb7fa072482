"""A workspace: the folder of a team, with its mail, its state and its logs.

    team.yaml  queue/<agent>/  queue/<agent>/processed/  queue/dead_letter/  state/  logs/

Any number of processes may open it. Only the monitor, one at a time, gives messages to agents.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pabal.apps.ignite.archive import FILE as ARCHIVE
from pabal.apps.ignite.archive import Archive
from pabal.apps.ignite.database_mail import DatabaseMail
from pabal.apps.ignite.dead_letters import dead_letter_writer
from pabal.apps.ignite.file_mail import FileMail
from pabal.apps.ignite.layout import DEAD_LETTERS, QUEUES, Folders
from pabal.apps.ignite.mail_store import MailStore
from pabal.apps.ignite.memory import FILE as MEMORY
from pabal.apps.ignite.memory import Memory
from pabal.apps.ignite.team import FILE, Team, read_team
from pabal.clock import Clock, SystemClock
from pabal.connect import connect, parse_url
from pabal.durable import make_dirs, replace_whole, translated
from pabal.errors import InvalidConfig, InvalidInput, MessageUnknown, QueueUnknown, StoreMissing
from pabal.filesystem import UNREADABLE, locked, read_whole
from pabal.message import Message
from pabal.names import shown_name
from pabal.policy.policy import DeadLetterPolicy, Policy
from pabal.queues.delivery import Delivery
from pabal.queues.queue import Queue
from pabal.store import Failure, Lease, Receipt, Store
from pabal.stores.files import Slot

DEFAULT_ROOT = Path(".ignite")
STATE, LOGS, HOOKS, BEATS = "state", "logs", "state/hooks", "state/beats"
SERVED = "state/team.yaml"  # the team file as it is served, for commands that find a mistake in the current one
TESTS, TEST_TOKEN = "state/wake-test", "wake-test"  # the message of a wake-test is in no queue
_DIGITS = 16


class Held(NamedTuple):
    """A message that an agent holds: its file, and the receipt that settles it."""

    path: str
    receipt: Receipt
    message: Message
    attempt: int


def counted(attempt: int, failure: Failure | None) -> int:
    """Return the number of an attempt without those that were given back, which the last failure did not count."""
    return attempt if failure is None else min(attempt, failure.attempt + 1)


def _is_called(held: Held, id: str) -> bool:
    """Return whether a text is the id of a held message, the name of its file, or the name before its lease."""
    name, wanted = os.path.basename(held.path), os.path.basename(id)
    stem = name.partition("~")[0]
    return id == held.message.id or wanted in (name, stem, f"{stem}.mime")


def find_root(start: Path) -> Path | None:
    """Return the workspace of the project that a folder belongs to: the first `.ignite` upwards.

    A git worktree belongs to the project of its main working tree. The team file may be in git, so that the worktree
    has one too; that one counts only if a workspace was made there.
    """
    for folder in (start, *start.parents):
        here, main = (
            place / DEFAULT_ROOT if place is not None and (place / DEFAULT_ROOT / FILE).is_file() else None
            for place in (folder, _main_tree(folder))
        )
        if here is not None and (main is None or is_made(here)):
            return here
        if main is not None:
            return main
    return None


def is_made(root: Path) -> bool:
    """Return whether the agents of a team file have their queues here: `init` or `up` makes them."""
    return (root / QUEUES).is_dir()


def root_of(path: str) -> Path | None:
    """Return the workspace that the path of a message leads to, if it is one."""
    parts = Path(os.path.abspath(path)).parents
    for depth, names in ((3, ("processed", None, "queue")), (2, (None, "queue")), (2, ("wake-test", "state"))):
        if len(parts) > depth and all(name in (None, parts[at].name) for at, name in enumerate(names)):
            if (parts[depth] / FILE).is_file():
                return parts[depth]
    return None


def _main_tree(folder: Path) -> Path | None:
    """Return the main working tree of a git worktree."""
    try:
        kind, _, place = (folder / ".git").read_text().strip().partition(": ")
        common = Path(folder, place, (Path(folder, place) / "commondir").read_text().strip())
    except (OSError, ValueError):
        return None  # no worktree: .git is a folder, or there is none
    return Path(os.path.abspath(common)).parent if kind == "gitdir" else None


class Workspace:
    """One team's folder. Close it, or use it in a `with` block."""

    layout = Folders.layout

    def __init__(self, root: Path, team: Team, clock: Clock) -> None:
        self.root = Path(os.path.abspath(root))
        self.team = team
        self.clock = clock
        for part in (STATE, LOGS, HOOKS, BEATS):
            make_dirs(self.root / part)
        self.folders = Folders(self.root)
        self.mail: MailStore
        if team.queues:
            self.mail = DatabaseMail(self.root, clock, connect(self._url(), clock=clock).store)
        else:
            self.mail = FileMail(self.root, clock)
        self.store: Store = self.mail.store

    @classmethod
    def open(
        cls, root: Path | str = DEFAULT_ROOT, *, clock: Clock | None = None, warn: Callable[[str], None] | None = None
    ) -> Workspace:
        """Open a workspace that `pabal ignite init` made.

        With `warn`, a mistake in the team file is passed to it, and the team is taken as it was served the last time.
        """
        place = Path(root)
        if not (place / FILE).is_file():
            raise StoreMissing(f"no workspace at {place}: `pabal ignite init` makes one, or give --root DIR")
        try:
            team = read_team(place / FILE)
        except InvalidConfig as exc:
            if warn is None or not (place / SERVED).is_file():
                raise
            team = read_team(place / SERVED)
            warn(f"{exc}; the team is taken as it was served the last time")
        return cls(place, team, clock or SystemClock())

    def keep_served(self) -> None:
        """Keep the team file as it is served now."""
        replace_whole(self.root / SERVED, self.team.source, synced=False)

    def _url(self) -> str:
        """Return the URL of the team's database; a relative path starts at the workspace."""
        scheme, path = parse_url(self.team.queues)
        if scheme == "postgresql" or path.is_absolute():
            return self.team.queues
        return f"{scheme}:{self.root}/{self.team.queues.partition(':')[2]}"

    def reload(self) -> None:
        """Read the team file again; raise InvalidConfig and keep the old team if it has mistakes."""
        team = read_team(self.root / FILE)
        if team.queues != self.team.queues:
            raise InvalidConfig(str(self.root / FILE), ("queues: changes when the team is started again",))
        self.team = team

    def prepare(self) -> None:
        """Give every agent and the person a queue and its policy."""
        wanted = dict.fromkeys(self.team.recipients, self.team.policy)
        keep = DeadLetterPolicy(retention_days=self.team.keep.dead)
        wanted[DEAD_LETTERS] = Policy(dead_letters=keep)
        for name, policy in wanted.items():
            queue = self.queue(name)
            self.mail.prepare(name)
            queue.ensure_policy(policy)

    def queue(self, name: str) -> Queue:
        """Return the queue of an agent; the leader gets an escalation for each message that dies in it."""
        writer = dead_letter_writer(self.team, self.layout.codec, self.fresh)
        return Queue(name, self.store, clock=self.clock, consumer=name, dead_letters=writer)

    @cached_property
    def memory(self) -> Memory:
        return Memory.open(self.root / STATE / MEMORY)

    @cached_property
    def archive(self) -> Archive:
        return Archive.open(self.root / STATE / ARCHIVE)

    def archive_if_any(self) -> Archive | None:
        """Return the archive if there is one, for views: they make none."""
        return self.archive if (self.root / STATE / ARCHIVE).exists() else None

    # Unique ids and times

    def stamp(self) -> int:
        """Return the current time in microseconds; no other message of this workspace has the same number."""
        path = self.root / STATE / "stamp"
        with translated(f"counting in {path}"), locked(path) as fd:
            last = os.pread(fd, _DIGITS, 0)
            stamp = max(int(self.clock.now() * 1_000_000), int(last) + 1 if last.isdigit() else 0)
            stamp += stamp % 1000 == 0  # whole milliseconds are left to programs whose clock has no microseconds
            os.pwrite(fd, f"{stamp:0{_DIGITS}}".encode(), 0)
        return stamp

    def fresh(self) -> tuple[str, float]:
        """Return the id and the time of a new message; within one process, later ids are larger."""
        stamp = self.stamp()
        seconds, micros = divmod(stamp, 1_000_000)
        return f"{seconds}.{os.getpid()}.{micros:05x}{os.urandom(5).hex()}", stamp / 1_000_000

    def beats(self) -> dict[str, float]:
        """Return when each agent gave its last sign of life by `beat` or `read`."""
        with os.scandir(self.root / BEATS) as entries:
            return {entry.name: entry.stat().st_mtime for entry in entries}

    # Messages that agents hold

    def held(self, agent: str) -> list[Held]:
        """Return the messages that an agent holds, from the names of the files; nothing else is touched."""
        return [found for name, slot in self.folders.held_names(agent) if (found := self._read(agent, name, slot))]

    def _read(self, agent: str, name: str, slot: Slot) -> Held | None:
        path = f"{self.folders.processed(agent)}/{name}"
        try:
            data, at = read_whole(path)
            message = self.layout.codec.decode(data, id=slot.id, at=at)
        except (FileNotFoundError, *UNREADABLE):
            return None
        return Held(path, Receipt(agent, message.id, slot.token), message, slot.attempt)

    def find_held(self, id: str, *, receipt: str = "", own: str = "") -> Held:
        """Return the held message with this id, file name or path; also the message of a wake-test.

        A receipt names the copy of one agent without a search. A message to several agents has one copy for each, with
        the same name up to the lease: the folder of a path decides, else `own`, the agent that asks. Raise InvalidInput
        if several are left.
        """
        agents = [Receipt.parse(receipt).queue] if receipt else list(self.team.agents)
        id = id.removeprefix("<").removesuffix("@ignite.local>")
        found = [held for agent in agents for held in self.held(agent) if _is_called(held, id)]
        if len(found) > 1:
            folder = os.path.dirname(os.path.abspath(id)).removesuffix("/processed") if "/" in id else ""
            places = [folder, self.folders.queue(self._known(own))]
            for place in places:
                found = [held for held in found if held.path.startswith(f"{place}/")] or found
        if len(found) > 1:
            names = ", ".join(shown_name(held.receipt.queue) for held in found)
            raise InvalidInput(f"several agents hold {id!r:.80}: {names}; give the path, or set IGNITE_AGENT")
        held = found[0] if found else self.find_test(id)
        if held is None:
            raise self.not_held(id)
        return held

    def _known(self, own: str) -> str:
        try:
            return self.team.recipient_of(own)
        except QueueUnknown:
            return own

    def find_test(self, id: str) -> Held | None:
        """Return the message of a wake-test with this id or path."""
        tests = filter(None, map(self.held_test, self.team.agents))
        return next((test for test in tests if id in (test.message.id, test.path)), None)

    def not_held(self, id: str) -> MessageUnknown:
        return MessageUnknown(
            f"no agent holds {id!r:.80}; `pabal ignite inbox AGENT` shows the messages that an agent holds"
        )

    def held_test(self, agent: str) -> Held | None:
        """Return the message of a wake-test that runs for an agent."""
        path = f"{self.root}/{TESTS}/{agent}.mime"
        try:
            message = self.layout.codec.decode(read_whole(path)[0])
        except (OSError, *UNREADABLE):
            return None
        return Held(path, Receipt(agent, message.id, TEST_TOKEN), message, 1)

    def is_message(self, path: str) -> bool:
        """Return whether a file can be read as a message."""
        try:
            self.layout.codec.decode(read_whole(path)[0])
        except (OSError, *UNREADABLE):
            return False
        return True

    def delivery(self, held: Held) -> Delivery:
        """Return the delivery that settles a held message."""
        failure, message = self.mail.last_failure(held.receipt), held.message
        lease = Lease(held.receipt, message, counted(held.attempt, failure), message.created_at, failure)
        return Delivery(self.queue(held.receipt.queue), lease, self.team.policy.visibility)

    def log_file(self, name: str) -> Path:
        """Return the file for the output of an agent or a watcher."""
        return self.root / LOGS / f"{name}.log"

    def close(self) -> None:
        for name in ("memory", "archive"):
            if name in self.__dict__:
                self.__dict__[name].close()
        self.store.close()

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
