"""The hybrid store: states in `<root>/pabal.db`, documents in `<root>/bodies/<queue>/<id>.json`, if not elsewhere."""

from pathlib import Path

from pabal.clock import Clock
from pabal.codec import Codec
from pabal.errors import IndexMissing
from pabal.filesystem import require_own
from pabal.sql.connection import BUSY_SECONDS
from pabal.sql.place import real_path
from pabal.stores.archive import require_restored
from pabal.stores.sqlite import BodyFolder, SqliteStore, Tables, body_files


class HybridStore(SqliteStore):
    """Messages with states in SQLite and each document in its own file, for large bodies and for `cat`."""

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
        owner: int | None = None,
    ) -> None:
        require_own(root, owner, links=True)
        folder = (bodies or root / "bodies").absolute()
        db = real_path(db or root / "pabal.db")
        require_restored(db)
        super().__init__(
            db,
            clock=clock,
            codec=codec,
            bodies=BodyFolder(folder, owner),
            busy=busy,
            tables=tables or Tables(),
            owner=owner,
        )

    @staticmethod
    def check_remains(db: Path, bodies: Path) -> None:
        """Raise IndexMissing if there are body files, and no index that names them. Changes nothing.

        Raise StoreRefused if they are those of a restore that has not ended.
        """
        require_restored(real_path(db))
        many = sum(not name.endswith(".reason") for at in (bodies, f"{bodies}.orphaned") for name, _ in body_files(at))
        if many:
            raise IndexMissing(
                f"no index at {db}, but {many} body files in {bodies}: restore a copy of the index, or run "
                f"`pabal doctor --adopt`, which makes a new one from the files"
            )
