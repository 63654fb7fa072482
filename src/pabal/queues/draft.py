"""Make checked drafts from bodies and options, under the effective policy of the queue."""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple

from pabal.clock import Clock
from pabal.errors import InvalidInput, ValidationFailed
from pabal.ids import IdMaker
from pabal.jsontext import Json
from pabal.message import Message, Priority, Seconds, check_message, check_seconds, priority_of, replace, seconds_of
from pabal.policy.bodies import check_many, json_body
from pabal.queues.effective_policy import EffectivePolicy, PolicyCache
from pabal.queues.verdicts import DeadLetterWriter
from pabal.store import Draft, Failure, FailureCode


class Options(NamedTuple):
    """What a publisher gives beside the body; None is the default of the queue or of the message."""

    id: str | None = None
    type: str | None = None
    version: int | None = None
    sender: str | None = None
    target: str | None = None
    attributes: dict[str, Json] | None = None
    headers: dict[str, str] | None = None
    priority: Priority | None = None
    group: str | None = None
    dedup_key: str | None = None
    thread_id: str | None = None
    trace_id: str | None = None
    reply_to: str | None = None
    ttl: Seconds | None = None
    delay: Seconds | None = None
    at: datetime | None = None
    unique: str | None = None


NO_OPTIONS = Options()


class Drafter:
    """Makes the drafts of one queue. `failure` makes the failure of a body that does not fit the schema.

    `existing`: they may not make the queue.
    """

    def __init__(
        self,
        name: str,
        effective: PolicyCache,
        clock: Clock,
        failure: Callable[[str, str, int], Failure],
        dead_letters: DeadLetterWriter,
        *,
        existing: bool = False,
    ) -> None:
        self._name = name
        self._effective = effective
        self._clock = clock
        self._ids = IdMaker(clock)
        self._failure = failure
        self._dead_letters = dead_letters
        self._existing = existing

    def new_id(self) -> str:
        return self._ids()

    def draft(self, body: Any, options: Options) -> Draft:
        """Make one message, or raise the InvalidInput that names what is wrong."""
        effective = self._effective()
        if not effective.plain or options != NO_OPTIONS:
            return self._draft(body, effective, *self._read(options, effective))
        # The usual case, at a third of the cost.
        message = Message(self._ids(), json_body(body), created_at=round(self._clock.now(), 3))
        return Draft(self._name, message, 0.0, False, effective.terms, existing=self._existing)

    def drafts(self, items: Iterable[Any], options: Options) -> list[Draft]:
        """Make many: from bodies, to which the options apply, and from messages; drafts are taken as they are."""
        check_many(items, "publish")
        effective = self._effective()
        given, delay, fields = read = self._read(options, effective)
        bodies = list(items)
        drafted = any(issubclass(kind, (Draft, Message)) for kind in set(map(type, bodies)))
        if not (drafted or given or effective.check):
            return self._plain(bodies, delay, fields, effective)
        return [
            item
            if isinstance(item, Draft)
            else self._draft_of(item, effective)
            if isinstance(item, Message)
            else self._draft(item, effective, *read)
            for item in bodies
        ]

    def _plain(
        self, bodies: list[Any], delay: float, fields: dict[str, Any], effective: EffectivePolicy
    ) -> list[Draft]:
        """Make many from bodies without a schema, the usual case; shared steps are done once for all."""
        name, terms, existing = self._name, effective.terms, self._existing
        return [
            Draft(name, Message(id, json_body(body), **fields), delay, False, terms, existing=existing)
            for id, body in zip(self._ids.many(len(bodies)), bodies, strict=True)
        ]

    def _read(self, options: Options, effective: EffectivePolicy) -> tuple[str, float, dict[str, Any]]:
        """Return the id given by the caller, the delay, and the fields of the message."""
        now = self._clock.now()
        fields: dict[str, Any] = {"created_at": round(now, 3)}
        ttl = effective.policy.ttl
        if options == NO_OPTIONS and not ttl:
            return "", 0.0, fields
        fields |= {name: value for name, value in options._asdict().items() if value is not None}
        given, delay = fields.pop("id", ""), _delay(fields.pop("delay", None), fields.pop("at", None), now)
        if "ttl" in fields:
            ttl = check_seconds("ttl", seconds_of(fields.pop("ttl")))
        if ttl:
            fields["expires_at"] = round(fields["created_at"] + ttl, 3)
        if "priority" in fields:
            fields["priority"] = priority_of(fields["priority"])
        check_message(Message(id=given or "any", body=None, **fields))
        return given, delay, fields

    def _draft(self, body: Any, effective: EffectivePolicy, given: str, delay: float, fields: dict[str, Any]) -> Draft:
        message = Message(id=given or self._ids(), body=json_body(body), **fields)
        draft = Draft(self._name, message, delay, given != "", effective.terms, existing=self._existing)
        return self._checked(draft, effective)

    def _draft_of(self, message: Message, effective: EffectivePolicy) -> Draft:
        check_message(message)
        ttl = effective.policy.ttl
        if ttl and message.expires_at is None:
            message = replace(message, expires_at=round(message.created_at + ttl, 3))
        return self._checked(Draft(self._name, message, terms=effective.terms, existing=self._existing), effective)

    def _checked(self, draft: Draft, effective: EffectivePolicy) -> Draft:
        """Check the body with the schema of the queue: if it does not fit, raise or return a draft of a dead letter."""
        if effective.check is None:
            return draft
        try:
            effective.check(draft.message.body)
        except ValidationFailed as exc:
            if effective.policy.on_invalid == "refuse":
                raise
            failure = self._failure(FailureCode.VALIDATION_ERROR, str(exc), 0)
            copies = self._dead_letters(effective.policy, self._name, draft.message, failure)
            terms = draft.terms._replace(max_waiting=0)  # it does not wait
            return replace(draft, delay=0.0, terms=terms, failure=failure, copies=copies)
        return draft


def _delay(delay: Seconds | None, at: datetime | None, now: float) -> float:
    """Return the seconds until a message is due."""
    if at is None:
        return check_seconds("delay", seconds_of(delay or 0.0))
    if delay is not None:
        raise InvalidInput("delay and at were both given: give the seconds until the message is due, or the time")
    if not isinstance(at, datetime) or at.tzinfo is None:
        raise InvalidInput(f"at must be a datetime with a time zone, as in datetime.now(UTC); found {at!r:.60}")
    return check_seconds("at", max(0.0, at.timestamp() - now))
