"""From a body and what is said of it to a checked draft, under the policy in force."""

from collections.abc import Callable, Iterable
from typing import Any, TypedDict

from pabal.clock import Clock
from pabal.errors import ValidationFailed
from pabal.ids import IdMaker
from pabal.in_force import InForce, Ruling
from pabal.jsontext import Json, check
from pabal.judge import refused
from pabal.message import Message, check_message, check_seconds, priority_of, replace
from pabal.store import Draft, Failure, FailureCode


class Options(TypedDict, total=False):
    """What may be said of a message beside its body."""

    id: str
    type: str
    version: int
    sender: str
    target: str
    attributes: dict[str, Json]
    headers: dict[str, str]
    priority: int | str
    group: str
    dedup_key: str
    thread_id: str
    trace_id: str
    reply_to: str
    ttl: float
    delay: float


class Drafting:
    """Makes the drafts of one queue. `failure` makes the record of a failure of now."""

    def __init__(self, name: str, in_force: InForce, clock: Clock, failure: Callable[[str, str, int], Failure]) -> None:
        self._name = name
        self._in_force = in_force
        self._clock = clock
        self._ids = IdMaker(clock)
        self._failure = failure

    def draft(self, body: Json | bytes, options: Options) -> Draft:
        """Make one message, or raise the InvalidInput that says what is wrong with it."""
        ruling = self._in_force()
        if options or not ruling.plain:
            return self._draft(body, ruling, *self._read(options, ruling))
        # The usual case, at a third of the price.
        if type(body) is not bytes:
            check(body)
        message = Message(self._ids(), body, created_at=round(self._clock.now(), 3))
        return Draft(self._name, message, 0.0, False, ruling.terms)

    def drafts(self, items: Iterable[Json | bytes | Message | Draft], options: Options) -> list[Draft]:
        """Make many: of bodies, to which the options apply, of messages, and of drafts as they are."""
        ruling = self._in_force()
        given, delay, fields = said = self._read(options, ruling)
        bodies = list(items)
        drafted = any(issubclass(kind, (Draft, Message)) for kind in set(map(type, bodies)))
        if not (drafted or given or ruling.check):
            return self._plain(bodies, delay, fields, ruling)
        return [
            item
            if isinstance(item, Draft)
            else self._draft_of(item, ruling)
            if isinstance(item, Message)
            else self._draft(item, ruling, *said)
            for item in bodies
        ]

    def _plain(self, bodies: list[Any], delay: float, fields: dict[str, Any], ruling: Ruling) -> list[Draft]:
        """Make the usual many, bodies that no schema is asked about, with no step twice that one may do for all."""
        for body in bodies:
            if type(body) is not bytes:
                check(body)
        name, terms = self._name, ruling.terms
        return [
            Draft(name, Message(id, body, **fields), delay, False, terms)
            for id, body in zip(self._ids.many(len(bodies)), bodies, strict=True)
        ]

    def _read(self, options: Options, ruling: Ruling) -> tuple[str, float, dict[str, Any]]:
        """Return the id that the options give, the delay, and the fields of the message."""
        fields: dict[str, Any] = {"created_at": round(self._clock.now(), 3)}
        ttl = ruling.policy.ttl
        if not (options or ttl):
            return "", 0.0, fields
        fields |= options
        given, delay = fields.pop("id", ""), check_seconds("delay", fields.pop("delay", 0.0))
        if "ttl" in fields:
            ttl = check_seconds("ttl", fields.pop("ttl"))
        if ttl:
            fields["expires_at"] = round(fields["created_at"] + ttl, 3)
        if "priority" in fields:
            fields["priority"] = priority_of(fields["priority"])
        check_message(Message(id=given or "any", body=None, **fields))
        return given, delay, fields

    def _draft(self, body: Json | bytes, ruling: Ruling, given: str, delay: float, fields: dict[str, Any]) -> Draft:
        if type(body) is not bytes:
            check(body)
        message = Message(id=given or self._ids(), body=body, **fields)
        return self._unfit(message, ruling) or Draft(self._name, message, delay, given != "", ruling.terms)

    def _draft_of(self, message: Message, ruling: Ruling) -> Draft:
        check_message(message)
        ttl = ruling.policy.ttl
        if ttl and message.expires_at is None:
            message = replace(message, expires_at=round(message.created_at + ttl, 3))
        return self._unfit(message, ruling) or Draft(self._name, message, terms=ruling.terms)

    def _unfit(self, message: Message, ruling: Ruling) -> Draft | None:
        """Hold the body against the queue's schema: raise if it is refused, or return a dead letter in its stead."""
        if ruling.check is None:
            return None
        try:
            ruling.check(message.body)
        except ValidationFailed as exc:
            if ruling.policy.on_invalid == "refuse":
                raise
            failure = self._failure(FailureCode.VALIDATION_ERROR, str(exc), 0)
            return refused(ruling.policy, self._name, message, failure)
        return None
