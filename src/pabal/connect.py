"""Opens stores of queues and of topics by URL: `SCHEMES` is the table of all URL schemes with their options.

Each scheme imports its driver only when a URL of that scheme is opened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, overload
from urllib.parse import quote, urlencode

from pabal.clock import Clock, SystemClock, iso_stamp
from pabal.durable import make_dirs, translated
from pabal.errors import InvalidInput, InvalidUrl, StoreFailed, StoreMissing, StoreRefused
from pabal.filesystem import ANYBODY, remove
from pabal.message import Seconds
from pabal.names import check_servers, local_name, option_text, options_in, path_in, shown_url, split_url
from pabal.queues.delivery import Body, Local
from pabal.queues.queue import Queue, schedules_of
from pabal.queues.schedules import CatchUp, Schedule, Schedules, make_schedule
from pabal.queues.waiter import close_watches
from pabal.store import Checkable, Consumer, Entry, Finding, Movable, Published, Rescuing, Store
from pabal.topic_store import Topics
from pabal.topics.topic import Topic

log = logging.getLogger("pabal")

if TYPE_CHECKING:
    from pabal.stores.archive import ArchiveWriter, Kept, Progress
    from pabal.stores.files import FileStore
    from pabal.stores.hybrid import HybridStore
    from pabal.stores.memory import Place
    from pabal.stores.original import Folders
    from pabal.stores.sqlite import Tables

_BATCH = 200  # messages that a takeover carries at once


class Connection(Local):
    """An open store and its queues. Threads may share it; use it in a `with` block or close it."""

    def __init__(self, store: Store, *, clock: Clock, consumer: str, url: str = "") -> None:
        self.store = store
        self._url = url
        self._clock = clock
        self._consumer = consumer

    @overload
    def queue(self, name: str, *, create: bool = True) -> Queue: ...

    @overload
    def queue(self, name: str, *, body: type[Body], create: bool = True) -> Queue[Body]: ...

    def queue(self, name: str, *, body: type[Any] | None = None, create: bool = True) -> Queue[Any]:
        """Return the queue of this name. Its first message or policy creates it; without `create`, it must be there.

        With `body`, a msgspec type, a dataclass, a TypedDict or a pydantic model, it takes and gives values of that
        type, and a message whose body does not fit is dead. Without `create`, to publish to a queue that is not there,
        or to change its policy, raises QueueUnknown.
        """
        return Queue(name, self.store, body=body, clock=self._clock, consumer=self._consumer, create=create)

    def queues(self) -> list[str]:
        """Return the names of all queues, sorted."""
        return self.store.queues()

    def schedule(
        self,
        name: str,
        *,
        queue: str,
        body: Any = None,
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str = "",
        catch_up: CatchUp = "once",
        type: str = "",
    ) -> Schedule:
        """Publish a message again and again: at the times of a cron line (extra `schedule`), or every so many seconds.

        Kept in the store; whoever consumes from the store publishes. A schedule of this name is replaced, and adding
        the same one again changes nothing. `timezone` is that of the cron line, by default the one of this machine.
        After a time in which nobody consumed, `catch_up` publishes the last missed occurrence (`once`), or none
        (`skip`).
        """
        made = make_schedule(
            name, queue=queue, body=body, cron=cron, every=every, timezone=timezone, catch_up=catch_up, type=type
        )
        return self._schedules().add(made)

    def schedules(self) -> list[Schedule]:
        """Return all schedules by name."""
        return self._schedules().all()

    def unschedule(self, name: str) -> bool:
        """Remove a schedule; return whether it was there. Messages that it has published stay."""
        return self._schedules().remove(name)

    def run_schedule(self, name: str) -> Published:
        """Publish the message of a schedule now, beside its occurrences."""
        return self._schedules().run(name)

    def _schedules(self) -> Schedules:
        return schedules_of(self.store, self._clock)

    def consumers(self) -> list[Consumer]:
        """Return the consumers that have leased in the last hour or hold messages, and what each one holds."""
        return self.store.consumers()

    def __repr__(self) -> str:
        return f"<Connection {self._url} as {self._consumer}>"

    def close(self) -> None:
        """Release files and handles. Leases stay until they are settled or run out."""
        close_watches(self.store)
        self.store.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class TopicConnection:
    """An open store of topics. Threads may share it; use it in a `with` block or close it."""

    def __init__(self, topics: Topics, url: str = "") -> None:
        self.driver = topics
        self._url = url

    def __repr__(self) -> str:
        return f"<TopicConnection {self._url}>"

    def topic(self, name: str) -> Topic:
        """Return the topic of this name. Its `create` method creates it."""
        return Topic(name, self.driver)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return self.driver.topics()

    def close(self) -> None:
        """Release files and handles. A group member that was not closed is replaced when its session times out."""
        self.driver.close()

    def __enter__(self) -> TopicConnection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connect(url: str, *, consumer: str = "", create: bool = True, clock: Clock | None = None) -> Connection:
    """Open the store that the URL names: sqlite:///path.db, file:///dir, hybrid:///dir, mailbox:///dir of a manager,
    postgresql://user@host/database.

    Three slashes begin an absolute path, none a relative one (`sqlite:jobs.db`); options of a store follow a question
    mark. `consumer` is the name under which messages addressed to it are leased, and the client's name in a mailbox; by
    default host and process id. A store that does not exist is created, unless `create` is False: then StoreMissing is
    raised and nothing is touched.
    """
    clock = clock or SystemClock()
    consumer = consumer or local_name(os.getpid())
    _, path, opener = _find_opener(url, clock, consumer)
    with translated(f"opening {path}"):
        if not create and not opener.exists():
            opener.check_remains()
            raise StoreMissing(f"no store at {_shown(path, url)}: publish to make one, or correct {shown_url(url)}")
        return Connection(opener.open(), clock=clock, consumer=consumer, url=shown_url(url))


def back_up(url: str, target: Path, *, progress: Progress = lambda done: None) -> Kept:
    """Write the store that the URL names to a backup, one file, while it may be in use.

    The file is whole or not there; an older backup of the same name is replaced.
    """
    from pabal.stores.archive import writing

    clock = SystemClock()
    scheme, path, opener = _find_opener(url, clock)
    if opener.backup is None:
        raise InvalidInput(
            f"{scheme} stores are not backed up by pabal: give the URL of a sqlite, hybrid or file store"
        )
    if scheme != "sqlite" and not opener.exists():
        opener.check_remains()
        raise StoreMissing(f"no store at {shown_url(url)}: correct the URL")
    if scheme == "file" and target.resolve().is_relative_to(path.resolve()):
        raise InvalidInput(f"{target} lies in the store: each backup would hold the one before; give a place outside")
    with writing(target, progress) as archive:
        opener.backup(archive)
        return archive.finish(scheme, iso_stamp(clock.now()))


def restore(url: str, source: Path, *, progress: Progress = lambda done: None) -> Kept:
    """Make the store that the URL names from a backup. There must be no store yet."""
    from pabal.stores.archive import check_backup

    scheme, _, opener = _find_opener(url, SystemClock())
    if opener.restore is None:
        raise InvalidInput(f"{scheme} stores are not restored by pabal: give the URL of a sqlite, hybrid or file store")
    check_backup(source)
    return opener.restore(source, progress)


def take_over(
    url: str,
    source: Path,
    *,
    payloads: Path | None = None,
    folders: Folders | None = None,
    tables: Tables | None = None,
    progress: Callable[[Entry], None] = lambda entry: None,
) -> None:
    """Make the store that the URL names from a tree of the original system. There must be no store yet.

    The source is the root of its file tree, or its database, with the payload files of a hybrid store in `payloads`. It
    must not be in use and is not changed. The store appears when it is whole; a call that was killed may be repeated.
    `progress` is called with each message.
    """
    from pabal.stores.archive import clear, draft_folder
    from pabal.stores.original import Folders, read_tree
    from pabal.stores.sqlite import Tables, read_database

    clock = SystemClock()
    scheme, place, opener = _find_opener(url, clock)
    path = place.absolute()
    if opener.restore is None:
        raise InvalidInput(
            f"take over into a sqlite, hybrid or file store, then `pabal move --from` that `--to` the {scheme} store"
        )
    if path.resolve().is_relative_to(source.resolve()):
        raise InvalidInput(f"{path} lies in {source}, which shall not be changed: give another place for the store")
    if opener.exists():
        raise StoreRefused(f"there is a store at {path} already: give another place, and `pabal move` it if you like")
    with translated(f"taking over {source}"), ExitStack() as stack:
        make_dirs(path.parent)
        scratch = stack.enter_context(draft_folder(path.with_name(f".{path.name[:200]}.takeover")))
        clear(scratch)
        draft = url_at(url, scratch / "store")
        if source.is_dir():
            found = read_tree(source, folders or Folders(), clock)
        else:
            beside = payloads or source.parent / "payloads"
            found = stack.enter_context(read_database(source, beside, tables or Tables(), scratch, clock))
        with connect(draft, clock=clock) as mq:
            assert isinstance(mq.store, Movable)
            for queue, settings in found.policies.items():
                mq.store.configure(queue, settings)
            for queue, entries in groupby(found.entries, key=lambda entry: entry.queue):
                while some := list(islice(entries, _BATCH)):
                    if len(mq.store.carry(queue, some)) < len(some):
                        raise StoreFailed(f"a message of {queue} is there twice in {source}")
                    for entry in some:
                        progress(entry)
        back_up(draft, scratch / "backup")
        restore(url, scratch / "backup")


def salvage(url: str, target: Path) -> tuple[Connection, list[Finding]]:
    """Carry what can be read in a damaged sqlite or hybrid store to a new one at `target`; the store is not changed.

    Return the new store, open, and what was repaired or could not be read.
    """
    scheme, _, opener = _find_opener(url, SystemClock())
    if opener.salvage is None:
        raise InvalidInput(f"{scheme} stores have nothing to salvage: repair damaged messages with `pabal doctor`")
    damaged, copy = opener.salvage(target)
    new = f"{scheme}:{quote(os.fspath(target))}"
    reason = ""
    try:
        mq = connect(new)
        assert isinstance(mq.store, Checkable)
        found = mq.store.check(repair=True)
        if all(finding.repaired or finding.where != str(copy) for finding in found):
            return mq, found
        reason = found[0].problem
        mq.close()
    except StoreFailed as exc:
        reason = str(exc)
    # Its tables cannot be read: what is whole in its pages goes into new tables.
    remove(*(f"{copy}{end}" for end in ("", "-wal", "-shm")))
    mq = connect(new)
    assert isinstance(mq.store, Rescuing) and isinstance(mq.store, Checkable)
    many = mq.store.rescue(damaged)
    remedy = f"{many} messages were found in its pages" if many else "nothing was found in its pages: restore a backup"
    return mq, [Finding(str(damaged), reason, remedy, many > 0), *mq.store.check(repair=True)]


def _find_opener(url: str, clock: Clock, consumer: str = "") -> tuple[str, Path, _Opener]:
    """Return scheme and path of a store URL, and how its store is opened."""
    scheme, path = parse_url(url)
    row = SCHEMES[scheme]
    assert row.queues is not None
    options = _options(url, row.options) if row.strict else {}
    _check_place(scheme, path)
    return scheme, path, row.queues(_Location(url, path, options, clock, consumer))


def _shown(path: Path, url: str) -> object:
    """Return a path as errors may show it: with an `@` it may hold what was meant as a password."""
    return shown_url(url) if "@" in url else path


def _check_place(scheme: str, path: Path) -> None:
    """Raise StoreFailed if there is something that can be no store of this kind."""
    with translated(f"looking at {path}"):
        if scheme in ("file", "hybrid") and path.exists() and not path.is_dir():
            raise StoreFailed(
                f"{path} is not the folder of a {scheme} store: give another path, or write sqlite: for a database"
            )
        if scheme == "sqlite":
            from pabal.sql.place import require_file

            require_file(path)


def connect_topics(url: str, *, create: bool = True, clock: Clock | None = None) -> TopicConnection:
    """Open the topics that the URL names: sqlite:///path.db for one machine, kafka://host:port,host:port for many.

    A SQLite file may hold queues too. A file that does not exist is created, unless `create` is False: then
    StoreMissing. Kafka takes options after a question mark: replication, min_insync, timeout (seconds), client (the
    name by which the brokers know us) and config, a file of librdkafka settings with passwords and the like.
    """
    if not isinstance(url, str):
        raise InvalidUrl(f"a topics URL is text with a scheme, as in 'sqlite:events.db'; found {type(url).__name__}")
    row = SCHEMES.get(split_url(url).scheme)
    if row is None or row.topics is None:
        raise InvalidUrl(f"a topics URL begins with sqlite: or kafka://; found {shown_url(url)}")
    return TopicConnection(row.topics(url, create, clock), shown_url(url))


def parse_url(url: str) -> tuple[str, Path]:
    """Return scheme and path of a store URL; raise InvalidUrl with the correct form."""
    if not isinstance(url, str):
        raise InvalidUrl(f"a store URL is text with a scheme, as in 'sqlite:jobs.db'; found {type(url).__name__}")
    parts = split_url(url)
    known = [scheme for scheme, row in SCHEMES.items() if row.queues is not None]
    if parts.scheme not in known:
        hint = "write postgresql: with ql: " if parts.scheme == "postgres" else ""
        listed = ", ".join(known)
        raise InvalidUrl(f"{hint}a store URL begins with one of {listed} and a colon; found {shown_url(url)}")
    if parts.scheme == "postgresql":
        rest = url.partition(":")[2]
        if not rest.startswith("//"):
            raise InvalidUrl(f"write postgresql://USER@HOST/DATABASE; found {shown_url(url)}")
        check_servers(parts)
        return parts.scheme, Path(path_in(parts.path).strip("/") or "postgres")
    if parts.scheme == "memory":
        if parts.netloc or parts.query or parts.fragment or "/" in parts.path:
            raise InvalidUrl(
                f"write memory: for a store of its own, or memory:NAME to share it; found {shown_url(url)}"
            )
        return parts.scheme, Path(path_in(parts.path))
    if ":memory:" in (parts.path, parts.netloc):
        raise InvalidUrl(
            f"{parts.scheme} stores are files: write memory: for a test, or a path; found {shown_url(url)}"
        )
    if parts.netloc == "localhost" and parts.path.startswith("/"):
        return parse_url(url.replace("//localhost/", "///", 1))
    if parts.netloc:
        path = "HOST/PATH" if "@" in url or ":" in parts.netloc else f"{parts.netloc}{parts.path}"
        raise InvalidUrl(
            f"{parts.scheme} stores are local: write {parts.scheme}:///{path} for an absolute path"
            f" or {parts.scheme}:{path} for a relative one; found {shown_url(url)}"
        )
    if not parts.path or parts.fragment or (parts.query and not SCHEMES[parts.scheme].options):
        raise InvalidUrl(
            f"a store URL is a scheme and a path, as in {parts.scheme}:///var/lib/pabal; found {shown_url(url)}"
        )
    return parts.scheme, _local_path(parts.path)


def url_at(url: str, place: Path) -> str:
    """Return the URL of a store of the same kind and options at another place, without paths of its own."""
    parts = split_url(url)
    options = "&".join(part for part in parts.query.split("&") if part and not part.startswith(("db=", "bodies=")))
    return f"{parts.scheme}:{quote(os.fspath(place))}" + (f"?{options}" if options else "")


def absolute_topics(url: str) -> str:
    """Return the URL of topics with absolute paths, for a process that runs in another folder."""
    parts = split_url(url)
    if parts.scheme == "sqlite":
        return f"sqlite:{quote(os.path.abspath(database_path(url)))}"
    options = [(name, os.path.abspath(text) if name == "config" else text) for name, text in options_in(parts)]
    return parts._replace(query=urlencode(options, quote_via=quote, safe="/")).geturl()


def database_path(url: str) -> Path:
    """Return the path of a sqlite URL that has no options."""
    parts = split_url(url)
    if parts.netloc or not parts.path or parts.query or parts.fragment:
        raise InvalidUrl(f"write sqlite:///path.db for an absolute path or sqlite:path.db; found {shown_url(url)}")
    return _local_path(parts.path)


def _local_path(text: str) -> Path:
    """Return the path of a URL. It may begin with ~/, which a shell does not expand after a scheme."""
    path = path_in(text)
    return Path(os.path.expanduser(path) if path.startswith("~/") else path)


def _options(url: str, known: frozenset[str]) -> dict[str, str]:
    """Return the options after the question mark of a URL, as in `file:///spool?ready=inbox`."""
    found: dict[str, str] = {}
    for name, text in options_in(split_url(url)):
        if name not in known or name in found or not text:
            listed = ", ".join(sorted(known))
            raise InvalidUrl(
                f"options of this store are {listed}, each once; found {option_text(name)} in {shown_url(url)}"
            )
        found[name] = text
    return found


class _Location(NamedTuple):
    """A store URL and what its driver needs to open it."""

    url: str
    path: Path
    options: Mapping[str, str]
    clock: Clock
    consumer: str


class _Opener(NamedTuple):
    """`exists` returns whether a store of this kind is there, and touches nothing.

    `check_remains` raises an error if there is none, but a part of one.
    """

    exists: Callable[[], bool]
    open: Callable[[], Store]
    check_remains: Callable[[], None] = lambda: None
    backup: Callable[[ArchiveWriter], object] | None = None
    restore: Callable[[Path, Progress], Kept] | None = None
    salvage: Callable[[Path], tuple[Path, Path]] | None = None


def _sqlite(at: _Location) -> _Opener:
    from pabal.stores.sqlite import SqliteStore, backup_database, restore_database, salvage_store

    more = _sqlite_options(at.options)
    return _Opener(
        partial(SqliteStore.exists, at.path),
        partial(SqliteStore, at.path, clock=at.clock, **more),
        backup=partial(backup_database, at.path),  # also if it holds only topics
        restore=partial(restore_database, at.path),
        salvage=partial(salvage_store, at.path),
    )


def _file(at: _Location) -> _Opener:
    from pabal.stores.files import FileStore
    from pabal.stores.layout import NativeLayout
    from pabal.stores.original import refuse_tree

    folders = at.options.keys() - {"owner"}
    names: dict[str, Any] = {("meta" if name == "private" else name): at.options[name] for name in folders}
    owner = _owner(at.options)
    open_store = partial(FileStore, at.path, clock=at.clock, layout=NativeLayout(**names), owner=owner)
    return _Opener(
        partial(FileStore.exists, at.path),
        open_store,
        partial(refuse_tree, at.path),
        backup=_opened(open_store),
        restore=partial(FileStore.restore, at.path),
    )


def _hybrid(at: _Location) -> _Opener:
    from pabal.stores.hybrid import HybridStore
    from pabal.stores.sqlite import SqliteStore, restore_hybrid, salvage_store

    more = _sqlite_options(at.options)
    more |= {name: Path(at.options[name]) for name in ("db", "bodies") if name in at.options}
    database = more.get("db", at.path / "pabal.db")
    bodies = more.get("bodies", at.path / "bodies")
    open_store = partial(HybridStore, at.path, clock=at.clock, **more)
    return _Opener(
        partial(SqliteStore.exists, database),
        open_store,
        partial(HybridStore.check_remains, database, bodies),
        backup=_opened(open_store),
        restore=partial(restore_hybrid, database, bodies),
        salvage=lambda target: salvage_store(database, target / "pabal.db", (bodies, target / "bodies")),
    )


def _opened(open_store: Callable[[], FileStore | HybridStore]) -> Callable[[ArchiveWriter], None]:
    """Return a function that backs up a store which must be opened for it."""

    def back_up(archive: ArchiveWriter) -> None:
        store = open_store()
        try:
            store.backup(archive)
        finally:
            store.close()

    return back_up


_places: dict[str, Place] = {}


def _memory(at: _Location) -> _Opener:
    from pabal.stores.memory import MemoryStore, Place

    log.warning("a memory: store is for tests: its messages are lost when this process ends")
    place = _places.setdefault(name, Place()) if (name := at.path.name) else Place()
    return _Opener(lambda: True, partial(MemoryStore, place, clock=at.clock))


def _mailbox(at: _Location) -> _Opener:
    from pabal.mailbox.client import Mailbox
    from pabal.mailbox.store import MailboxStore

    return _Opener(
        partial(Mailbox.exists, at.path), lambda: MailboxStore(Mailbox(at.path, at.consumer, clock=at.clock))
    )


def _postgresql(at: _Location) -> _Opener:
    from pabal.sql.postgres_link import for_libpq
    from pabal.stores.postgres import PostgresStore

    url, options = for_libpq(at.url, SCHEMES["postgresql"].options)
    more: dict[str, Any] = {name: options[name] for name in ("schema",) if name in options}
    if "patience" in options:
        more["patience"] = _seconds("patience", options["patience"])
    return _Opener(partial(PostgresStore.exists, url, **more), partial(PostgresStore, url, clock=at.clock, **more))


def _sqlite_topics(url: str, create: bool, clock: Clock | None) -> Topics:
    from pabal.topic_stores.sqlite import SqliteTopics

    path, owner = database_path(url.partition("?")[0]), _owner(_options(url, frozenset({"owner"})))
    if not create and not SqliteTopics.exists(path):
        shown = _shown(path, url)
        raise StoreMissing(f"no topics in {shown}: make one with `pabal topic create`, or correct {shown_url(url)}")
    return SqliteTopics(path, clock=clock, owner=owner)


def _kafka_topics(url: str, create: bool, clock: Clock | None) -> Topics:
    parts = split_url(url)
    if not parts.netloc or parts.path.strip("/") or parts.fragment or "@" in parts.netloc:
        raise InvalidUrl(
            "write kafka://host:port, several separated by commas; passwords belong into a file that ?config= names"
        )
    options, known = dict(options_in(parts)), SCHEMES["kafka"].options
    if unknown := options.keys() - known:
        raise InvalidUrl(f"options of kafka are {', '.join(sorted(known))}; found {option_text(min(unknown))}")
    check_servers(parts)
    from pabal.topic_stores.kafka import KafkaTopics, settings_of

    return KafkaTopics(settings_of(parts.netloc, options))


def _sqlite_options(options: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {"owner": _owner(options)}
    if "busy" in options:
        found["busy"] = _seconds("busy", options["busy"])
    if options.keys() & {"kv", "index"}:
        from pabal.stores.sqlite import Tables

        found["tables"] = Tables(
            _table_name("kv", options.get("kv", "kv")),
            _table_name("index", options.get("index", "msg_index")),
        )
    return found


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidUrl(f"{name} must be seconds; found {option_text(text)}") from None
    if not 0 <= value <= 3600:
        raise InvalidUrl(f"{name} must be 0 to 3600 seconds; found {option_text(text)}")
    return value


def _owner(options: Mapping[str, str]) -> int | None:
    """Return the user whose files are accepted beside our own and those of root."""
    name = options.get("owner", "")
    if not name:
        return None
    if name == "any":
        return ANYBODY
    if name.isascii() and name.isdecimal() and len(name) <= 10:
        return int(name)
    import pwd

    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError):
        raise InvalidUrl(f"owner must be the name or number of a user, or any; found {option_text(name)}") from None


def _table_name(option: str, text: str) -> str:
    if not (text.isascii() and text.isidentifier()):
        raise InvalidUrl(f"{option} must be the name of a table; found {option_text(text)}")
    return text


class Scheme(NamedTuple):
    """What a URL of one scheme opens: a store of queues, a store of topics, or either."""

    queues: Callable[[_Location], _Opener] | None = None
    topics: Callable[[str, bool, Clock | None], Topics] | None = None
    options: frozenset[str] = frozenset()
    strict: bool = True  # other options of a store URL are an error; else the driver takes or refuses them


# busy: seconds to wait for a locked file. kv, index: names of the tables of the original system.
# owner: another user whose files are trusted.
_SQLITE_OPTIONS = frozenset({"busy", "kv", "index", "owner"})

_FILE_OPTIONS = frozenset({"ready", "delayed", "inflight", "dead", "done", "corrupt", "private", "owner"})

SCHEMES: Mapping[str, Scheme] = {
    "sqlite": Scheme(_sqlite, _sqlite_topics, options=_SQLITE_OPTIONS),
    # The names of the folders; private: the folder of the store's own files.
    "file": Scheme(_file, options=_FILE_OPTIONS),
    # db, bodies: paths of these, if not under the root.
    "hybrid": Scheme(_hybrid, options=_SQLITE_OPTIONS | {"db", "bodies"}),
    "mailbox": Scheme(_mailbox),
    # For tests. Connections of one process share what has the same name.
    "memory": Scheme(_memory),
    # schema: of the tables, `pabal` by default. patience: seconds to retry while the server is away. Rest: libpq's.
    "postgresql": Scheme(_postgresql, options=frozenset({"schema", "patience"}), strict=False),
    "kafka": Scheme(
        topics=_kafka_topics, options=frozenset({"client", "config", "min_insync", "replication", "timeout"})
    ),
}
