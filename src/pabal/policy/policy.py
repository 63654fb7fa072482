"""The policy of a queue: lease time, retries, dead letters, limits, schemas. One policy for every way of failing.

Operators write it as a document (`visibilityTimeoutSec`, `retry.limit`, `dlq.queue`, …). `policy_from` reads a document
and names its errors; `document_of` writes one with every value.
"""

import re
from collections.abc import Mapping
from enum import Enum, StrEnum
from functools import cache
from types import MappingProxyType, NoneType
from typing import Any, Literal, NamedTuple, TypedDict, get_args

import msgspec

from pabal import jsontext
from pabal.errors import InvalidInput, InvalidName, InvalidPolicy
from pabal.jsontext import Json, check
from pabal.names import check_name, suggestion
from pabal.policy.rules import MessageSchema

DEFAULT_MAX_BYTES = 1 << 20
LARGEST_MAX_BYTES = 64 << 20
_YEAR = 366 * 86400.0
LONGEST_WINDOW = _YEAR  # seconds that a dedup key can be remembered
# Kept beside the policy, and changed by no policy:
PAUSED = "paused"  # the switch of an operator
ATTACHED = "attached"  # documents of applications, by their names
TOMBSTONE_SECONDS = 600.0  # a settled message is remembered at least this long, so that repeating a verdict is harmless


def _shown(value: object) -> str:
    """Return a number as people write it: whole numbers without a point."""
    whole = isinstance(value, float) and value.is_integer() and abs(value) < 1e15
    return f"{int(value) if whole else value!r:.40}"  # type: ignore[call-overload]  # `whole` narrows it for readers


def _check_ranges(*ranges: tuple[str, float, float, float]) -> None:
    """Refuse numbers out of their ranges, and fractions where both ends are whole numbers."""
    for what, value, least, most in ranges:
        kinds = (int,) if type(least) is type(most) is int else (int, float)
        if type(value) not in kinds or not least <= value <= most:
            raise InvalidPolicy(f"{what} must be {_shown(least)} to {_shown(most)}; found {_shown(value)}")


def _check_switch(what: str, value: object) -> None:
    if type(value) is not bool:
        raise InvalidPolicy(f"{what} must be true or false; found {value!r:.40}")


class Backoff(StrEnum):
    """How the delay grows from one failed attempt to the next."""

    FIXED = "fixed"
    LINEAR = "linear"
    EXPONENTIAL = "exponential"
    FULL_JITTER = "full-jitter"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many attempts a message has, and the delays between them."""

    limit: int = 5
    backoff: Backoff = Backoff.EXPONENTIAL
    initial: float = msgspec.field(default=1.0, name="initialDelaySec")
    max: float = msgspec.field(default=60.0, name="maxDelaySec")
    poison_limit: int = msgspec.field(default=0, name="poisonLimit")

    def __post_init__(self) -> None:
        try:
            Backoff(self.backoff)
        except ValueError:
            kinds = ", ".join(Backoff)
            raise InvalidPolicy(f"retry.backoff must be one of {kinds}; found {self.backoff!r:.40}") from None
        _check_ranges(
            ("retry.limit", self.limit, 1, 1_000_000),
            ("retry.initial", self.initial, 0.0, _YEAR),
            ("retry.max", self.max, 0.0, _YEAR),
            ("retry.poison_limit", self.poison_limit, 0, 1_000_000),
        )
        if self.max < self.initial:
            first, longest = _shown(self.initial), _shown(self.max)
            raise InvalidPolicy(f"retry.max ({longest}) is below retry.initial ({first})")

    def delay(self, attempt: int, chance: float) -> float:
        """Return the seconds to wait after this failed attempt; `chance` in [0, 1) serves full jitter."""
        if self.backoff == Backoff.FIXED:
            return self.initial
        if self.backoff == Backoff.LINEAR:
            return min(self.max, self.initial * attempt)
        grown = min(self.max, self.initial * 2.0 ** min(attempt - 1, 62))
        return grown * chance if self.backoff == Backoff.FULL_JITTER else grown


class DeadLetterPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a message without attempts left goes: it is kept as dead, copied or moved to a queue, or dropped."""

    enabled: bool = True
    queue: str = ""
    move: bool = False
    retention_days: float = msgspec.field(default=14.0, name="retentionDays")

    def __post_init__(self) -> None:
        _check_switch("dead_letters.enabled", self.enabled)
        _check_switch("dead_letters.move", self.move)
        if self.move and not (self.enabled and self.queue):
            raise InvalidPolicy("dead_letters.move needs dead_letters.queue, and dead_letters.enabled")
        _check_ranges(("dead_letters.retention_days", self.retention_days, 0.0, 36600.0))
        if self.queue:
            try:
                check_name(self.queue)
            except InvalidName as exc:
                raise InvalidPolicy(f"dead_letters.queue: {exc}") from exc


class Policy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a queue. Times are in seconds, sizes in bytes; 0 is no limit."""

    visibility: float = msgspec.field(default=30.0, name="visibilityTimeoutSec")
    ttl: float = msgspec.field(default=0.0, name="ttlSec")
    retry: RetryPolicy = RetryPolicy()
    dead_letters: DeadLetterPolicy = msgspec.field(default=DeadLetterPolicy(), name="dlq")
    dedup_window: float = msgspec.field(default=300.0, name="dedupWindowSec")
    done_retention: float = msgspec.field(default=0.0, name="doneRetentionSec")
    max_bytes: int = msgspec.field(default=DEFAULT_MAX_BYTES, name="maxBytes")
    max_waiting: int = msgspec.field(default=0, name="maxWaiting")
    durable_acks: bool = msgspec.field(default=False, name="durableAcks")
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
        _check_switch("durable_acks", self.durable_acks)
        _check_ranges(
            ("visibility", self.visibility, 0.001, _YEAR),
            ("ttl", self.ttl, 0, 100 * _YEAR),
            ("dedup_window", self.dedup_window, 0, LONGEST_WINDOW),
            ("done_retention", self.done_retention, 0, 100 * _YEAR),
            ("max_bytes", self.max_bytes, 1, LARGEST_MAX_BYTES),
            ("max_waiting", self.max_waiting, 0, 10**12),
        )
        if self.body_schema is not None and not isinstance(self.body_schema, Mapping):
            raise InvalidPolicy(f"body_schema must be a JSON Schema, as a dict; found {self.body_schema!r:.40}")
        if self.message_schema is not None and not isinstance(self.message_schema, MessageSchema):
            raise InvalidPolicy(f"message_schema must be a MessageSchema(…); found {self.message_schema!r:.40}")
        if self.on_invalid not in ("refuse", "dead-letter"):
            raise InvalidPolicy(f"on_invalid must be refuse or dead-letter; found {self.on_invalid!r:.40}")
        if self.on_invalid == "dead-letter" and not self.dead_letters.enabled:
            raise InvalidPolicy("on_invalid dead-letter needs dead_letters.enabled")

    @property
    def tombstone(self) -> float:
        """Seconds that a done message is remembered."""
        return max(self.done_retention, self.dedup_window, TOMBSTONE_SECONDS)


class PolicyChanges(TypedDict, total=False):
    """The fields of a Policy, of which some are changed."""

    visibility: float
    ttl: float
    retry: RetryPolicy
    dead_letters: DeadLetterPolicy
    dedup_window: float
    done_retention: float
    max_bytes: int
    max_waiting: int
    durable_acks: bool
    body_schema: dict[str, Json] | None
    message_schema: MessageSchema | None
    on_invalid: Literal["refuse", "dead-letter"]


def policy_from(document: Mapping[str, Any]) -> Policy:
    """Read a policy document; raise InvalidPolicy that names the field, the value found and the values allowed."""
    _check_object(document)
    if PAUSED in document:
        raise InvalidPolicy(f"{PAUSED} is no part of a policy: use `pabal pause` and `pabal resume`, or queue.pause()")
    try:
        return jsontext.convert(document, Policy)
    except msgspec.ValidationError as exc:
        if isinstance(exc.__cause__, InvalidPolicy):
            raise InvalidPolicy(_in_document(str(exc.__cause__))) from None
        raise InvalidPolicy(f"policy: {_said(str(exc))}") from exc
    except UnicodeEncodeError as exc:
        raise InvalidPolicy("policy: text holds a lone surrogate, which UTF-8 cannot carry") from exc


class Settings(NamedTuple):
    """What a store keeps of a queue: its policy, whether an operator has paused it, and what applications attached."""

    policy: Policy = Policy()
    paused: bool = False
    attached: Mapping[str, Any] = MappingProxyType({})


def settings_from(document: Mapping[str, Any]) -> Settings:
    """Read what a store keeps of a queue."""
    _check_object(document)
    rest = dict(document)
    paused, attached = rest.pop(PAUSED, False), rest.pop(ATTACHED, {})
    if type(paused) is not bool:
        raise InvalidPolicy(f"{PAUSED} must be true or false; found {paused!r:.40}")
    if not isinstance(attached, Mapping):
        raise InvalidPolicy(f"{ATTACHED} must be an object; found {attached!r:.40}")
    return Settings(policy_from(rest), paused, attached)


def _check_object(document: object) -> None:
    if not isinstance(document, Mapping):
        raise InvalidPolicy(f"policy: an object is expected; found {type(document).__name__}")


def document_of_settings(settings: Settings) -> dict[str, Any]:
    """Return what a store keeps of a queue, as `settings_from` reads it."""
    document = document_of(settings.policy)
    if settings.paused:
        document[PAUSED] = True
    if settings.attached:
        document[ATTACHED] = dict(settings.attached)
    return document


def document_of(policy: Policy) -> dict[str, Any]:
    """Return the policy as the document that `policy_from` reads."""
    document: dict[str, Any] = msgspec.to_builtins(policy)
    return document


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return one document laid over another, table by table."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def checked(policy: Policy) -> Policy:
    """Return the policy as it will be read again; raise InvalidPolicy if it cannot be read."""
    if not isinstance(policy, Policy):
        raise InvalidPolicy(f"a policy is a pabal.Policy, as in Policy(visibility=60); found {type(policy).__name__}")
    try:
        document = document_of(policy)
        found = policy_from(document)
        check(document)
    except InvalidPolicy:
        raise
    except (InvalidInput, TypeError) as exc:  # a schema with values that JSON cannot represent
        raise InvalidPolicy(f"policy: {exc}") from exc
    return found


def _in_document(text: str) -> str:
    """Return an error with the names of a document in place of those of Python."""
    return re.sub(r"\b[a-z]\w*(\.[a-z]\w*)?\b", lambda found: _document_names().get(found[0], found[0]), text)


@cache
def _document_names() -> dict[str, str]:
    """Return the name in a document of each field, as Python calls it: `dead_letters.queue`."""
    names: dict[str, str] = {}
    for field in msgspec.structs.fields(Policy):
        names[field.name] = field.encode_name
        if field.name in ("retry", "dead_letters"):
            for part in msgspec.structs.fields(field.type):
                names[f"{field.name}.{part.name}"] = f"{field.encode_name}.{part.encode_name}"
    return names


def _said(text: str) -> str:
    """Return the error of the decoder, with the allowed values added where it does not name them."""
    said, at, where = text.rpartition(" - at `$")
    if not at:
        said, where = text, ""
    if said.startswith("Invalid enum value"):
        said += f"; allowed are {', '.join(_allowed(_expected(where)))}"
    elif found := re.fullmatch("Object contains unknown field `(.*)`", said, re.S):
        said += f"; {suggestion(found[1], _allowed(_expected(where)))}"
    return f"{said}{at}{where}"


def _expected(where: str) -> Any:
    """Return the type at a place such as `.messageSchema.rules[0].type`."""
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
