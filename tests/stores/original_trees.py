"""Writes trees as the original system did: its file tree, and its hybrid store."""

import json
import os
from pathlib import Path
from typing import Any

from tests.stores.test_seed_database import AT, Seed

FAR = 4_000_000_000_000  # in milliseconds, far in the future
POLICY = {
    "visibilityTimeoutSec": 12,
    "ttlSec": 0,
    "retry": {"limit": 3, "backoff": "exponential", "initialDelaySec": 1, "maxDelaySec": 60},
    "dlq": {"enabled": True, "queue": "", "retentionDays": 14},
}


class FileTree:
    def __init__(self, root: Path, meta: str = "meta") -> None:
        self.root, self.meta = root, root / meta

    def message(self, folder: str, id: str, *, queue: str = "telemetry", **more: Any) -> Path:
        envelope = {
            "key": f"msg:{queue}:{id}",
            "messageId": id,
            "queue": queue,
            "payload": json.dumps({"id": id}),
            "attributes": "{}",
            "priority": 0,
            "attempt": 0,
            "createdAt": AT,
            "availableAt": AT,
            "expiredAt": 0,
            "targetConsumerId": "",
            **more,
        }
        return self.write(f"{queue}/{folder}/{id}.json", json.dumps(envelope, indent=2).encode())

    def write(self, name: str, data: bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def about(self, folder: str, id: str, *, queue: str = "telemetry", **more: Any) -> None:
        document = {"messageKey": f"msg:{queue}:{id}", "queue": queue, **more}
        self.write(f"{self.meta.name}/{folder}/msg_{queue}_{id}.json", json.dumps(document).encode())

    def policy(self, queue: str, document: Any = None) -> None:
        self.write(f"{self.meta.name}/policy_{queue}.json", json.dumps(document or POLICY).encode())


class HybridTree:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.seed = Seed(folder / "yirangmq.db")
        self.payloads = folder / "payloads"

    def message(self, id: str, state: str = "ready", folder: str = "active", **more: Any) -> None:
        """Write a row and its payload; no file if `folder` is empty."""
        queue = more.pop("queue", "telemetry")
        envelope = {
            "messageId": id,
            "queue": queue,
            "payloadPath": f"./data/payloads/{queue}/active/{id}.json",
            "priority": more.get("priority", 0),
            "attempt": more.get("attempt", 0),
            "createdAt": AT,
            **more.pop("envelope", {}),
        }
        self.seed.kv(f"msg:{queue}:{id}", json.dumps(envelope), "message")
        self.seed.row(f"msg:{queue}:{id}", state, queue=queue, **more)
        if folder:
            self.payload(id, folder, queue=queue)

    def payload(self, id: str, folder: str = "active", data: bytes | None = None, *, queue: str = "telemetry") -> Path:
        path = self.payloads / queue / folder / f"{id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        document = {"payload": json.dumps({"id": id}), "attributes": '{"deviceId": "d1"}'}
        path.write_bytes(json.dumps(document, indent=2).encode() if data is None else data)
        return path


def snapshot(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return everything below a folder, with times and bytes, to see later that nothing was changed."""
    found = {}
    for path in [root, *sorted(root.rglob("*"))]:
        about = os.stat(path)
        found[str(path)] = (about.st_mtime_ns, about.st_ino, path.read_bytes() if path.is_file() else b"")
    return found
