"""The errors of the kingdom.

PabalError
└── NotSent
"""

from pabal.errors import PabalError


class NotSent(PabalError):
    """A notice could not be sent to people.

    `after` is how many seconds to wait before the next attempt. Unless `counts`, this was no attempt of the notice.
    With `of_channel`, its channel was refused, not the notice.
    """

    def __init__(self, reason: str, *, after: float = 0.0, counts: bool = True, of_channel: bool = False) -> None:
        super().__init__(reason)
        self.after = after
        self.counts = counts
        self.of_channel = of_channel
