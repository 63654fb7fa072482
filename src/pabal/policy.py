"""What a queue does with its messages: one policy for every way of failing.

The document form is the one operators write (`visibilityTimeoutSec`, `retry.limit`, `dlq.queue`, …);
`policy_from` reads it whole and names what is wrong, `document_of` writes it back with every value spelt out.
"""

import re
from collections.abc import Mapping
from enum import Enum, StrEnum
from types import NoneType
from typing import Any, Literal, get_args

import msgspec

from pabal.errors import InvalidInput, InvalidName, InvalidPolicy
from pabal.jsontext import Json, check
from pabal.names import check_name, suggestion
from pabal.rules import MessageSchema

DEFAULT_MAX_BYTES = 1 << 20
LARGEST_MAX_BYTES = 64 << 20
TOMBSTONE_SECONDS = 600.0  # a settled message is remembered at least this long, so that repeating a verdict is harmless


class Backoff(StrEnum):
    """How the delay grows from one failed attempt to the next."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    FULL_JITTER = "full-jitter"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a message is tried and how long it rests in between."""

    limit: int = 5
    backoff: Backoff = Backoff.EXPONENTIAL
    initial: float = msgspec.field(default=1.0, name="initialDelaySec")
    max: float = msgspec.field(default=60.0, name="maxDelaySec")
    poison_limit: int = msgspec.field(default=0, name="poisonLimit")

    def delay(self, attempt: int, chance: float) -> float:
        """Return the seconds to wait after this failed attempt; `chance` in [0, 1) serves full jitter."""
        if self.backoff == Backoff.FIXED:
            return self.initial
        if self.backoff == Backoff.LINEAR:
            return min(self.max, self.initial * attempt)
        grown = min(self.max, self.initial * 2.0 ** min(attempt - 1, 62))
        return grown * chance if self.backoff == Backoff.FULL_JITTER else grown


class DeadLetterPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of a message that will not be tried again: kept, copied to a queue, or dropped if not enabled."""

    enabled: bool = True
    queue: str = ""
    retention_days: float = msgspec.field(default=14.0, name="retentionDays")


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a queue asks of its messages and does with them. Times are in seconds, sizes in bytes; 0 is no limit."""

    visibility: float = msgspec.field(default=30.0, name="visibilityTimeoutSec")
    ttl: float = msgspec.field(default=0.0, name="ttlSec")
    retry: RetryPolicy = RetryPolicy()
    dead_letters: DeadLetterPolicy = msgspec.field(default=DeadLetterPolicy(), name="dlq")
    dedup_window: float = msgspec.field(default=300.0, name="dedupWindowSec")
    done_retention: float = msgspec.field(default=0.0, name="doneRetentionSec")
    max_bytes: int = msgspec.field(default=DEFAULT_MAX_BYTES, name="maxBytes")
    max_waiting: int = msgspec.field(default=0, name="maxWaiting")
    durable_acks: bool = msgspec.field(default=False, name="durableAcks")
    paused: bool = False
    body_schema: dict[str, Json] | None = msgspec.field(default=None, name="schema")
    message_schema: MessageSchema | None = msgspec.field(default=None, name="messageSchema")
    on_invalid: Literal["refuse", "dead-letter"] = msgspec.field(default="refuse", name="onInvalid")

    def __post_init__(self) -> None:
        for what, part, kind in (
            ("retry", self.retry, RetryPolicy),
            ("dead_letters", self.dead_letters, DeadLetterPolicy),
        ):
            if not isinstance(part, kind):
                raise InvalidPolicy(f"{what} must be a {kind.__name__}(…); found {part!r:.40}")
        for what, value, least, most in self._ranges():
            if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= most:
                raise InvalidPolicy(f"{what} must be {_shown(least)} to {_shown(most)}; found {_shown(value)}")
        if self.retry.max < self.retry.initial:
            first, longest = _shown(self.retry.initial), _shown(self.retry.max)
            raise InvalidPolicy(f"retry.maxDelaySec ({longest}) is below retry.initialDelaySec ({first})")
        if self.dead_letters.queue:
            try:
                check_name(self.dead_letters.queue)
            except InvalidName as exc:
                raise InvalidPolicy(f"dlq.queue: {exc}") from exc
        if self.on_invalid == "dead-letter" and not (self.dead_letters.enabled and self.dead_letters.queue):
            raise InvalidPolicy("onInvalid dead-letter needs dlq.queue, and dlq.enabled")

    def _ranges(self) -> list[tuple[str, float, float, float]]:
        year = 366 * 86400.0
        return [
            ("visibilityTimeoutSec", self.visibility, 0.001, year),
            ("ttlSec", self.ttl, 0, 100 * year),
            ("retry.limit", self.retry.limit, 1, 1_000_000),
            ("retry.initialDelaySec", self.retry.initial, 0, year),
            ("retry.maxDelaySec", self.retry.max, 0, year),
            ("retry.poisonLimit", self.retry.poison_limit, 0, 1_000_000),
            ("dlq.retentionDays", self.dead_letters.retention_days, 0, 36600),
            ("dedupWindowSec", self.dedup_window, 0, year),
            ("doneRetentionSec", self.done_retention, 0, 100 * year),
            ("maxBytes", self.max_bytes, 1, LARGEST_MAX_BYTES),
            ("maxWaiting", self.max_waiting, 0, 1e12),
        ]

    @property
    def tombstone(self) -> float:
        """Seconds that a done message is remembered."""
        return max(self.done_retention, self.dedup_window, TOMBSTONE_SECONDS)


def policy_from(document: Mapping[str, Any]) -> Policy:
    """Read a policy document; raise InvalidPolicy that names the field, what was found and what was expected."""
    try:
        return msgspec.convert(document, Policy)
    except msgspec.ValidationError as exc:
        if isinstance(exc.__cause__, InvalidPolicy):
            raise exc.__cause__ from None
        raise InvalidPolicy(f"policy: {_said(str(exc))}") from exc


def document_of(policy: Policy) -> dict[str, Any]:
    """Return the policy as the document that `policy_from` reads."""
    document: dict[str, Any] = msgspec.to_builtins(policy)
    return document


def checked(policy: Policy) -> Policy:
    """Return the policy as its readers will have it; raise InvalidPolicy if they could not read it."""
    if not isinstance(policy, Policy):
        raise InvalidPolicy(f"a policy is a pabal.Policy, as in Policy(visibility=60); found {type(policy).__name__}")
    try:
        document = document_of(policy)
        found = policy_from(document)
        check(document)
    except InvalidPolicy:
        raise
    except (InvalidInput, TypeError) as exc:  # in a schema: what JSON has no place for
        raise InvalidPolicy(f"policy: {exc}") from exc
    return found


def _shown(value: object) -> str:
    """Return a number as people write it: whole ones in digits alone."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return f"{int(value) if whole else value!r:.40}"  # type: ignore[call-overload]  # `whole` narrows it for readers


def _said(text: str) -> str:
    """Return what the decoder says, and what would have been right where it does not say so itself."""
    said, at, where = text.rpartition(" - at `$")
    if not at:
        said, where = text, ""
    if said.startswith("Invalid enum value"):
        said += f"; allowed are {', '.join(_allowed(_expected(where)))}"
    elif found := re.fullmatch("Object contains unknown field `(.*)`", said, re.S):
        said += f"; {suggestion(found[1], _allowed(_expected(where)))}"
    return f"{said}{at}{where}"


def _expected(where: str) -> Any:
    """Return the type that stands at a place such as `.messageSchema.rules[0].type`."""
    expected: Any = Policy
    for step in re.findall(r"\w+|\[", where):
        if step == "[":
            expected = get_args(expected)[0]
        elif not step.isdigit():
            expected = next(one.type for one in msgspec.structs.fields(expected) if one.encode_name == step)
        if NoneType in get_args(expected):
            expected = get_args(expected)[0]
    return expected


def _allowed(expected: Any) -> list[str]:
    if isinstance(expected, type) and issubclass(expected, Enum):
        return [str(one) for one in expected]
    if isinstance(expected, type) and issubclass(expected, msgspec.Struct):
        return [one.encode_name for one in msgspec.structs.fields(expected)]
    return [str(one) for one in get_args(expected)]
