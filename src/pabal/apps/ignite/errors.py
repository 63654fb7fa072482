"""The errors of ignite.

PabalError
├── InvalidInput
│   └── UnknownType
└── WakeFailed
"""

from pabal.errors import InvalidInput, PabalError


class UnknownType(InvalidInput):
    """There is no message type of this name."""


class WakeFailed(PabalError):
    """An agent could not be woken for a message: its mail waits, and it is tried again."""
