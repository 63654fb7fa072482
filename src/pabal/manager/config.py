"""Reads a manager's configuration: `pabal.toml` or `main_mq_configuration.json`.

A wrong value is never replaced by a default: every mistake is reported and the manager does not start. Relative paths
are relative to the folder of the file.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from pabal import jsontext
from pabal.connect import parse_url
from pabal.errors import InvalidConfig, InvalidInput
from pabal.manager.config_schema import Document, Gateway, Ipc, backend_of, find_mistakes, gid_of, uid_of
from pabal.policy.policy import Policy, merged, policy_from

FILES = ("pabal.toml", "main_mq_configuration.json")
ROOT = ".pabal"
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True)
class Config:
    """The configuration of a manager, with all defaults filled in. Paths are absolute."""

    file: Path | None  # where it was read from; None: there is no file
    node_id: str
    backend: str
    root: Path
    ipc_root: Path
    log_root: Path | None
    store_url: str
    ipc: Ipc
    clients: dict[str, int] | None
    group: int | None
    gateway: Gateway
    gateway_keys: Path | None
    sweep_interval: float
    check_on_start: bool
    repair: bool
    policies: dict[str, Policy]
    default_policy: Policy
    queues: frozenset[str] | None  # the only ones that may be used; None: any

    @property
    def source(self) -> str:
        return _source(self.file)

    @property
    def folders(self) -> dict[str, Path]:
        """The folders that the manager writes to, by the keys that name them."""
        found = {"paths.dataRoot": self.root, "ipc.root": self.ipc_root}
        if self.log_root is not None:
            found["paths.logRoot"] = self.log_root
        place, options = parse_url(self.store_url)[1], dict(parse_qsl(urlsplit(self.store_url).query))
        if self.backend == "filesystem":
            return {**found, "filesystem.root": place}
        if self.backend == "sqlite" or "db" in options:
            found["sqlite.dbPath"] = Path(options.get("db", place)).parent
        if "bodies" in options:
            found["hybrid.payloadRoot"] = Path(options["bodies"])
        return found


def find_config(folder: Path) -> Path | None:
    """Return the configuration file in a folder, if there is one."""
    return next((path for name in FILES if (path := folder / name).is_file()), None)


def read_config(path: Path | None, *, folder: Path, root: Path | None = None, **changes: Any) -> Config:
    """Read a configuration file, or take all defaults if `path` is None; `changes` from the command line go first.

    Raise InvalidConfig with every mistake.
    """
    document = {} if path is None else _read(path)
    if isinstance(document, dict):
        if "backend" in changes:
            document = {key: value for key, value in document.items() if key != "mode"}  # it names a backend too
        document = merged(document, changes)
    base = folder if path is None else path.absolute().parent
    if mistakes := find_mistakes(document, base):
        raise InvalidConfig(_source(path), mistakes)
    return _config(jsontext.convert(document, Document), path, base, root)


def _source(path: Path | None) -> str:
    return "the command line" if path is None else str(path)


def _read(path: Path) -> Any:
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as exc:
        raise InvalidConfig(f"cannot read {path}: {exc.strerror}") from exc
    if len(data) > _MAX_BYTES:
        raise InvalidConfig(f"{path} has more than {_MAX_BYTES} bytes")
    try:
        return tomllib.loads(data.decode()) if path.suffix == ".toml" else jsontext.read(data)
    except (InvalidInput, ValueError, RecursionError) as exc:
        raise InvalidConfig(f"{path} cannot be read: {exc}") from exc


def _config(document: Document, path: Path | None, base: Path, root: Path | None) -> Config:
    def place(text: str | None, default: Path) -> Path:
        return default if text is None else (base / Path(text).expanduser()).absolute()

    root = (root or place(document.paths.data_root, base / ROOT)).absolute()
    policies = {queue.name: _policy(document, queue.policy, queue.message_schema) for queue in document.queues}
    backend = backend_of(document.backend, document.mode)
    dead_letter_queues = {policy.dead_letters.queue for policy in policies.values() if policy.dead_letters.queue}
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
        else {name: uid for name, user in clients.items() if (uid := uid_of(user)) is not None},
        group=None if document.ipc.group is None else gid_of(document.ipc.group),
        gateway=document.gateway,
        gateway_keys=place(document.gateway.keys, root) if document.gateway.keys else None,
        sweep_interval=document.lease.sweep_interval_ms / 1000,
        check_on_start=document.hybrid.check_on_start and backend == "hybrid",
        repair=document.hybrid.repair,
        policies=policies,
        default_policy=_policy(document, {}, None),
        queues=frozenset([*policies, *dead_letter_queues]) if policies else None,
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
    if backend == "sqlite":
        return _url("sqlite", place(sqlite.db_path, root / "pabal.db"), options)
    if sqlite.db_path is not None:
        options["db"] = str(place(sqlite.db_path, root))
    if document.hybrid.payload_root is not None:
        options["bodies"] = str(place(document.hybrid.payload_root, root))
    return _url("hybrid", root / "hybrid", options)


def _url(scheme: str, path: Path, options: dict[str, str]) -> str:
    return f"{scheme}://{quote(str(path))}" + (f"?{urlencode(options, safe='/')}" if options else "")
