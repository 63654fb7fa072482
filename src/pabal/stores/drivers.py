"""How stores are opened from a URL: each kind with the options that stand behind its question mark, as text.

Each imports its store when it is opened: who uses one should not load the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pabal.clock import Clock
from pabal.errors import InvalidInput, InvalidUrl
from pabal.store import Store

if TYPE_CHECKING:
    from pabal.stores.sqlite.seed import Tables

Options = Mapping[str, str]


class SqliteDriver:
    """busy: seconds to wait for who locks the file; kv, index, template: the original's tables and a file of SQL."""

    known = frozenset({"busy", "kv", "index", "template"})

    def __init__(self, options: Options) -> None:
        self._options = options

    def __call__(self, path: Path, /, *, clock: Clock) -> Store:
        from pabal.stores.sqlite import SqliteStore

        return SqliteStore(path, clock=clock, **_common(self._options))

    def exists(self, path: Path, /) -> bool:
        from pabal.stores.sqlite import SqliteStore

        return SqliteStore.exists(path)


class FileDriver:
    """What the folders of the states are called, and `private`: where what is the store's own lies."""

    known = frozenset({"ready", "delayed", "inflight", "dead", "done", "corrupt", "private"})

    def __init__(self, options: Options) -> None:
        names = {("meta" if name == "private" else name): text for name, text in options.items()}
        self._names: dict[str, Any] = names

    def __call__(self, path: Path, /, *, clock: Clock) -> Store:
        from pabal.stores.files import FileStore
        from pabal.stores.layout import NativeLayout

        return FileStore(path, clock=clock, layout=NativeLayout(**self._names))

    def exists(self, path: Path, /) -> bool:
        from pabal.stores.files import FileStore

        return FileStore.exists(path)


class HybridDriver:
    """db, bodies: where these are if not under the root; and the options of sqlite."""

    known = SqliteDriver.known | {"db", "bodies"}

    def __init__(self, options: Options) -> None:
        self._options = options

    def __call__(self, path: Path, /, *, clock: Clock) -> Store:
        from pabal.stores.hybrid import HybridStore

        places = {name: Path(self._options[name]) for name in ("db", "bodies") if name in self._options}
        return HybridStore(path, clock=clock, **places, **_common(self._options))  # type: ignore[arg-type]  # by name

    def exists(self, path: Path, /) -> bool:
        from pabal.stores.sqlite import SqliteStore

        return SqliteStore.exists(Path(self._options.get("db", path / "pabal.db")))


class PostgresDriver:
    """schema: where the tables are, `pabal` if nothing is said; patience: seconds to try for while the server is away.

    All else in the URL is libpq's. The server's clock is the only one.
    """

    known = frozenset({"schema", "patience"})

    def __init__(self, url: str) -> None:
        from pabal.sql.links import split_url

        self._url, options = split_url(url, self.known)
        self._more: dict[str, Any] = {name: options[name] for name in ("schema",) if name in options}
        if "patience" in options:
            self._more["patience"] = _seconds("patience", options["patience"])

    def __call__(self, path: Path, /, *, clock: Clock) -> Store:
        from pabal.stores.postgres import PostgresStore

        return PostgresStore(self._url, **self._more)

    def exists(self, path: Path, /) -> bool:
        from pabal.stores.postgres import PostgresStore

        return PostgresStore.exists(self._url, **self._more)


DRIVERS: dict[str, type[SqliteDriver | FileDriver | HybridDriver]] = {
    "sqlite": SqliteDriver,
    "file": FileDriver,
    "hybrid": HybridDriver,
}


def _common(options: Options) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "busy" in options:
        found["busy"] = _seconds("busy", options["busy"])
    if options.keys() & {"kv", "index", "template"}:
        found["tables"] = _tables(options)
    return found


def _seconds(name: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError as exc:
        raise InvalidUrl(f"{name} must be seconds; found {text!r:.40}") from exc
    if not 0 <= value <= 3600:
        raise InvalidUrl(f"{name} must be 0 to 3600 seconds; found {text!r:.40}")
    return value


def _tables(options: Options) -> Tables:
    from pabal.stores.sqlite.seed import Tables

    for name in ("kv", "index"):
        text = options.get(name, "x")
        if not (text.isascii() and text.isidentifier()):
            raise InvalidUrl(f"{name} must be the name of a table; found {text!r:.40}")
    template = ""
    if "template" in options:
        try:
            template = Path(options["template"]).read_text()
        except (OSError, UnicodeDecodeError) as exc:
            raise InvalidInput(f"cannot read {options['template']}: {exc}") from exc
    return Tables(options.get("kv", "kv"), options.get("index", "msg_index"), template)
