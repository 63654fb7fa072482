"""One trial: copy the template, damage one file, and let commands, doctor, repair and consumers at it in a child.

`python -m tests.damage.trial STORE TARGET,TARGET FIRST COUNT` makes COUNT trials for each target, whose chance is
FIRST, FIRST + 1, …, and prints a line of JSON for each that must not be: a wrong body, a traceback, a hang, a loss, a
silent or harmful doctor.
"""

import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
import zlib
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import click

import pabal
from pabal.cli.main import cli
from pabal.errors import PabalError
from pabal.store import State
from pabal.stores.files import Names
from tests.crash.harness import scratch
from tests.damage.harm import CONTENT, NAMES, harm_content, harm_index, harm_name
from tests.damage.template import KINDS, QUEUES, body_of, key_of, make, queue_of, readable_keys

SECONDS = 30  # after which a trial hangs
SHOWN = (
    ("status",),
    *(("peek", queue) for queue in QUEUES),
    ("list-dlq", "jobs"),
    ("policy", "show", "jobs"),
    ("metrics",),
    ("consumers",),
    ("schedule", "list"),
)


class Target(NamedTuple):
    """A kind of file: a pattern of paths below the place, and the ways to damage one."""

    pattern: str
    ways: tuple[str, ...] = tuple(CONTENT)
    closed: bool = True  # whether the store was closed before


TARGETS: dict[str, dict[str, Target]] = {
    "files": {
        "ready": Target("store/*/ready/*"),
        "waiting names": Target("store/*/ready/*", NAMES),
        "delayed": Target("store/*/delayed/*"),
        "delayed names": Target("store/*/delayed/*", NAMES),
        "names in flight": Target("store/*/inflight/*", NAMES),
        "settled names": Target("store/*/d[eo][an][de]/*", NAMES),
        "names in settling": Target("store/.settling/*/*", NAMES),
        "inflight": Target("store/*/inflight/*"),
        "dead": Target("store/*/dead/*"),
        "reasons": Target("store/*/*/*.why"),
        "locks": Target("store/*.lock"),
        "dedup": Target("store/*/dedup/*"),
        "settings": Target("store/*/settings.json"),
        "format": Target("store/pabal.json"),
        "settling": Target("store/.settling/*/*"),
        "ballast": Target("store/.ballast"),
        "counters": Target("store/.counters/*"),
        "consumers": Target("store/.consumers/*"),
    },
    "sqlite": {
        "database": Target("pabal.db"),
        "indexes": Target("pabal.db", ("index",)),
        "open database": Target("pabal.db", closed=False),
        "WAL": Target("pabal.db-wal", closed=False),
        "lock": Target("pabal.db.lock"),
        "bells": Target("pabal.db.bells/*"),
        "ballast": Target("pabal.db.ballast"),
        "counters": Target("pabal.db.counters/*"),
        "consumers": Target("pabal.db.consumers/*"),
    },
    "hybrid": {
        "database": Target("store/pabal.db"),
        "indexes": Target("store/pabal.db", ("index",)),
        "bodies": Target("store/bodies/*/*"),
        "body names": Target("store/bodies/*/*", NAMES),
        "WAL": Target("store/pabal.db-wal", closed=False),
        "beside": Target("store/pabal.db.*"),
    },
}


class Seen(NamedTuple):
    """What one use of a damaged store gave."""

    keys: list[str]  # of the bodies that were found, in any state
    delivered: list[str]
    wrong: list[str]
    corrupt: int
    refused: str  # the error that ended it, if one did
    usable: bool  # new messages were published and delivered
    gone: list[str]  # keys that were there before, were not delivered, and are not there any more


def use(url: str) -> Seen:
    """Browse everything, then drain what is ready, publish anew, drain that and browse again."""
    keys: list[str] = []
    delivered: list[str] = []
    wrong: list[str] = []
    left: list[str] = []
    gone: list[str] = []
    corrupt, refused, usable = 0, "", False

    def note(where: list[str], queue: str, body: object) -> None:
        key = key_of(body)
        if key is None or queue_of(key) not in ("", queue):
            wrong.append(f"in {queue}: {body!r:.300}")
        else:
            where.append(key)

    def browse(where: list[str]) -> int:
        corrupt = 0
        for name in QUEUES:
            for state in State:
                for entry in connection.queue(name).entries(state):
                    corrupt += entry.state is State.CORRUPT
                    if entry.message is not None:
                        note([] if state is State.DONE else where, name, entry.message.body)
        return corrupt

    def drain(name: str) -> None:
        while found := connection.queue(name).lease(5):
            for delivery in found:
                note(delivered, name, delivery.message.body)
                delivery.ack()

    try:
        connection = pabal.connect(url)
        corrupt = browse(keys)
        for name in QUEUES:
            try:
                drain(name)
            except PabalError as exc:
                refused = refused or f"{name}: {exc.code}: {exc}"
        for name in QUEUES:
            queue = connection.queue(name)
            # One bit away from what is there.
            published = queue.publish(body_of("new"), id="own-7", dedup_key="key-7")
            if published.duplicate:
                wrong.append(f"not stored in {name}: a duplicate of {published.id}")
            queue.publish(body_of("new-in-group"), id="new-in-group", group="new")
            drain(name)
        browse(left)
        gone = sorted({*keys} - {*delivered, *left})
        usable = delivered.count("new") == len(QUEUES) and delivered.count("new-in-group") == len(QUEUES)
        connection.close()
    except PabalError as exc:
        refused = refused or f"{exc.code}: {exc}"
    found = sorted(key for key in {*keys, *delivered} if queue_of(key))
    return Seen(found, delivered, wrong, corrupt, refused, usable, gone)


def command(url: str, *arguments: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and output. Raise what would be a traceback."""
    output = io.StringIO()
    code = 0
    with redirect_stdout(output), redirect_stderr(output):
        try:
            cli(["--url", url, *arguments], prog_name="pabal")
        except SystemExit as exc:
            code = exc.code if isinstance(exc.code, int) else 1
    return code, output.getvalue()


def examine(store: str, place: Path) -> dict[str, Any]:
    """Use a damaged store without and with a repair."""
    kind = KINDS[store]
    mended = place.with_name("mended")
    shutil.copytree(place, mended, symlinks=True)
    url, other = kind.url(place), kind.url(mended)
    outputs = [command(url, *arguments) for arguments in SHOWN]
    doctor = command(url, "doctor", "--json")
    before = use(url)
    repair = command(other, "doctor", "--repair", "--json")
    again = command(other, "doctor", "--json")
    after = use(other)
    return {
        "commands": [code for code, _ in outputs],
        "doctor": doctor,
        "repair": repair,
        "again": again,
        "before": before._asdict(),
        "after": after._asdict(),
    }


def in_child(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Do something in a child that is killed if it does not end; return its result or how it ended."""
    report = tempfile.TemporaryFile()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(SECONDS)
        try:
            answer = work()
        except BaseException:
            answer = {"traceback": traceback.format_exc()[-2500:]}
        report.write(json.dumps(answer).encode())
        report.flush()
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    report.seek(0)
    data = report.read()
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return {"hang": SECONDS} if number == signal.SIGALRM else {"traceback": f"killed by signal {number}"}
    return dict(json.loads(data))


def trial(store: str, target: Target, template: Path, keys: set[str], seed: int) -> list[str]:
    """Make one trial; return what is wrong with its outcome."""
    chance = random.Random(seed)
    with scratch() as folder:
        place = copied(template, Path(folder))
        files = sorted(path for path in place.rglob("*") if fits(path, place, target.pattern))
        victim = chance.choice(files)
        own = {key for key in keys if f'"key":"{key}"'.encode() in victim.read_bytes()} if victim.exists() else set()
        how = chance.choice(target.ways)
        if how == "index":
            harm_index(victim, chance)
        elif how in NAMES:
            harm_name(victim, how, chance)
        else:
            harm_content(victim, how, chance)
        database = KINDS[store].sqlite
        hit = set() if database == str(victim.relative_to(place)) else own
        if how in NAMES and (database or checksums_fit(victim.parent)):
            hit = set()
        readable = keys
        if database:
            copy = Path(folder) / "raw"
            shutil.copytree(place, copy, symlinks=True)
            found = readable_keys(copy / database)
            shutil.rmtree(copy)
            readable = set() if found is None else found & keys
        seen = in_child(lambda: examine(store, place))
        faults = judge(store, readable, keys, hit, seen, [place, place.with_name("mended")])
        return [f"seed {seed}, {store}, {how} {victim.relative_to(place)}: {fault}" for fault in faults]


def checksums_fit(folder: Path) -> bool:
    """Say whether the checksum in each name of a folder is that of its file: if not, nothing tells which is damaged."""
    names = Names(native=True, extension=".json")
    slots = [(path, names.parse(path.name)) for path in folder.iterdir()]
    return all(slot is None or slot.crc == zlib.crc32(path.read_bytes()) for path, slot in slots)


def fits(path: Path, place: Path, pattern: str) -> bool:
    return (path.is_symlink() or path.is_file()) and fnmatch(str(path.relative_to(place)), pattern)


def copied(template: Path, folder: Path) -> Path:
    """Return a copy of the template in a folder."""
    return Path(shutil.copytree(template, folder / "place", symlinks=True))


def judge(
    store: str, readable: set[str], keys: set[str], hit: set[str], seen: dict[str, Any], places: list[Path]
) -> Iterator[str]:
    """Yield what must not be. `hit` is the key of the message whose own file was damaged: it may be set aside."""
    if "hang" in seen:
        yield f"no end after {seen['hang']} s"
        return
    if "traceback" in seen:
        yield seen["traceback"]
        return
    for when, place in zip(("before", "after"), places, strict=True):
        use = seen[when]
        if use["wrong"]:
            yield f"{when} repair: wrong bodies {use['wrong'][:3]}"
        if use["gone"]:
            yield f"{when} repair: settled without a delivery: {use['gone']}"
        twice = sorted(key for key in set(use["delivered"]) if use["delivered"].count(key) > 1 and key in keys)
        if twice:
            yield f"{when} repair: delivered twice: {twice}"
        if store == "files" and (again := {"input", "done-0", "done-1", "done-2"} & set(use["delivered"])):
            yield f"{when} repair: delivered again after its ack: {sorted(again)}"
        missing = readable - set(use["keys"])
        unseen = keys - set(use["keys"]) - hit
        if store != "sqlite" and (gone := unseen - kept(place, unseen)):
            yield f"{when} repair: destroyed: {sorted(gone)}"
        if when == "after" and not use["usable"] and (not KINDS[store].sqlite or readable):
            yield f"unusable after repair: {use['refused']}; doctor: {seen['repair'][1][-600:]}"
        elif when == "after" and missing - hit:
            yield f"not found after repair: {sorted(missing - hit)}; {seen['repair'][1][-600:]}"
        if when == "before" and (missing or use["refused"]) and seen["doctor"][0] == 0 and use["corrupt"] == 0:
            yield f"doctor is content; refused: {use['refused']!r}, missing: {sorted(missing)}"
    worse = set(seen["before"]["keys"]) - set(seen["after"]["keys"])
    if worse:
        yield f"worse after repair: {sorted(worse)}; {seen['repair'][1][-600:]}"


def kept(place: Path, keys: set[str]) -> set[str]:
    """Return the keys whose body still lies in some file."""
    found: set[str] = set()
    for path in place.rglob("*") if keys else ():
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            found |= {key for key in keys if f'"key":"{key}"'.encode() in data}
    return found


def main(store: str, name: str, first: int, count: int) -> None:
    target = TARGETS[store][name]
    with scratch() as folder:
        template = Path(folder) / "template"
        keys = make(store, template, closed=target.closed)
        assert any(fits(path, template, target.pattern) for path in template.rglob("*")), f"no file is {target.pattern}"
        intact = in_child(lambda: examine(store, copied(template, Path(folder) / "intact")))
        for when in ("before", "after"):
            assert set(intact[when]["keys"]) == keys and intact[when]["usable"], intact
        for seed in range(first, first + count):
            for fault in trial(store, target, template, keys, seed):
                click.echo(json.dumps(fault))


if __name__ == "__main__":
    for name in sys.argv[2].split(","):
        main(sys.argv[1], name, int(sys.argv[3]), int(sys.argv[4]))
