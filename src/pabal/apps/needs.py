"""What waits for a person: questions, mail and problems of all applications in one list.

Each application keeps its own records and makes a `Need` from each that is open. The list is only a view of them: an
answer goes to the application, and `answer` is the command that gives it. A `Place` is an application in one folder, as
`pabal needs-you` and the dashboard see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from pabal.errors import InvalidInput

_KINDS = ("question", "problem", "mail")
LONGEST_ANSWER = 40_000  # characters
_YES, _NO = frozenset({"yes", "y", "ok", "true", "1"}), frozenset({"no", "n", "false", "0"})


class Need(NamedTuple):
    """A question, a message or a problem that waits for a person. `answer` is the command for it."""

    source: str  # the application
    kind: str  # question, mail or problem
    id: str
    sender: str
    text: str
    at: float
    answer: str
    options: tuple[str, ...] = ()  # the answers that are accepted; none: any text
    urgent: bool = False
    expires_at: float | None = None
    body: str = ""  # of mail, whose text is its subject; the beginning if it is long


class Place(Protocol):
    """An application in one folder, such as a team. It opens the folder for each call; threads may share it."""

    @property
    def source(self) -> str:
        """The application, as in its needs."""
        ...

    @property
    def path(self) -> str: ...

    def needs(self) -> tuple[list[Need], int]:
        """Return what waits for a person, and how many more messages wait that are not in this list."""
        ...

    def answer(self, id: str, text: str, *, person: str, via: str) -> str:
        """Answer a question or a message; return the answer that counts.

        Raise NameTaken if another answer was first or the question is closed, MessageUnknown if there is none, and
        InvalidInput if this is none of the accepted answers.
        """
        ...

    def report(self) -> dict[str, Any]:
        """Return the state of the application, as its command `status --json` prints it, and what it has in hand."""
        ...


def in_order(needs: Iterable[Need]) -> list[Need]:
    """Return what waits for a person: urgent ones first, then questions, problems and mail, the oldest first."""
    return sorted(needs, key=lambda need: (not need.urgent, _KINDS.index(need.kind), need.at))


def accepted_answer(kind: str, options: Sequence[str], text: str) -> str:
    """Return the answer that a text means, for a question to confirm, to choose or of free text.

    Raise InvalidInput with the accepted answers.
    """
    answer = text.strip()
    if not answer or len(answer) > LONGEST_ANSWER:
        raise InvalidInput(f"an answer has 1 to {LONGEST_ANSWER} characters; found {len(answer)}")
    if kind == "confirm":
        if answer.lower() not in _YES | _NO:
            raise InvalidInput(f"answer yes or no; found {answer!r:.60}")
        return "yes" if answer.lower() in _YES else "no"
    return _chosen(options, answer) if kind == "choose" and options else answer


def _chosen(options: Sequence[str], answer: str) -> str:
    for option in options:
        if answer.lower() == option.lower():
            return option
    if answer.isdecimal() and 1 <= int(answer[:9]) <= len(options):
        return options[int(answer[:9]) - 1]
    known = ", ".join(f"{number} {option}" for number, option in enumerate(options, 1))
    raise InvalidInput(f"answer with one of: {known}; found {answer!r:.60}")
