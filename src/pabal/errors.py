"""Every error Pabal raises, in one tree.

PabalError
├── InvalidInput (also a ValueError): the caller's value is refused; nothing was written
│   ├── InvalidName  NameTaken  InvalidUrl  InvalidReceipt  InvalidPolicy
│   ├── InvalidBody  ValidationFailed
│   ├── TooLarge  TooDeep  NumberOutOfRange  InvalidNumber
│   └── DuplicateKey  InvalidText  NotUtf8  NotJson
├── UnsafeFile: a file in a spool that is never opened as a message
│   └── NotARegularFile  LinkedFile
├── DecodeError: bytes that are not a message; carries them
├── QueueUnknown  QueueFull
├── LeaseLost: the receipt is no longer the current one; nothing was changed
├── ExtraMissing: an optional package is not installed
└── StoreError
    ├── StoreFull: the disk has no room; nothing was written
    ├── StoreFailed: an I/O error; this handle promises nothing more until reopened
    ├── StoreRefused: this place or this format cannot be used safely
    ├── StoreClosed
    └── Uncertain: it may or may not have been written; repeating with the same id is safe

The name of the class is the code that users see in `.why` files, answers and exit messages.
"""


class PabalError(Exception):
    """Root of all errors raised on purpose by this package."""

    @property
    def code(self) -> str:
        return type(self).__name__


class InvalidInput(PabalError, ValueError):
    """The caller's value is refused; nothing was written."""


class InvalidName(InvalidInput):
    pass


class NameTaken(InvalidInput):
    pass


class InvalidUrl(InvalidInput):
    pass


class InvalidReceipt(InvalidInput):
    pass


class InvalidPolicy(InvalidInput):
    pass


class InvalidBody(InvalidInput):
    pass


class ValidationFailed(InvalidInput):
    pass


class TooLarge(InvalidInput):
    pass


class TooDeep(InvalidInput):
    pass


class NumberOutOfRange(InvalidInput):
    pass


class InvalidNumber(InvalidInput):
    pass


class DuplicateKey(InvalidInput):
    pass


class InvalidText(InvalidInput):
    pass


class NotUtf8(InvalidInput):
    pass


class NotJson(InvalidInput):
    pass


class UnsafeFile(PabalError):
    pass


class NotARegularFile(UnsafeFile):
    pass


class LinkedFile(UnsafeFile):
    pass


class DecodeError(PabalError):
    """Bytes that are not a message: `reason` says why, `data` are the bytes as found."""

    def __init__(self, reason: str, data: bytes) -> None:
        super().__init__(reason)
        self.reason = reason
        self.data = data


class QueueUnknown(PabalError):
    """There is no queue of this name."""


class QueueFull(PabalError):
    """As many messages wait as the policy allows; nothing was written."""


class LeaseLost(PabalError):
    """The receipt is no longer the current one; nothing was changed."""


class ExtraMissing(PabalError):
    pass


class StoreError(PabalError):
    """The store could not do it."""


class StoreFull(StoreError):
    """The disk has no room; nothing was written."""


class StoreFailed(StoreError):
    """An I/O error: this handle promises nothing more until reopened."""


class StoreRefused(StoreError):
    pass


class StoreClosed(StoreError):
    pass


class Uncertain(StoreError):
    """A write whose outcome is unknown. `ids` are the messages concerned."""

    def __init__(self, reason: str, ids: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.ids = ids
