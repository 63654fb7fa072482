"""What `config/*.yaml` may say: each file is read whole and its mistake named. One that is not there is fine."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from pabal.codecs.mime import yaml_read
from pabal.durable import read_plain
from pabal.errors import InvalidConfig, InvalidInput

T = TypeVar("T", bound=msgspec.Struct)

ROLES = ("sentinel", "envoy", "king", "chamberlain")


def _least(name: str, value: float, least: float) -> None:
    if not least <= value < float("inf"):
        raise InvalidConfig(f"{name} must be at least {least:g}; found {value!r:.40}")


class System(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config/system.yaml`: what holds for the whole kingdom."""

    queues: str = ""  # a store URL; empty: the files of this folder
    engine: str = "claude"  # what runs the soldiers of a general that names no command
    roles: tuple[str, ...] = ROLES  # those that `up` starts, beside the generals
    lease_seconds: float = 30.0  # after which what a dead role held comes back by itself
    repositories: str = "https://github.com/{repo}.git"
    variables: tuple[str, ...] = ()  # those that soldiers inherit, beside PATH, HOME, LANG and TERM
    stop_seconds: float = 15.0  # from SIGTERM to SIGKILL when the kingdom goes down

    def __post_init__(self) -> None:
        _least("lease_seconds", self.lease_seconds, 0.5)
        _least("stop_seconds", self.stop_seconds, 1)
        if "{repo}" not in self.repositories:
            raise InvalidConfig(f"repositories must hold {{repo}}; found {self.repositories!r:.80}")
        for role in self.roles:
            if role not in ROLES:
                near = get_close_matches(role[:100], ROLES, n=1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(ROLES)}"
                raise InvalidConfig(f"roles: no role {role!r:.80}; {hint}")


class Slack(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default_channel: str = ""


class Retry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a failed or killed soldier's task is tried again, and after what rest."""

    max_attempts: int = 2
    backoff_seconds: float = 60.0

    def __post_init__(self) -> None:
        _least("retry.max_attempts", self.max_attempts, 0)
        _least("retry.backoff_seconds", self.backoff_seconds, 0)


class Concurrency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_soldiers: int = 3

    def __post_init__(self) -> None:
        _least("concurrency.max_soldiers", self.max_soldiers, 1)


class Intervals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slow poll beneath the wake-ups."""

    event_check_seconds: float = 10.0
    result_check_seconds: float = 10.0
    schedule_check_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _least(f"intervals.{name}", getattr(self, name), 0.1)


class Ageing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dispatch in `every` goes to an event of a lower class that has waited for `after_seconds`."""

    after_seconds: float = 600.0
    every: int = 10

    def __post_init__(self) -> None:
        _least("ageing.after_seconds", self.after_seconds, 0)
        _least("ageing.every", self.every, 2)


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the health of the machine holds events back, and how old its reading may be."""

    enabled: bool = True
    stale_seconds: float = 120.0


class King(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config/king.yaml`."""

    slack: Slack = Slack()
    retry: Retry = Retry()
    concurrency: Concurrency = Concurrency()
    intervals: Intervals = Intervals()
    ageing: Ageing = Ageing()
    gate: Gate = Gate()


class Followed(Generic[T]):
    """A file of the configuration that is read again when it changed. A mistake in it leaves things as they were."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._kind = kind
        self._read: object = self  # what the file was like when it was last read
        self._value = kind()
        self._problem = ""

    def look(self) -> tuple[T, str]:
        """Return what it says, and what is wrong with it."""
        try:
            about = os.stat(self._path)
            found = (about.st_mtime_ns, about.st_size, about.st_ino)
        except OSError:
            found = None
        if found != self._read:
            self._read = found
            try:
                self._value, self._problem = read_config(self._path, self._kind), ""
            except InvalidConfig as exc:
                self._problem = str(exc)
        return self._value, self._problem


def read_config(path: Path, kind: type[T]) -> T:
    """Read a file of the configuration; raise InvalidConfig that says where and what. Not there: all defaults."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        return kind()
    except OSError as exc:
        raise InvalidConfig(f"{path}: {exc.strerror}") from exc
    return parse_config(data, kind, str(path))


def parse_config(data: bytes, kind: type[T], place: str) -> T:
    """Take the text of a configuration for what it should be."""
    try:
        document = yaml_read.read(data)
        return msgspec.convert({} if document is None else document, kind)
    except msgspec.ValidationError as exc:
        cause = exc.__cause__ if isinstance(exc.__cause__, InvalidInput) else exc
        raise InvalidConfig(place, (str(cause),)) from exc
    except InvalidInput as exc:
        raise InvalidConfig(place, (f"{exc.code}: {exc}",)) from exc
