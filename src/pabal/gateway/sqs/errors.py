"""The errors of SQS: the shape of each in its model, its older code, and its HTTP status."""

from __future__ import annotations

from pabal.errors import InvalidInput, PabalError, QueueFull, QueueUnknown, StoreError, TooLarge

_PREFIX = "AWS.SimpleQueueService."
# By shape: the code that older clients know, and the status. A shape that is not listed is its own code, with 400.
_CODES = {
    "QueueDoesNotExist": (f"{_PREFIX}NonExistentQueue", 400),
    "QueueNameExists": ("QueueAlreadyExists", 400),
    "PurgeQueueInProgress": (f"{_PREFIX}PurgeQueueInProgress", 403),
    "TooManyEntriesInBatchRequest": (f"{_PREFIX}TooManyEntriesInBatchRequest", 400),
    "EmptyBatchRequest": (f"{_PREFIX}EmptyBatchRequest", 400),
    "BatchEntryIdsNotDistinct": (f"{_PREFIX}BatchEntryIdsNotDistinct", 400),
    "BatchRequestTooLong": (f"{_PREFIX}BatchRequestTooLong", 400),
    "InvalidBatchEntryId": (f"{_PREFIX}InvalidBatchEntryId", 400),
    "MessageNotInflight": (f"{_PREFIX}MessageNotInflight", 400),
    "UnsupportedOperation": (f"{_PREFIX}UnsupportedOperation", 400),
    "OverLimit": ("OverLimit", 403),
    "ResourceNotFoundException": ("ResourceNotFoundException", 404),
    "InvalidParameterValueException": ("InvalidParameterValue", 400),
    "MissingRequiredParameterException": ("MissingParameter", 400),
    "AccessDeniedException": ("AccessDenied", 403),
    "InvalidClientTokenId": ("InvalidClientTokenId", 403),
    "SignatureDoesNotMatch": ("SignatureDoesNotMatch", 403),
    "MissingAuthenticationToken": ("MissingAuthenticationToken", 403),
    "InternalFailure": ("InternalFailure", 500),
    "ServiceUnavailable": ("ServiceUnavailable", 503),
}


class SqsError(Exception):
    """A request that is refused as SQS refuses it."""

    def __init__(self, shape: str, message: str) -> None:
        super().__init__(message)
        self.shape = shape
        self.message = message
        self.code, self.status = _CODES.get(shape, (shape, 400))

    @property
    def by_sender(self) -> bool:
        return self.status < 500


def no_queue() -> SqsError:
    return SqsError("QueueDoesNotExist", "The specified queue does not exist.")


def invalid_value(parameter: str, value: object, reason: str) -> SqsError:
    return SqsError(
        "InvalidParameterValueException", f"Value {value} for parameter {parameter} is invalid. Reason: {reason}"
    )


def missing(parameter: str) -> SqsError:
    return SqsError("MissingRequiredParameterException", f"The request must contain the parameter {parameter}.")


def error_of(exc: PabalError) -> SqsError:
    """Return an error of the library as SQS would say it."""
    if isinstance(exc, QueueUnknown):
        return no_queue()
    if isinstance(exc, QueueFull):
        return SqsError("OverLimit", str(exc))
    if isinstance(exc, TooLarge):
        return SqsError("InvalidParameterValueException", f"One or more parameters are invalid. Reason: {exc}")
    if isinstance(exc, StoreError):
        return SqsError("ServiceUnavailable", f"The store does not answer, try again: {exc}")
    if isinstance(exc, InvalidInput):
        return SqsError("InvalidParameterValueException", str(exc))
    return SqsError("InternalFailure", str(exc))
