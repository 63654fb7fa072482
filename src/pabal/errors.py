"""The errors of the library, in one tree. Applications derive theirs in `apps/<app>/errors.py`.

PabalError
├── InvalidInput (also a ValueError): the caller's value is refused; nothing was written
│   ├── InvalidName  NameTaken  InvalidUrl  InvalidReceipt  InvalidPolicy  InvalidConfig
│   ├── InvalidBody  ValidationFailed
│   ├── TooLarge  TooDeep  NumberOutOfRange  InvalidNumber
│   ├── DuplicateKey  InvalidText  NotUtf8  NotJson  TooManyHeaders  InvalidHeader
│   ├── NotMime  MissingHeader  DuplicateHeader  InvalidDate  InvalidEncoding
│   ├── NotYaml  InvalidKey  AliasNotAllowed  UnsafeTag
│   └── InvalidRequest  InvalidDeadline
├── UnsafeFile: a file in a queue directory or mailbox that is never opened as a message
│   └── NotARegularFile  LinkedFile  WrongOwner  UnsafeMode
├── DecodeError: bytes that are not a message; carries them
├── QueueUnknown  QueueFull  QueueNotEmpty  MessageUnknown
├── NoReply (also a TimeoutError)  RequestFailed: a request got no reply in time, or gets none any more
├── TopicUnknown  GroupBusy
├── Fenced: the partition has another owner; nothing was changed
├── Outage: a service that a handler needs is down; that is no failure of the message
├── SenderMismatch  MailboxFull  DeadlinePassed: a request that the manager refused
├── Refused: the manager refused a request; carries the code of the protocol
├── AlreadyRunning: another process runs here: on this data root, team or role
├── LeaseLost: the receipt is no longer the current one; nothing was changed
├── WatchFailed: a watcher could not look; carries how long to wait
├── ExtraMissing: an optional package is not installed
└── StoreError
    ├── StoreFull: the disk has no room; nothing was written
    ├── StoreFailed: an I/O error; this handle must be reopened
    │   └── StoreDamaged: there is a database, and its tables cannot be read
    ├── QueueDamaged: something else is where one queue keeps its files; other queues can be used
    ├── StoreRefused: this place or this format cannot be used safely
    ├── StoreMissing: there is no store here, and the caller did not ask to make one
    │   └── IndexMissing: the body files of a hybrid store are there, and its index is not
    ├── StoreClosed
    ├── StoreBusy: another process holds a lock for too long; nothing was written
    ├── NoAnswer: the manager, or a server, did not answer in time
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


class InvalidConfig(InvalidInput):
    """A configuration that cannot be used as it stands: `mistakes` has one line for each."""

    def __init__(self, place: str, mistakes: tuple[str, ...] = ()) -> None:
        count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        super().__init__("\n  ".join([f"{count} in {place}:", *mistakes]) if mistakes else place)
        self.place = place
        self.mistakes = mistakes


class InvalidBody(InvalidInput):
    pass


class ValidationFailed(InvalidInput):
    """A body does not fit the schema of its queue or topic, or the type that a consumer asks for."""


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


class TooManyHeaders(InvalidInput):
    pass


class InvalidHeader(InvalidInput):
    pass


class NotMime(InvalidInput):
    pass


class MissingHeader(InvalidInput):
    pass


class DuplicateHeader(InvalidInput):
    pass


class InvalidDate(InvalidInput):
    pass


class InvalidEncoding(InvalidInput):
    pass


class NotYaml(InvalidInput):
    pass


class InvalidKey(InvalidInput):
    pass


class AliasNotAllowed(InvalidInput):
    pass


class UnsafeTag(InvalidInput):
    pass


class InvalidRequest(InvalidInput):
    pass


class InvalidDeadline(InvalidInput):
    pass


class UnsafeFile(PabalError):
    pass


class NotARegularFile(UnsafeFile):
    pass


class LinkedFile(UnsafeFile):
    pass


class WrongOwner(UnsafeFile):
    pass


class UnsafeMode(UnsafeFile):
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
    """The queue holds as many waiting messages as its policy allows; nothing was written."""


class QueueNotEmpty(PabalError):
    """The queue has messages and was not deleted."""


class MessageUnknown(PabalError):
    """There is no message of this id, or none in the state asked for."""


class NoReply(PabalError, TimeoutError):
    """Nobody replied to a request in time."""


class RequestFailed(PabalError):
    """A request is dead, was cancelled, or was handled without a reply: none will come."""


class TopicUnknown(PabalError):
    """There is no topic of this name."""


class GroupBusy(PabalError):
    """The group has live members, so its offsets cannot be set; nothing was changed."""


class Fenced(PabalError):
    """This member's partition has been given to another; nothing was committed."""


class Outage(PabalError):
    """A service that a handler needs is down. That is not an attempt: the record waits and is handled later."""


class SenderMismatch(PabalError):
    """The request names another sender than the owner of its file; nothing was done."""


class MailboxFull(PabalError):
    """More requests of this client wait than it may have; nothing was done."""


class DeadlinePassed(PabalError):
    """The request reached the manager after its deadline, or too late to be distinguished from a repetition."""


class Refused(PabalError):
    """The manager refused a request. `code` is that of the protocol, `kind` the name of the error behind it."""

    def __init__(self, code: str, reason: str, *, kind: str = "", ids: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self._code = code
        self.kind = kind
        self.ids = ids

    @property
    def code(self) -> str:
        return self._code


class AlreadyRunning(PabalError):
    """Another process runs on this data root, team or role; the message says which."""


class LeaseLost(PabalError):
    """The receipt is no longer the current one; nothing was changed. `receipts` are all those concerned, as text."""

    def __init__(self, reason: str, receipts: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.receipts = receipts


class WatchFailed(PabalError):
    """A watcher could not look, or not to the end. It waits at least `after` seconds before it looks again."""

    def __init__(self, reason: str, *, after: float = 0.0) -> None:
        super().__init__(reason)
        self.after = after


class ExtraMissing(PabalError):
    pass


class StoreError(PabalError):
    """The store could not do it."""


class StoreFull(StoreError):
    """The disk has no room; nothing was written."""


class StoreFailed(StoreError):
    """An I/O error: this handle must be reopened."""


class StoreDamaged(StoreFailed):
    """There is a database, and its tables cannot be read: `pabal doctor --repair` opens it nevertheless."""


class QueueDamaged(StoreError):
    """Something else is where one queue keeps its folders and files. The other queues of the store can be used."""


class StoreRefused(StoreError):
    pass


class StoreMissing(StoreError):
    """There is no store here, and the caller did not ask to make one."""


class IndexMissing(StoreMissing):
    """The body files of a hybrid store are there, and the index that names them is not."""


class StoreClosed(StoreError):
    pass


class StoreBusy(StoreError):
    """Another process holds a lock for too long, perhaps because it is stopped. The error names it."""


class NoAnswer(StoreError):
    """The manager, or a server, did not answer in time.

    Nothing was done if `withdrawn`, else repeating with the same id is safe.
    """

    def __init__(self, reason: str, *, withdrawn: bool = False) -> None:
        super().__init__(reason)
        self.withdrawn = withdrawn


class Uncertain(StoreError):
    """A write whose outcome is unknown. `ids` are the messages concerned."""

    def __init__(self, reason: str, ids: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.ids = ids
