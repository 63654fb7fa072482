"""Mail in a database: each lease has a held file in `processed/`, and dropped files are published.

The database decides. A held file is written after the lease and removed after the verdict. An agent that removes its
held file acknowledges the message. A marker in `given/` records that the file was there since the machine started, and
so distinguishes a removed file from one that was never written. After a power cut no marker counts and the message is
given again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pabal.apps.ignite.layout import Folders, files_in
from pabal.apps.ignite.mail_store import Load, TurnOutcome, over_limit
from pabal.apps.ignite.team import MONITOR
from pabal.clock import Clock
from pabal.codec import Restatable
from pabal.codecs.mime.addresses import fixed_id
from pabal.codecs.mime.fields import ERROR_REASON, RETRY_COUNT, edited
from pabal.durable import make_dirs, translated, write_new
from pabal.errors import InvalidConfig, InvalidInput, PabalError, StoreError
from pabal.filesystem import UNREADABLE, read_whole, rename_new, touch
from pabal.ids import new_tag
from pabal.message import Message
from pabal.policy.policy import Policy
from pabal.queues.delivery import Delivery
from pabal.queues.store_proxy import StoreProxy
from pabal.runtime.wake import PollableWatch
from pabal.store import (
    Done,
    Draft,
    Entry,
    Failure,
    FailureCode,
    Outcome,
    Receipt,
    Retry,
    Settlement,
    State,
    Store,
    Terms,
    Waitable,
)
from pabal.stores.files import safe_name, short_boot, short_token

_LONGEST_REASON = 200
_NEVER = 16**10 - 1  # the deadline in the name of a held file: the real one is in the database
_CLAIM = "workspace"  # the id of the message that names the workspace
_PAGE = 100
_COUNTED = 1000  # delayed messages that are looked at, to count those that have failed


class HeldFiles:
    """The held files of one workspace."""

    def __init__(self, folders: Folders, clock: Clock) -> None:
        self._folders, self._clock = folders, clock

    def make(self, queue: str) -> None:
        """Make the folders of a queue."""
        parts = [self._folders.private(queue, part) for part in ("tmp", "given", "taken")]
        for folder in (self._folders.processed(queue), *parts, self._folders.directory(queue, State.CORRUPT)):
            make_dirs(Path(folder))

    def write(self, receipt: Receipt, message: Message, attempt: int, failure: Failure | None) -> str:
        """Write the held file of a lease; return its path. Raise InvalidInput if the message cannot be a file."""
        data = self._text(receipt.queue, message, attempt, failure)
        path = f"{self._folders.processed(receipt.queue)}/{self._name(receipt, message, attempt)}"
        draft = f"{self._folders.private(receipt.queue, 'tmp')}/{new_tag()}~held"
        with translated(f"writing {path}"):
            os.close(write_new(draft, data))
            os.rename(draft, path)
            self.mark(receipt)
        return path

    def path(self, receipt: Receipt) -> str | None:
        """Return the held file of a lease, if it is there."""
        wanted = short_token(receipt.token)
        return next((path for path, token in self._all(receipt.queue) if token == wanted), None)

    def is_readable(self, path: str) -> bool:
        try:
            self._folders.layout.codec.decode(read_whole(path)[0])
        except (OSError, *UNREADABLE):
            return False
        return True

    def was_removed(self, receipt: Receipt) -> bool:
        """Return whether the agent removed the held file of a lease."""
        return os.path.lexists(self._marker(receipt)) and self.path(receipt) is None

    def remove(self, receipt: Receipt) -> None:
        """Remove the held file of a lease that is over."""
        path = self.path(receipt)
        if path is not None:
            _unlink(path)
        _unlink(self._marker(receipt))

    def mark(self, receipt: Receipt) -> None:
        """Record that the held file of a lease is there."""
        touch(self._marker(receipt))

    def sweep(self, queue: str, tokens: set[str]) -> None:
        """Remove the files and markers of all leases except these."""
        current, folder = {short_token(token) for token in tokens}, self._folders.private(queue, "given")
        markers = os.listdir(folder)
        ours = {name.partition(".")[0] for name in markers}
        for path, token in list(self._all(queue)):
            if token not in current:
                _unlink(path) if token in ours else self._release(path)
        for name in markers:
            if name.partition(".")[0] not in current or not name.endswith(self._boot):
                _unlink(f"{folder}/{name}")

    def _release(self, path: str) -> None:
        """Make a leased file from the time when the mail lay in folders look like one that arrives now."""
        slot = self._folders.names.parse(os.path.basename(path))
        assert slot is not None
        with suppress(FileNotFoundError):
            rename_new(path, f"{os.path.dirname(path)}/{slot.base}-{new_tag()}{slot.extension}")

    @property
    def _boot(self) -> str:
        return f".{short_boot(self._clock.boot_id)}"

    def _marker(self, receipt: Receipt) -> str:
        return f"{self._folders.private(receipt.queue, 'given')}/{short_token(receipt.token)}{self._boot}"

    def _all(self, queue: str) -> Iterator[tuple[str, str]]:
        """Go through the held files of a queue as (path, token)."""
        folder = self._folders.processed(queue)
        return ((f"{folder}/{name}", slot.token) for name, slot in self._folders.held_names(queue))

    def _name(self, receipt: Receipt, message: Message, attempt: int) -> str:
        names = self._folders.names
        slot = names.parse(f"{names.stem(self._folders.layout.stem(message))}{names.extension}")
        assert slot is not None
        return names.leased(slot, attempt, f"{short_token(receipt.token)}{self._boot}.{_NEVER:x}")

    def _text(self, queue: str, message: Message, attempt: int, failure: Failure | None) -> bytes:
        codec = self._folders.layout.codec
        data = codec.encode(message, queue=queue)
        assert isinstance(codec, Restatable)
        data = codec.restate(data, State.INFLIGHT, at=self._clock.now())
        headers: dict[str, str | None] = {RETRY_COUNT: str(attempt - 1)} if attempt > 1 else {}
        if failure is not None:
            reason = "".join(char if char.isprintable() else " " for char in failure.reason or failure.code)
            headers[ERROR_REASON] = reason[:_LONGEST_REASON].strip()
        return edited(data, headers) if headers else data


class HeldFilesStore(StoreProxy):
    """Any store, with held files that follow its leases."""

    def __init__(self, store: Store, files: HeldFiles) -> None:
        super().__init__(store)
        self.files = files

    def settle(self, settlements: Sequence[Settlement], *, durable: bool = False) -> list[Outcome]:
        """Apply each verdict, then remove its held file. A file that the agent removed counts as done, always."""
        removed = {
            each.receipt
            for each in settlements
            if not isinstance(each.verdict, Done) and self.files.was_removed(each.receipt)
        }
        if removed:
            self._store.settle([Settlement(receipt, Done()) for receipt in removed])
        rest = [each for each in settlements if each.receipt not in removed]
        outcomes = iter(self._store.settle(rest, durable=durable) if rest else ())
        for each in settlements:
            self.files.remove(each.receipt)
        return [Outcome.LOST if each.receipt in removed else next(outcomes) for each in settlements]


class DatabaseMail:
    """A MailStore in a database."""

    def __init__(self, root: Path, clock: Clock, store: Store) -> None:
        self._folders = Folders(root)
        self._clock = clock
        self._files = HeldFiles(self._folders, clock)
        self._database = store
        self.store = HeldFilesStore(store, self._files)

    def prepare(self, agent: str) -> None:
        self._files.make(agent)

    def claim(self, place: str, now: float) -> None:
        message = Message(id=_CLAIM, body={"place": place}, type="claim", sender=MONITOR, created_at=now)
        self._database.publish([Draft(MONITOR, message)])
        found = self._database.find(MONITOR, _CLAIM)
        body = found.message.body if found is not None and found.message is not None else None
        other = body.get("place") if isinstance(body, dict) else None
        if other != place:
            raise InvalidConfig(
                f"queues: this store belongs to the workspace {other}; found {place}. Give each team a schema or a file"
                f" of its own. If that workspace is gone for good, `pabal purge {MONITOR} --state ready` frees its mail"
            )

    def recover(self, agent: str) -> set[str]:
        self._files.make(agent)
        leased = list(self._entries(agent, State.INFLIGHT))
        self._files.sweep(agent, {entry.token for entry in leased})
        return {entry.token for entry in leased if self._recover_lease(Receipt(agent, entry.id, entry.token), entry)}

    def watch(self, agents: Sequence[str]) -> PollableWatch | None:
        assert isinstance(self._database, Waitable)
        watch = self._database.watch(agents)
        assert isinstance(watch, PollableWatch)
        return watch

    def hand_over(self, delivery: Delivery) -> str | None:
        try:
            return self._files.write(delivery.receipt, delivery.message, delivery.attempt, delivery.failure)
        except InvalidInput as exc:
            delivery.fail(FailureCode.VALIDATION_ERROR, f"it cannot be written as a file: {exc}", final=True)
            return None

    def outcome(self, receipt: Receipt) -> TurnOutcome:
        entry = self._database.find(receipt.queue, receipt.id)
        if entry is None or entry.state is State.DONE:
            return TurnOutcome.DONE
        if entry.state is State.DEAD:
            return TurnOutcome.DEAD
        if entry.token != receipt.token:
            return TurnOutcome.RETRY
        if self._files.path(receipt) is not None:
            return TurnOutcome.HELD
        self.store.settle([Settlement(receipt, Done())])  # the file was there, and the agent removed it
        return TurnOutcome.REMOVED

    def last_failure(self, receipt: Receipt) -> Failure | None:
        found = self._database.find(receipt.queue, receipt.id)
        return found.failure if found is not None else None

    def set_aside(self, agent: str, state: State) -> Iterable[Entry]:
        return self._entries(agent, state)

    def may_have_mail(self, agent: str) -> bool:
        return True

    def load(self, agent: str) -> Load:
        found = self._database.counts(agent)
        oldest = self._database.oldest(agent, State.READY)
        delayed = found.get(State.DELAYED, 0)
        waiting = self._database.browse(agent, State.DELAYED, limit=_COUNTED) if delayed else []
        corrupt_files = sum(1 for _ in self._folders.admitted_names(agent, State.CORRUPT))
        return Load(
            agent,
            ready=found.get(State.READY, 0),
            delayed=delayed,
            inflight=found.get(State.INFLIGHT, 0),
            done=found.get(State.DONE, 0),
            dead=found.get(State.DEAD, 0),
            corrupt=found.get(State.CORRUPT, 0) + corrupt_files,
            oldest=None if oldest is None else max(0.0, self._clock.now() - oldest),
            retrying=sum(1 for entry in waiting if entry.failure is not None),
        )

    # The drop folder: files that programs put into `queue/<agent>/`.

    def take_dropped(self, agent: str, policy: Policy, is_complete: Callable[[str], bool]) -> bool:
        """Move complete files to `taken/`, where nobody writes, publish them, then remove them.

        The id comes from the document, or from the file. A process that is killed in between is followed by one that
        publishes the file again, and the store recognises the id.
        """
        self._files.make(agent)
        folder, taken = self._folders.queue(agent), self._folders.private(agent, "taken")
        all_complete = True
        for name in filter(self._folders.layout.admits, files_in(folder)):
            try:
                if is_complete(f"{folder}/{name}"):
                    rename_new(f"{folder}/{name}", f"{taken}/{new_tag()}~{safe_name(name)}")
                else:
                    all_complete = False
            except FileNotFoundError:
                continue
        for name in files_in(taken):
            self._publish(agent, policy, f"{taken}/{name}")
        return all_complete

    def _publish(self, agent: str, policy: Policy, path: str) -> None:
        taken_name = os.path.basename(path)
        try:
            data, at = read_whole(path)
            # A file that names no id gets one from its content and the name under which it was taken.
            id = fixed_id(f"file/{sha256(os.fsencode(taken_name) + data).hexdigest()}")
            message = self._folders.layout.codec.decode(data, id=id, at=at)
            if len(data) > policy.max_bytes:
                raise over_limit(policy.max_bytes, len(data))
            # However many messages wait: the program that dropped the file cannot be asked to try again.
            self._database.publish([Draft(agent, message, terms=Terms(policy.dedup_window, policy.max_bytes))])
        except (StoreError, FileNotFoundError):
            raise
        except (*UNREADABLE, PabalError) as exc:
            self._folders.set_aside(agent, path, exc, name=taken_name.partition("~")[2])
            return
        os.unlink(path)

    # After a crash

    def _recover_lease(self, receipt: Receipt, entry: Entry) -> bool:
        """Bring one lease and its held file together; True if the file was written again."""
        path = self._files.path(receipt)
        if path is not None and self._files.is_readable(path):
            self._files.mark(receipt)
            return False
        if path is None and self._files.was_removed(receipt):
            self.store.settle([Settlement(receipt, Done())])
            return False
        try:
            if path is not None or entry.message is None:
                raise InvalidInput("the held file was damaged")
            self._files.write(receipt, entry.message, entry.attempt, entry.failure)
        except InvalidInput:
            # It is given again, or refused then.
            self._database.settle([Settlement(receipt, Retry(0.0, entry.failure))])
        found = self._database.find(receipt.queue, receipt.id)
        if found is None or found.token != receipt.token:  # settled in between, perhaps by its agent
            self._files.remove(receipt)
            return False
        return True

    def _entries(self, queue: str, state: State) -> Iterator[Entry]:
        after = ""
        while page := self._database.browse(queue, state, after=after, limit=_PAGE):
            yield from page
            after = page[-1].cursor


def _unlink(path: str) -> None:
    # An agent may have replaced its held file, even by a folder. Only a plain file is removed.
    with suppress(FileNotFoundError, IsADirectoryError, PermissionError):
        os.unlink(path)
