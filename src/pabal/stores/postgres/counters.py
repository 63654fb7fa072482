"""The cumulative counts of the queues of a PostgreSQL store, in a table of the store."""

import random
from collections.abc import Iterable, Sequence

from pabal.clock import Clock
from pabal.errors import PabalError, Uncertain
from pabal.sql.postgres import Server
from pabal.sql.schema import Schema
from pabal.stores.counters import CELLS, Counting, Tally

_SLOTS = 16
_COUNT_UP = "select pabal.count_up(%s, %s, %s::bigint[])"
_SUM = "select pabal.sum_cells(%s, -2147483648, 2147483647)"
PUBLISHED_IN = "insert into pabal.counters values (%s, -1 - floor(random() * 2147483647)::integer, array[%s::bigint])"


class PostgresCounters(Counting):
    """Counts in memory what was not written yet. A write is one call to the server, so there are few.

    Only a death or a drop is written at once: an operator acts on it.
    """

    def __init__(self, server: Server, schema: Schema, known: dict[str, int], clock: Clock) -> None:
        super().__init__(clock, prompt=False)
        self._server = server
        self._sql = schema
        self._known = known
        self._slot = random.randrange(_SLOTS)

    def _put(self, tallies: Iterable[Tally]) -> bool:
        whole = True
        for tally in tallies:
            number = self._known.get(tally.queue)
            if number is None:
                continue
            values = (number, self._slot, "{" + ",".join(map(str, tally.cells)) + "}")
            try:
                self._server.run(
                    lambda link, values=values: link.execute(self._sql(_COUNT_UP), values),  # type: ignore[misc]
                    repeatable=False,
                )
            except Uncertain:
                pass  # rather too few than twice
            except PabalError:
                whole = False
                continue
            tally.cells[:] = type(tally.cells)("Q", bytes(8 * CELLS))
        return whole

    def _knows(self, queue: str) -> bool:
        return queue in self._known

    def _sum(self, queue: str) -> Sequence[int]:
        number = self._known.get(queue)
        cells = [0] * CELLS
        if number is not None:
            found = self._server.read(lambda link: link.execute(self._sql(_SUM), (number,)).fetchone())
            for place, count in enumerate((found or ((),))[0][:CELLS]):
                cells[place] = count
        return cells
