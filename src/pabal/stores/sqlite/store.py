"""The store in one SQLite file: a row for each message, one commit for each call or for several concurrent calls.

Beside `<db>` lie `<db>.lock` (writers queue on it), `<db>.ballast` (space to finish work on a full disk) and
`<db>.bells/<queue>`, which wakes the watchers of a queue after each commit that made something ready, and
`<db>.counters/`, the cumulative counts of the queues. Other handles see a commit before it is synced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from pabal.clock import Clock, SystemClock
from pabal.codec import Codec
from pabal.codecs.json import RowCodec, RowReader
from pabal.errors import StoreBusy, StoreFailed
from pabal.filesystem import lock_holders, require_local
from pabal.names import check_name
from pabal.sql.bells import Bells
from pabal.sql.connection import BUSY_SECONDS, Connection
from pabal.sql.migrate import fact, is_current, migrate
from pabal.sql.place import real_path, table_names
from pabal.sql.sqlite import Database
from pabal.stores.sqlite.adopt import Adopter
from pabal.stores.sqlite.backup import Copier
from pabal.stores.sqlite.bodies import Bodies, BodyFolder, InRow
from pabal.stores.sqlite.damaged_rows import mend
from pabal.stores.sqlite.lease import Leaser, end_leases_of_other_boots
from pabal.stores.sqlite.seed import Tables, adopt, rename_tables, set_tables_aside, show_tables
from pabal.stores.sqlite.settle import Settler
from pabal.watch import PathWatch

_USUAL = Tables()


class SqliteStore(Settler, Leaser, Adopter, Copier):
    """Messages in one SQLite file. Threads and processes may share it.

    Each base class has one part of the contract: publish and settle, lease, look, maintain, check, carry.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Clock | None = None,
        codec: Codec | None = None,
        bodies: Bodies | None = None,
        busy: float = BUSY_SECONDS,
        tables: Tables = _USUAL,
        owner: int | None = None,
    ) -> None:
        path = real_path(path)
        require_local(path.parent)
        clock, bodies = clock or SystemClock(), bodies or InRow()
        codec = codec or (RowReader() if bodies.apart else RowCodec())
        self._bells = Bells(path.with_name(f"{path.name}.bells"))
        if isinstance(bodies, BodyFolder):
            bodies.make_room = self._bells.make_room
        prepare = partial(_prepare, clock=clock, codec=codec, bodies=bodies, tables=tables)
        db = Database(
            path,
            prepare=prepare,
            current=partial(_current, tables=tables),
            committed=self._bells.ring,
            mend=lambda tx: mend(tx.connection, codec, bodies, clock),
            busy=busy,
            seen_early=True,
            owner=owner,
        )
        super().__init__(db, clock, codec, bodies)
        self._empty = {}

    @staticmethod
    def exists(path: Path) -> bool:
        """Return whether a store, ours or of the original form, is there. Changes nothing."""
        names = table_names(path)
        return "messages" in names and "queues" in names or "kv" in names and "msg_index" in names

    def facts(self) -> Mapping[str, str]:
        """Return the place, the format, how readers are woken, and whether the ballast is there."""
        watch = self._bells.watch([])
        watch.close()
        try:
            version = self._db.read(lambda db: fact(db, "schema.queues"))
        except (StoreBusy, StoreFailed):
            version = "not readable"
        facts = {
            "place": str(self._db.path),
            "format": f"queues schema {version}",
            "bodies": "files" if self._bodies.apart else "rows",
            "woken by": watch.woken_by,
            "ballast": "present" if self._db.reserve.ballast.present else "missing",
        }
        if holders := lock_holders([f"{self._db.path}.lock"]):
            facts["locks"] = "; ".join(holders)
        if isinstance(self._bodies, BodyFolder) and (orphans := self._bodies.orphans()):
            facts["orphaned"] = f"{len(orphans)} files in {self._bodies.orphaned}; `pabal doctor --adopt` takes them in"
        return facts

    def watch(self, queues: Sequence[str]) -> PathWatch:
        """Watch these queues."""
        self._db.require_usable()
        return self._bells.watch([check_name(queue) for queue in queues])

    def close(self) -> None:
        """Close all files."""
        self._counters.close()
        self._db.close()
        self._bells.close()


def _current(connection: Connection, *, tables: Tables) -> bool:
    """Return whether `_prepare` would change nothing but the boot, which is seen to by the first lease."""
    names = {row[0] for row in connection.execute("select name from sqlite_schema where type = 'view'")}
    return {*_USUAL, *tables} <= names and is_current(connection, "queues", __package__)


def _prepare(connection: Connection, *, clock: Clock, codec: Codec, bodies: Bodies, tables: Tables) -> None:
    """Bring the schema up to date, and take over a database of the original system."""
    if isinstance(bodies, BodyFolder):
        bodies.refuse_original()
    if tables != _USUAL:
        rename_tables(connection, tables)
    seed = set_tables_aside(connection)
    migrate(connection, "queues", __package__)
    if seed:
        adopt(connection, codec, bodies, clock)
    show_tables(connection, tables)
    end_leases_of_other_boots(connection, clock)
