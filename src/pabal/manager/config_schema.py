"""The keys of a manager's configuration, and the search for mistakes in one: all of them, not only the first."""

from __future__ import annotations

import grp
import pwd
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from pabal import jsontext
from pabal.errors import InvalidName, InvalidPolicy, PabalError
from pabal.names import check_name, suggestion
from pabal.policy.policy import merged, policy_from
from pabal.policy.validation import checker, rule_checker

_PLACEHOLDERS = ("{{kv_table}}", "{{msg_index_table}}")
_KINDS = {"int": "a whole number", "float": "a number", "str": "text", "bool": "true or false", "object": "a table"}
_YEAR = 366 * 86400

Milliseconds = Annotated[int, Meta(ge=1, le=86_400_000)]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,198}[A-Za-z0-9_-])?$",
        description="1-200 of letters, digits, '-', '_' and inner dots",
    ),
]
Folder = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_-]{0,99}$", description="a folder name of letters, digits, '-' and '_'"),
]
Table = Annotated[
    str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,99}$", description="a table name of letters, digits and '_'")
]
PathText = Annotated[str, Meta(min_length=1, max_length=4000, description="a path")]


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A table of the configuration. A missing key has its default; a wrong value is a mistake."""


class Paths(Section, frozen=True):
    data_root: PathText | None = None
    log_root: PathText | None = None


class Ipc(Section, frozen=True):
    root: PathText | None = None
    requests_dir: Folder = "requests"
    processing_dir: Folder = "processing"
    responses_dir: Folder = "responses"
    dead_dir: Folder = "dead"
    stale_timeout_ms: Milliseconds = 30_000
    responses_kept_ms: Milliseconds = 300_000
    poll_interval_ms: Milliseconds = 100
    use_folder_watcher: bool = True
    max_request_bytes: Annotated[int, Meta(ge=1024, le=1 << 30)] = 80 << 20
    max_waiting_per_client: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    clients: dict[Name, int | str] | None = None  # client: its uid or user name; none: all run as the manager's user
    group: int | str | None = None  # gid or name of the group that holds all clients, where they are named


class Sqlite(Section, frozen=True):
    db_path: PathText | None = None
    kv_table: Table = "kv"
    message_index_table: Table = "msg_index"
    schema_path: PathText | None = None
    busy_timeout_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 10_000
    journal_mode: Literal["WAL", "wal"] = "WAL"
    synchronous: Literal["NORMAL", "FULL", "normal", "full"] = "NORMAL"


class Filesystem(Section, frozen=True):
    root: PathText | None = None
    inbox_dir: Folder = "ready"
    processing_dir: Folder = "inflight"
    archive_dir: Folder = "done"
    dlq_dir: Folder = "dead"
    meta_dir: Folder | None = None


class Hybrid(Section, frozen=True):
    payload_root: PathText | None = None
    check_on_start: bool = True
    repair: bool = True


class Lease(Section, frozen=True):
    visibility_timeout_sec: Annotated[float, Meta(ge=0.001, le=366 * 86400)] = 30.0
    sweep_interval_ms: Milliseconds = 1000


class Gateway(Section, frozen=True):
    enabled: bool | None = None  # None: if it can run
    host: Annotated[str, Meta(min_length=1, max_length=253, description="an address of this machine")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 9324
    keys: PathText | None = None


class QueueSection(Section, frozen=True):
    name: str
    policy: dict[str, Any] = {}
    message_schema: dict[str, Any] | None = None


class Document(Section, frozen=True):
    """A whole configuration. `pabal.policy` defines what a policy may hold."""

    schema_version: Literal["0.1"] = "0.1"
    node_id: Name = "local-01"
    backend: Literal["sqlite", "filesystem", "fs", "hybrid"] | None = None
    mode: Literal["mailbox_sqlite", "mailbox_fs", "mailbox_filesystem", "hybrid"] | None = None
    paths: Paths = Paths()
    ipc: Ipc = Ipc()
    sqlite: Sqlite = Sqlite()
    filesystem: Filesystem = Filesystem()
    hybrid: Hybrid = Hybrid()
    lease: Lease = Lease()
    gateway: Gateway = Gateway()
    policy_defaults: dict[str, Any] = {}
    queues: list[QueueSection] = []


BACKENDS = {"fs": "filesystem"}  # the short form
MODES = {
    "mailbox_sqlite": "sqlite",
    "mailbox_fs": "filesystem",
    "mailbox_filesystem": "filesystem",
    "hybrid": "hybrid",
}


# The names of one row must differ from each other and from those that are taken.
_DISTINCT: tuple[tuple[str, type[Section], frozenset[str]], ...] = (
    ("ipc", Ipc, frozenset({"bells", "archive"})),
    ("filesystem", Filesystem, frozenset({"delayed", "corrupt", "tmp", "dedup", "why"})),
)


def backend_of(backend: str | None, mode: str | None) -> str:
    """Return the backend that both keys name together. The original writes hybrid as `sqlite` with mode `hybrid`."""
    if mode == "hybrid" and backend in ("sqlite", None):
        return "hybrid"
    return BACKENDS.get(backend or "", backend or MODES.get(mode or "", "sqlite"))


def find_mistakes(document: object, base: Path) -> tuple[str, ...]:
    """Return every mistake of a configuration, one line each. `base` is the folder of relative paths."""
    found = [*_structure_mistakes(document, Document)]
    if isinstance(document, dict):
        found += _deeper_mistakes(document, base)
    return tuple(dict.fromkeys(found))


def _deeper_mistakes(document: Mapping[str, Any], base: Path) -> Iterator[str]:
    """Yield the mistakes in values that are each of the right type."""
    backend, mode = document.get("backend"), document.get("mode")
    if isinstance(mode, str) and isinstance(backend, str) and backend_of(backend, mode) != MODES.get(mode):
        yield f"mode: {mode} needs backend {MODES.get(mode)}; found {backend}"
    for section, shape, reserved in _DISTINCT:
        yield from _repeated_names(document.get(section, {}), section, shape, reserved)
    yield from _table_mistakes(document.get("sqlite", {}))
    yield from _policy_mistakes(document.get("policyDefaults", {}), "policyDefaults")
    queues = document.get("queues", [])
    queues = [queue for queue in queues if isinstance(queue, dict)] if isinstance(queues, list) else []
    for number, queue in enumerate(queues):
        yield from _queue_mistakes(document, queue, f"queues[{number}]")
    names = Counter(queue["name"].lower() for queue in queues if isinstance(queue.get("name"), str))
    yield from (f"queues: {name} is there {count} times" for name, count in names.items() if count > 1)
    yield from _template_mistakes(document.get("sqlite"), base)
    if isinstance(ipc := document.get("ipc"), dict):
        yield from _client_mistakes(ipc.get("clients"), ipc.get("group"))


def _repeated_names(given: object, section: str, shape: type[Section], reserved: frozenset[str]) -> Iterator[str]:
    """Yield the folders of a section that have the name of another, or one that is taken."""
    if not isinstance(given, dict):
        return
    fields = [
        field
        for field in msgspec.structs.fields(shape)
        if field.encode_name.endswith("Dir") and field.name != "meta_dir"
    ]
    seen = dict.fromkeys(reserved, "a folder of the store" if shape is Filesystem else "a folder of the mailbox")
    for field in fields:
        name = given.get(field.encode_name, field.default)
        if isinstance(name, str):
            if name in seen:
                yield f"{section}.{field.encode_name}: {name} is the name of {seen[name]}; each needs its own"
            seen.setdefault(name, field.encode_name)


def _table_mistakes(sqlite: object) -> Iterator[str]:
    if not isinstance(sqlite, dict):
        return
    tables = {key: sqlite.get(key, usual) for key, usual in (("kvTable", "kv"), ("messageIndexTable", "msg_index"))}
    if tables["kvTable"] == tables["messageIndexTable"]:
        yield f"sqlite.messageIndexTable: {tables['kvTable']} is the name of kvTable; each needs its own"
    for key, name in tables.items():
        if isinstance(name, str) and name.lower().startswith("sqlite_"):
            yield f"sqlite.{key}: SQLite keeps names that begin with sqlite_ for itself; found {name}"


def _queue_mistakes(document: Mapping[str, Any], queue: Mapping[str, Any], place: str) -> Iterator[str]:
    if isinstance(name := queue.get("name"), str):
        try:
            check_name(name)
        except InvalidName as exc:
            yield f"{place}.name: {exc}"
    own, schema = queue.get("policy", {}), queue.get("messageSchema")
    if isinstance(own, dict):
        found = _policy_mistakes(own, f"{place}.policy")
        defaults = document.get("policyDefaults", {})
        if not found and isinstance(defaults, dict) and not _policy_mistakes(defaults, ""):
            whole = merged(defaults, own)
            found = _policy_mistakes(whole, f"{place}.policy with policyDefaults")
            if not found and isinstance(name, str) and policy_from(whole).dead_letters.queue == name:
                yield f"{place}.policy.dlq.queue: {name} cannot be the queue of its own dead letters"
        yield from found
    if isinstance(schema, dict):
        yield from _policy_mistakes({"messageSchema": schema}, place)


def _client_mistakes(clients: object, group: object) -> Iterator[str]:
    for client, user in clients.items() if isinstance(clients, dict) else ():
        if isinstance(user, str) and uid_of(user) is None:
            yield f"ipc.clients.{client}: no user {user!r:.60} on this machine"
    if clients is not None and group is None:
        yield "ipc.group: it is missing; ipc.clients needs the group that holds them all"
    if isinstance(group, str) and gid_of(group) is None:
        yield f"ipc.group: no group {group!r:.60} on this machine"


def _template_mistakes(sqlite: object, base: Path) -> Iterator[str]:
    path = sqlite.get("schemaPath") if isinstance(sqlite, dict) else None
    if not isinstance(path, str):
        return
    try:
        text = (base / path).read_text()
    except (OSError, UnicodeDecodeError) as exc:
        yield f"sqlite.schemaPath: cannot read {base / path}: {getattr(exc, 'strerror', exc)}"
        return
    yield from (f"sqlite.schemaPath: {path} has no {name}" for name in _PLACEHOLDERS if name not in text)


def _structure_mistakes(document: object, expected: type[msgspec.Struct], place: str = "") -> Iterator[str]:
    """Go through a document field by field and yield each mistake: its place, what is expected, what was found."""
    if not isinstance(document, dict):
        yield f"{place or 'the configuration'}: expected a table; found {_kind(document)}"
        return
    fields = {field.encode_name: field for field in msgspec.structs.fields(expected)}
    for key, value in document.items():
        where = f"{place}.{key}" if place else str(key)
        field = fields.get(key)
        if field is None:
            yield _unknown(where, key, list(fields))
        elif isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            yield from _structure_mistakes(value, field.type, where)
        else:
            yield from _wrong(value, field.type, where)
    for name, field in fields.items():
        if field.required and name not in document:
            yield f"{place}.{name}: it is missing"


def _wrong(value: object, expected: Any, where: str) -> Iterator[str]:
    inner = getattr(expected, "__args__", (None,))[0]
    if getattr(expected, "__origin__", None) is list and isinstance(inner, type) and isinstance(value, list):
        for number, item in enumerate(value):
            yield from _structure_mistakes(item, inner, f"{where}[{number}]")
        return
    try:
        jsontext.convert(value, expected)
    except msgspec.ValidationError as exc:
        expectation = _expectation(expected) or _plain(str(exc).partition(" - at `$")[0])
        yield f"{where}: {expectation}; found {_shown(value)}"


def _expectation(expected: object) -> str:
    """Return what is expected, where the structure describes it better than the decoder does."""
    for one in get_args(expected) if get_origin(expected) in (Union, UnionType) else (expected,):
        if get_origin(one) is Literal:
            return f"expected one of {', '.join(map(str, get_args(one)))}"
        for note in getattr(one, "__metadata__", ()):
            if note.description:
                return f"expected {note.description}"
    return ""


def _policy_mistakes(document: object, place: str) -> list[str]:
    """Return the mistakes in a policy, value by value. `_structure_mistakes` has checked that it is a table."""
    found = _policy_mistake(document) if isinstance(document, dict) else ""
    if not found or not isinstance(document, dict):
        return []
    each = [mistake for leaf in _leaves(document) if (mistake := _policy_mistake(leaf))]
    if isinstance(schema := document.get("messageSchema"), dict) and isinstance(schema.get("rules"), list):
        each += _rule_mistakes(schema["rules"])
    return [f"{place}.{mistake}" for mistake in dict.fromkeys(each)] or [f"{place}: {found}"]


def _rule_mistakes(rules: list[Any]) -> Iterator[str]:
    for number, rule in enumerate(rules):
        if text := _policy_mistake({"messageSchema": {"rules": [rule]}}):
            field = text.removeprefix("messageSchema.rules[0]").partition(": ")[0] if text.startswith("message") else ""
            yield f"messageSchema.rules[{number}]{field}: {text.rpartition('rules[0]' + field + ': ')[2]}"


def _policy_mistake(document: Mapping[str, Any]) -> str:
    try:
        policy = policy_from(document)
        if policy.body_schema is not None:
            checker(policy.body_schema)
        if policy.message_schema is not None:
            rule_checker(policy.message_schema)
    except InvalidPolicy as exc:
        text, _, where = str(exc).removeprefix("policy: ").partition(" - at `$.")
        return f"{where.rstrip('`')}: {_plain(text)}" if where else text
    except PabalError as exc:
        return f"schema: {exc}"
    return ""


def _leaves(document: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Split a policy into documents with one value each, and the values that this one depends on."""
    for key, value in document.items():
        if key == "retry" and isinstance(value, dict):
            for name, one in value.items():
                beside = {"initialDelaySec": {"maxDelaySec": _YEAR}, "maxDelaySec": {"initialDelaySec": 0}}
                yield {"retry": {**beside.get(name, {}), name: one}}
        elif key == "dlq" and isinstance(value, dict):
            yield from ({"dlq": {name: one}} for name, one in value.items())
        elif key == "messageSchema" and isinstance(value, dict) and isinstance(value.get("rules"), list):
            yield {key: {**value, "rules": []}}
        else:
            yield {key: value}


def _unknown(where: str, key: str, known: list[str]) -> str:
    return f"{where}: no such key; {suggestion(key, known)}"


def _plain(text: str) -> str:
    """Return the decoder's message in the words of the manual."""
    text = re.sub(r", got `\w+`$", "", text).replace("Expected", "expected")
    text = re.sub(r"`(int|float|str|bool|object)`", lambda kind: _KINDS[kind[1]], text)
    if text.startswith("Invalid enum value"):
        text = text.replace("Invalid enum value", "there is no")
    return re.sub(r" \| null", "", text).replace("`", "")


def _shown(value: object) -> str:
    return _kind(value) if isinstance(value, dict | list) else f"{value!r:.60}"


def _kind(value: object) -> str:
    names = {dict: "a table", list: "a list", str: "text", bool: "true or false", type(None): "nothing"}
    return names.get(type(value), "a number")


def uid_of(user: int | str) -> int | None:
    try:
        return user if isinstance(user, int) else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def gid_of(group: int | str) -> int | None:
    try:
        return group if isinstance(group, int) else grp.getgrnam(group).gr_gid
    except KeyError:
        return None
