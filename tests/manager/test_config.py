"""A configuration is read whole or refused with every mistake named; nothing wrong becomes a default."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pabal.errors import InvalidConfig
from pabal.manager.config import Config, find_config, read_config
from pabal.policy.policy import Backoff, DeadLetterPolicy, Policy, RetryPolicy

# Every key of the original, none at its default here.
ORIGINAL: dict[str, Any] = {
    "schemaVersion": "0.1",
    "nodeId": "edge-42",
    "backend": "sqlite",
    "mode": "mailbox_sqlite",
    "paths": {"dataRoot": "./data", "logRoot": "./logs"},
    "ipc": {
        "root": "./ipc",
        "requestsDir": "req",
        "processingDir": "proc",
        "responsesDir": "resp",
        "deadDir": "dead_letters",
        "staleTimeoutMs": 60000,
        "pollIntervalMs": 250,
        "useFolderWatcher": False,
    },
    "sqlite": {
        "dbPath": "./data/yirangmq.db",
        "kvTable": "custom_kv",
        "messageIndexTable": "custom_idx",
        "schemaPath": "./sqlite_schema.sql",
        "busyTimeoutMs": 5000,
        "journalMode": "WAL",
        "synchronous": "FULL",
    },
    "filesystem": {
        "root": "./data/fs",
        "inboxDir": "inbox",
        "processingDir": "processing",
        "archiveDir": "archive",
        "dlqDir": "dlq",
        "metaDir": "meta",
    },
    "hybrid": {"payloadRoot": "./data/payloads", "checkOnStart": True, "repair": False},
    "lease": {"visibilityTimeoutSec": 120, "sweepIntervalMs": 2000},
    "policyDefaults": {
        "retry": {"limit": 10, "backoff": "linear", "initialDelaySec": 2, "maxDelaySec": 120},
        "dlq": {"enabled": True, "queue": "graves", "retentionDays": 30},
    },
    "queues": [
        {
            "name": "telemetry",
            "policy": {"visibilityTimeoutSec": 45, "ttlSec": 60, "retry": {"limit": 3}},
            "messageSchema": {
                "name": "TelemetryMessage",
                "description": "readings",
                "rules": [
                    {"field": "deviceId", "type": "required"},
                    {"field": "deviceId", "type": "type", "expectedType": "string"},
                    {"field": "temp", "type": "minValue", "value": -40.0},
                    {"field": "deviceId", "type": "custom", "validator": "nonempty", "errorMessage": "who are you?"},
                ],
            },
        },
        {"name": "commands"},
    ],
}


def written(folder: Path, document: object, name: str = "main_mq_configuration.json") -> Path:
    (folder / "sqlite_schema.sql").write_text("create table {{kv_table}} (a); create table {{msg_index_table}} (b);")
    (folder / "half.sql").write_text("create table {{kv_table}} (a)")
    path = folder / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def read(folder: Path, document: object = None, **changes: Any) -> Config:
    return read_config(None if document is None else written(folder, document), folder=folder, **changes)


def mistakes(folder: Path, document: object) -> list[str]:
    with pytest.raises(InvalidConfig) as caught:
        read(folder, document)
    return list(caught.value.mistakes) or [str(caught.value)]


def test_without_a_file_everything_lies_under_one_root(tmp_path: Path) -> None:
    config = read(tmp_path)
    assert (config.root, config.ipc_root) == (tmp_path / ".pabal", tmp_path / ".pabal/ipc")
    assert config.store_url == f"sqlite://{tmp_path}/.pabal/pabal.db"
    assert config.default_policy == Policy() and config.queues is None and config.log_root is None


def test_the_original_file_is_read_with_every_key(tmp_path: Path) -> None:
    config = read(tmp_path, ORIGINAL)
    assert (config.node_id, config.backend) == ("edge-42", "sqlite")
    assert (config.root, config.log_root, config.ipc_root) == (tmp_path / "data", tmp_path / "logs", tmp_path / "ipc")
    assert config.store_url == f"sqlite://{tmp_path}/data/yirangmq.db?busy=5&kv=custom_kv&index=custom_idx"
    assert (config.ipc.requests_dir, config.ipc.processing_dir) == ("req", "proc")
    assert (config.ipc.responses_dir, config.ipc.dead_dir) == ("resp", "dead_letters")
    assert (config.ipc.stale_timeout_ms, config.ipc.poll_interval_ms) == (60000, 250)
    assert config.ipc.use_folder_watcher is False
    assert config.sweep_interval == 2.0
    assert config.queues == frozenset({"telemetry", "commands", "graves"})


def test_policies_are_laid_over_the_defaults_key_by_key(tmp_path: Path) -> None:
    config = read(tmp_path, ORIGINAL)
    telemetry = config.policies["telemetry"]
    assert telemetry.visibility == 45 and telemetry.ttl == 60
    assert telemetry.retry == RetryPolicy(limit=3, backoff=Backoff.LINEAR, initial=2, max=120)
    assert telemetry.dead_letters == DeadLetterPolicy(queue="graves", retention_days=30)
    assert telemetry.message_schema is not None and len(telemetry.message_schema.rules) == 4
    assert telemetry.durable_acks, "synchronous FULL syncs acks too"
    commands = config.policies["commands"]
    assert commands.visibility == 120 and commands.retry.limit == 10 and commands.message_schema is None


@pytest.mark.parametrize("backend", ["filesystem", "fs"])
def test_the_names_of_folders_reach_the_file_store(backend: str, tmp_path: Path) -> None:
    config = read(tmp_path, {**ORIGINAL, "backend": backend, "mode": "mailbox_fs"})
    names = "ready=inbox&inflight=processing&done=archive&dead=dlq&private=meta"
    assert config.store_url == f"file://{tmp_path}/data/fs?{names}"


def test_the_payload_folder_reaches_the_hybrid_store(tmp_path: Path) -> None:
    config = read(tmp_path, {"backend": "hybrid", "hybrid": {"payloadRoot": "bodies"}, "sqlite": {"dbPath": "my.db"}})
    assert config.store_url == f"hybrid://{tmp_path}/.pabal/hybrid?db={tmp_path}/my.db&bodies={tmp_path}/bodies"
    assert config.check_on_start and config.repair
    assert not read(tmp_path, {"backend": "hybrid", "hybrid": {"checkOnStart": False}}).check_on_start


def test_sqlite_with_the_mode_hybrid_means_hybrid_as_the_original_writes_it(tmp_path: Path) -> None:
    config = read(tmp_path, {"backend": "sqlite", "mode": "hybrid"})
    assert config.backend == "hybrid" and config.store_url.startswith("hybrid:") and config.check_on_start
    path = written(tmp_path, {"backend": "sqlite", "mode": "hybrid"})
    assert read_config(path, folder=tmp_path, backend="sqlite").backend == "sqlite", "the command line decides"


def test_the_mode_alone_names_the_backend(tmp_path: Path) -> None:
    assert read(tmp_path, {"mode": "hybrid"}).backend == "hybrid"
    assert read(tmp_path, {"mode": "mailbox_filesystem"}).backend == "filesystem"


def test_toml_has_the_same_keys(tmp_path: Path) -> None:
    text = """
        nodeId = "edge-1"
        backend = "hybrid"
        [ipc]
        root = "box"
        [policyDefaults.retry]
        limit = 2
        [[queues]]
        name = "jobs"
        [queues.policy]
        visibilityTimeoutSec = 5
    """
    config = read_config(written(tmp_path, text, "pabal.toml"), folder=tmp_path)
    assert (config.node_id, config.backend, config.ipc_root) == ("edge-1", "hybrid", tmp_path / "box")
    assert config.policies["jobs"] == Policy(visibility=5, retry=RetryPolicy(limit=2))


def test_what_the_command_line_says_goes_before_the_file(tmp_path: Path) -> None:
    config = read(tmp_path, ORIGINAL, root=tmp_path / "other", nodeId="cli", lease={"visibilityTimeoutSec": 7})
    assert (config.node_id, config.root) == ("cli", tmp_path / "other")
    assert config.policies["commands"].visibility == 7 and config.sweep_interval == 2.0


def test_toml_is_looked_for_first(tmp_path: Path) -> None:
    assert find_config(tmp_path) is None
    seed = written(tmp_path, {})
    assert find_config(tmp_path) == seed
    assert find_config(tmp_path) != (ours := written(tmp_path, "", "pabal.toml")) and find_config(tmp_path) == ours


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"schemaVersion": "9"}, "schemaVersion: expected one of 0.1; found '9'"),
        ({"nodeId": "a b"}, "nodeId: expected 1-200 of letters, digits, '-', '_' and inner dots; found 'a b'"),
        ({"backend": "oracle"}, "backend: expected one of sqlite, filesystem, fs, hybrid; found 'oracle'"),
        ({"backend": "fs", "mode": "hybrid"}, "mode: hybrid needs backend hybrid; found fs"),
        ({"backend": "hybrid", "mode": "mailbox_fs"}, "mode: mailbox_fs needs backend filesystem; found hybrid"),
        (
            {"ipc": {"requestsDir": "a", "deadDir": "a"}},
            "ipc.deadDir: a is the name of requestsDir; each needs its own",
        ),
        ({"ipc": {"requestsDir": "bells"}}, "ipc.requestsDir: bells is the name of a folder of the mailbox"),
        ({"filesystem": {"dlqDir": "ready"}}, "filesystem.dlqDir: ready is the name of inboxDir; each needs its own"),
        ({"filesystem": {"archiveDir": "why"}}, "filesystem.archiveDir: why is the name of a folder of the store"),
        ({"sqlite": {"kvTable": "a", "messageIndexTable": "a"}}, "sqlite.messageIndexTable: a is the name of kvTable"),
        ({"sqlite": {"kvTable": "sqlite_kv"}}, "sqlite.kvTable: SQLite keeps names that begin with sqlite_ for itself"),
        (
            {"queues": [{"name": "q", "policy": {"dlq": {"queue": "q"}}}]},
            "queues[0].policy.dlq.queue: q cannot be the queue of its own dead letters",
        ),
        ({"paths": {"dataRoot": 3}}, "paths.dataRoot: expected a path; found 3"),
        ({"paths": {"dataRoot": ""}}, "paths.dataRoot: expected a path; found ''"),
        ({"ipc": {"staleTimeoutMs": "soon"}}, "ipc.staleTimeoutMs: expected a whole number; found 'soon'"),
        ({"ipc": {"staleTimeoutMs": 0}}, "ipc.staleTimeoutMs: expected a whole number >= 1; found 0"),
        ({"ipc": {"useFolderWatcher": "yes"}}, "ipc.useFolderWatcher: expected true or false; found 'yes'"),
        ({"ipc": {"requestsDir": "../x"}}, "ipc.requestsDir: expected a folder name of letters, digits, '-' and '_'"),
        ({"ipc": {"pollIntervallMs": 1}}, "ipc.pollIntervallMs: no such key; did you mean pollIntervalMs?"),
        ({"ipc": {"clients": {"a": "no-such-user"}, "group": 0}}, "ipc.clients.a: no user 'no-such-user' on this"),
        ({"ipc": {"clients": {"a": 0}}}, "ipc.group: it is missing"),
        ({"ipc": {"group": "no-such-group"}}, "ipc.group: no group 'no-such-group' on this machine"),
        ({"sqlite": {"journalMode": "DELETE"}}, "sqlite.journalMode: expected one of WAL, wal; found 'DELETE'"),
        ({"sqlite": {"synchronous": "OFF"}}, "sqlite.synchronous: expected one of NORMAL, FULL, normal, full; found"),
        ({"sqlite": {"kvTable": "k v"}}, "sqlite.kvTable: expected a table name of letters, digits and '_'"),
        ({"sqlite": {"schemaPath": "nowhere.sql"}}, "sqlite.schemaPath: cannot read"),
        ({"sqlite": {"schemaPath": "half.sql"}}, "sqlite.schemaPath: half.sql has no {{msg_index_table}}"),
        ({"filesystem": "x"}, "filesystem: expected a table; found text"),
        ({"hybrid": {"repair": 1}}, "hybrid.repair: expected true or false; found 1"),
        ({"lease": {"visibilityTimeoutSec": -1}}, "lease.visibilityTimeoutSec: expected a number >= 0.001; found -1"),
        ({"policyDefaults": {"retry": {"limit": 0}}}, "policyDefaults.retry.limit must be 1 to"),
        ({"policyDefaults": {"dlq": {"queue": "../x"}}}, "policyDefaults.dlq.queue: queue name must be"),
        ({"policyDefaults": {"retry": {"initialDelaySec": 90}}}, "retry.maxDelaySec (60) is below"),
        ({"policyDefaults": 3}, "policyDefaults: expected a table; found 3"),
        ({"queues": {}}, "queues: expected array; found a table"),
        ({"queues": [3]}, "queues[0]: expected a table; found a number"),
        ({"queues": [{}]}, "queues[0].name: it is missing"),
        ({"queues": [{"name": "a/b"}]}, "queues[0].name: queue name must be"),
        ({"queues": [{"name": "q"}, {"name": "Q"}]}, "queues: q is there 2 times"),
        ({"queues": [{"name": "q", "policy": {"maxBytes": 0}}]}, "queues[0].policy.maxBytes must be 1 to"),
        ({"queues": [{"name": "q", "policy": {"colour": 1}}]}, "queues[0].policy"),
        (
            {"queues": [{"name": "q", "messageSchema": {"rules": [{"field": "a", "type": "minLength"}]}}]},
            "queues[0].messageSchema.rules[0]: rule minLength of a needs `value`",
        ),
        (
            {"queues": [{"name": "q", "messageSchema": {"rules": [{"field": "a", "type": "odd"}]}}]},
            "queues[0].messageSchema.rules[0].type: there is no 'odd'",
        ),
        ([], "the configuration: expected a table; found a list"),
    ],
)
def test_a_mistake_is_named_with_its_place(document: object, says: str, tmp_path: Path) -> None:
    [found] = mistakes(tmp_path, document)
    assert says in found


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    document = {
        "backend": "oracle",
        "colour": "red",
        "lease": {"sweepIntervalMs": 0, "visibilityTimeoutSec": "x"},
        "policyDefaults": {"retry": {"limit": 0, "initialDelaySec": 90, "backoff": "odd"}},
        "queues": [{"name": "a b"}, {"name": "q", "policy": {"ttlSec": -1, "maxWaiting": "x"}}],
    }
    found = mistakes(tmp_path, document)
    places = [line.split(":")[0].split(" must")[0] for line in found]
    assert places == [
        "backend",
        "colour",
        "lease.sweepIntervalMs",
        "lease.visibilityTimeoutSec",
        "policyDefaults.retry.limit",
        "policyDefaults.retry.backoff",
        "queues[0].name",
        "queues[1].policy.ttlSec",
        "queues[1].policy.maxWaiting",
    ]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("pabal.toml", "a = ", "cannot be read"),
        ("main_mq_configuration.json", "{", "cannot be read"),
        ("main_mq_configuration.json", '{"backend": "fs", "backend": "sqlite"}', "read: 'backend' is there twice"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(name: str, text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=says):
        read_config(written(tmp_path, text, name), folder=tmp_path)
    with pytest.raises(InvalidConfig, match="cannot read"):
        read_config(tmp_path / "nowhere.toml", folder=tmp_path)


def test_clients_are_users(tmp_path: Path) -> None:
    config = read(tmp_path, {"ipc": {"clients": {"a": "root", "b": 1234}, "group": os.getgid()}})
    assert config.clients == {"a": 0, "b": 1234} and config.group == os.getgid()
