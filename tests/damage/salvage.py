"""Damage to a database, and what `pabal doctor --salvage` carries: `python -m tests.damage.salvage STORE FIRST COUNT`.

A message whose page is still whole, and one that SQLite itself still reads, must be in the new store, whatever its
state, and in the damaged one after `--repair`. Prints a line of JSON for each trial that must not be, as
`tests.damage.trial` does.
"""

import json
import logging
import random
import shutil
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import click

import pabal
from pabal.errors import PabalError
from pabal.sql.connection import connect
from pabal.sql.pages import PageFile
from pabal.store import State
from tests.crash.harness import scratch
from tests.damage.harm import CONTENT, PAGE, harm_content
from tests.damage.template import KINDS, body_of, key_of, readable_keys, store_at
from tests.damage.trial import command, copied, in_child

_HOUR = 3600.0


def make(kind: str, place: Path, *, closed: bool) -> set[str]:
    """Make a store whose tables have several levels and free pages; return the keys that must not be lost."""
    with store_at(kind, place, closed=closed) as connection:
        return _fill(connection, place.with_name(f"{place.name}.live") / KINDS[kind].sqlite)


def _fill(connection: pabal.Connection, database: Path) -> set[str]:
    jobs = connection.queue("jobs")

    def put(name: str, many: int, **options: Any) -> list[str]:
        """Publish messages with the same ids each time, so that a seed makes the same damage."""
        keys = [f"{name}-{number}" for number in range(many)]
        for key in keys:
            jobs.publish(body_of(key), id=key, **options)
        return keys

    for name in ("gone", "done", "dead"):
        put(name, 20)
        for delivery in jobs.lease(20):
            delivery.bury("it cannot be done") if name == "dead" else delivery.ack()
        if name == "gone":
            jobs.purge(State.DONE)
    keys = {f"dead-{number}" for number in range(20)}
    keys |= {*put("later", 20, delay=_HOUR), *put("held", 10, priority=9)}
    held = jobs.lease(10, visibility=_HOUR)
    with closing(connect(database)) as beside:
        beside.execute("pragma wal_checkpoint").fetchall()  # what comes later is in the WAL of a store that was killed
    keys |= {*put("plain", 60)}
    # Pages that get free again, with the rows of messages that were withdrawn.
    assert connection.store.purge("jobs", State.READY, ids=put("withdrawn", 50)) == 50
    assert len(held) == 10
    return keys


def harm(database: Path, chance: random.Random) -> tuple[str, set[str]]:
    """Damage the database, its WAL or a body; return what was done, and the key whose body is lost."""
    wal = Path(f"{database}-wal")
    bodies = sorted(database.parent.glob("bodies/*/*.json"))
    if bodies and chance.random() < 0.2:
        body = chance.choice(bodies)
        key = key_of(json.loads(body.read_bytes())["payload"])
        harm_content(body, how := chance.choice(list(CONTENT)), chance)
        return f"{how} {body.name}", {key or ""}
    victim = chance.choice([database, database, wal]) if wal.exists() else database
    how = chance.choice([*CONTENT, "pages", "pages"])
    if how == "swap" and victim == database:
        with closing(PageFile(database)) as file:
            free = {*(file.free or ()), *_wal_pages(wal)}
        # Not with a page that is free or has a newer version in the WAL: such an old page in the place of a live one
        # cannot be told from it, because SQLite has no checksums.
        data = bytearray(victim.read_bytes())
        live = [number for number in range(len(data) // PAGE) if number + 1 not in free]
        one, other = (slice(number * PAGE, (number + 1) * PAGE) for number in chance.sample(live, 2))
        data[one], data[other] = data[other], data[one]
        victim.write_bytes(data)
    elif how != "pages":
        harm_content(victim, how, chance)
    else:
        data = bytearray(victim.read_bytes())
        for _ in range(chance.randint(1, 3)):
            at = chance.randrange(max(1, len(data) // PAGE)) * PAGE
            data[at : at + PAGE] = chance.randbytes(min(PAGE, len(data) - at))
        victim.write_bytes(data)
    return f"{how} {victim.name}", set()


class Readable:
    """Says which messages can still be read in a damaged copy of a template: those of rows whose page is as it was.

    A page is known by its bytes, wherever it is in the damaged file, so nothing here follows a damaged tree.
    """

    def __init__(self, database: Path, keys: set[str]) -> None:
        self._keys = keys
        self._in_wal = _wal_pages(Path(f"{database}-wal"))
        self._by_bytes: dict[bytes, set[str]] = {}
        self._kept: set[str] = set()  # in the WAL
        data, seen = database.read_bytes(), set[str]()
        with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            live = "select pageno from dbstat where name = 'messages' and pagetype = 'leaf'"
            pages = closing(PageFile(database))
            with pages as file:
                for (number,) in connection.execute(live):
                    rows = (row.values[16:] for row in file._rows_in(number))
                    found = {key for crc, place in rows if (key := whole_key(place, crc, database.parent / "bodies"))}
                    seen |= found
                    if number in self._in_wal:
                        self._kept |= found & keys
                    else:
                        self._by_bytes[data[(number - 1) * PAGE : number * PAGE]] = found & keys
        assert keys <= seen, "the template itself cannot be read"

    def __call__(self, database: Path) -> set[str]:
        data = database.read_bytes()
        found = set(self._kept)
        for number in range(1, len(data) // PAGE + 1):
            if number not in self._in_wal:
                found |= self._by_bytes.get(data[(number - 1) * PAGE : number * PAGE], set())
        return found


def _wal_pages(wal: Path) -> set[int]:
    """Return the numbers of all pages in a WAL that is not damaged. Behind its end are frames with other salts."""
    data = wal.read_bytes() if wal.exists() else b""
    frames = range(32, len(data), PAGE + 24)
    return {int.from_bytes(data[at : at + 4], "big") for at in frames if data[at + 8 : at + 16] == data[16:24]}


def whole_key(place: Any, crc: Any, bodies: Path) -> str | None:
    try:
        data = (bodies / place).read_bytes() if isinstance(place, str) else place
        return key_of(json.loads(data).get("payload")) if crc32(data) == crc else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def examine(url: str, target: str, mended: str) -> dict[str, Any]:
    """Salvage a damaged store, and repair a copy of it; return what both have and deliver."""
    code, output = command(url, "doctor", "--salvage", target.partition(":")[2])
    repaired = command(mended, "doctor", "--repair", "--json")
    return {"salvaged": look(target, output), "repaired": look(mended, repaired[1])}


def look(url: str, output: str) -> dict[str, Any]:
    """Return what a store has and delivers, and whether the doctor is content with it."""
    keys: list[str] = []
    delivered: list[str | None] = []
    refused, well = "", -1
    try:
        with pabal.connect(url, create=False) as connection:
            for name in connection.queues():
                for state in State:
                    for entry in connection.queue(name).entries(state):
                        body = entry.message.body if entry.message else None
                        if entry.state is State.CORRUPT:
                            try:
                                body = json.loads(entry.data).get("payload")
                            except (ValueError, AttributeError):
                                body = None
                        keys += [key] if (key := key_of(body)) and state is not State.DONE else []
                while found := connection.queue(name).lease(50):
                    for delivery in found:
                        delivered.append(key_of(delivery.message.body))
                        delivery.ack()
        well, told = command(url, "doctor", "--json")
        output += told
    except PabalError as exc:
        refused = f"{exc.code}: {exc}"
    return {"output": output[-2500:], "keys": keys, "delivered": delivered, "refused": refused, "well": well}


def judge(seen: dict[str, Any], keys: set[str], readable: set[str], *, wal: bool) -> Iterator[str]:
    """Yield what must not be. A damaged WAL loses commits: messages that these handled may come again."""
    if "hang" in seen or "traceback" in seen:
        yield f"{seen}"
        return
    for how, store in seen.items():
        if left := readable - set(store["keys"]):
            some = f"{sorted(left)[:5]} and {len(left)} in all"
            yield f"{how}: left behind: {some}; {store['refused']} {store['output']}"
        delivered = store["delivered"]
        if wrong := [key for key in delivered if (key is None if wal else key not in keys)]:
            yield f"{how}: wrong or handled before: {wrong[:5]}"
        if len(set(delivered)) < len(delivered):
            yield f"{how}: delivered twice"
        if store["well"] != 0 and readable:
            yield f"{how}: the store is not well: {store['well']} {store['refused']} {store['output']}"


def trial(store: str, template: Path, keys: set[str], readable: Readable, seed: int) -> Iterator[str]:
    """Make one trial; yield what is wrong with its outcome."""
    with scratch() as folder:
        place = copied(template, Path(folder))
        database = place / KINDS[store].sqlite
        how, lost = harm(database, random.Random(seed))
        before = {path: path.read_bytes() for path in database.parent.glob(f"{database.name}*") if path.is_file()}
        wal = how.endswith("-wal")
        whole = set() if wal else readable(database)
        raw = Path(shutil.copytree(place, Path(folder) / "raw", symlinks=True))
        whole |= (readable_keys(raw / KINDS[store].sqlite) or set()) & keys
        whole -= lost
        (new := Path(folder) / "new").mkdir()
        mended = Path(shutil.copytree(place, Path(folder) / "mended", symlinks=True))
        seen = in_child(lambda: examine(*map(KINDS[store].url, (place, new, mended))))
        faults = [*judge(seen, keys, whole, wal=wal)]
        if any(path.read_bytes() != data for path, data in before.items()):
            faults.append("the damaged store was changed")
        yield from (f"seed {seed}, {how}: {fault}" for fault in faults)


def main(store: str, first: int, count: int) -> None:
    logging.getLogger("pabal").addHandler(logging.NullHandler())
    with scratch() as folder:
        made = []
        for name in ("closed", "killed"):
            template = Path(folder) / name
            keys = make(store, template, closed=name == "closed")
            judged = Path(shutil.copytree(template, Path(folder) / f"{name}.read", symlinks=True))
            made.append((template, keys, Readable(judged / KINDS[store].sqlite, keys)))
        for seed in range(first, first + count):
            for fault in trial(store, *made[seed % 2], seed):
                click.echo(json.dumps(fault))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
