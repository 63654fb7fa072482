"""Check and repair the file of the topics: its pages and indexes, its texts, the settings of topics.

Records need no repair: each has a checksum, and a damaged one is delivered with its fault.
"""

from collections.abc import Iterator

from pabal import jsontext
from pabal.errors import InvalidInput
from pabal.ids import new_token
from pabal.sql.connection import Connection
from pabal.sql.migrate import restore_version
from pabal.sql.repair import Fault, mend_faults
from pabal.sql.sqlite import Database
from pabal.store import Finding
from pabal.topic_store import MAX_PARTITIONS
from pabal.topic_stores.sqlite.records import OFFSET_BITS

_NAMES = ("topics", "topic_groups", "topic_members")  # tables with a name that others see
_SETTINGS = "select id, cast(name as blob), cast(settings as blob) from topics not indexed"
_NOTES = "select grp, partition, cast(note as blob) from topic_shares"
_LAST = "select max(id) from topic_records where id >= ? and id < ?"
_READ = "coalesce((select max(committed) from topic_shares where partition = ?1), 0)"  # groups were as far as that
_RESTORE = f"""
insert into topic_partitions (id, first_offset, next_offset, last_at, bytes)
select ?1, coalesce(min(id) - ?2, {_READ}), max(coalesce(max(id) - ?2 + 1, 0), {_READ}), coalesce(max(at), 0),
  coalesce(sum(length(value) + coalesce(length(key), 0) + coalesce(length(headers), 0)), 0)
from topic_records where id >= ?2 and id < ?3
on conflict (id) do update set first_offset = excluded.first_offset, next_offset = excluded.next_offset,
  last_at = excluded.last_at, bytes = excluded.bytes"""


def check(db: Database, *, repair: bool) -> list[Finding]:
    """Look for damage and repair it if asked."""
    findings = [Finding(*found) for found in db.check(mend_copy, repair=repair)]
    if not all(finding.repaired for finding in findings):
        return findings  # nothing in a damaged file can be relied on
    found = db.read(faults)
    if found and repair:
        db.write(lambda tx: mend(tx.connection), durable=True, essential=True)
    return findings + [Finding(fault.where, fault.problem, fault.remedy, repair) for fault in found]


def mend(connection: Connection) -> int:
    """Replace every text that cannot be read, set damaged settings aside, and restore partitions; return how many."""
    return mend_faults(connection, faults(connection))


def faults(connection: Connection) -> list[Fault]:
    """Return the lost partitions, and the texts and settings that cannot be read."""
    found = list(_lost_partitions(connection))
    for table in _NAMES:
        for number, name in connection.execute(f"select id, cast(name as blob) from {table} not indexed").fetchall():
            if not _is_text(name) and isinstance(number, int):
                problem, new = f"its name {name!r:.60} is not UTF-8", f"damaged-{number}"
                change = f"update {table} set name = ? where id = ?"
                found.append(Fault(f"{table} {number}", problem, f"name it {new}", change, (new, number)))
    for grp, partition, note in connection.execute(_NOTES).fetchall():
        if not _is_text(note):
            where, problem = f"partition {partition} of group {grp}", f"its note {note!r:.60} is not UTF-8"
            change = "update topic_shares set note = '' where grp = ? and partition = ?"
            found.append(Fault(where, problem, "remove it", change, (grp, partition)))
    for topic, name, settings in connection.execute(_SETTINGS).fetchall():
        if fault := settings_fault(settings):
            problem, change = f"its settings cannot be read: {fault}", "update topics set settings = '{}' where id = ?"
            kept = f"set_aside.topic.{topic}.{new_token()}", settings
            found.append(Fault(f"{name!r:.60}", problem, "set them aside", change, (topic,), kept))
    return found


def _lost_partitions(connection: Connection) -> Iterator[Fault]:
    """Find the partitions without a row, and those whose row ends before their last record."""
    found: list[tuple[int, int]] = connection.execute("select base, partitions from topics").fetchall()  # type: ignore[assignment]
    for base, many in found:
        if type(base) is not int or type(many) is not int:
            continue
        for partition in range(base, base + min(many, MAX_PARTITIONS)):
            span = (partition << OFFSET_BITS, (partition + 1) << OFFSET_BITS)
            ends = connection.execute("select next_offset from topic_partitions where id = ?", (partition,)).fetchall()
            last: int | None = connection.execute(_LAST, span).get
            if not ends or last is not None and ends[0][0] <= last - span[0]:  # type: ignore[operator]
                problem = "its row is lost, or ends before its last record"
                remedy = "restore it from its records"
                yield Fault(f"partition {partition}", problem, remedy, _RESTORE, (partition, *span))


def mend_copy(connection: Connection) -> None:
    """Mend a repaired file, and note the version of its tables again if that was lost."""
    tables = {row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'").fetchall()}
    if "topics" in tables:
        connection.execute("begin").fetchall()
        mend(connection)
        restore_version(connection, "topics", __package__, lambda: _version(connection))
        connection.execute("commit").fetchall()


def settings_fault(settings: object) -> str:
    """Return why the settings of a topic cannot be used, or ''."""
    try:
        found = jsontext.read(settings if isinstance(settings, bytes) else b"")
    except InvalidInput as exc:
        return str(exc)
    return "" if isinstance(found, dict) else "they are no JSON object"


def _version(connection: Connection) -> int:
    columns = connection.execute("select 1 from pragma_table_info('topic_shares') where name = 'note'").fetchall()
    return 2 if columns else 1


def _is_text(value: object) -> bool:
    try:
        str(value, "utf-8")  # type: ignore[call-overload]
    except (UnicodeDecodeError, TypeError):
        return False
    return True
