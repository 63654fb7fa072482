"""The errors of the chat.

PabalError
├── InvalidInput
│   └── EmailTaken  UserNameTaken
└── RoomUnknown  UserUnknown  NotMember  NotOwner  RemovedFromRoom  RegistrationClosed
"""

from pabal.errors import Fenced, InvalidInput, Outage, PabalError, StoreFailed, StoreFull, Uncertain

# Errors of topics and databases that waiting may repair.
TRANSIENT = (StoreFailed, StoreFull, Uncertain, Outage, Fenced)


class EmailTaken(InvalidInput):
    """There is a user with this email; nothing was written."""


class UserNameTaken(InvalidInput):
    """Another user has this name, or one that looks the same; nothing was written."""


class RoomUnknown(PabalError):
    """There is no room with this id."""


class UserUnknown(PabalError):
    """There is no user with this id."""


class NotMember(PabalError):
    """The user is not a member of this room; nothing was changed."""


class NotOwner(PabalError):
    """Only the owner of the room may do this; nothing was changed."""


class RemovedFromRoom(PabalError):
    """The owner removed this user from the room, and has not invited the user again; nothing was changed."""


class RegistrationClosed(PabalError):
    """The operator closed the registration of new users."""
