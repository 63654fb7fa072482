"""Which boot the leases in a database belong to: the readings of another boot's clock mean nothing in this one."""

from pabal.clock import Clock
from pabal.sql.connection import Connection
from pabal.sql.migrate import fact, set_fact
from pabal.sql.sqlite import Database


class Boot:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._id = ""

    def check(self, db: Database) -> None:
        """Let every lease of another boot run out, if there was a boot since the last look."""
        if self._clock.boot_id != self._id:
            db.write(lambda tx: self.settle(tx.connection), durable=False, essential=True)

    def settle(self, connection: Connection) -> None:
        """The same inside a transaction of the caller."""
        boot_id = self._clock.boot_id
        if fact(connection, "boot_id") != boot_id:
            connection.execute("update messages set moment = 0 where state = 2")
            set_fact(connection, "boot_id", boot_id)
            set_fact(connection, "booted_at", self._clock.now() - self._clock.boot())
        self._id = boot_id
