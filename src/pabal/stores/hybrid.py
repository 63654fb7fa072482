"""The hybrid store: states in `<root>/pabal.db`, documents in `<root>/bodies/<queue>/<id>.json`."""

from pathlib import Path

from pabal.clock import Clock
from pabal.codec import Codec
from pabal.stores.sqlite import SqliteStore
from pabal.stores.sqlite.bodies import BodyFolder


class HybridStore(SqliteStore):
    """Messages with their states in SQLite and each document in a file of its own, for large bodies and for `cat`."""

    def __init__(self, root: Path, *, clock: Clock | None = None, codec: Codec | None = None) -> None:
        super().__init__(root / "pabal.db", clock=clock, codec=codec, bodies=BodyFolder(root.absolute() / "bodies"))

    @staticmethod
    def exists(path: Path) -> bool:
        """Say whether a hybrid store is there, touching nothing."""
        return SqliteStore.exists(path / "pabal.db")
