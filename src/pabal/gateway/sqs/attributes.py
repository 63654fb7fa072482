"""The attributes of a queue: those that are its policy, those that SQS alone knows, and their limits.

Visibility, retention and the dead-letter queue are the policy of the queue. All others lie in a document
that is kept with the queue (`Queue.attached("sqs")`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pabal import jsontext
from pabal.errors import InvalidInput
from pabal.gateway.sqs.errors import SqsError, invalid_value
from pabal.message import replace
from pabal.policy.policy import Backoff, DeadLetterPolicy, Policy, PolicyChanges, RetryPolicy

ACCOUNT = "000000000000"
LARGEST = 1_048_576  # bytes of a message
WITHOUT_END = 1_000_000  # attempts of a message without a dead-letter queue
_ROOM = 65_536  # bytes of an envelope beside its body and attributes
_DAY = 86_400
_MOST_SOURCES = 10  # queues that a RedriveAllowPolicy names
_NUMBERS = {
    "DelaySeconds": (0, 900),
    "KmsDataKeyReusePeriodSeconds": (60, _DAY),
    "MaximumMessageSize": (1024, LARGEST),
    "MessageRetentionPeriod": (60, 14 * _DAY),
    "ReceiveMessageWaitTimeSeconds": (0, 20),
    "VisibilityTimeout": (0, 43_200),
}
_SWITCHES = {"ContentBasedDeduplication", "FifoQueue", "SqsManagedSseEnabled"}
_CHOICES = {
    "DeduplicationScope": ("queue", "messageGroup"),
    "FifoThroughputLimit": ("perQueue", "perMessageGroupId"),
}
_TEXTS = {"KmsMasterKeyId"}
_DOCUMENTS = {"Policy", "RedrivePolicy", "RedriveAllowPolicy"}
SETTABLE = _NUMBERS.keys() | _SWITCHES | _CHOICES.keys() | _TEXTS | _DOCUMENTS
COUNTED = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesDelayed",
    "ApproximateNumberOfMessagesNotVisible",
)
READ_ONLY = {*COUNTED, "CreatedTimestamp", "LastModifiedTimestamp", "QueueArn"}
_DEFAULTS = {
    "DelaySeconds": "0",
    "MaximumMessageSize": str(LARGEST),
    "MessageRetentionPeriod": str(4 * _DAY),
    "ReceiveMessageWaitTimeSeconds": "0",
    "VisibilityTimeout": "30",
    "SqsManagedSseEnabled": "true",
}
_FIFO_DEFAULTS = {
    "FifoQueue": "true",
    "ContentBasedDeduplication": "false",
    "DeduplicationScope": "queue",
    "FifoThroughputLimit": "perQueue",
}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_WHOLE = re.compile("[0-9]{1,20}")


class Redrive(NamedTuple):
    """Where messages go that were received too often."""

    queue: str
    receives: int


def check_queue_name(name: str, *, fifo: bool) -> None:
    """Raise the error of SQS for a name that it would refuse."""
    stem = name.removesuffix(".fifo") if fifo else name
    if not _NAME.fullmatch(stem) or len(name) > 80 or (fifo and stem == name):
        raise SqsError(
            "InvalidParameterValueException",
            "Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length"
            if not fifo
            else "The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, must end"
            " with .fifo suffix and be 1 to 80 in length.",
        )


def check_attributes(given: Mapping[str, str], *, fifo: bool) -> None:
    """Raise the error of SQS for names and values that it would refuse."""
    for name, value in given.items():
        if name not in SETTABLE or (name in _FIFO_DEFAULTS and not fifo):
            raise SqsError("InvalidAttributeName", f"Unknown Attribute {name}.")
        if not _fits(name, value):
            raise SqsError("InvalidAttributeValue", f"Invalid value for the parameter {name}.")


def _fits(name: str, value: str) -> bool:
    if name in _NUMBERS:
        least, most = _NUMBERS[name]
        return _WHOLE.fullmatch(value) is not None and least <= int(value) <= most
    if name in _SWITCHES:
        return value in ("true", "false")
    if name in _CHOICES:
        return value in _CHOICES[name]
    if name == "RedriveAllowPolicy":
        return not value or _is_allowance(_document(value) or {})
    if name in _DOCUMENTS:
        return not value or _document(value) is not None
    return True


def _is_allowance(document: Mapping[str, Any]) -> bool:
    sources = document.get("sourceQueueArns")
    if document.get("redrivePermission") != "byQueue":
        return document.get("redrivePermission") in ("allowAll", "denyAll") and sources is None
    if not isinstance(sources, list) or not 1 <= len(sources) <= _MOST_SOURCES:
        return False
    return all(isinstance(arn, str) and _is_arn(arn) for arn in sources)


def _document(text: str) -> dict[str, Any] | None:
    try:
        found = jsontext.read(text.encode())
    except (InvalidInput, UnicodeEncodeError):
        return None
    return found if isinstance(found, dict) else None


def with_permission(policy: str, arn: str, label: str, accounts: Sequence[str], actions: Sequence[str]) -> str:
    """Return the Policy of a queue with one more statement; raise InvalidParameterValue if its label is there."""
    document = (_document(policy) if policy else None) or {"Version": "2008-10-17", "Id": f"{arn}/SQSDefaultPolicy"}
    statements = _statements(document)
    if any(each.get("Sid") == label for each in statements):
        raise invalid_value("Label", label, "Already exists.")
    principals = [f"arn:aws:iam::{account}:root" for account in accounts]
    statement = {
        "Sid": label,
        "Effect": "Allow",
        "Principal": {"AWS": principals if len(principals) > 1 else principals[0]},
        "Action": [f"SQS:{action}" for action in actions] if len(actions) > 1 else f"SQS:{actions[0]}",
        "Resource": arn,
    }
    return json.dumps({**document, "Statement": [*statements, statement]})


def without_permission(policy: str, label: str) -> str:
    """Return the Policy of a queue without a statement; raise InvalidParameterValue if there is none of this label."""
    document = (_document(policy) if policy else None) or {}
    statements = _statements(document)
    left = [each for each in statements if each.get("Sid") != label]
    if len(left) == len(statements):
        raise invalid_value("Label", label, "can't find label on existing policy.")
    return json.dumps({**document, "Statement": left}) if left else ""


def _statements(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    found = document.get("Statement", [])
    return [each for each in (found if isinstance(found, list) else [found]) if isinstance(each, dict)]


def arn_of(name: str, region: str) -> str:
    return f"arn:aws:sqs:{region}:{ACCOUNT}:{name}"


def name_in_arn(arn: str) -> str:
    """Return the name of the queue; raise InvalidParameterValue if it is no ARN of one."""
    if not _is_arn(arn):
        raise SqsError(
            "InvalidParameterValueException", f"Value {arn} for parameter is invalid. Reason: It is no ARN of a queue."
        )
    return arn.split(":")[5]


def _is_arn(text: str) -> bool:
    parts = text.split(":")
    return len(parts) == 6 and parts[:3] == ["arn", "aws", "sqs"] and parts[5] != ""


def may_be_source(allowance: str, queue: str) -> bool:
    """Return whether the RedriveAllowPolicy of a dead-letter queue, by default of all queues, lets this one use it."""
    found = (_document(allowance) if allowance else None) or {}
    if found.get("redrivePermission") == "byQueue":
        return queue in map(name_in_arn, found["sourceQueueArns"])
    return found.get("redrivePermission") != "denyAll"


def redrive_in(text: str) -> Redrive | None:
    """Read a RedrivePolicy; an empty one removes it."""
    if not text:
        return None
    found = _document(text) or {}
    arn, receives = found.get("deadLetterTargetArn"), found.get("maxReceiveCount")
    if not isinstance(arn, str) or not _WHOLE.fullmatch(str(receives)) or not 1 <= int(str(receives)) <= 1000:
        raise SqsError(
            "InvalidParameterValueException",
            f"Value {text} for parameter RedrivePolicy is invalid. Reason: it must contain deadLetterTargetArn, and"
            " maxReceiveCount from 1 to 1000.",
        )
    return Redrive(name_in_arn(arn), int(str(receives)))


def redrive_of(policy: Policy) -> Redrive | None:
    """Return the dead-letter queue of a policy, if messages move there."""
    dead = policy.dead_letters
    return Redrive(dead.queue, policy.retry.limit) if dead.move else None


def policy_changes(given: Mapping[str, str]) -> PolicyChanges:
    """Return the fields of a policy that these attributes set."""
    changes: PolicyChanges = {}
    if "VisibilityTimeout" in given:
        changes["visibility"] = max(0.001, float(given["VisibilityTimeout"]))
    if "MessageRetentionPeriod" in given:
        changes["ttl"] = float(given["MessageRetentionPeriod"])
    if "MaximumMessageSize" in given:
        changes["max_bytes"] = 2 * int(given["MaximumMessageSize"]) + _ROOM  # JSON may need two bytes for one of a text
    if "RedrivePolicy" in given:
        redrive = redrive_in(given["RedrivePolicy"])
        changes["retry"] = _retry(redrive.receives if redrive else WITHOUT_END)
        changes["dead_letters"] = DeadLetterPolicy(queue=redrive.queue, move=True) if redrive else DeadLetterPolicy()
    return changes


def new_policy() -> Policy:
    """Return the policy of a queue that a client of SQS makes: a message comes again at once, and without end."""
    return replace(Policy(retry=_retry(WITHOUT_END)), **policy_changes(_DEFAULTS))


def _retry(limit: int) -> RetryPolicy:
    return RetryPolicy(limit=limit, backoff=Backoff.FIXED, initial=0.0, max=0.0)


def attributes_of(policy: Policy, document: Mapping[str, Any], region: str, *, fifo: bool) -> dict[str, str]:
    """Return the attributes of a queue that can be set, and when it was made."""
    shown = {**_DEFAULTS, **(_FIFO_DEFAULTS if fifo else {}), **document.get("attributes", {})}
    shown["VisibilityTimeout"] = str(round(policy.visibility) if policy.visibility >= 0.5 else 0)
    shown["MessageRetentionPeriod"] = str(round(policy.ttl) if policy.ttl else 14 * _DAY)
    if "attributes" not in document:
        shown["MaximumMessageSize"] = str(min(policy.max_bytes, LARGEST))
    shown.pop("RedrivePolicy", None)
    if (redrive := redrive_of(policy)) is not None:
        arn = arn_of(redrive.queue, region)
        shown["RedrivePolicy"] = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": redrive.receives})
    for name in ("CreatedTimestamp", "LastModifiedTimestamp"):
        shown[name] = str(document.get(name, 0))
    return {name: value for name, value in shown.items() if value != ""}
