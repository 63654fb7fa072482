"""The clock of a store on PostgreSQL, moved by hand: in the test's schema its two functions are replaced."""

import psycopg

from pabal.testing import ManualClock

_REPLACE = """
create table if not exists {0}.test_clock (wall double precision, steady double precision);
insert into {0}.test_clock select 0, 0 where not exists (select from {0}.test_clock);
create or replace function {0}.wall() returns double precision language sql volatile
  as 'select wall from {0}.test_clock';
create or replace function {0}.steady() returns double precision language sql volatile
  as 'select steady from {0}.test_clock'"""


class ServerClock(ManualClock):
    """A ManualClock that the server reads. Rebooting a machine does nothing to the server but let time pass."""

    def __init__(self, url: str, schema: str) -> None:
        super().__init__()
        self._connection = psycopg.connect(url, autocommit=True)
        self._table = f"{schema}.test_clock"
        self._connection.execute(_REPLACE.format(schema))
        self._tell()

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._tell()

    def step_wall(self, seconds: float) -> None:
        super().step_wall(seconds)
        self._tell()

    def reboot(self, seconds: float = 30.0) -> None:
        self.advance(seconds)

    def close(self) -> None:
        self._connection.close()

    def _tell(self) -> None:
        self._connection.execute(f"update {self._table} set wall = %s, steady = %s", (self.now(), self.boot()))
