"""The home of a kingdom: its folder, its configuration, its queues, opened by every role and command.

    queue/{events,tasks,messages}/  state/  config/  logs/  workspace/  memory/  generals/  plugins/

Any number of processes may have it open.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from pabal.clock import Clock, SystemClock
from pabal.connect import Connection, connect, parse_url
from pabal.durable import make_dirs, replace_whole, sync_dir, translated
from pabal.errors import InvalidConfig, StoreMissing
from pabal.kingdom import policies
from pabal.kingdom.codec import message_of, unchecked
from pabal.kingdom.config import Followed, King, System, read_config
from pabal.kingdom.documents import Event, Notice, Result, Task, document_of, stamp
from pabal.kingdom.journal import FILE, Journal
from pabal.kingdom.layout import COMPLETED, EVENTS, MESSAGES, RESULTS, TASKS, KingdomLayout
from pabal.kingdom.sequence import Sequence as IdSequence
from pabal.message import replace
from pabal.queue import Queue
from pabal.runtime.wake import FdWatch
from pabal.store import Draft, Published, State, Store, Waitable, Watch
from pabal.stores.files import FileStore

FOLDERS = (
    "config/generals",
    "generals",
    "logs/sessions",
    "memory/generals",
    "memory/shared",
    "plugins",
    COMPLETED,
    "schemas",
    "state/king",
    "state/prompts",
    "state/results/archive",
    "state/sentinel/seen",
    "workspace",
)
SYSTEM, KING = "config/system.yaml", "config/king.yaml"
SCHEMA = "schemas/soldier-result.schema.json"  # here and in a home
_QUEUE_OF = {Event: EVENTS, Task: TASKS, Result: RESULTS, Notice: MESSAGES}


class Home:
    """One kingdom. Close it, or use it in a `with` block."""

    def __init__(self, root: Path, clock: Clock, variables: Mapping[str, str]) -> None:
        self.root = Path(os.path.abspath(root))
        self.clock = clock
        self.variables = variables
        self.config = read_config(self.root / SYSTEM, System)
        self._king = Followed(self.root / KING, King)
        for folder in FOLDERS:
            make_dirs(self.root / folder)
        self.on_files = not self.config.queues
        self.connection = Connection(self._store(), clock=clock, consumer=f"{socket.gethostname()}-{os.getpid()}")
        self.journal = Journal(self.root / FILE, clock)
        state = self.root / "state/king"
        self.task_ids = IdSequence(state / "task-seq", "task", clock, self._highest(TASKS))
        self.notice_ids = IdSequence(state / "msg-seq", "msg", clock, self._highest(MESSAGES))
        self._queues: dict[tuple[str, str], Queue] = {}

    @classmethod
    def open(
        cls, root: Path | str = ".", *, clock: Clock | None = None, variables: Mapping[str, str] | None = None
    ) -> Home:
        """Open a kingdom that `make` made. `variables` are those of the process, for soldiers and defaults."""
        place = Path(root)
        if not (place / SYSTEM).is_file():
            raise StoreMissing(f"no kingdom at {place}: `pabal kingdom init` makes one, or give --home DIR")
        return cls(place, clock or SystemClock(), variables or {})

    @classmethod
    def make(cls, root: Path, *, queues: str = "", clock: Clock | None = None) -> Home:
        """Make a kingdom where there is none, or complete one that is there; nothing that exists is changed."""
        from pabal.kingdom.founding import found

        found(root, queues)
        home = cls.open(root, clock=clock)
        home.prepare()
        return home

    def prepare(self) -> None:
        """Give every queue its policy, and soldiers the schema of this release; refuse a king.yaml with a mistake."""
        if self.king_problem:
            raise InvalidConfig(self.king_problem)
        for name, policy in policies.of(self.config).items():
            queue = self.queue(name)
            if self.store.settings(name) is None or queue.policy != policy:
                queue.configure(policy)
        schema = resources.files("pabal.kingdom").joinpath(SCHEMA).read_bytes()
        with translated(f"writing {SCHEMA}"):
            place = self.root / SCHEMA
            if not place.exists() or place.read_bytes() != schema:
                replace_whole(place, schema, mode=0o644)

    @property
    def king(self) -> King:
        """Return what `config/king.yaml` says at this moment, or said before somebody made a mistake."""
        return self._king.look()[0]

    @property
    def king_problem(self) -> str:
        return self._king.look()[1]

    @property
    def store(self) -> Store:
        return self.connection.store

    def queue(self, name: str, consumer: str = "") -> Queue:
        """Return a queue, as the one sees it to whom these messages are addressed."""
        key = (name, consumer)
        if key not in self._queues:
            letters = policies.letters(self) if name == TASKS else policies.no_letters
            self._queues[key] = Queue(name, self.store, clock=self.clock, consumer=consumer, letters=letters)
        return self._queues[key]

    def watch(self, *queues: str) -> Watch:
        """Return a watch that rings when something arrives in one of these queues."""
        return self.store.watch(queues) if isinstance(self.store, Waitable) else FdWatch()

    # What is said and done

    def draft(self, value: Event | Task | Result | Notice, *, key: str = "") -> Draft:
        """Make a draft of a document for the queue of its kind; `key` is a dedup key where its id is not enough."""
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
        """Publish events, each once: an id that was published in the last 30 days is a duplicate."""
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
        """Make a notice with the next id; `channel` is the default one unless given."""
        [id] = self.notice_ids.take()
        fields.setdefault("channel", self.default_channel)
        return msgspec.convert(
            {"id": id, "type": type, "content": content, "created_at": stamp(self.clock.now()), **fields}, Notice
        )

    def tell(self, *notices: Notice) -> list[Published]:
        """Publish notices for the envoy."""
        return self.queue(MESSAGES).publish_many([self.draft(notice) for notice in notices])

    @property
    def default_channel(self) -> str:
        return self.king.slack.default_channel or self.variables.get("SLACK_DEFAULT_CHANNEL", "")

    def _seen(self, id: str) -> Path:
        return self.root / "state/sentinel/seen" / id

    def _remember(self, ids: Iterable[str]) -> None:
        """Not before the events are safe: a crash in between is met by the queue's own memory of ids."""
        with translated("remembering events"):
            paths = [self._seen(id) for id in ids]
            for path in paths:
                path.touch(mode=0o600)
            if paths:
                sync_dir(paths[0].parent)

    # What it stands on

    def _store(self) -> Store:
        if self.on_files:
            return FileStore(self.root, clock=self.clock, layout=KingdomLayout())
        url = self.config.queues
        scheme, path = parse_url(url)
        if scheme != "postgresql":  # whose path is the name of a database
            make_dirs((self.root / path).parent)
            url = url if path.is_absolute() else f"{scheme}:{self.root}/{url.split(':', 1)[1]}"
        return connect(url, clock=self.clock).store

    def _highest(self, queue: str) -> Any:
        """Return what finds the largest number in use among the ids of a queue that begin with a prefix."""

        def highest(prefix: str) -> int:
            entries = (entry for state in State for entry in self.queue(queue).entries(state))
            numbers = (entry.id.removeprefix(prefix) for entry in entries if entry.id.startswith(prefix))
            return max((int(number) for number in numbers if number.isdecimal()), default=0)

        return highest

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> Home:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
