"""The effective policy of a queue, and the values that follow from it."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from pabal.clock import Clock, Refreshed
from pabal.errors import InvalidPolicy, NameTaken
from pabal.message import replace
from pabal.policy.policy import (
    ATTACHED,
    PAUSED,
    DeadLetterPolicy,
    Policy,
    Settings,
    checked,
    document_of_settings,
    settings_from,
)
from pabal.policy.validation import Check, checker, rule_checker
from pabal.store import Done, KnownSettings, Store, Terms, check_exists, queue_exists


class EffectivePolicy:
    """The settings of a queue, and the values that follow from its policy; replaced whole when they change."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.policy = policy = settings.policy
        self.paused = settings.paused
        self.terms = Terms(policy.dedup_window, policy.max_bytes, policy.max_waiting)
        self.done = Done(keep=policy.done_retention > 0)
        # Whether messages are stored just as their publishers give them.
        self.plain = not policy.ttl and policy.body_schema is None and policy.message_schema is None

    @cached_property
    def check(self) -> Check | None:
        return _check_of(self.policy)  # made only where bodies are published: consumers need no schema package


class PolicyCache(Refreshed[EffectivePolicy]):
    """Returns the effective policy of a queue; read again at most once a second, so that changes reach consumers."""

    def __init__(self, name: str, store: Store, clock: Clock, *, create: bool = True) -> None:
        """Without `create`, a queue that is not there is not made by a change of its settings."""
        super().__init__(clock.boot)
        self._name = name
        self._store = store
        self._create = create

    def configure(self, policy: Policy) -> None:
        """Give the queue a policy, for all its users. All else that is kept of the queue stays as it is."""
        policy = self._checked(policy)
        self._make_target(policy.dead_letters)
        try:
            self._change(lambda settings: settings._replace(policy=policy), damaged=True)
        except InvalidPolicy:  # what is kept cannot even be read
            self._write(Settings(policy), ...)

    def update(self, changes: Mapping[str, Any]) -> Policy:
        """Change these fields of the policy as it is now, and nothing else; return the new policy."""

        def changed(settings: Settings) -> Settings:
            return settings._replace(policy=self._checked(replace(settings.policy, **changes)))

        if (dead_letters := changes.get("dead_letters")) is not None:
            self._make_target(dead_letters)
        return self._change(changed).policy

    def create(self, settings: Settings) -> bool:
        """Give the queue these settings, unless it is there; return whether it was not."""
        settings = settings._replace(policy=self._checked(settings.policy))
        self._make_target(settings.policy.dead_letters)
        return self._name not in self._store.queues() and self._write(settings, None)

    def ensure(self, policy: Policy) -> None:
        """Give the queue a policy if it has none, another one, or one that cannot be read."""
        try:
            same = self._store.settings(self._name) is not None and self().policy == policy
        except InvalidPolicy:
            same = False
        if not same:
            self.configure(policy)

    def pause(self, paused: bool) -> None:
        """Change only this switch."""
        self._change(lambda settings: settings._replace(paused=paused))

    def attach(self, name: str, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Change the document that an application keeps with the queue; an empty one is removed."""

        def changed(settings: Settings) -> Settings:
            document = dict(change(settings.attached.get(name, {})))
            others = {key: value for key, value in settings.attached.items() if key != name}
            return settings._replace(attached={**others, name: document} if document else others)

        self._change(changed)

    def _checked(self, policy: Policy) -> Policy:
        """Refuse a policy that this queue cannot have: one that cannot be read would stop every user of the queue."""
        policy = checked(policy)
        if policy.dead_letters.queue == self._name:
            raise InvalidPolicy(f"dead_letters.queue: {self._name} cannot be the queue of its own dead letters")
        _check_of(policy)  # a schema that cannot be used is refused here, not at the next publish
        return policy

    def _make_target(self, dead_letters: DeadLetterPolicy) -> None:
        """Make the queue to which a policy moves dead letters: the moves themselves make no queue."""
        target = dead_letters.queue
        if dead_letters.move and not queue_exists(self._store, target):
            with suppress(NameTaken):  # then its messages are dead in their own queue
                self._store.configure(target, document_of_settings(Settings()), known=None)

    def _change(self, change: Callable[[Settings], Settings], *, damaged: bool = False) -> Settings:
        """Change the settings as they are now, again if another process was faster; return the new ones.

        With `damaged`, a policy that cannot be read is taken for the default one.
        """
        while True:
            known = self._stored()
            if known is None and not self._create:
                check_exists(self._store, self._name)
            before = self._parse(known, damaged)
            settings = change(before)
            # A queue that is being deleted may still be listed for its last messages: no change makes it again.
            is_unchanged = known is None and not self._create and settings == before
            if is_unchanged or self._write(settings, known):
                return settings

    def _write(self, settings: Settings, known: KnownSettings) -> bool:
        written = self._store.configure(self._name, document_of_settings(settings), known=known)
        if written:
            self.put(EffectivePolicy(settings))
        return written

    def _read(self, known: EffectivePolicy | None) -> EffectivePolicy:
        settings = self._parse(self._stored())
        return known if known is not None and known.settings == settings else EffectivePolicy(settings)

    def _stored(self) -> Mapping[str, Any] | None:
        try:
            return self._store.settings(self._name)
        except InvalidPolicy as exc:
            raise self._unreadable(exc) from exc

    def _parse(self, settings: Mapping[str, Any] | None, damaged: bool = False) -> Settings:
        try:
            return Settings() if settings is None else settings_from(settings)
        except InvalidPolicy as exc:
            if damaged and settings is not None:
                return settings_from({key: settings[key] for key in (PAUSED, ATTACHED) if key in settings})
            raise self._unreadable(exc) from exc

    def _unreadable(self, exc: InvalidPolicy) -> InvalidPolicy:
        return InvalidPolicy(
            f"queue {self._name} has a policy that cannot be read: {str(exc).removeprefix('policy: ')}; give it"
            f" another, with `pabal policy set {self._name} --file PATH` or configure(Policy(…))"
        )


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
