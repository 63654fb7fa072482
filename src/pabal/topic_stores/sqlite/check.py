"""Check and repair the file of the topics: its pages and indexes, its texts, the settings and numbers of topics.

Records need no repair: each has a checksum, and a damaged one is delivered with its fault.
"""

from collections import deque
from collections.abc import Container, Iterator
from itertools import chain

from pabal import jsontext
from pabal.errors import InvalidInput
from pabal.ids import new_token
from pabal.policy.validation import schema_fault
from pabal.sql.connection import Connection
from pabal.sql.migrate import restore_version
from pabal.sql.repair import Fault, mend_faults
from pabal.sql.sqlite import Database
from pabal.store import Finding
from pabal.topic_store import MAX_PARTITIONS
from pabal.topic_stores.sqlite.records import LAST_PARTITION, OFFSET_BITS, are_bounds, are_limits

_NAMES = ("topics", "topic_groups", "topic_members")  # tables with a name that others see
_SETTINGS = "select id, cast(name as blob), cast(settings as blob) from topics not indexed"
_NOTES = "select grp, partition, cast(note as blob) from topic_shares"
_ENDS = "select min(id), max(id) from topic_records where id >= ? and id < ?"
_LIMITS = "select id, cast(name as blob), max_age, max_bytes from topics not indexed"
_COMMITTED = """
select s.grp, s.partition, s.committed, p.first_offset, p.next_offset
from topic_shares s join topic_partitions p on p.id = s.partition"""
_SHARES = """
select g.topic, min(s.partition), max(s.partition) from topic_groups g join topic_shares s on s.grp = g.id
group by g.topic"""
# Groups were as far as that.
_READ = (
    f"coalesce((select max(committed) from topic_shares where partition = ?1 and committed < {1 << OFFSET_BITS}), 0)"
)
_RESTORE = f"""
insert into topic_partitions (id, first_offset, next_offset, last_at, bytes)
select ?1, coalesce(min(id) - ?2, {_READ}), max(coalesce(max(id) - ?2 + 1, 0), {_READ}), coalesce(max(at), 0),
  coalesce(sum(length(value) + coalesce(length(key), 0) + coalesce(length(headers), 0)), 0)
from topic_records where id >= ?2 and id < ?3
on conflict (id) do update set first_offset = excluded.first_offset, next_offset = excluded.next_offset,
  last_at = excluded.last_at, bytes = excluded.bytes"""
_TRACES = """
select exists (select 1 from topic_records where id >= ? and id < ?)
  or exists (select 1 from topic_shares where partition = ?)"""
_KEEP_ALL = "update topics set max_age = 0, max_bytes = 0 where id = ?"
_BY_HAND = "restore a copy of the file: its records are there and not read"


def check(db: Database, *, repair: bool) -> list[Finding]:
    """Look for damage and repair it if asked."""
    findings = [Finding(*found) for found in db.check(mend_copy, repair=repair)]
    if not all(finding.repaired for finding in findings):
        return findings  # nothing in a damaged file can be relied on
    return [
        *findings,
        *(Finding(*found) for found in db.check_rows(faults, repair=repair)),
        *(Finding(*fault, _BY_HAND) for fault in db.read(lambda connection: list(Layout(connection).unclear()))),
    ]


def mend(connection: Connection) -> int:
    """Replace every text that cannot be read, set damaged settings aside, and restore partitions; return how many."""
    return len(mend_faults(connection, faults(connection)))


def faults(connection: Connection) -> list[Fault]:
    """Return the lost partitions, damaged numbers, and the texts and settings that cannot be read."""
    lost = list(_lost_partitions(connection))
    found = [*Layout(connection).faults(), *lost]
    found += _damaged_numbers(connection, lost={fault.values[0] for fault in lost})
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
        if fault := settings_fault(settings) or schema_fault(_schema_in(settings)):
            problem, change = f"its settings cannot be used: {fault}", "update topics set settings = '{}' where id = ?"
            kept = f"set_aside.topic.{topic}.{new_token()}", settings
            found.append(Fault(f"{name!r:.60}", problem, "set them aside", change, (topic,), kept))
    return found


class Layout:
    """Which partitions each topic has. Topics are never removed, so each begins where the one before it ends.

    If one number of a topic is damaged, the topics beside it and the shares of its groups tell what it was.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: dict[int, tuple[int, int]] = {
            row[0]: row[1:]  # type: ignore[misc]
            for row in connection.execute("select id, base, partitions from topics not indexed order by id").fetchall()
        }
        self._end: int = connection.execute("select coalesce(max(id), 0) + 1 from topic_partitions").get
        shares: list[tuple[int, int, int]] = connection.execute(_SHARES).fetchall()  # type: ignore[assignment]
        self._shares = {topic: (first, last + 1 - first) for topic, first, last in shares}

    def ranges(self) -> list[range]:
        """Return the partitions of each topic whose row is whole."""
        return [range(base, base + many) for topic, (base, many) in self._rows.items() if not self.fault(topic)]

    def fault(self, topic: int) -> str:
        """Return why the partitions of a topic cannot be these, or ''."""
        return self._fault(topic, *self._rows[topic])

    def _fault(self, topic: int, base: object, many: object) -> str:
        if not _is_range(base, many):
            return f"it has {many!r:.30} partitions from number {base!r:.30} on"
        assert isinstance(base, int) and isinstance(many, int)
        for other, (first, count) in self._rows.items():
            if other != topic and _is_range(first, count) and base < first + count and first < base + many:
                return f"its partitions {base} to {base + many - 1} are those of topic {other} too"
        if base + many > self._end and not all(map(self._has_traces, range(max(base, self._end), base + many))):
            return f"it has {many} partitions from number {base} on, of which the last are not there"
        shared = self._shares.get(topic, (base, many))
        if shared != (base, many) and (base, many) != self._between(topic):
            return f"it has {many} partitions from number {base} on, its groups {shared[1]} from {shared[0]} on"
        return ""

    def _has_traces(self, partition: int) -> bool:
        """Return whether there are records or shares of a partition whose row is lost."""
        span = (partition << OFFSET_BITS, (partition + 1) << OFFSET_BITS, partition)
        return bool(self._connection.execute(_TRACES, span).get)

    def _between(self, topic: int) -> tuple[int, int]:
        """Return the partitions between the topic before this one and the topic after it."""
        numbers = list(self._rows)
        at = numbers.index(topic)
        before = self._rows[numbers[at - 1]] if at else (1, 0)
        after = self._rows[numbers[at + 1]] if at + 1 < len(numbers) else (self._end, 1)
        if at and not _is_range(*before) or not _is_range(*after):
            return 0, 0
        return sum(before), after[0] - sum(before)

    def _mended(self, topic: int) -> tuple[int, int] | None:
        """Return what the row of a damaged topic was, if the change of one number makes it fit."""
        base, many = self._rows[topic]
        found = self._between(topic)
        changed = (found[0] != base) + (found[1] != many)
        if changed > 1 and found != self._shares.get(topic) or self._fault(topic, *found):
            return None
        others = sum(
            count for other, (first, count) in self._rows.items() if other != topic and _is_range(first, count)
        )
        return found if others + found[1] == self._end - 1 else None  # else another topic may be the damaged one

    def faults(self) -> Iterator[Fault]:
        """Find the topics whose row can be mended."""
        for topic in self._rows:
            fault = self.fault(topic)
            if fault and (mended := self._mended(topic)):
                remedy = f"it has {mended[1]} partitions from number {mended[0]} on"
                change = "update topics set base = ?, partitions = ? where id = ?"
                yield Fault(f"topic {topic}", fault, remedy, change, (*mended, topic))
                self._rows[topic] = mended

    def unclear(self) -> Iterator[tuple[str, str]]:
        """Find the topics whose row cannot be mended, and the partitions of none."""
        deque(self.faults(), 0)
        for topic in self._rows:
            if fault := self.fault(topic):
                yield f"topic {topic}", fault
        if not any(map(self.fault, self._rows)):
            there: list[tuple[int]] = self._connection.execute("select id from topic_partitions order by id").fetchall()  # type: ignore[assignment]
            for partition in {row[0] for row in there}.difference(*self.ranges()):
                yield f"partition {partition}", "no topic has it"


def _is_range(base: object, many: object) -> bool:
    """Return whether a topic can have so many partitions from this number on."""
    if type(base) is not int or type(many) is not int:
        return False
    return 1 <= many <= MAX_PARTITIONS and 1 <= base <= LAST_PARTITION - many


def _lost_partitions(connection: Connection) -> Iterator[Fault]:
    """Find the partitions without a row, and those whose row does not fit their records."""
    for partition in chain.from_iterable(Layout(connection).ranges()):
        span = (partition << OFFSET_BITS, (partition + 1) << OFFSET_BITS)
        row = connection.execute(
            "select first_offset, next_offset from topic_partitions where id = ?", (partition,)
        ).fetchall()
        first, last = connection.execute(_ENDS, span).fetchall()[0]
        if (
            not row
            or not are_bounds(*row[0])
            or last is not None
            and not row[0][0] <= first - span[0] <= last - span[0] < row[0][1]  # type: ignore[operator]
        ):
            problem = "its row is lost, or does not fit its records"
            remedy = "restore it from its records"
            yield Fault(f"partition {partition}", problem, remedy, _RESTORE, (partition, *span))


def _damaged_numbers(connection: Connection, lost: Container[object]) -> Iterator[Fault]:
    """Find limits that no topic can have, and offsets of groups that are not in their partition, if it is not lost."""
    for topic, name, max_age, max_bytes in connection.execute(_LIMITS).fetchall():
        if not are_limits(max_age, max_bytes):
            problem, change = f"its retention is {max_age} s, {max_bytes} bytes", _KEEP_ALL
            yield Fault(f"{name!r:.60}", problem, "keep all records; set it again", change, (topic,))
    for grp, partition, committed, first, end in connection.execute(_COMMITTED).fetchall():
        if partition not in lost and are_bounds(first, end) and not are_bounds(committed, end):
            where, problem = f"partition {partition} of group {grp}", f"its offset is {committed}, the end {end}"
            change = "update topic_shares set committed = ?, note = '' where grp = ? and partition = ?"
            yield Fault(where, problem, "read all records again", change, (first, grp, partition))


def mend_copy(connection: Connection) -> int:
    """Mend a repaired file, and note the version of its tables again if that was lost; return how many rows."""
    tables = {row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'").fetchall()}
    if "topics" not in tables:
        return 0
    changed = mend(connection)
    restore_version(connection, "topics", __package__)
    return changed


def settings_fault(settings: object) -> str:
    """Return why the settings of a topic cannot be used, or ''."""
    try:
        found = jsontext.read(settings if isinstance(settings, bytes) else b"")
    except InvalidInput as exc:
        return str(exc)
    return "" if isinstance(found, dict) else "they are no JSON object"


def _schema_in(settings: object) -> object:
    return jsontext.read(settings).get("schema") if isinstance(settings, bytes) else None


def _is_text(value: object) -> bool:
    try:
        str(value, "utf-8")  # type: ignore[call-overload]
    except (UnicodeDecodeError, TypeError):
        return False
    return True
