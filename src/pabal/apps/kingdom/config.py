"""The configuration files `config/*.yaml`: their settings, and how they are read. A missing file means defaults."""

from __future__ import annotations

import os
from difflib import get_close_matches
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from pabal import jsontext
from pabal.codecs import yaml
from pabal.errors import InvalidConfig, InvalidInput
from pabal.filesystem import read_plain

T = TypeVar("T", bound=msgspec.Struct)

ROLES = ("sentinel", "envoy", "king", "chamberlain")


def check_least(name: str, value: float, least: float) -> None:
    """Raise InvalidConfig if a number is less than `least`, infinite or no number."""
    if not least <= value < float("inf"):
        raise InvalidConfig(f"{name} must be at least {least:g}; found {value!r:.40}")


class System(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`config/system.yaml`: the settings of the whole kingdom."""

    queues: str = ""  # a store URL; empty: the files of this folder
    engine: str = "claude"  # runs the soldiers of a general that names no command
    roles: tuple[str, ...] = ROLES  # the roles that `up` starts, beside the generals
    lease_seconds: float = 30.0  # after which the messages of a dead role are ready again
    repositories: str = "https://github.com/{repo}.git"
    variables: tuple[str, ...] = ()  # variables that soldiers inherit, beside PATH, HOME, LANG and TERM
    stop_seconds: float = 15.0  # from SIGTERM to SIGKILL when the kingdom goes down

    def __post_init__(self) -> None:
        check_least("lease_seconds", self.lease_seconds, 0.5)
        check_least("stop_seconds", self.stop_seconds, 1)
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
    """How often the task of a failed or killed soldier is tried again, and after which pause."""

    max_attempts: int = 2
    backoff_seconds: float = 60.0

    def __post_init__(self) -> None:
        check_least("retry.max_attempts", self.max_attempts, 0)
        check_least("retry.backoff_seconds", self.backoff_seconds, 0)


class Concurrency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_soldiers: int = 3

    def __post_init__(self) -> None:
        check_least("concurrency.max_soldiers", self.max_soldiers, 1)


class Intervals(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The slow poll beneath the wake-ups."""

    event_check_seconds: float = 10.0
    result_check_seconds: float = 10.0
    schedule_check_seconds: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            check_least(f"intervals.{name}", getattr(self, name), 0.1)


class Ageing(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One dispatch in `every` goes to an event of a lower priority that has waited for `after_seconds`."""

    after_seconds: float = 600.0
    every: int = 10

    def __post_init__(self) -> None:
        check_least("ageing.after_seconds", self.after_seconds, 0)
        check_least("ageing.every", self.every, 2)


class Gate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether the health of the machine holds events back, and how old a reading may be."""

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


class FollowedFile(Generic[T]):
    """A configuration file that is read again when it changes. A mistake in it keeps the version before."""

    def __init__(self, path: Path, kind: type[T]) -> None:
        self._path = path
        self._kind = kind
        self._read: object = self  # the mtime, size and inode when the file was last read
        self._value = kind()
        self._problem = ""

    def look(self) -> tuple[T, str]:
        """Return its settings, and its mistake, empty if there is none."""
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
    """Read a configuration file; raise InvalidConfig with its mistake. A missing file gives the defaults."""
    try:
        data = read_plain(path)
    except FileNotFoundError:
        return kind()
    except OSError as exc:
        raise InvalidConfig(f"{path}: {exc.strerror}") from exc
    return parse_config(data, kind, str(path))


def parse_config(data: bytes, kind: type[T], place: str) -> T:
    """Parse the text of a configuration file."""
    try:
        document = yaml.read(data)
        return jsontext.convert({} if document is None else document, kind)
    except msgspec.ValidationError as exc:
        cause = exc.__cause__ if isinstance(exc.__cause__, InvalidInput) else exc
        raise InvalidConfig(place, (str(cause),)) from exc
    except InvalidInput as exc:
        raise InvalidConfig(place, (f"{exc.code}: {exc}",)) from exc
