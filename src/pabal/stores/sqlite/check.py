"""Check and repair: the file, its rows, stuck groups, body files without rows.

Never revives dead messages, and never takes a message from the consumer that holds it.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

from pabal.durable import translated
from pabal.errors import StoreFailed
from pabal.sql.connection import Connection
from pabal.sql.pages import PageFile
from pabal.sql.place import real_path
from pabal.sql.writer import Transaction
from pabal.store import Finding
from pabal.stores.sqlite.bodies import BodyFolder
from pabal.stores.sqlite.damaged_rows import (
    Diagnosis,
    Row,
    Rows,
    doubted_states,
    is_unchanged,
    mend_copy,
    name_queues,
    queue_faults,
    restore,
)
from pabal.stores.sqlite.groups import release, stuck
from pabal.stores.sqlite.maintain import is_document, take_orphans
from pabal.stores.sqlite.queues import Queues
from pabal.stores.sqlite.rescue import rescue

_SLICE = 500
_LEFTOVER_SECONDS = 60.0  # a younger file may belong to a publish that has not committed yet
# `state > 2` is the condition of an index, which SQLite does not conclude from `state = 3`.
_HELD_GROUPS = """
select distinct queues.name, queue_id, grp from messages join queues on queues.id = queue_id
where state = 3 and state > 2"""
_ORPHANED = "select exists (select 1 from orphaned_files where name = ?)"


class Checker(Queues):
    def check(self, *, repair: bool) -> list[Finding]:
        """Look for damage and leftovers, and repair them if asked; the most serious findings come first."""
        doubted = doubted_states(self._db.path) if repair else set()
        mends = partial(mend_copy, codec=self._codec, bodies=self._bodies, clock=self._clock, doubted=doubted)
        adds = partial(rescue, bodies=self._bodies, clock=self._clock, alone=True)
        findings = [Finding(*found) for found in self._db.check(mends, adds, repair=repair)]
        if not all(finding.repaired for finding in findings):
            return findings  # nothing in a damaged file can be relied on
        if findings:
            self._known.clear()
        findings += self._check_queues(repair)
        findings += self._check_rows(repair, lost=bool(findings))
        findings += self._check_groups(repair)
        if isinstance(self._bodies, BodyFolder):
            findings += self._check_leftovers(self._bodies, repair)
        ballast = self._db.reserve.ballast
        if not ballast.present:
            if repair:
                ballast.restore()
            place = f"{self._db.path}.ballast"
            remedy = "make it when there is room"
            findings.append(Finding(place, "there is no ballast", remedy, ballast.present, ordinary=True))
        return findings

    def rescue(self, path: Path) -> int:
        """Add the messages that are whole in the pages of a damaged database; return how many."""
        with translated(f"reading {path}"):
            pages = PageFile(real_path(path))
        try:
            return self._db.write(
                lambda tx: rescue(tx.connection, pages, self._bodies, self._clock), durable=True, essential=True
            )
        finally:
            pages.close()
            self._known.clear()

    def _check_queues(self, repair: bool) -> Iterator[Finding]:
        yield from starmap(Finding, self._db.check_rows(queue_faults, repair=repair))
        self._known.clear()

    def _check_rows(self, repair: bool, *, lost: bool) -> Iterator[Finding]:
        """Check the rows, and once more if one changed while another was mended."""
        mended = passed_over = 1
        while mended and passed_over:
            mended = passed_over = 0
            rows = Rows(self._db.read, self._codec, self._bodies, self._clock)
            for row, diagnosis in rows.damaged(documents=True):
                mends = bool(repair and diagnosis.values)
                if mends:
                    found = self._db.write(partial(self._restore, row, diagnosis), durable=True, essential=True)
                else:
                    found = self._db.read(partial(is_unchanged, row))
                if found:  # else a consumer has handled it meanwhile, and its file may be gone for that reason
                    mended += mends
                    yield Finding(diagnosis.where, diagnosis.problem, diagnosis.remedy, mends)
                passed_over += not found
            yield from self._check_names(rows, repair)
        yield from starmap(Finding, self._db.check_rows(partial(rows.key_faults, lost=lost), repair=repair))

    def _check_names(self, rows: Rows, repair: bool) -> Iterator[Finding]:
        names = rows.names()
        if names and repair:
            self._db.write(lambda tx: name_queues(tx.connection, names), durable=True, essential=True)
            self._known.clear()
        for number, name in names.items():
            yield Finding(f"queue {number}", f"all its messages are of queue {name}", f"name it {name}", repair)

    def _restore(self, row: Row, diagnosis: Diagnosis, tx: Transaction) -> bool:
        """Restore a row if it is still as it was found; let its group go on in the queue in which it is then."""
        if not is_unchanged(row, tx.connection):
            return False
        restore(tx.connection, row, diagnosis)
        group, number = row.values["grp"], diagnosis.values["queue_id"]
        if isinstance(group, str) and number is not None:
            queue = diagnosis.where.partition("/")[0]
            release(tx, number, queue, [group])
        return True

    def _check_groups(self, repair: bool) -> Iterator[Finding]:
        groups: Any = self._db.read(lambda db: db.execute(_HELD_GROUPS).fetchall())
        for queue, number, group in groups:
            if self._db.read(partial(_is_stuck, number, group)):
                work = partial(_let_go_on, queue, number, group)
                done = repair and self._db.write(work, durable=True, essential=True)
                yield Finding(
                    f"{queue}, group {group}", "it waits for a message that has left", "let the next come up", done
                )

    def _check_leftovers(self, bodies: BodyFolder, repair: bool) -> Iterator[Finding]:
        """Set old files aside that no message names, and put orphaned files back that one names.

        No file is removed but those of settled messages, which the database lists: it may be the wrong database.
        """
        while repair and (
            names := self._db.write(partial(take_orphans, _SLICE, self._clock.now()), durable=True, essential=True)
        ):
            bodies.drop(names)
        for name in bodies.orphans():
            if self._db.read(partial(is_named, name)):
                yield _moved(
                    Finding(f"bodies/{name}", "its message is here, and the file among the orphaned", "put it back"),
                    partial(bodies.put_back, name) if repair else None,
                )
        for name in self._leftovers(bodies):
            yield _moved(
                Finding(f"bodies/{name}", "no message names this file", f"set it aside in {bodies.orphaned}"),
                partial(self._orphan, bodies, name) if repair else None,
            )

    def _leftovers(self, bodies: BodyFolder) -> list[str]:
        """Return the names of old files that no message names."""
        # The time of change, as the file system reports it: both readings come from the same clock.
        oldest = time.time() - _LEFTOVER_SECONDS
        return [
            name
            for name, stat in bodies.files()
            if max(stat.st_mtime, stat.st_ctime) <= oldest and not self._db.read(partial(is_named, name))
        ]

    def _orphan(self, bodies: BodyFolder, name: str) -> bool:
        """Set a file aside that no message names. False if one names it now."""
        reason = f"no message of {self._db.path} names this file"

        def work(tx: Transaction) -> bool:
            # Inside a transaction: a publish that wants to name this file has to wait, and then finds it gone.
            if is_named(name, tx.connection):
                return False
            bodies.set_aside(name, reason)
            return True

        return self._db.write(work, durable=False)


def _is_stuck(number: int, group: str, db: Connection) -> bool:
    return stuck(Transaction(db), number, group) is not None


def _let_go_on(queue: str, number: int, group: str, tx: Transaction) -> bool:
    release(tx, number, queue, [group])
    return queue in tx.wakeups


def _moved(finding: Finding, move: Callable[[], bool | None] | None) -> Finding:
    """Return the finding as it is after its file was moved."""
    if move is None:
        return finding
    try:
        return finding._replace(repaired=move() is not False)
    except StoreFailed as exc:
        return finding._replace(remedy=f"{finding.remedy}, which failed: {exc}")


def is_named(name: str, db: Connection) -> bool:
    """Return whether a message names this file, or it is that of a settled message."""
    return is_document(name, db) or bool(db.execute(_ORPHANED, (name,)).get)
