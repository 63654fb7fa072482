"""`pabal backup` and `pabal restore`: a store as one file, and back; archived dead letters back into their queues."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from pabal import jsontext
from pabal.cli.exits import end_with_nothing
from pabal.cli.session import command, current_url, json_option, opened
from pabal.cli.text import Progress, clean, json_text
from pabal.cli.values import ExistingPath
from pabal.clock import utc_seconds
from pabal.connect import back_up, connect, connect_topics, url_at
from pabal.connect import restore as restore_store
from pabal.envelope import message_from
from pabal.errors import InvalidInput, StoreFailed, StoreMissing
from pabal.names import check_name
from pabal.store import Checkable, Entry, Failure, Finding, Movable, State
from pabal.stores.archive import Kept, clear, draft_folder

_BATCH = 100

file_path = click.Path(path_type=Path, dir_okay=False)


@command("backup")
@click.argument("target", metavar="TO", type=file_path)
@click.option("--verify", is_flag=True, help="Restore the backup to a temporary folder beside it, and check that.")
@json_option
def backup(target: Path, verify: bool, as_json: bool) -> None:
    """Write the whole store to the file TO while it is in use.

    TO is a tar file, mode 0600, with all queues, policies and bodies, and the topics of a SQLite file. It is replaced
    only by a backup that is whole, so the same command may run every night. Every message is in it whose publish had
    returned before, unless it was handled.

    \b
    Examples:
      pabal backup /srv/backup/pabal.tar --verify
      pabal --url hybrid:spool backup "spool-$(date +%u).tar"

    --json: kind, made, files, bytes, verified.
    """
    kept = back_up(current_url(), target, progress=_progress("copied"))
    if verify:
        _verify(target)
    if as_json:
        click.echo(json_text({**kept._asdict(), "verified": verify}))
    else:
        click.echo(f"{_text(kept)} in {target}" + (", verified" if verify else ""))


@command("restore")
@click.argument("source", metavar="FROM", type=ExistingPath(dir_okay=False))
@click.option("--verify", is_flag=True, help="Only check that FROM can be restored; restore nothing.")
@json_option
def restore(source: Path, verify: bool, as_json: bool) -> None:
    """Make the store again from FROM, a file that `pabal backup` wrote.

    There must be no store at the place of the URL: move away what is left of it first. Nothing is written there if the
    backup is damaged. FROM may also be an archive of dead letters (`pabal mq archive-dlq`): they are dead in their
    queue again, and those that are there already are skipped.

    \b
    Examples:
      pabal restore /srv/backup/pabal.tar
      pabal restore .pabal/ipc/archive/jobs/1767225600000.jsonl

    --json: kind, made, files, bytes; of an archive: queue, restored, skipped.
    """
    if _is_archive(source):
        _restore_archive(source, verify, as_json)
        return
    if verify:
        kept = _verify(source)
    else:
        kept = restore_store(current_url(), source, progress=_progress("restored"))
    done = "can be restored" if verify else f"restored to {current_url()}"
    click.echo(json_text(kept._asdict()) if as_json else f"{_text(kept)} {done}")


def _text(kept: Kept) -> str:
    return f"{kept.kind} store of {kept.made}, {kept.files} files, {kept.bytes} bytes"


def _verify(source: Path) -> Kept:
    """Restore a backup to a temporary folder and check the store; raise StoreFailed if something is wrong with it."""
    with draft_folder(source.absolute().with_name(f".{source.name[:200]}.verify")) as folder:
        clear(folder)  # of a check that was killed
        url = url_at(current_url(), folder / "store")
        kept = restore_store(url, source, progress=_progress("verified"))
        found: list[Finding] = []
        try:
            with connect(url, create=False) as mq:
                assert isinstance(mq.store, Checkable)
                found += [finding for finding in mq.store.check(repair=False) if not finding.ordinary]
        except StoreMissing:
            if kept.kind != "sqlite":
                raise
        if kept.kind == "sqlite":
            with suppress(StoreMissing), connect_topics(url, create=False) as topics:
                if isinstance(topics.driver, Checkable):
                    found += topics.driver.check(repair=False)
    if found:
        first = found[0]
        raise StoreFailed(
            f"{source} is as it was written, but the store in it has {len(found)} faults, as in {first.where}: "
            f"{first.problem}; run `pabal doctor`"
        )
    return kept


def _progress(done: str) -> Callable[[int], None]:
    show = Progress()
    return lambda files: show(f"{files} files {done}")


# Archives of dead letters


def _is_archive(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(1) == b"{"


def _restore_archive(source: Path, verify: bool, as_json: bool) -> None:
    entries = list(_entries(source))
    restored, total = Counter[str](), Counter(entry.queue for entry in entries if entry.message)
    if not verify:
        with opened(create=True) as mq:
            if not isinstance(mq.store, Movable):
                raise InvalidInput("an archive is restored into a store: give its URL, not that of a mailbox")
            for queue in total:
                some = [entry for entry in entries if entry.queue == queue and entry.message]
                for start in range(0, len(some), _BATCH):
                    restored[queue] += len(mq.store.carry(queue, some[start : start + _BATCH]))
    for queue, many in total.items():
        skipped = 0 if verify else many - restored[queue]
        if as_json:
            click.echo(json_text({"queue": queue, "restored": restored[queue], "skipped": skipped}))
        elif verify:
            click.echo(f"{many} dead of {queue} can be restored")
        else:
            click.echo(f"{restored[queue]} dead in {queue} again" + (f", {skipped} known there" if skipped else ""))
    empty = [entry for entry in entries if entry.message is None]
    for entry in empty:
        click.echo(clean(f"{entry.queue}/{entry.id}: the archive has no message, only its failure"), err=True)
    if empty:
        end_with_nothing()


def _entries(source: Path) -> Iterator[Entry]:
    """Yield the dead letters of an archive; raise InvalidInput that names the line that is none."""
    with open(source, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                yield _entry(jsontext.read(line))
            except (ValueError, TypeError, KeyError, AttributeError, InvalidInput) as exc:
                raise InvalidInput(f"line {number} of {source} is no dead letter: {exc}") from exc


def _entry(document: Any) -> Entry:
    original, failure = document.get("originalMessage"), document["failure"]
    if original is None:
        return Entry(check_name(document["queue"]), document["messageId"], State.DEAD)
    at = utc_seconds(datetime.fromisoformat(failure["failedAt"]))
    message = message_from(original, id="", at=at)
    queue = check_name(document["routing"]["sourceQueue"])
    why = Failure(
        failure["reasonCode"], failure["reasonMessage"], at, failure["attempt"], consumer=failure["consumerId"]
    )
    return Entry(queue, message.id, State.DEAD, why.attempt, at, message, why)
