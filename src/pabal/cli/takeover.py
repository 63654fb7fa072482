"""`pabal takeover`: a new store from a tree of the original system."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from pabal import jsontext
from pabal.cli.exits import end_with_nothing
from pabal.cli.session import command, current_url, json_option
from pabal.cli.text import Progress, clean, json_text
from pabal.cli.values import ExistingPath
from pabal.connect import take_over
from pabal.errors import InvalidConfig, InvalidInput
from pabal.filesystem import read_plain
from pabal.store import Entry, FailureCode, State
from pabal.stores.original import Folders
from pabal.stores.sqlite import Tables

_STATES = (State.READY, State.DELAYED, State.DEAD, State.DONE)
_DAMAGED = frozenset({FailureCode.CORRUPT, FailureCode.MISSING_PAYLOAD})

existing = ExistingPath()


@command("takeover")
@click.argument("source", metavar="FROM", type=existing)
@click.option(
    "--payloads", metavar="DIR", type=existing, help="The payload files of a hybrid store; else payloads beside FROM."
)
@click.option(
    "--config", metavar="FILE", type=existing, help="The original's configuration, if it renames folders or tables."
)
@json_option
def takeover(source: Path, payloads: Path | None, config: Path | None, as_json: bool) -> None:
    """Make a new store from a tree of the original system.

    FROM is the folder `filesystem.root` or the file `sqlite.dbPath` of its configuration. It is not changed; stop the
    original first. There must be no store at the place of the URL: it appears when it is whole, so the command may be
    killed and started again. All messages come along with ids, attempts, delays and policies. Leased ones are ready.
    What cannot be read becomes a dead letter with its bytes and the reason, and the command ends with 1.

    \b
    Examples:
      pabal takeover data/fs --url file:spool
      pabal takeover data/yirangmq.db --payloads data/payloads --url hybrid:spool

    --json: queue, ready, delayed, dead, done, damaged.
    """
    found = _Found()
    names = _configured(config)
    take_over(
        current_url(),
        source,
        payloads=payloads,
        folders=_named(Folders, names.get("filesystem"), "{}Dir"),
        tables=_named(Tables, names.get("sqlite"), "{}Table"),
        progress=found,
    )
    for queue, counts in found.counts.items():
        numbers = {str(state): counts[state] for state in _STATES}
        damaged = sum(entry.queue == queue for entry in found.damaged)
        if as_json:
            click.echo(json_text({"queue": queue, **numbers, "damaged": damaged}))
        else:
            click.echo(f"{queue}: " + ", ".join(f"{many} {state}" for state, many in numbers.items()))
    for entry in found.damaged:
        assert entry.failure is not None
        click.echo(clean(f"{entry.queue}/{entry.id} is dead: {entry.failure.reason}"), err=True)
    if found.damaged:
        end_with_nothing()


class _Found:
    """Counts what is taken over, and shows the number."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[State]] = {}
        self.damaged: list[Entry] = []
        self._many = 0
        self._show = Progress()

    def __call__(self, entry: Entry) -> None:
        self.counts.setdefault(entry.queue, Counter())[entry.state] += 1
        if entry.failure is not None and entry.failure.code in _DAMAGED:
            self.damaged.append(entry)
        self._many += 1
        self._show(f"{self._many} messages")


def _configured(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        found = jsontext.read(read_plain(path))
    except (InvalidInput, OSError) as exc:
        raise InvalidConfig(f"{path} cannot be read: {exc}") from exc
    return found if isinstance(found, dict) else {}


def _named(kind: Any, section: object, key: str) -> Any:
    """Return the names of folders or tables, those of the configuration before the usual ones."""
    given = section if isinstance(section, dict) else {}
    keys = {"kv": "kvTable", "msg_index": "messageIndexTable"}
    found = {name: given.get(keys.get(name, key.format(name))) for name in kind._fields}
    return kind(**{name: text for name, text in found.items() if isinstance(text, str) and text and "/" not in text})
