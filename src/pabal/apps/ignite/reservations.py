"""Reservations of files: which agent works on which files, for how long.

They are advisory: nothing stops an agent that writes to a file of another one, but it is told. A reservation expires. A
shared one may overlap with other shared ones; an exclusive one with none of another agent. All are in one file,
`state/reservations.json`, which is replaced whole under a lock.

A pattern is a path from the top of the project. `*`, `?` and `[…]` stand for characters of one name, `**` for any
number of folders. A path without `*` and `?` is a file, or a folder with all that is in it. Names with brackets are
common (`app/[slug]`), so a name also matches itself.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import takewhile
from pathlib import PurePosixPath

import msgspec

from pabal.apps.ignite import conversation
from pabal.apps.ignite.layout import iso_time
from pabal.apps.ignite.workspace import STATE, Workspace
from pabal.durable import translated
from pabal.errors import InvalidInput
from pabal.filesystem import locked
from pabal.runtime.state_file import DAMAGED, read_state, write_state

FILE = "reservations.json"
MOST = 1000  # of one workspace
_LONGEST = 500  # characters of a pattern
_WILD, _FREE = frozenset("*?["), frozenset("*?")


class Reservation(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation. Times are seconds since 1970."""

    agent: str
    pattern: str
    exclusive: bool = False
    reason: str = ""
    since: float = 0.0
    until: float = 0.0


class Reserved(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request: what was reserved, and the reservations of others that overlap with it.

    If one of both is exclusive, nothing was reserved.
    """

    granted: bool
    mine: tuple[Reservation, ...]
    overlaps: tuple[Reservation, ...]


class Reservations:
    """The reservations of a workspace. Any number of processes may use them."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._path = workspace.root / STATE / FILE

    def all(self) -> list[Reservation]:
        """Return the reservations that have not expired, by pattern."""
        now = self._workspace.clock.now()
        try:
            found = read_state(self._path, list[Reservation])
        except DAMAGED:
            found = []  # advisory: a damaged file is as good as none
        return sorted((each for each in found if each.until > now), key=lambda each: (each.pattern, each.agent))

    def overlapping(self, patterns: Iterable[str], *, but: str = "") -> list[Reservation]:
        """Return the reservations that share a file with one of these patterns, except those of one agent."""
        wanted = [check_pattern(pattern) for pattern in patterns]
        return [each for each in self.all() if each.agent != but and any(overlap(each.pattern, one) for one in wanted)]

    def touched(self, paths: Iterable[str], *, but: str = "") -> list[Reservation]:
        """Return the reservations of which a file is among these paths, except those of one agent."""
        files = [tuple(path.split("/")) for path in paths]
        others = [(each, _matcher(each.pattern)) for each in self.all() if each.agent != but]
        return [each for each, matches in others if any(map(matches, files))]

    def reserve(
        self, agent: str, patterns: Sequence[str], *, seconds: float, exclusive: bool = False, reason: str = ""
    ) -> Reserved:
        """Reserve files for an agent, all patterns or none, and tell the agents whose reservations overlap.

        Reserving a pattern again renews it.
        """
        wanted = tuple(dict.fromkeys(check_pattern(pattern) for pattern in patterns))
        if not wanted:
            raise InvalidInput("give at least one file or pattern, such as 'src/api/**'")
        now = self._workspace.clock.now()
        mine = tuple(
            Reservation(
                agent=agent, pattern=pattern, exclusive=exclusive, reason=reason, since=now, until=now + seconds
            )
            for pattern in wanted
        )
        with self._locked():
            kept = [each for each in self.all() if not (each.agent == agent and each.pattern in wanted)]
            overlaps = self.overlapping(wanted, but=agent)
            granted = not any(each.exclusive or exclusive for each in overlaps)
            if granted and len(kept) + len(mine) > MOST:
                raise InvalidInput(f"at most {MOST} reservations; `pabal ignite release` ends some")
            if granted:
                write_state(self._path, [*kept, *mine])
        answer = Reserved(granted=granted, mine=mine if granted else (), overlaps=tuple(overlaps))
        self._tell(agent, wanted, answer)
        return answer

    def release(self, agent: str, patterns: Sequence[str] = ()) -> list[Reservation]:
        """End reservations of an agent: those of these patterns, or all; return them."""
        wanted = [check_pattern(pattern) for pattern in patterns]
        with self._locked():
            found = self.all()
            ended = [each for each in found if each.agent == agent and (not wanted or each.pattern in wanted)]
            if ended:
                write_state(self._path, [each for each in found if each not in ended])
        return ended

    def _tell(self, agent: str, patterns: Sequence[str], answer: Reserved) -> None:
        """Send each agent whose reservation overlaps one message; a repetition within the store's memory is none."""
        listed = ", ".join(patterns)
        for holder in dict.fromkeys(each.agent for each in answer.overlaps):
            if holder not in self._workspace.team.recipients:
                continue
            theirs = [each for each in answer.overlaps if each.agent == holder]
            what = ", ".join(f"{each.pattern} until {iso_time(each.until)}" for each in theirs)
            if answer.granted:
                text = f"{agent} works on {listed} too. You have reserved {what}. Agree on who changes what."
            else:
                text = f"{agent} waits for {listed}. You have reserved {what}. `pabal ignite release` ends that."
            key = f"{agent}/{holder}/{listed}/{[(each.pattern, each.since) for each in theirs]}"
            conversation.say(
                self._workspace,
                sender=agent,
                to=holder,
                text=text,
                subject=f"{'overlap' if answer.granted else 'waiting'}: {listed}"[:120],
                id=f"overlap-{sha256(key.encode()).hexdigest()[:32]}",
            )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with ExitStack() as held:
            with translated("locking the reservations"):
                held.enter_context(locked(self._path.with_suffix(".lock")))
            yield


def check_pattern(text: str) -> str:
    """Return a pattern in its one form; raise InvalidInput if it leads out of the project."""
    path = PurePosixPath(text)
    if not text.strip() or len(text) > _LONGEST or not text.isprintable():
        raise InvalidInput(f"a pattern is 1 to {_LONGEST} printable characters; found {text!r:.60}")
    if path.is_absolute() or ".." in path.parts:
        raise InvalidInput(f"a pattern is a path from the top of the project, like 'src/api/**'; found {text!r:.60}")
    return str(path) if path.parts else "**"


def overlap(one: str, other: str) -> bool:
    """Return whether a file may match both patterns. Sets of characters (`[…]`) count as any character."""
    return _meet(_parts(one), _parts(other), "**", _names_meet)


def _names_meet(one: str, other: str) -> bool:
    return one == other or _meet(_characters(one), _characters(other), "*", _same)


def _parts(pattern: str) -> tuple[str, ...]:
    parts = PurePosixPath(pattern).parts
    return parts if _FREE & set(pattern) else (*parts, "**")


def _matcher(pattern: str) -> Callable[[tuple[str, ...]], bool]:
    """Return the test whether a file, given as the names in its path, matches a pattern.

    The names before the first wildcard are compared at once, because most files are elsewhere. The rest is followed
    through all places that it may have reached, so that no pattern takes long.
    """
    parts = _parts(pattern)
    fixed = tuple(takewhile(lambda part: not _WILD & set(part), parts))
    tests = [None if part == "**" else _name_test(part) for part in parts[len(fixed) :]]

    def matches(path: tuple[str, ...]) -> bool:
        if path[: len(fixed)] != fixed:
            return False
        names = path[len(fixed) :]
        reached = {0}
        for test in tests:
            if test is None:
                reached = set(range(min(reached), len(names) + 1))
            else:
                reached = {at + 1 for at in reached if at < len(names) and test(names[at])}
            if not reached:
                return False
        return len(names) in reached

    return matches


def _name_test(part: str) -> Callable[[str], bool]:
    if not _WILD & set(part):
        return part.__eq__
    like = re.compile(fnmatch.translate(part)).match
    return lambda name: name == part or like(name) is not None


def _characters(name: str) -> tuple[str, ...]:
    return tuple("?" if len(each) > 1 else each for each in re.findall(r"\[[!^]?\]?[^\]]*\]|.", name))


def _same(one: str, other: str) -> bool:
    return one == other or "?" in (one, other)


def _meet(one: Sequence[str], other: Sequence[str], any: str, same: Callable[[str, str], bool]) -> bool:
    """Return whether a sequence matches both patterns, in which `any` stands for any number of elements.

    From the ends to the beginnings: `row[at]` is whether the rest of `one` and `other[at:]` meet.
    """
    row = [all(each == any for each in other[at:]) for at in range(len(other) + 1)]
    for element in reversed(one):
        below, row = row, [False] * len(row)
        row[-1] = element == any and below[-1]
        for at in reversed(range(len(other))):
            if element == any or other[at] == any:
                row[at] = below[at] or row[at + 1]
            else:
                row[at] = below[at + 1] and same(element, other[at])
    return row[0]


# The hook of git

_BEGIN, _END = "# pabal reservations: begin\n", "# pabal reservations: end\n"
_SHELLS = ("sh", "bash", "dash", "zsh", "ksh")


def with_hook(script: str, root: str) -> str:
    """Return a pre-commit hook with our lines behind its first line; raise InvalidInput if it is no shell script."""
    rest = without_hook(script) or "#!/bin/sh\n"
    first, _, others = rest.partition("\n")
    if not first.startswith("#!") or first.split()[-1].rpartition("/")[2] not in _SHELLS:
        raise InvalidInput(
            f"the hook is no shell script ({first!r:.40}): call `pabal ignite reservations --staged` in it"
        )
    call = f"command -v pabal >/dev/null && pabal ignite --root {shlex.quote(root)} reservations --staged || true\n"
    return f"{first}\n{_BEGIN}{call}{_END}{others}"


def without_hook(script: str) -> str:
    """Return the text of a hook without our lines; nothing if no other command is left."""
    before, begin, rest = script.partition(_BEGIN)
    left = before + rest.partition(_END)[2] if begin else script
    return left if any(line.strip() and not line.startswith("#!") for line in left.splitlines()) else ""
