"""Request files in the manager's hands: claimed, read, lined up, found good or bad, answered, and only then let go.

Reading is cheap beside answering. So what waits is read ahead, as far as memory allows, to know whose it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from heapq import heappop, heappush

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
from pabal.mailbox.folders import SUFFIX, Folders, is_request
from pabal.mailbox.intake import Intake, is_draft
from pabal.mailbox.letters import Letter, Lines
from pabal.mailbox.protocol import MAX_REQUESTS, Batch, Problem, Request, read_batch
from pabal.mailbox.reading import RequestFile, read_request_file
from pabal.mailbox.senders import Senders

TURN = 50  # requests run before the next look at what arrived: a commit for each is enough to share
_AGAIN_SLICE = 100  # unreadable files looked at again in one go
RIPE_SECONDS = 2.0  # an unreadable file that young may still be being written
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


class PostRoom:
    def __init__(self, folders: Folders, clock: Clock) -> None:
        self._folders = folders
        self._clock = clock
        self._senders = Senders(folders.settings.clients)
        self.intake = Intake(folders.requests, watched=folders.settings.watched)
        self._held: set[str] = set()  # names in processing/ that are in hand
        self._unripe: list[tuple[float, str, str, float]] = []  # a heap: (look again at, claimed, name, first read at)
        self._repeated: set[str] = set()  # of these, those that lay there at the start
        self._unsent: list[Letter] = []
        self._lines = Lines()
        self._left: list[str] = []
        self.look()

    # In

    def look(self) -> None:
        """Have everything found that nobody told us of: what waits, and what lies in processing/ in nobody's hand."""
        self.intake.look()
        names = os.listdir(self._folders.processing)
        self._left = sorted(name for name in names if not is_draft(name) and name not in self._held)

    @property
    def waiting(self) -> bool:
        """Whether there is something to collect at once."""
        return self._lines.held > 0 or self.intake.waiting > 0

    def collect(self) -> list[Letter]:
        """Take in what was left by a crash and what arrived; return those whose turn it is."""
        for letter in self._taken_in():
            self._lines.add(self._within_quota(letter))
        return [self._judged(letter) for letter in self._lines.take(TURN)]

    def _taken_in(self) -> Iterator[Letter]:
        left, self._left = self._left, []
        for claimed in left:
            self._held.add(claimed)
            self._repeated.add(claimed)
            yield from self._open(re.sub(r"~\w+(?=\.json$)", "", claimed), claimed)
        names = [] if self._lines.full else self.intake.take()
        for number, name in enumerate(names):
            if self._lines.full:
                self.intake.give_back(names[number:])
                break
            if claimed := self._claim(name):
                yield from self._open(name, claimed)
        yield from self._look_again()

    def _look_again(self) -> Iterator[Letter]:
        for _ in range(_AGAIN_SLICE):
            if not self._unripe or self._unripe[0][0] > self._clock.boot():
                return
            _, claimed, name, since = heappop(self._unripe)
            yield from self._open(name, claimed, since)

    def _claim(self, name: str) -> str:
        claimed = name
        if not is_request(name):
            claimed = f"{_UNFIT.sub('-', name)[:100].strip('.') or 'file'}~{new_token()}"
        elif name in self._held:
            claimed = f"{name[: -len(SUFFIX)]}~{new_token()}{SUFFIX}"
        try:
            if not self._folders.claim(name, claimed):
                return ""
        except NotARegularFile:
            self.intake.ignore(name)
            return ""
        self._held.add(claimed)
        if is_request(name):
            return claimed
        error = InvalidName(
            "a request file is named <requestId>.json, of letters, digits, '-', '_', ':' and inner dots"
        )
        self._drop(claimed, claimed.partition("~")[0], error)
        return ""

    def _open(self, name: str, claimed: str, since: float | None = None) -> Iterator[Letter]:
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
        if self._may_be_unfinished(batch, file):
            now = self._clock.boot()
            since = now if since is None else since
            if now - since < settings.stale_seconds:
                # Soon at first, for whoever is just writing it; then seldom.
                heappush(self._unripe, (now + max(0.05, min(0.5, now - since)), claimed, name, since))
                return
        if claimed in self._repeated:
            batch = batch._replace(requests=[_again(each) for each in batch.requests])
        if batch.client:
            size, at = len(file.data), file.written_at
            yield Letter(name, claimed, batch.client, batch.requests, many=batch.many, size=size, written_at=at)
        else:
            [problem, *_] = [found for found in batch.requests if isinstance(found, Problem)]
            self._drop(claimed, name, problem.error)

    def _may_be_unfinished(self, batch: Batch, file: RequestFile) -> bool:
        first = batch.requests[0]
        broken = isinstance(first, Problem) and isinstance(first.error, NotJson)
        return broken and abs(self._clock.now() - file.written_at) < RIPE_SECONDS

    def _within_quota(self, letter: Letter) -> Letter:
        most = self._folders.settings.max_waiting_per_client
        if self._lines.length(letter.client) >= most:
            full = MailboxFull(f"{letter.client} has more than {most} requests waiting")
            letter.requests = [Problem(each.id, letter.client, full) for each in letter.requests]
            letter.size = 0
        return letter

    def _judged(self, letter: Letter) -> Letter:
        """Return a letter whose turn it is, with what comes too late turned into problems."""
        requests = [self._timely(each, letter) if isinstance(each, Request) else each for each in letter.requests]
        problems = [found.error for found in requests if isinstance(found, Problem)]
        if problems and not isinstance(problems[0], MailboxFull):
            letter.reason = _told(problems[0])
        letter.requests = requests
        return letter

    def _timely(self, request: Request, letter: Letter) -> Request | Problem:
        now = self._clock.now()
        oldest = self._folders.settings.oldest_request
        if request.deadline and now > request.deadline:
            late = f"its deadline passed {now - request.deadline:.3f} s before the manager came to it"
        elif now - (request.at or letter.written_at) > oldest:
            late = f"it is older than {oldest:g} s, so whether it was run before cannot be told any more"
        else:
            return request
        return Problem(request.id, request.client, DeadlinePassed(late), request.command)

    # Out

    def send(self, letter: Letter) -> None:
        """Put the answers where their client looks, then let the request go."""
        answers = letter.answers
        data = jsontext.encode(answers if letter.many else answers[0])
        try:
            self._folders.answer(letter.client, letter.name, data)
        except OSError:
            self._unsent.append(letter)  # no room, for instance: what was done stays done, the answer comes later
            return
        if letter.reason:
            self._folders.set_aside(letter.claimed, letter.name, letter.reason, self._clock.now())
        else:
            self._folders.finish(letter.claimed, letter.client)
        self._forget(letter.claimed)

    def send_again(self) -> None:
        unsent, self._unsent = self._unsent, []
        for letter in unsent:
            self.send(letter)

    def next_due(self) -> float | None:
        """Return the seconds until a file in hand should be looked at again."""
        if self._unripe:
            return max(0.0, self._unripe[0][0] - self._clock.boot())
        return 1.0 if self._unsent else None

    def close(self) -> None:
        """Give back what was lined up and not begun, and stop listening."""
        for letter in self._lines.take(self._lines.held * MAX_REQUESTS):
            if letter.claimed not in self._repeated:
                self._folders.give_back(letter.claimed, letter.name)
        self.intake.close()

    def _refuse_unread(self, name: str, claimed: str, error: PabalError) -> Iterator[Letter]:
        # A link may have been made by anybody to a file of anybody: its owner did not ask.
        client = ""
        if not isinstance(error, LinkedFile | WrongOwner):
            with suppress(OSError):
                client = self._senders.client_of(os.lstat(f"{self._folders.processing}/{claimed}").st_uid)
        if client:
            yield Letter(name, claimed, client, [Problem(name.removesuffix(SUFFIX), client, error)])
        else:
            self._drop(claimed, name, error)

    def _drop(self, claimed: str, name: str, error: PabalError) -> None:
        self._folders.set_aside(claimed, name, _told(error), self._clock.now())
        self._forget(claimed)

    def _forget(self, claimed: str) -> None:
        self._held.discard(claimed)
        self._repeated.discard(claimed)


def _again(found: Request | Problem) -> Request | Problem:
    return found._replace(repeated=True) if isinstance(found, Request) else found


def _told(error: PabalError) -> str:
    return f"{type(error).__name__}: {error}"
