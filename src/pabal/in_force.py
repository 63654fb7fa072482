"""The policy in force for a queue, and what follows from it."""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from pabal.clock import Clock
from pabal.errors import InvalidPolicy
from pabal.policy import Policy, checked, document_of, policy_from
from pabal.schema import Check, checker, rule_checker
from pabal.store import Done, Store, Terms
from pabal.waiter import SLOW_POLL


class Ruling:
    """A policy and what follows from it, replaced whole when the policy changes."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.terms = Terms(policy.dedup_window, policy.max_bytes, policy.max_waiting)
        self.done = Done(keep=policy.done_retention > 0)
        # Messages are as their publishers say.
        self.plain = not policy.ttl and policy.body_schema is None and policy.message_schema is None

    @cached_property
    def check(self) -> Check | None:
        return _check_of(self.policy)  # made only where bodies are published: consumers need no schema package


class InForce:
    """Called, it says what holds: read again at most once a second, so that a change reaches running consumers."""

    def __init__(self, name: str, store: Store, clock: Clock) -> None:
        self._name = name
        self._store = store
        self._clock = clock
        self._ruling = Ruling(Policy())
        self._read_at = float("-inf")

    def __call__(self) -> Ruling:
        now = self._clock.boot()
        if now - self._read_at >= SLOW_POLL:
            found = self._store.settings(self._name)
            self._adopt(self._read(found) if found is not None else Policy())
            self._read_at = now  # last: until it is known, nobody goes on under another
        return self._ruling

    def put(self, policy: Policy) -> None:
        """Give the queue a policy, for all its users."""
        policy = checked(policy)  # what nobody could read again would stop everybody
        if policy.dead_letters.queue == self._name:
            raise InvalidPolicy(f"dlq.queue: {self._name} cannot be the queue of its own dead letters")
        _check_of(policy)  # a schema that cannot be used is refused here, not at the next publish
        self._store.configure(self._name, document_of(policy))
        self._read_at = self._clock.boot()
        self._adopt(policy)

    def pause(self, paused: bool) -> None:
        """Change this one thing in the policy as it is now."""
        self._read_at = float("-inf")
        self.put(policy_from({**document_of(self().policy), "paused": paused}))

    def _read(self, document: Mapping[str, Any]) -> Policy:
        try:
            return policy_from(document)
        except InvalidPolicy as exc:
            raise InvalidPolicy(
                f"queue {self._name} has a policy that cannot be read: {str(exc).removeprefix('policy: ')}; give it"
                f" another, with `pabal policy set {self._name} --file PATH` or configure(Policy(…))"
            ) from exc

    def _adopt(self, policy: Policy) -> None:
        if policy != self._ruling.policy:
            self._ruling = Ruling(policy)


def _check_of(policy: Policy) -> Check | None:
    checks = [] if policy.body_schema is None else [checker(policy.body_schema)]
    if policy.message_schema is not None:
        checks.append(rule_checker(policy.message_schema))
    if len(checks) < 2:
        return checks[0] if checks else None

    def both(body: Any) -> Any:
        for each in checks:
            each(body)
        return body

    return both
