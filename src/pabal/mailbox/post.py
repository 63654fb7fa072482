"""Request files in the manager's hands: claimed, read, found good or bad, answered, and only then let go."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from heapq import heappop, heappush
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
    SenderMismatch,
    TooLarge,
    UnsafeFile,
    WrongOwner,
)
from pabal.ids import new_token
from pabal.mailbox.folders import SUFFIX, Folders, is_request
from pabal.mailbox.intake import SLICE, Intake, is_draft
from pabal.mailbox.protocol import Paper, Problem, Request, read_paper
from pabal.mailbox.reading import Sheet, read_sheet

_AGAIN_SLICE = 100  # unreadable files looked at again in one go
RIPE_SECONDS = 2.0  # an unreadable file that young may still be being written
_UNFIT = re.compile(r"[^A-Za-z0-9_.-]+")


class Letter:
    """A claimed file with its requests and, by and by, their answers."""

    __slots__ = ("answers", "claimed", "client", "many", "name", "open", "reason", "requests")

    def __init__(self, name: str, claimed: str, paper: Paper) -> None:
        self.name = name
        self.claimed = claimed
        self.client = paper.client
        self.many = paper.many
        self.requests = paper.requests
        self.answers: list[dict[str, Any] | None] = [None] * len(paper.requests)
        self.open = len(paper.requests)
        self.reason = ""  # why the file is set aside once it is answered

    def answer(self, index: int, document: dict[str, Any]) -> None:
        self.answers[index] = document
        self.open -= 1


class PostRoom:
    def __init__(self, folders: Folders, clock: Clock) -> None:
        self._folders = folders
        self._clock = clock
        self.intake = Intake(folders.requests, watched=folders.settings.watched)
        self._held: set[str] = set()  # names in processing/ that are in hand
        self._unripe: list[tuple[float, str, str, float]] = []  # a heap: (look again at, claimed, name, first read at)
        self._repeated: set[str] = set()  # of these, those that lay there at the start
        self._unsent: list[Letter] = []
        self._taken: Counter[str] = Counter()  # since the box became too full
        self._left: list[str] = []
        self.look()

    # In

    def look(self) -> None:
        """Have everything found that nobody told us of: what waits, and what lies in processing/ in nobody's hand."""
        self.intake.look()
        names = os.listdir(self._folders.processing)
        self._left = sorted(name for name in names if not is_draft(name) and name not in self._held)

    def collect(self) -> Iterator[Letter]:
        """Yield what was left by a crash, then what arrived, in order."""
        left, self._left = self._left, []
        for claimed in left:
            self._held.add(claimed)
            self._repeated.add(claimed)
            yield from self._open(re.sub(r"~\w+(?=\.json$)", "", claimed), claimed)
        self._count_flood()
        for name in self.intake.take():
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
            sheet = read_sheet(f"{self._folders.processing}/{claimed}", self._owners(), settings.max_bytes)
        except FileNotFoundError:
            self._forget(claimed)
            return
        except (UnsafeFile, TooLarge) as exc:
            yield from self._refuse_unread(name, claimed, exc)
            return
        paper = self._checked(read_paper(sheet.data), sheet)
        if self._may_be_unfinished(paper, sheet):
            now = self._clock.boot()
            since = now if since is None else since
            if now - since < self._folders.settings.stale_seconds:
                # Soon at first, for whoever is just writing it; then seldom.
                heappush(self._unripe, (now + max(0.05, min(0.5, now - since)), claimed, name, since))
                return
        if claimed in self._repeated:
            paper = paper._replace(requests=[_again(each) for each in paper.requests])
        letter = Letter(name, claimed, paper)
        problems = [found for found in paper.requests if isinstance(found, Problem)]
        if problems and not isinstance(problems[0].error, MailboxFull):
            letter.reason = _told(problems[0].error)
        if not letter.client:
            self._drop(claimed, name, problems[0].error)
        else:
            yield letter

    def _may_be_unfinished(self, paper: Paper, sheet: Sheet) -> bool:
        first = paper.requests[0]
        broken = isinstance(first, Problem) and isinstance(first.error, NotJson)
        return broken and abs(self._clock.now() - sheet.written_at) < RIPE_SECONDS

    def _checked(self, paper: Paper, sheet: Sheet) -> Paper:
        """Return the paper with what cannot be run as it stands turned into problems."""
        client, mismatch = self._sender(paper.client, sheet.owner)
        if mismatch is not None:
            return Paper(client, [Problem(each.id, client, mismatch) for each in paper.requests], paper.many)
        if client and self._is_flooding(client):
            full = MailboxFull(
                f"{client} has more than {self._folders.settings.max_waiting_per_client} requests waiting"
            )
            return Paper(client, [Problem(each.id, client, full) for each in paper.requests], paper.many)
        requests = [self._timely(each, sheet) if isinstance(each, Request) else each for each in paper.requests]
        return Paper(client, requests, paper.many)

    def _timely(self, request: Request, sheet: Sheet) -> Request | Problem:
        now = self._clock.now()
        oldest = self._folders.settings.oldest_request
        if request.deadline and now > request.deadline:
            late = f"its deadline passed {now - request.deadline:.3f} s before the manager came to it"
        elif now - (request.at or sheet.written_at) > oldest:
            late = f"it is older than {oldest:g} s, so whether it was run before cannot be told any more"
        else:
            return request
        return Problem(request.id, request.client, DeadlinePassed(late), request.command)

    def _sender(self, client: str, owner: int) -> tuple[str, PabalError | None]:
        """Return who is to be answered: the owner of the file, whatever the file says."""
        clients = self._folders.settings.clients
        if clients is None or clients.get(client, os.geteuid()) == owner:
            return client, None
        own = next((name for name, uid in clients.items() if uid == owner), "")
        return own, SenderMismatch(f"a file of uid {owner} cannot speak for client {client!r:.80}")

    def _owners(self) -> frozenset[int]:
        clients = self._folders.settings.clients or {}
        return frozenset({os.geteuid(), *clients.values()})

    def _count_flood(self) -> None:
        if self._taken and self.intake.waiting <= SLICE:
            self._taken.clear()

    def _is_flooding(self, client: str) -> bool:
        limit = self._folders.settings.max_waiting_per_client
        if not self._taken and self.intake.waiting < limit:
            return False
        self._taken[client] += 1
        return self._taken[client] > limit

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

    def _refuse_unread(self, name: str, claimed: str, error: PabalError) -> Iterator[Letter]:
        # A link may have been made by anybody to a file of anybody: its owner did not ask.
        client = "" if isinstance(error, LinkedFile | WrongOwner) else self._owner_of(claimed)
        if not client:
            self._drop(claimed, name, error)
            return
        letter = Letter(name, claimed, Paper(client, [Problem(name.removesuffix(SUFFIX), client, error)]))
        letter.reason = _told(error)
        yield letter

    def _owner_of(self, claimed: str) -> str:
        clients = self._folders.settings.clients or {}
        with suppress(OSError):
            uid = os.lstat(f"{self._folders.processing}/{claimed}").st_uid
            return next((name for name, own in clients.items() if own == uid), "")
        return ""

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
