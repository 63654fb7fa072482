"""Take in orphaned body files: whole messages that no row names, as after the loss of the index."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

from pabal.errors import DecodeError, InvalidInput, StoreFailed
from pabal.names import check_name
from pabal.store import Entry, FailureCode, Finding, State
from pabal.stores.sqlite.bodies import BodyFolder
from pabal.stores.sqlite.check import Checker, is_named
from pabal.stores.sqlite.maintain import Maintainer
from pabal.stores.sqlite.read import Reader
from pabal.stores.sqlite.transfer import Importer

T = TypeVar("T")

_BATCH = 100


class _Orphan(NamedTuple):
    """An orphaned file in the order in which messages are taken in."""

    queue: str
    at: float
    id: str
    name: str


class Adopter(Reader, Maintainer, Checker, Importer):
    def adopt(self) -> list[Finding]:
        """Publish the messages of all files that no message names, in the order of their time.

        They are ready, whatever they were before; their ids and times to live stay. A message that is here already, in
        any state, keeps its file out, which then stays among the orphaned. A message that is dead only because its
        file was missing is made ready if the file is there.
        """
        bodies = self._bodies
        if not isinstance(bodies, BodyFolder):
            raise InvalidInput(f"{self._db.path} keeps its messages in rows: only a hybrid store has files to adopt")
        findings = [finding for finding in self._check_leftovers(bodies, repair=True) if not finding.repaired]
        findings += self._revive_found()
        orphans: list[_Orphan] = []
        for name in bodies.orphans():
            found = self._read_orphan(bodies, name)
            if isinstance(found, Entry):
                at = found.message.created_at if found.message else 0.0
                orphans.append(_Orphan(found.queue, at, found.id, name))
            else:
                findings.append(found)
        for _, group in groupby(sorted(orphans), key=lambda orphan: orphan.queue):
            for some in _batches(list(group)):
                findings += self._adopt_some(bodies, some)
        if young := sum(not self._db.read(partial(is_named, name)) for name, _ in bodies.files()):
            problem = f"{young} files are younger than a minute and may belong to a publish that has not ended"
            findings.append(Finding("bodies", problem, "repeat in a minute"))
        return findings

    def _read_orphan(self, bodies: BodyFolder, name: str) -> Entry | Finding:
        queue, file = name.split("/", 1)
        where, stem = f"{bodies.orphaned}/{name}", file.removesuffix(".json").split("~")[0]
        try:
            check_name(queue)
            message = self._codec.decode(bodies.get_orphan(name), id=stem)
            if message.id != stem:
                return Finding(where, f"it holds a message with the id {message.id!r:.80}", "name it after its id")
            return Entry(queue, message.id, State.READY, due_at=message.created_at, message=message)
        except (DecodeError, InvalidInput, StoreFailed) as exc:
            reason = exc.reason if isinstance(exc, DecodeError) else str(exc)
            return Finding(where, f"it cannot be read: {reason}", "mend it and repeat, or remove it")

    def _adopt_some(self, bodies: BodyFolder, orphans: Sequence[_Orphan]) -> Iterator[Finding]:
        entries: dict[str, Entry] = {}
        for orphan in orphans:
            found = self._read_orphan(bodies, orphan.name)
            if isinstance(found, Entry):
                entries.setdefault(orphan.id, found)
        taken = set(self.carry(orphans[0].queue, list(entries.values())))
        for orphan in orphans:
            where = f"{bodies.orphaned}/{orphan.name}"
            if orphan.id in taken:
                taken.remove(orphan.id)  # a second file of this id is not that which was taken in
                bodies.remove_orphan(orphan.name)
                yield Finding(where, "no message named this file", f"{orphan.queue}/{orphan.id} is ready", True)
            else:
                entry = self.find(orphan.queue, orphan.id)
                problem = f"a message with its id is {entry.state if entry else 'gone'} here"
                yield Finding(where, problem, "remove the file, or give it and its messageId another id")

    def _revive_found(self) -> Iterator[Finding]:
        """Make messages ready that are dead for want of their file, which is there now."""
        for queue in self.queues():
            after, found = "", list[str]()
            while page := self.browse(queue, State.DEAD, after=after):
                after = page[-1].cursor
                found += [
                    entry.id
                    for entry in page
                    if entry.message and entry.failure and entry.failure.code == FailureCode.MISSING_PAYLOAD
                ]
            for some in _batches(found):
                for id in self.revive(queue, some):
                    yield Finding(f"{queue}/{id}", "it was dead for want of its file", "it is ready", True)


def _batches(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + _BATCH] for start in range(0, len(items), _BATCH))
