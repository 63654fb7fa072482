"""How to reach a Kafka cluster and how topics are made there."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pabal.errors import InvalidInput, InvalidUrl
from pabal.names import option_text
from pabal.topic_store import MAX_VALUE

LARGEST_BATCH = MAX_VALUE + (1 << 16)  # the largest record with its key and headers


class KafkaSettings(NamedTuple):
    """`servers` are the first brokers to ask. `extra` is passed to librdkafka unchanged: encryption, passwords."""

    servers: str
    replication: int = 1
    min_insync: int = 1
    timeout: float = 30.0  # seconds after which a call gives up and raises
    client: str = "pabal"  # the name by which the brokers know us
    extra: Mapping[str, str] = {}

    def common(self) -> dict[str, Any]:
        """Return the settings of every client of the cluster."""
        return {
            "bootstrap.servers": self.servers,
            "client.id": self.client,
            "reconnect.backoff.ms": 1000,  # at 100, the default, clients of brokers that are gone take 2 % of a core
            "reconnect.backoff.max.ms": 1000,
            "log_level": 0,  # errors come from the calls; nothing is printed
            **self.extra,
        }

    def hide(self, text: str) -> str:
        """Return text of librdkafka without the values of `extra`, which may be passwords."""
        for value in sorted(filter(None, self.extra.values()), key=len, reverse=True):
            text = text.replace(value, "…")
        return text

    def producer(self) -> dict[str, Any]:
        return self.common() | {
            "enable.idempotence": True,
            "acks": "all",
            "partitioner": "murmur2_random",  # as Kafka's own clients, and as `pabal.topic_stores.partition`
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


_CLIENT = re.compile(r"[A-Za-z0-9._-]{1,100}")
_NUMBERS = {"replication": 100, "min_insync": 100, "timeout": 3600}


def settings_of(servers: str, options: Mapping[str, str]) -> KafkaSettings:
    """Read the options of a kafka URL, all text; `config` names a file of librdkafka settings, name=value by line."""
    found: dict[str, Any] = {}
    for name, most in _NUMBERS.items():
        if name in options:
            try:
                found[name] = (float if name == "timeout" else int)(options[name])
            except ValueError:
                raise InvalidUrl(f"{name} must be a number; found {option_text(options[name])}") from None
            if not 1 <= found[name] <= most:
                raise InvalidUrl(f"{name} must be 1 to {most}; found {option_text(options[name])}")
    if "client" in options:
        if not _CLIENT.fullmatch(options["client"]):
            raise InvalidUrl(f"client must be 1 to 100 of A-Z, a-z, 0-9, . _ -; found {option_text(options['client'])}")
        found["client"] = options["client"]
    if "config" in options:
        found["extra"] = _properties(Path(options["config"]))
    return KafkaSettings(servers, **found)


def _properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidInput(f"cannot read {path}: {exc}") from exc
    pairs = [line.partition("=") for line in map(str.strip, lines) if line and not line.startswith("#")]
    if not all(equals for _, equals, _ in pairs):  # the line itself may be a part of a password
        raise InvalidInput(f"{path} has name=value on each line; found a line without =")
    return {name.strip(): text.strip() for name, _, text in pairs}
