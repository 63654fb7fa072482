"""The request files of a mailbox on the manager's side: claim, read, queue up, answer, and then release each file.

Reading is cheap compared with answering. So the manager reads waiting files ahead, as far as memory allows, and knows
the client of each: clients then take turns, and a client with many requests delays only itself.
"""

from __future__ import annotations

import errno
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from pabal import jsontext
from pabal.clock import Clock
from pabal.errors import (
    DeadlinePassed,
    InvalidName,
    LinkedFile,
    MailboxFull,
    NotARegularFile,
    NotJson,
    PabalError,
    TooLarge,
    UnsafeFile,
    WrongOwner,
)
from pabal.ids import new_token
from pabal.mailbox.folders import SUFFIX, Folders, is_draft, is_request
from pabal.mailbox.protocol import MAX_REQUESTS, Batch, Problem, Request, read_batch
from pabal.mailbox.request_files import FileContent, Senders, read_request_file
from pabal.watch import ARRIVALS, MOVE_SELF, OVERFLOW, Inotify

CLAIMED_AT_ONCE = 500  # names taken from the folder in one step
RUN_AT_ONCE = 50  # requests run before the next check for arrivals; more would not make their shared commit cheaper
_MAX_NAMES = 50_000  # file names kept in memory; more are found by listing the folder again
_MAX_QUEUED = 50_000  # claimed files kept in memory
_MAX_QUEUED_BYTES = 32 << 20
_INCOMPLETE_AT_ONCE = 100  # files that could not be parsed and are read again in one step
_WRITING_SECONDS = 2.0  # a file changed this recently that cannot be parsed may still be being written
_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9_.-]+")


class Arrivals:
    """The names of the files that wait in a folder, reported by inotify. New ones are taken along with older ones."""

    def __init__(self, folder: str, *, watched: bool = True) -> None:
        self._folder = folder
        self._fresh: deque[str] = deque()
        self._backlog: deque[str] = deque()
        self._ignored: set[str] = set()
        self._incomplete = True  # there may be names that were not reported
        self.inotify: Inotify | None = None
        if not watched:
            return
        with suppress(OSError):
            self.inotify = Inotify()
            self.inotify.add(folder, ARRIVALS | MOVE_SELF)

    def rescan(self) -> None:
        """List the folder at the next take."""
        self._incomplete = True

    def ignore(self, name: str) -> None:
        """Never take this name again: it cannot be claimed."""
        self._ignored.add(name)

    @property
    def waiting(self) -> int:
        """Return how many names are known to wait."""
        return len(self._fresh) + len(self._backlog)

    def take(self) -> list[str]:
        """Return the next names, in order."""
        self._read_events()
        if self._incomplete and not self._backlog:
            self._list()
        fresh = list(_popped(self._fresh, CLAIMED_AT_ONCE // 2 if self._backlog else CLAIMED_AT_ONCE))
        return sorted({*fresh, *_popped(self._backlog, CLAIMED_AT_ONCE - len(fresh))})

    def give_back(self, names: list[str]) -> None:
        """Return names that were not claimed to the front."""
        self._backlog.extendleft(reversed(names))

    def _read_events(self) -> None:
        if self.inotify is None:
            self._incomplete = True
            return
        for event in self.inotify.events():
            if event.mask & OVERFLOW or len(self._fresh) >= _MAX_NAMES:
                self._incomplete = True
            elif not event.name:  # an event of the folder itself: a new folder in its place would not be watched
                raise FileNotFoundError(errno.ENOENT, "it was moved or removed", self._folder)
            elif not is_draft(event.name):
                self._fresh.append(event.name)

    def _list(self) -> None:
        with os.scandir(self._folder) as entries:
            usable = (entry.name for entry in entries if not is_draft(entry.name) and entry.name not in self._ignored)
            names = list(islice(usable, _MAX_NAMES))
        self._incomplete = len(names) == _MAX_NAMES
        self._backlog.extend(sorted(set(names).difference(self._fresh)))

    def close(self) -> None:
        if self.inotify is not None:
            self.inotify.close()


def _popped(names: deque[str], most: int) -> Iterator[str]:
    while names and most > 0:
        most -= 1
        yield names.popleft()


class ClaimedFile:
    """A claimed file with its requests and, once they are run, their answers."""

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
        self.claimed = claimed  # its name in processing/
        self.client = client
        self.requests = requests
        self.many = many  # the answer is an array
        self.size = size
        self.written_at = written_at
        self.answers: list[dict[str, Any] | None] = [None] * len(requests)
        self.open = len(requests)
        self.reason = ""  # why the file is moved to dead/ once it is answered

    def answer(self, index: int, document: dict[str, Any]) -> None:
        self.answers[index] = document
        self.open -= 1


class FairQueue:
    """Claimed files by client. A client's files keep their order; the clients take turns, one file each."""

    def __init__(self) -> None:
        self._by_client: dict[str, deque[ClaimedFile]] = {}  # in the order of their turns
        self._bytes = 0
        self.size = 0

    @property
    def full(self) -> bool:
        return self.size >= _MAX_QUEUED or self._bytes >= _MAX_QUEUED_BYTES

    def length(self, client: str) -> int:
        return len(self._by_client.get(client, ()))

    def add(self, file: ClaimedFile) -> None:
        self._by_client.setdefault(file.client, deque()).append(file)
        self.size += 1
        self._bytes += file.size

    def take(self, most: int) -> list[ClaimedFile]:
        """Take files in turn until they hold this many requests."""
        taken: list[ClaimedFile] = []
        while self._by_client and most > 0:
            client = next(iter(self._by_client))
            files = self._by_client.pop(client)
            file = files.popleft()
            if files:
                self._by_client[client] = files  # behind all others
            taken.append(file)
            most -= len(file.requests)
            self.size -= 1
            self._bytes -= file.size
        return taken


class Inbox:
    """All request files from their arrival until they are answered."""

    def __init__(self, folders: Folders, clock: Clock) -> None:
        self._folders = folders
        self._clock = clock
        self._senders = Senders(folders.settings.clients)
        self.arrivals = Arrivals(folders.requests, watched=folders.settings.watched)
        self._claimed: set[str] = set()  # names in processing/ that this process works on
        self._repeated: set[str] = set()  # of these, the ones that a crash left there
        self._incomplete: list[tuple[float, str, str, float]] = []  # heap: (read again at, claimed, name, first read)
        self._unsent: list[ClaimedFile] = []
        self._queue = FairQueue()
        self._left_over: list[str] = []
        self.rescan()

    # In

    def rescan(self) -> None:
        """Find files that were not reported: those that wait, and those in processing/ that nobody works on."""
        self.arrivals.rescan()
        names = os.listdir(self._folders.processing)
        self._left_over = sorted(name for name in names if not is_draft(name) and name not in self._claimed)

    @property
    def waiting(self) -> bool:
        """Whether `collect` would return something at once."""
        return self._queue.size > 0 or self.arrivals.waiting > 0

    def collect(self) -> list[ClaimedFile]:
        """Claim the files that a crash left and those that arrived; return the files whose turn it is."""
        for file in self._taken_in():
            self._queue.add(self._within_quota(file))
        return [self._checked(file) for file in self._queue.take(RUN_AT_ONCE)]

    def _taken_in(self) -> Iterator[ClaimedFile]:
        left_over, self._left_over = self._left_over, []
        for claimed in left_over:
            self._claimed.add(claimed)
            self._repeated.add(claimed)
            yield from self._open(re.sub(r"~\w+(?=\.json$)", "", claimed), claimed)
        names = [] if self._queue.full else self.arrivals.take()
        for number, name in enumerate(names):
            if self._queue.full:
                self.arrivals.give_back(names[number:])
                break
            if claimed := self._claim(name):
                yield from self._open(name, claimed)
        yield from self._read_incomplete_again()

    def _read_incomplete_again(self) -> Iterator[ClaimedFile]:
        for _ in range(_INCOMPLETE_AT_ONCE):
            if not self._incomplete or self._incomplete[0][0] > self._clock.boot():
                return
            _, claimed, name, since = heappop(self._incomplete)
            yield from self._open(name, claimed, since)

    def _claim(self, name: str) -> str:
        claimed = name
        if not is_request(name):
            claimed = f"{_UNSAFE_CHARACTERS.sub('-', name)[:100].strip('.') or 'file'}~{new_token()}"
        elif name in self._claimed:
            claimed = f"{name[: -len(SUFFIX)]}~{new_token()}{SUFFIX}"
        try:
            if not self._folders.claim(name, claimed):
                return ""
        except NotARegularFile:
            self.arrivals.ignore(name)
            return ""
        self._claimed.add(claimed)
        if is_request(name):
            return claimed
        error = InvalidName(
            "a request file is named <requestId>.json, of letters, digits, '-', '_', ':' and inner dots"
        )
        self._drop(claimed, claimed.partition("~")[0], error)
        return ""

    def _open(self, name: str, claimed: str, since: float | None = None) -> Iterator[ClaimedFile]:
        settings = self._folders.settings
        try:
            file = read_request_file(f"{self._folders.processing}/{claimed}", self._senders.owners, settings.max_bytes)
        except FileNotFoundError:
            self._forget(claimed)
            return
        except (UnsafeFile, TooLarge) as exc:
            yield from self._refuse_unread(name, claimed, exc)
            return
        batch = self._senders.checked(read_batch(file.data), file.owner)
        if self._may_be_incomplete(batch, file):
            now = self._clock.boot()
            since = now if since is None else since
            if now - since < settings.stale_seconds:
                # Again soon at first, for a writer that is about to finish; then less often.
                heappush(self._incomplete, (now + max(0.05, min(0.5, now - since)), claimed, name, since))
                return
        if claimed not in self._repeated and self._clock.now() - file.written_at > settings.oldest_request:
            # After a crash its age counts from now. A client's file that is another user's cannot be marked so.
            with suppress(OSError):
                os.utime(f"{self._folders.processing}/{claimed}", (self._clock.now(), self._clock.now()))
        if claimed in self._repeated:
            batch = batch._replace(requests=[_as_repeated(each) for each in batch.requests])
        if batch.client:
            size, at = len(file.data), file.written_at
            yield ClaimedFile(name, claimed, batch.client, batch.requests, many=batch.many, size=size, written_at=at)
        else:
            [problem, *_] = [found for found in batch.requests if isinstance(found, Problem)]
            self._drop(claimed, name, problem.error)

    def _may_be_incomplete(self, batch: Batch, file: FileContent) -> bool:
        first = batch.requests[0]
        broken = isinstance(first, Problem) and isinstance(first.error, NotJson)
        return broken and abs(self._clock.now() - file.written_at) < _WRITING_SECONDS

    def _within_quota(self, file: ClaimedFile) -> ClaimedFile:
        most = self._folders.settings.max_waiting_per_client
        if self._queue.length(file.client) >= most:
            full = MailboxFull(f"{file.client} has more than {most} requests waiting")
            file.requests = [Problem(each.id, file.client, full) for each in file.requests]
            file.size = 0
        return file

    def _checked(self, file: ClaimedFile) -> ClaimedFile:
        """Return a file whose turn it is, with requests that come too late replaced by problems."""
        requests = [self._in_time(each, file) if isinstance(each, Request) else each for each in file.requests]
        problems = [found.error for found in requests if isinstance(found, Problem)]
        if problems and not isinstance(problems[0], MailboxFull):
            file.reason = _reason_of(problems[0])
        file.requests = requests
        return file

    def _in_time(self, request: Request, file: ClaimedFile) -> Request | Problem:
        now = self._clock.now()
        oldest = self._folders.settings.oldest_request
        if request.deadline and now > request.deadline:
            late = f"its deadline passed {now - request.deadline:.3f} s before the manager came to it"
        elif request.repeated and now - file.written_at > oldest:
            late = (
                f"a crash interrupted it more than {oldest:g} s ago, so it may have been run, and its effects forgotten"
            )
        elif not request.repeated and request.at and file.written_at - request.at > oldest:
            late = f"it was written again more than {oldest:g} s after its timestampMs, so it may have been run before"
        else:
            return request  # however long it waited: what waits in requests/ was never run
        return Problem(request.id, request.client, DeadlinePassed(late), request.command)

    # Out

    def send(self, file: ClaimedFile) -> None:
        """Write the answers into the folder of the client, then release the request file."""
        answers = file.answers
        data = jsontext.encode(answers if file.many else answers[0])
        try:
            self._folders.answer(file.client, file.name, data)
        except OSError:
            self._unsent.append(file)  # a full disk, for instance: the effect stays, the answer is written later
            return
        if file.reason:
            self._folders.set_aside(file.claimed, file.name, file.reason, self._clock.now())
        else:
            self._folders.finish(file.claimed, file.client)
        self._forget(file.claimed)

    def send_again(self) -> None:
        """Try once more to write the answers that could not be written."""
        unsent, self._unsent = self._unsent, []
        for file in unsent:
            self.send(file)

    def next_due(self) -> float | None:
        """Return the seconds until a claimed file should be read or answered again."""
        if self._incomplete:
            return max(0.0, self._incomplete[0][0] - self._clock.boot())
        return 1.0 if self._unsent else None

    def close(self) -> None:
        """Return the files that were queued and not run, and stop watching."""
        for file in self._queue.take(self._queue.size * MAX_REQUESTS):
            if file.claimed not in self._repeated:
                self._folders.give_back(file.claimed, file.name)
        self.arrivals.close()

    def _refuse_unread(self, name: str, claimed: str, error: PabalError) -> Iterator[ClaimedFile]:
        # Anybody can make a link to a file of another user: the owner of a linked file is not the sender.
        client = ""
        if not isinstance(error, LinkedFile | WrongOwner):
            with suppress(OSError):
                client = self._senders.client_of(os.lstat(f"{self._folders.processing}/{claimed}").st_uid)
        if client:
            yield ClaimedFile(name, claimed, client, [Problem(name.removesuffix(SUFFIX), client, error)])
        else:
            self._drop(claimed, name, error)

    def _drop(self, claimed: str, name: str, error: PabalError) -> None:
        self._folders.set_aside(claimed, name, _reason_of(error), self._clock.now())
        self._forget(claimed)

    def _forget(self, claimed: str) -> None:
        self._claimed.discard(claimed)
        self._repeated.discard(claimed)


def _as_repeated(found: Request | Problem) -> Request | Problem:
    return found._replace(repeated=True) if isinstance(found, Request) else found


def _reason_of(error: PabalError) -> str:
    return f"{type(error).__name__}: {error}"
