"""How to reach a Kafka cluster and how topics are made there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pabal.errors import InvalidInput, InvalidUrl
from pabal.topic_limits import MAX_VALUE

LARGEST_BATCH = MAX_VALUE + (1 << 16)  # the largest record with its key and headers


class KafkaSettings(NamedTuple):
    """`servers` are the first brokers to ask. `extra` goes to librdkafka as it stands: encryption, passwords."""

    servers: str
    replication: int = 1
    min_insync: int = 1
    timeout: float = 30.0  # seconds after which a call gives up and says so
    extra: Mapping[str, str] = {}

    def common(self) -> dict[str, Any]:
        """Return what every client of the cluster is made with."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": "pabal",
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,  # errors come back from the calls; nothing is printed behind a user's back
            **self.extra,
        }

    def producer(self) -> dict[str, Any]:
        return self.common() | {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # as Kafka's own clients, and as `pabal.topics.partition`
            "message.timeout.ms": int(self.timeout * 1000),
            "message.max.bytes": LARGEST_BATCH,
            "linger.ms": 1,
        }

    def consumer(self, group: str) -> dict[str, Any]:
        return self.common() | {
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "check.crcs": True,
            "fetch.error.backoff.ms": 100,
        }


def limits_of(max_age: float | None, max_bytes: int | None) -> dict[str, str]:
    """Return limits as Kafka's settings; those that are None are left out."""
    given = {
        "retention.ms": None if max_age is None else int(max_age * 1000),
        "retention.bytes": max_bytes,
    }
    return {name: str(value or -1) for name, value in given.items() if value is not None}


_NUMBERS = {"replication": 100, "min_insync": 100, "timeout": 3600}


def settings_of(servers: str, options: Mapping[str, str]) -> KafkaSettings:
    """Read the options of a kafka URL, all text; `config` names a file of librdkafka settings, name=value by line."""
    found: dict[str, Any] = {}
    for name, most in _NUMBERS.items():
        if name in options:
            try:
                found[name] = (float if name == "timeout" else int)(options[name])
            except ValueError as exc:
                raise InvalidUrl(f"{name} must be a number; found {options[name]!r:.40}") from exc
            if not 1 <= found[name] <= most:
                raise InvalidUrl(f"{name} must be 1 to {most}; found {options[name]!r:.40}")
    if "config" in options:
        found["extra"] = _properties(Path(options["config"]))
    return KafkaSettings(servers, **found)


def _properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"cannot read {path}: {exc}") from exc
    pairs = [line.partition("=") for line in map(str.strip, lines) if line and not line.startswith("#")]
    for name, equals, _ in pairs:
        if not equals:
            raise InvalidInput(f"{path} has name=value on each line; found {name!r:.40}")
    return {name.strip(): text.strip() for name, _, text in pairs}
