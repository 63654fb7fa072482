"""The list of stores: how each is opened at a place, and how a message in it is damaged behind its back."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pabal.clock import Clock
from pabal.store import Store


class Opener(NamedTuple):
    open: Callable[[Path, Clock], Store]
    damage: Callable[[Path, str, str], None]


# Each imports its store when it is opened: a child that is killed a thousand times should start with one store only.


def open_files(place: Path, clock: Clock) -> Store:
    from pabal.stores.files import FileStore

    return FileStore(place / "spool", clock=clock)


def open_sqlite(place: Path, clock: Clock) -> Store:
    from pabal.stores.sqlite import SqliteStore

    return SqliteStore(place / "pabal.db", clock=clock)


def open_hybrid(place: Path, clock: Clock) -> Store:
    from pabal.stores.hybrid import HybridStore

    return HybridStore(place / "hybrid", clock=clock)


def damage_file(place: Path, queue: str, id: str) -> None:
    """Flip a byte in the middle of the file that holds the message."""
    files = [
        path for path in place.rglob("*") if path.is_file() and f'"messageId":"{id}"'.encode() in path.read_bytes()
    ]
    files = [path for path in files if path.suffix not in (".db", ".why")]
    assert files, f"no file holds {id}"
    for path in files:
        data = path.read_bytes()
        path.write_bytes(flipped(data))


def damage_row(place: Path, queue: str, id: str) -> None:
    """Flip a byte in the middle of the row's document."""
    import apsw

    connection = apsw.Connection(str(place / "pabal.db"))
    data = connection.execute("select document from messages where id = ?", (id,)).get
    assert isinstance(data, bytes)
    connection.execute("update messages set document = ? where id = ?", (flipped(data), id))
    connection.close()


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 0x01]) + data[middle + 1 :]


OPENERS: dict[str, Opener] = {
    "files": Opener(open_files, damage_file),
    "sqlite": Opener(open_sqlite, damage_row),
    "hybrid": Opener(open_hybrid, damage_file),
}
