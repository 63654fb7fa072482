"""The home of a kingdom: its folder, its configuration and its queues. Every role and command opens it.

    queue/{events,tasks,messages}/  state/  config/  logs/  workspace/  memory/  generals/  plugins/

Any number of processes may have it open.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pabal.apps.kingdom.codec import message_of, unchecked
from pabal.apps.kingdom.config import FollowedFile, King, System, read_config
from pabal.apps.kingdom.documents import (
    Event,
    Notice,
    Result,
    Task,
    document_of,
    kind_of,
    plain_reason,
    read,
    result_of,
    stamp,
)
from pabal.apps.kingdom.envoy import settings as envoy_settings
from pabal.apps.kingdom.id_sequence import IdSequence
from pabal.apps.kingdom.journal import FILE, Journal
from pabal.apps.kingdom.layout import (
    COMPLETED,
    COMPLETED_TASKS,
    EVENTS,
    MESSAGES,
    RESULTS,
    RESULTS_ARCHIVE,
    TASKS,
    KingdomLayout,
)
from pabal.clock import Clock, SystemClock
from pabal.connect import connect, parse_url
from pabal.durable import make_dirs, replace_whole, sync_dir, translated
from pabal.errors import InvalidConfig, InvalidInput, StoreMissing
from pabal.filesystem import touch
from pabal.message import Message, replace
from pabal.policy.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy
from pabal.queues.queue import Queue
from pabal.queues.verdicts import DeadLetterWriter
from pabal.runtime.wake import FdWatch
from pabal.store import Draft, Failure, Published, State, Store, Waitable, Watch
from pabal.stores.files import FileStore

FOLDERS = (
    "config/generals",
    "generals",
    "logs/sessions",
    "memory/generals",
    "memory/shared",
    "plugins",
    COMPLETED,
    COMPLETED_TASKS,
    "schemas",
    "state/king",
    "state/prompts",
    RESULTS_ARCHIVE,
    "state/sentinel/seen",
    "workspace",
)
SYSTEM, KING = "config/system.yaml", "config/king.yaml"
SCHEMA = "schemas/soldier-result.schema.json"  # here and in a home
_QUEUE_OF = {Event: EVENTS, Task: TASKS, Result: RESULTS, Notice: MESSAGES}


def queue_of(document: Mapping[str, Any]) -> str:
    """Return the queue to which a document belongs."""
    return _QUEUE_OF[kind_of(document)]


class Home:
    """One kingdom. Close it, or use it in a `with` block."""

    def __init__(self, root: Path, clock: Clock, variables: Mapping[str, str]) -> None:
        self.root = Path(os.path.abspath(root))
        self.clock = clock
        self.variables = variables
        self.config = read_config(self.root / SYSTEM, System)
        self._king = FollowedFile(self.root / KING, King)
        self._envoy = FollowedFile(self.root / envoy_settings.FILE, envoy_settings.Settings)
        for folder in FOLDERS:
            make_dirs(self.root / folder)
        self.on_files = not self.config.queues
        self.store = self.store_at(self.config.queues)
        self.journal = Journal(self.root / FILE, clock)
        state = self.root / "state/king"
        self.task_ids = IdSequence(state / "task-seq", "task", clock, self._highest(TASKS))
        self.notice_ids = IdSequence(state / "msg-seq", "msg", clock, self._highest(MESSAGES))
        self._queues: dict[tuple[str, str], Queue] = {}

    @classmethod
    def open(
        cls, root: Path | str = ".", *, clock: Clock | None = None, variables: Mapping[str, str] | None = None
    ) -> Home:
        """Open an existing kingdom. `variables` are those of the process, for soldiers and for defaults."""
        place = Path(root)
        if not cls.is_at(place):
            raise StoreMissing(f"no kingdom at {place}: `pabal kingdom init` makes one, or give --home DIR")
        return cls(place, clock or SystemClock(), variables or {})

    @staticmethod
    def is_at(root: Path) -> bool:
        """Return whether a folder is a kingdom."""
        return (root / SYSTEM).is_file()

    @classmethod
    def make(cls, root: Path, *, queues: str = "", clock: Clock | None = None) -> Home:
        """Make a kingdom, or complete one; files that exist stay as they are."""
        make_files(root, queues)
        from pabal.apps.kingdom.sample import write_settings  # which knows the settings of every role

        write_settings(root)
        home = cls.open(root, clock=clock)
        home.prepare()
        return home

    def prepare(self) -> None:
        """Set the policies of the queues and write the result schema; refuse a king.yaml with a mistake."""
        if self.king_problem:
            raise InvalidConfig(self.king_problem)
        for name, policy in policy_of(self.config).items():
            queue = self.queue(name)
            queue.ensure_policy(policy)
        schema = resources.files("pabal.apps.kingdom").joinpath(SCHEMA).read_bytes()
        with translated(f"writing {SCHEMA}"):
            place = self.root / SCHEMA
            if not place.exists() or place.read_bytes() != schema:
                replace_whole(place, schema)

    @property
    def king(self) -> King:
        """The current `config/king.yaml`; the last version without a mistake, if it has one."""
        return self._king.look()[0]

    @property
    def king_problem(self) -> str:
        return self._king.look()[1]

    @property
    def envoy(self) -> envoy_settings.Settings:
        """The current `config/envoy.yaml`, as roles other than the envoy use it."""
        return self._envoy.look()[0]

    def queue(self, name: str, consumer: str = "") -> Queue:
        """Return a queue. `consumer` leases only the messages that are addressed to it."""
        key = (name, consumer)
        if key not in self._queues:
            writer = task_result_writer(self) if name == TASKS else no_dead_letters
            self._queues[key] = Queue(name, self.store, clock=self.clock, consumer=consumer, dead_letters=writer)
        return self._queues[key]

    def watch(self, *queues: str) -> Watch:
        """Return a watch that wakes when something arrives in one of these queues."""
        return self.store.watch(queues) if isinstance(self.store, Waitable) else FdWatch()

    def draft(self, value: Event | Task | Result | Notice, *, key: str = "") -> Draft:
        """Make a draft of a document for the queue of its kind; `key` is a dedup key if its id is not enough."""
        message = unchecked(document_of(value), at=self.clock.now())  # the queue checks it
        draft = self.queue(_QUEUE_OF[type(value)]).draft(
            message.body,
            id=message.id,
            type=message.type,
            target=message.target,
            priority=message.priority,
            group=message.group,
            dedup_key=key or message.dedup_key,
        )
        # The sequences never give an id twice: only an id that comes from elsewhere needs to be remembered.
        return replace(draft, given_id=isinstance(value, Event | Result))

    def emit(self, events: Sequence[Event]) -> list[Published]:
        """Publish events once each: an id that was published in the last 30 days is a duplicate."""
        answers = {event.id: Published(event.id, duplicate=True) for event in events if self._seen(event.id).exists()}
        fresh = list({event.id: event for event in events if event.id not in answers}.values())
        at = stamp(self.clock.now())
        documents = [{**document_of(event), "created_at": event.created_at or at} for event in fresh]
        found = self.queue(EVENTS).publish_many([message_of(document) for document in documents])
        self._remember([event.id for event in fresh])
        for event, published in zip(fresh, found, strict=True):
            if not published.duplicate:
                self.journal.note("event.detected", event.source or "sentinel", event=event.id, type=event.type)
        firsts = {published.id: published for published in found}
        # An id that comes twice in one call is new once.
        return [answers.get(event.id) or firsts.pop(event.id, Published(event.id, duplicate=True)) for event in events]

    def notice(self, type: str, content: str, **fields: Any) -> Notice:
        """Make a notice with the next id, for the default channel unless another one is given."""
        [id] = self.notice_ids.take()
        fields.setdefault("channel", self.default_channel)
        return read(
            Notice, {"id": id, "type": type, "content": content, "created_at": stamp(self.clock.now()), **fields}
        )

    def publish_notices(self, *notices: Notice) -> list[Published]:
        """Publish notices for the envoy."""
        return self.queue(MESSAGES).publish_many([self.draft(notice) for notice in notices])

    @property
    def default_channel(self) -> str:
        return self.king.slack.default_channel or self.variables.get("SLACK_DEFAULT_CHANNEL", "")

    def was_seen(self, id: str) -> bool:
        """Return whether an event of this id was published in the last 30 days."""
        return self._seen(id).exists()

    def _seen(self, id: str) -> Path:
        return self.root / "state/sentinel/seen" / id

    def _remember(self, ids: Iterable[str]) -> None:
        """Record the ids of published events. After a crash before this point, the queue's own dedup knows the ids."""
        with translated("remembering events"):
            paths = [self._seen(id) for id in ids]
            for path in paths:
                touch(path)
            if paths:
                sync_dir(paths[0].parent)

    def store_at(self, url: str) -> Store:
        """Open the store of a `queues:` setting; an empty one means the files of the home."""
        if not url:
            return FileStore(self.root, clock=self.clock, layout=KingdomLayout())
        scheme, path = parse_url(url)
        if scheme != "postgresql":  # whose path is the name of a database
            make_dirs((self.root / path).parent)
            url = url if path.is_absolute() else f"{scheme}:{self.root}/{url.split(':', 1)[1]}"
        return connect(url, clock=self.clock).store

    def _highest(self, queue: str) -> Any:
        """Return a function that finds the largest number among the ids of a queue with a prefix."""

        def highest(prefix: str) -> int:
            entries = (entry for state in State for entry in self.queue(queue).entries(state))
            numbers = (entry.id.removeprefix(prefix) for entry in entries if entry.id.startswith(prefix))
            return max((int(number) for number in numbers if number.isdecimal()), default=0)

        return highest

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_SYSTEM = """\
# The kingdom as a whole.
{queues}
engine: claude        # runs the soldiers of generals that name no command: claude or codex
"""
_ON_FILES = "# queues: sqlite:state/kingdom.db   # a store URL; without one the queues are the files of this folder"
_KING = """\
slack:
  default_channel: ""   # else $SLACK_DEFAULT_CHANNEL

retry:
  max_attempts: 2       # beside the first
  backoff_seconds: 60

concurrency:
  max_soldiers: 3

intervals:              # the slow poll beneath the wake-ups
  event_check_seconds: 10
  result_check_seconds: 10
  schedule_check_seconds: 60
"""


def make_files(root: Path, queues: str) -> None:
    """Make the folders, and configuration files with comments. Files that exist stay as they are."""
    with translated(f"making a kingdom at {root}"):
        for folder in FOLDERS:
            make_dirs(root / folder)
        line = f"queues: {queues}" if queues else _ON_FILES
        for name, text in ((SYSTEM, _SYSTEM.format(queues=line)), (KING, _KING)):
            if not (root / name).exists():
                replace_whole(root / name, text.encode())


_DAY = 86400.0
_ALWAYS = 1_000_000
CRASHES = 10  # of its general, after which a task counts as the cause


def policy_of(config: System) -> dict[str, Policy]:
    """Return the policy of each queue.

    No document is buried for its attempts alone, except a task whose general crashed ten times: it is buried together
    with its result, in one step.
    """

    def policy(keep_days: float, *, poison: int = 0) -> Policy:
        return Policy(
            visibility=config.lease_seconds,
            retry=RetryPolicy(limit=_ALWAYS, backoff=Backoff.FIXED, initial=0.0, max=0.0, poison_limit=poison),
            dead_letters=DeadLetterPolicy(retention_days=30),
            dedup_window=7 * _DAY,
            done_retention=keep_days * _DAY,
        )

    return {EVENTS: policy(30), TASKS: policy(7, poison=CRASHES), RESULTS: policy(7), MESSAGES: policy(7)}


def no_dead_letters(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
    return ()


def task_result_writer(home: Home) -> DeadLetterWriter:
    """Return the writer that publishes the result of a dead task."""

    def write(policy: Policy, queue: str, message: Message, failure: Failure) -> tuple[Draft, ...]:
        try:
            task = read(Task, message.body)
        except InvalidInput:
            return ()
        outcome = {"status": "failed", "summary": "given up", "error": plain_reason(failure)[:2000]}
        result = result_of(task, outcome, completed_at=stamp(failure.at))
        return (home.draft(result),)

    return write
