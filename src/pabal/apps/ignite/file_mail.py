"""Mail in folders: the file of a message is the message, and `processed/` holds what agents hold."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pabal.apps.ignite.layout import Folders, files_in
from pabal.apps.ignite.mail_store import Load, TurnOutcome
from pabal.clock import Clock
from pabal.codecs.mime.fields import STATUS, read_head
from pabal.errors import InvalidInput
from pabal.filesystem import UNREADABLE, read_whole
from pabal.policy.policy import Policy
from pabal.queues.delivery import Delivery
from pabal.runtime.wake import PollableWatch
from pabal.store import Entry, Failure, Receipt, State
from pabal.stores.files import FileStore, read_failure

_DIGITS = 16  # of the microseconds in a file name


class FileMail:
    """A MailStore in the folders of a workspace."""

    def __init__(self, root: Path, clock: Clock) -> None:
        self.store = FileStore(root, clock=clock, layout=Folders.layout)
        self._folders = Folders(root)
        self._clock = clock

    def prepare(self, agent: str) -> None:
        pass  # the store makes its folders itself

    def claim(self, place: str, now: float) -> None:
        pass  # the lock of the workspace is enough

    def recover(self, agent: str) -> set[str]:
        """Set aside held files that cannot be read any more: nobody could settle them."""
        for name, slot in list(self._folders.held_names(agent)):
            path = f"{self._folders.processed(agent)}/{name}"
            try:
                self._folders.layout.codec.decode(read_whole(path)[0], id=slot.id)
            except FileNotFoundError:
                continue
            except UNREADABLE as exc:
                self._folders.set_aside(agent, path, exc)
        return set()

    def watch(self, agents: Sequence[str]) -> PollableWatch | None:
        return None

    def take_dropped(self, agent: str, policy: Policy, is_complete: Callable[[str], bool]) -> bool:
        return True  # the store takes foreign files itself

    def may_have_mail(self, agent: str) -> bool:
        return bool(files_in(self._folders.queue(agent)))

    def hand_over(self, delivery: Delivery) -> str | None:
        receipt = delivery.receipt
        names = self._folders.held_names(receipt.queue)
        found = next((name for name, slot in names if slot.token == receipt.token), None)
        return None if found is None else f"{self._folders.processed(receipt.queue)}/{found}"

    def outcome(self, receipt: Receipt) -> TurnOutcome:
        """Search for the receipt's token, which is part of every name that the file gets after the lease."""
        directory = self._folders.directory
        places = (
            (directory(receipt.queue, State.INFLIGHT), TurnOutcome.HELD),
            (f"{self._folders.root}/.settling", TurnOutcome.MOVING),  # before the rest: from there it moves on
            (directory(receipt.queue, State.READY), TurnOutcome.RETRY),
            (directory(receipt.queue, State.DONE), TurnOutcome.DONE),
            (directory(receipt.queue, State.DEAD), TurnOutcome.DEAD),
        )
        for folder, outcome in places:
            if any(receipt.token in name for name in os.listdir(folder)):
                return outcome
        self.store.forget(receipt.queue, receipt.id)
        return TurnOutcome.REMOVED

    def last_failure(self, receipt: Receipt) -> Failure | None:
        return read_failure(f"{self._folders.private(receipt.queue, 'why')}/{receipt.id}.why")

    def set_aside(self, agent: str, state: State) -> Iterable[Entry]:
        return ()

    def load(self, agent: str) -> Load:
        """Count file names, so that ten thousand messages are counted in a few milliseconds.

        Only a file that was in hand and waits without a delay is opened: it has failed, or was given back.
        """
        now = self._clock.now()
        ready = delayed = retrying = 0
        oldest = ""
        for name in self._folders.admitted_names(agent, State.READY):
            # By hand, because the grammar of names is slower and the monitor's loop does this too.
            stem, _, marks = name.removesuffix(".mime").partition("~")
            rests = "~d" in marks and _due(marks) > now * 1000
            if marks[:1] == "a" and marks[:2] != "a0":
                retrying += rests or self._status(agent, name) == "retrying"
            if rests:
                delayed += 1
                continue
            ready += 1
            stamp = stem[-_DIGITS:]
            if stamp.isdecimal() and len(stamp) == _DIGITS and (not oldest or stamp < oldest):
                oldest = stamp
        done, dead, corrupt = (
            sum(1 for _ in self._folders.admitted_names(agent, state))
            for state in (State.DONE, State.DEAD, State.CORRUPT)
        )
        inflight = sum(1 for _ in self._folders.held_names(agent))
        waited = max(0.0, now - int(oldest) / 1_000_000) if oldest else None
        return Load(agent, ready, delayed, inflight, done, dead, corrupt, waited, retrying)

    def _status(self, agent: str, name: str) -> str:
        try:
            return read_head(read_whole(f"{self._folders.queue(agent)}/{name}")[0]).get(STATUS) or ""
        except (OSError, InvalidInput, *UNREADABLE):
            return ""


def _due(marks: str) -> int:
    try:
        return int(marks.partition("~d")[2].partition("~")[0], 16)
    except ValueError:  # the name of a foreign file
        return 0
