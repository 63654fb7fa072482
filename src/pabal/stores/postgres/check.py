"""Check and repair: documents that are not what was stored, and groups that wait for a member that has left."""

from collections.abc import Callable, Iterator

from pabal.codec import Codec
from pabal.errors import DecodeError
from pabal.sql.links import Link
from pabal.sql.postgres import Server
from pabal.store import Finding
from pabal.stores.postgres.rows import CORRUPT, DEAD, DONE, INFLIGHT, STATES, DocumentGone, Row, fault, read_message
from pabal.stores.postgres.schema import Schema

_SLICE = 500
_DOCUMENTS = """
select queues.name, m.queue_id, m.id, m.state, m.attempt, m.crc, m.document
from pabal.messages as m join pabal.queues on queues.id = m.queue_id
where (m.queue_id, m.id) > (%s, %s) order by m.queue_id, m.id limit %s"""
_STUCK = """
select queues.name, heads.queue_id, heads.grp from (
  select distinct on (queue_id, grp) queue_id, grp, state from pabal.messages
  where grp is not null and state < 4 order by queue_id, grp, seq
) as heads join pabal.queues on queues.id = heads.queue_id where heads.state = 3"""
_ASIDE = "select pabal.set_aside(%s, %s::text[], '', %s::smallint[], %s::text[]), pabal.wall()"
_RELEASE = """
select pabal.take_locks(array[pabal.lock_of('g', %(q)s, %(g)s)]), pabal.release(%(q)s, %(g)s),
  pabal.ring(array[%(q)s])"""


def check(server: Server, schema: Schema, codec: Codec, *, repair: bool) -> list[Finding]:
    """Return everything found, in the order of its weight."""
    return [*_check_documents(server, schema, codec, repair), *_check_groups(server, schema, repair)]


def _check_documents(server: Server, schema: Schema, codec: Codec, repair: bool) -> Iterator[Finding]:
    last: tuple[int, str] = (0, "")
    while rows := server.read(_slice(schema, last)):
        last = rows[-1][1:3]
        for row in rows:
            if (exc := _fault(row, codec)) is not None:
                yield _mend(server, schema, row, exc, repair)


def _slice(schema: Schema, last: tuple[int, str]) -> Callable[[Link], list[Row]]:
    return lambda link: link.execute(schema(_DOCUMENTS), (*last, _SLICE)).fetchall()


def _fault(row: Row, codec: Codec) -> DecodeError | None:
    *_, state, _, crc, document = row
    if state in (INFLIGHT, DONE, CORRUPT):
        return None  # somebody holds it, or nothing is left to be damaged
    try:
        read_message(codec, document, crc)
    except DocumentGone as exc:
        # A dead one without its document has been told of already, and can only be purged.
        return None if state == DEAD else exc
    except DecodeError as exc:
        return exc
    return None


def _mend(server: Server, schema: Schema, row: Row, exc: DecodeError, repair: bool) -> Finding:
    queue, number, id, _, attempt, *_ = row
    state, failure = fault(exc, 0.0, attempt)

    def work(link: Link) -> bool:
        found = link.execute(schema(_ASIDE), (number, [id], [state], [failure])).fetchone()
        return bool(found and found[0])

    done = server.run(work) if repair else False
    return Finding(f"{queue}/{id}", exc.reason, f"set it aside as {STATES[state]}", done)


def _check_groups(server: Server, schema: Schema, repair: bool) -> Iterator[Finding]:
    for queue, number, group in server.read(lambda link: link.execute(schema(_STUCK)).fetchall()):

        def work(link: Link, number: int = number, group: str = group) -> bool:
            found = link.execute(schema(_RELEASE), {"q": number, "g": group}).fetchone()
            return bool(found and found[1])

        done = server.run(work) if repair else False
        yield Finding(f"{queue}, group {group}", "it waits for a message that has left", "let the next come up", done)
