"""The store on a PostgreSQL server: each call is one statement, and so one round trip and one transaction.

All times are those of the server: an instant that a client gives, the end of a time to live, is sent with the reading
of the client's clock and counts as so many seconds from now. `queues_*.sql` has the functions that are called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pabal.clock import Clock, SystemClock
from pabal.codec import Codec
from pabal.codecs.json import RowCodec
from pabal.names import check_name
from pabal.sql.postgres import PATIENCE_SECONDS, Server
from pabal.sql.schema import Schema
from pabal.stores.postgres.lease import Leaser
from pabal.stores.postgres.maintain import Maintainer
from pabal.stores.postgres.read import Reader
from pabal.stores.postgres.settle import Settler
from pabal.stores.postgres.wakeups import Listener, NotifyWatch

_FACTS = """
select current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
  (select value from pabal.meta where key = 'schema.queues')"""


class PostgresStore(Settler, Leaser, Reader, Maintainer):
    """Messages on a PostgreSQL server. Threads, processes and machines may share it.

    Each base class has one part of the contract: publish and settle, lease, look, maintain.
    """

    def __init__(
        self,
        url: str,
        *,
        schema: str = "pabal",
        clock: Clock | None = None,
        codec: Codec | None = None,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        super().__init__(Server(url, patience=patience), Schema(schema), codec or RowCodec(), clock or SystemClock())
        self._listener = Listener(self._server, self._sql)
        try:
            self._server.run(lambda link: self._sql.migrate(link, __package__))
        except BaseException:
            self._server.close()
            raise

    @staticmethod
    def exists(url: str, *, schema: str = "pabal", patience: float = PATIENCE_SECONDS) -> bool:
        """Return whether a store is there. Changes nothing."""
        server = Server(url, patience=patience)
        try:
            return server.read(lambda link: Schema(schema).version(link) > 0)
        finally:
            server.close()

    def facts(self) -> Mapping[str, str]:
        """Return the place, the format, the settings of the server, and how readers are woken."""
        found = self._server.read(lambda link: link.execute(self._sql(_FACTS)).fetchone())
        version, fsync, synchronous, schema = found or ("", "", "", "")
        watch = self.watch([])
        woken_by = watch.woken_by
        watch.close()
        return {
            "place": f"{self._server.place}, schema {self._sql.name}",
            "format": f"queues schema {schema}",
            "server": f"PostgreSQL {version}, fsync {fsync}, synchronous_commit {synchronous}",
            "woken by": woken_by,
        }

    def watch(self, queues: Sequence[str]) -> NotifyWatch:
        """Watch these queues."""
        return self._listener.watch([check_name(queue) for queue in queues])

    def close(self) -> None:
        """Close the connections."""
        self._counters.close()
        self._server.close()
        self._listener.close()
