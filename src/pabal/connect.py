"""From a URL to a store, loaded only when asked for, and the connection that hands out its queues."""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from pabal.clock import Clock, SystemClock
from pabal.delivery import Local
from pabal.errors import InvalidUrl, StoreMissing
from pabal.queue import Queue
from pabal.store import Store

_SCHEMES = ("sqlite", "file", "hybrid", "mailbox", "postgresql")
_SECRET = re.compile(r"(?<=://)[^@/]*@|(?<=password=)[^&]*")


class Connection(Local):
    """An open store and its queues. Threads may share it; use it in a `with` block or close it."""

    def __init__(self, store: Store, *, clock: Clock, consumer: str) -> None:
        self.store = store
        self._clock = clock
        self._consumer = consumer

    def queue(self, name: str) -> Queue:
        """Return the queue of this name. It comes into being with its first message or policy."""
        return Queue(name, self.store, clock=self._clock, consumer=self._consumer)

    def queues(self) -> list[str]:
        """Name every queue, sorted."""
        return self.store.queues()

    def close(self) -> None:
        """Release files and handles. What is leased stays so until it is settled or its lease runs out."""
        self.store.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def connect(url: str, *, consumer: str = "", create: bool = True, clock: Clock | None = None) -> Connection:
    """Open the store that the URL names: sqlite:///path.db, file:///dir, hybrid:///dir, mailbox:///dir of a manager,
    postgresql://user@host/database.

    Three slashes begin an absolute path, none a relative one (`sqlite:jobs.db`); options of a store may stand behind a
    question mark. `consumer` is the name under which messages addressed to it are leased, and the client's name in a
    mailbox; by default host and process id. A store that is not there is made, unless `create` is False: then
    StoreMissing, and nothing is touched.
    """
    clock = clock or SystemClock()
    consumer = consumer or _own_name()
    scheme, path = parse_url(url)
    driver = _driver(url, scheme, consumer)
    if not create and not driver.exists(path):
        raise StoreMissing(f"no store at {path}: publish to make one, or correct {_shown(url)!r:.80}")
    return Connection(driver(path, clock=clock), clock=clock, consumer=consumer)


def parse_url(url: str) -> tuple[str, Path]:
    """Return scheme and path of a store URL; raise InvalidUrl that says what to write instead."""
    if not isinstance(url, str):
        raise InvalidUrl(f"a store URL is text with a scheme, as in 'sqlite:jobs.db'; found {url!r:.80}")
    parts = urlsplit(url)
    known = ", ".join(_SCHEMES)
    if parts.scheme not in _SCHEMES:
        near = "write postgresql: with ql: " if parts.scheme == "postgres" else ""
        raise InvalidUrl(f"{near}a store URL begins with one of {known} and a colon; found {_shown(url)!r:.80}")
    if parts.scheme == "postgresql":
        return parts.scheme, Path(unquote(parts.path).strip("/") or "postgres")
    if parts.netloc:
        raise InvalidUrl(
            f"{parts.scheme} stores are local: write {parts.scheme}:///{parts.netloc}{parts.path} for an absolute path"
            f" or {parts.scheme}:{parts.netloc}{parts.path} for a relative one; found {url!r:.80}"
        )
    if not parts.path or parts.fragment or (parts.query and parts.scheme == "mailbox"):
        raise InvalidUrl(
            f"a store URL is a scheme and a path, as in {parts.scheme}:///var/lib/pabal; found {url!r:.80}"
        )
    return parts.scheme, _local(parts.path)


def database_path(url: str) -> Path:
    """Return the path in a sqlite URL that may hold nothing else."""
    parts = urlsplit(url)
    if parts.netloc or not parts.path or parts.query or parts.fragment:
        raise InvalidUrl(f"write sqlite:///path.db for an absolute path or sqlite:path.db; found {url!r:.80}")
    return _local(parts.path)


def _local(text: str) -> Path:
    """Return the path that a URL spells. It may begin with ~/: a shell leaves that alone behind a scheme."""
    path = unquote(text)
    return Path(os.path.expanduser(path) if path.startswith("~/") else path)


def _shown(url: str) -> str:
    """Return a URL as it may be seen by anybody."""
    return _SECRET.sub("", url)


def _own_name() -> str:
    host = re.sub(r"[^A-Za-z0-9_]+", "-", socket.gethostname()).strip("-")
    return f"{host[:150] or 'host'}-{os.getpid()}"


class _Driver(Protocol):
    def __call__(self, path: Path, /, *, clock: Clock) -> Store: ...

    def exists(self, path: Path, /) -> bool:
        """Say whether a store of this kind is there, touching nothing."""
        ...


def _driver(url: str, scheme: str, consumer: str) -> _Driver:
    if scheme == "mailbox":
        from pabal.mailbox.store import MailboxDriver

        return MailboxDriver(consumer)
    if scheme == "postgresql":
        from pabal.stores.drivers import PostgresDriver

        return PostgresDriver(url)
    from pabal.stores.drivers import DRIVERS

    return DRIVERS[scheme](_options(url, DRIVERS[scheme].known))


def _options(url: str, known: frozenset[str]) -> dict[str, str]:
    """Return what stands behind the question mark of a URL: `file:///spool?ready=inbox`."""
    found: dict[str, str] = {}
    for name, text in parse_qsl(urlsplit(url).query, keep_blank_values=True):
        if name not in known or name in found or not text:
            listed = ", ".join(sorted(known))
            raise InvalidUrl(f"options of this store are {listed}, each once; found {name!r:.40} in {url!r:.80}")
        found[name] = text
    return found
