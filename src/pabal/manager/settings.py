"""Every key that a manager's configuration may have, in the words that operators write. Nothing is read here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

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
Path = Annotated[str, Meta(min_length=1, max_length=4000, description="a path")]


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Whatever is not given keeps its default; what is given wrong is a mistake."""


class Paths(Section, frozen=True):
    data_root: Path | None = None
    log_root: Path | None = None


class Ipc(Section, frozen=True):
    root: Path | None = None
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
    clients: dict[Name, int | str] | None = None  # client: its uid or user name; none: all are the manager's own
    group: int | str | None = None  # gid or name of the group that holds all clients, where they are named


class Sqlite(Section, frozen=True):
    db_path: Path | None = None
    kv_table: Table = "kv"
    message_index_table: Table = "msg_index"
    schema_path: Path | None = None
    busy_timeout_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 10_000
    journal_mode: Literal["WAL", "wal"] = "WAL"
    synchronous: Literal["NORMAL", "FULL", "normal", "full"] = "NORMAL"


class Filesystem(Section, frozen=True):
    root: Path | None = None
    inbox_dir: Folder = "ready"
    processing_dir: Folder = "inflight"
    archive_dir: Folder = "done"
    dlq_dir: Folder = "dead"
    meta_dir: Folder | None = None


class Hybrid(Section, frozen=True):
    payload_root: Path | None = None
    check_on_start: bool = True
    repair: bool = True


class Lease(Section, frozen=True):
    visibility_timeout_sec: Annotated[float, Meta(ge=0.001, le=366 * 86400)] = 30.0
    sweep_interval_ms: Milliseconds = 1000


class QueueSection(Section, frozen=True):
    name: str
    policy: dict[str, Any] = {}
    message_schema: dict[str, Any] | None = None


class Document(Section, frozen=True):
    """A whole configuration. Policies are checked by `pabal.policy`, which knows what they may say."""

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
    policy_defaults: dict[str, Any] = {}
    queues: list[QueueSection] = []


BACKENDS = {"fs": "filesystem"}  # the short form
MODES = {
    "mailbox_sqlite": "sqlite",
    "mailbox_fs": "filesystem",
    "mailbox_filesystem": "filesystem",
    "hybrid": "hybrid",
}
