"""Reads a manager's configuration, `pabal.toml` or `main_mq_configuration.json`, whole or not at all.

A wrong value is never replaced by a default: every mistake is told, and nothing starts. Relative paths are relative to
the folder of the file.
"""

from __future__ import annotations

import grp
import pwd
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from pabal import jsontext
from pabal.errors import InvalidConfig, InvalidInput, InvalidName
from pabal.manager.mistakes import mistakes, policy_mistakes
from pabal.manager.settings import BACKENDS, MODES, Document, Ipc
from pabal.names import check_name
from pabal.policy import Policy, policy_from

FILES = ("pabal.toml", "main_mq_configuration.json")
ROOT = ".pabal"
_LARGEST = 4 << 20
_PLACEHOLDERS = ("{{kv_table}}", "{{msg_index_table}}")


@dataclass(frozen=True, kw_only=True)
class Config:
    """What a manager works by. Paths are absolute."""

    file: Path | None  # that it was read from; None: the command line said it all
    node_id: str
    backend: str
    root: Path
    ipc_root: Path
    log_root: Path | None
    store_url: str
    ipc: Ipc
    clients: dict[str, int] | None
    group: int | None
    sweep_interval: float
    check_on_start: bool
    repair: bool
    policies: dict[str, Policy]
    default_policy: Policy
    queues: frozenset[str] | None  # those that may be used; None: any

    @property
    def source(self) -> str:
        return _source(self.file)


def find_config(folder: Path) -> Path | None:
    """Return the configuration file that lies in a folder, if there is one."""
    return next((path for name in FILES if (path := folder / name).is_file()), None)


def read_config(path: Path | None, *, folder: Path, root: Path | None = None, **changes: Any) -> Config:
    """Read a configuration, with `changes` from the command line in place of what it says; none is all defaults.

    Raise InvalidConfig that names every mistake.
    """
    document = {} if path is None else _read(path)
    document = merged(document, changes) if isinstance(document, dict) else document
    base = folder if path is None else path.absolute().parent
    found = [*mistakes(document, Document)]
    if isinstance(document, dict):
        found += _deeper_mistakes(document, base)
    if found:
        raise InvalidConfig(_source(path), tuple(dict.fromkeys(found)))
    return _config(msgspec.convert(document, Document), path, base, root)


def _source(path: Path | None) -> str:
    return "the command line" if path is None else str(path)


def _read(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            data = file.read(_LARGEST + 1)
    except OSError as exc:
        raise InvalidConfig(f"cannot read {path}: {exc.strerror}") from exc
    if len(data) > _LARGEST:
        raise InvalidConfig(f"{path} has more than {_LARGEST} bytes")
    try:
        return tomllib.loads(data.decode()) if path.suffix == ".toml" else jsontext.read(data)
    except (InvalidInput, ValueError, RecursionError) as exc:
        raise InvalidConfig(f"{path} cannot be read: {exc}") from exc


def merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return one document laid over another, table by table."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _deeper_mistakes(document: Mapping[str, Any], base: Path) -> Iterator[str]:
    """Say what is wrong with values that look right one by one."""
    backend, mode = document.get("backend"), document.get("mode")
    if isinstance(mode, str) and isinstance(backend, str) and MODES.get(mode) != BACKENDS.get(backend, backend):
        yield f"mode: {mode} needs backend {MODES.get(mode)}; found {backend}"
    yield from policy_mistakes(document.get("policyDefaults", {}), "policyDefaults")
    queues = document.get("queues", [])
    queues = [queue for queue in queues if isinstance(queue, dict)] if isinstance(queues, list) else []
    for number, queue in enumerate(queues):
        yield from _queue_mistakes(document, queue, f"queues[{number}]")
    names = Counter(queue["name"].lower() for queue in queues if isinstance(queue.get("name"), str))
    yield from (f"queues: {name} is there {count} times" for name, count in names.items() if count > 1)
    yield from _template_mistakes(document.get("sqlite"), base)
    if isinstance(ipc := document.get("ipc"), dict):
        yield from _client_mistakes(ipc.get("clients"), ipc.get("group"))


def _queue_mistakes(document: Mapping[str, Any], queue: Mapping[str, Any], place: str) -> Iterator[str]:
    try:
        check_name(queue.get("name", ""))
    except InvalidName as exc:
        if isinstance(queue.get("name"), str):
            yield f"{place}.name: {exc}"
    own, schema = queue.get("policy", {}), queue.get("messageSchema")
    if isinstance(own, dict):
        found = policy_mistakes(own, f"{place}.policy")
        defaults = document.get("policyDefaults", {})
        if not found and isinstance(defaults, dict) and not policy_mistakes(defaults, ""):
            found = policy_mistakes(merged(defaults, own), f"{place}.policy with policyDefaults")
        yield from found
    if isinstance(schema, dict):
        yield from policy_mistakes({"messageSchema": schema}, place)


def _client_mistakes(clients: object, group: object) -> Iterator[str]:
    for client, user in clients.items() if isinstance(clients, dict) else ():
        if isinstance(user, str) and _uid(user) is None:
            yield f"ipc.clients.{client}: no user {user!r:.60} on this machine"
    if clients is not None and group is None:
        yield "ipc.group: it is missing; ipc.clients needs the group that holds them all"
    if isinstance(group, str) and _gid(group) is None:
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


def _config(document: Document, path: Path | None, base: Path, root: Path | None) -> Config:
    def place(text: str | None, default: Path) -> Path:
        return default if text is None else (base / Path(text).expanduser()).absolute()

    root = (root or place(document.paths.data_root, base / ROOT)).absolute()
    policies = {queue.name: _policy(document, queue.policy, queue.message_schema) for queue in document.queues}
    backend = BACKENDS.get(document.backend or "", document.backend or MODES.get(document.mode or "", "sqlite"))
    letters = {policy.dead_letters.queue for policy in policies.values() if policy.dead_letters.queue}
    clients = document.ipc.clients
    return Config(
        file=path,
        node_id=document.node_id,
        backend=backend,
        root=root,
        ipc_root=place(document.ipc.root, root / "ipc"),
        log_root=place(document.paths.log_root, root) if document.paths.log_root else None,
        store_url=_store_url(document, backend, root, place),
        ipc=document.ipc,
        clients=None
        if clients is None
        else {name: uid for name, user in clients.items() if (uid := _uid(user)) is not None},
        group=None if document.ipc.group is None else _gid(document.ipc.group),
        sweep_interval=document.lease.sweep_interval_ms / 1000,
        check_on_start=document.hybrid.check_on_start and backend == "hybrid",
        repair=document.hybrid.repair,
        policies=policies,
        default_policy=_policy(document, {}, None),
        queues=frozenset([*policies, *letters]) if policies else None,
    )


def _policy(document: Document, own: dict[str, Any], schema: dict[str, Any] | None) -> Policy:
    common: dict[str, Any] = {"visibilityTimeoutSec": document.lease.visibility_timeout_sec}
    if document.sqlite.synchronous.upper() == "FULL":
        common["durableAcks"] = True
    whole = merged(merged(common, document.policy_defaults), own)
    return policy_from(whole if schema is None else {**whole, "messageSchema": schema})


def _store_url(document: Document, backend: str, root: Path, place: Any) -> str:
    sqlite, files = document.sqlite, document.filesystem
    options: dict[str, str] = {}
    if backend == "filesystem":
        names = {"ready": files.inbox_dir, "inflight": files.processing_dir, "done": files.archive_dir}
        names |= {"dead": files.dlq_dir, "private": files.meta_dir or ""}
        options = {state: name for state, name in names.items() if name not in (state, "")}
        return _url("file", place(files.root, root / "spool"), options)
    if sqlite.busy_timeout_ms != 10_000:
        options["busy"] = f"{sqlite.busy_timeout_ms / 1000:g}"
    if (sqlite.kv_table, sqlite.message_index_table) != ("kv", "msg_index"):
        options |= {"kv": sqlite.kv_table, "index": sqlite.message_index_table}
    if sqlite.schema_path is not None:
        options["template"] = str(place(sqlite.schema_path, root))
    if backend == "sqlite":
        return _url("sqlite", place(sqlite.db_path, root / "pabal.db"), options)
    if sqlite.db_path is not None:
        options["db"] = str(place(sqlite.db_path, root))
    if document.hybrid.payload_root is not None:
        options["bodies"] = str(place(document.hybrid.payload_root, root))
    return _url("hybrid", root / "hybrid", options)


def _url(scheme: str, path: Path, options: dict[str, str]) -> str:
    return f"{scheme}://{quote(str(path))}" + (f"?{urlencode(options, safe='/')}" if options else "")


def _uid(user: int | str) -> int | None:
    try:
        return user if isinstance(user, int) else pwd.getpwnam(user).pw_uid
    except KeyError:
        return None


def _gid(group: int | str) -> int | None:
    try:
        return group if isinstance(group, int) else grp.getgrnam(group).gr_gid
    except KeyError:
        return None
