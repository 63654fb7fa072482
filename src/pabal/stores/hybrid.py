"""The hybrid store: states in `<root>/pabal.db`, documents in `<root>/bodies/<queue>/<id>.json`, if not elsewhere."""

from pathlib import Path

from pabal.clock import Clock
from pabal.codec import Codec
from pabal.sql.connection import BUSY_SECONDS
from pabal.stores.sqlite import SqliteStore
from pabal.stores.sqlite.bodies import BodyFolder
from pabal.stores.sqlite.seed import Tables


class HybridStore(SqliteStore):
    """Messages with their states in SQLite and each document in a file of its own, for large bodies and for `cat`."""

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock | None = None,
        codec: Codec | None = None,
        db: Path | None = None,
        bodies: Path | None = None,
        busy: float = BUSY_SECONDS,
        tables: Tables | None = None,
    ) -> None:
        folder = (bodies or root / "bodies").absolute()
        super().__init__(
            db or root / "pabal.db",
            clock=clock,
            codec=codec,
            bodies=BodyFolder(folder),
            busy=busy,
            tables=tables or Tables(),
        )

    @staticmethod
    def exists(path: Path) -> bool:
        """Say whether a hybrid store is there, touching nothing."""
        return SqliteStore.exists(path / "pabal.db")
