"""The folder of a settlement with follow-ups: `.settling/<id>~<token>~<tag>~<hash of the queue>/`.

    plan.json                         the steps that remain
    why                               the reason, if the verdict has one
    <number>.<hash of queue>~<name>   a follow-up message, as it is named in its queue
    input                             the settled message: there from the commit until the follow-ups are published

The plan is written twice into its file, each time with its checksum. If both are damaged, the names say enough to
publish the follow-ups.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from pabal import jsontext
from pabal.filesystem import UNREADABLE, read_whole
from pabal.ids import new_tag
from pabal.store import Receipt
from pabal.stores.files.names import digest, short_token

if TYPE_CHECKING:
    from pabal.stores.files.root import Root

PLAN, INPUT, WHY = "plan.json", "input", "why"

_OUTPUT = re.compile(r"\d+\.([0-9a-z]{8})~(.+)", re.ASCII | re.DOTALL).fullmatch

Plan: TypeAlias = dict[str, Any]


def new_folder(root: Root, receipt: Receipt) -> str:
    """Return the path of a new folder."""
    return f"{root.settling}/{receipt.id}~{short_token(receipt.token)}~{new_tag()}~{digest(receipt.queue)}"


def output_name(number: int, queue: str, final: str) -> str:
    """Return the name of a follow-up message in the folder."""
    return f"{number}.{digest(queue)}~{final}"


def plan_text(plan: Plan) -> bytes:
    """Return the content of a plan's file."""
    text = jsontext.encode(plan)
    return b"\n%08x %s\n" % (zlib.crc32(text), text) * 2


def read_plan(folder: str) -> Plan | None:
    """Return the plan of a folder; None if it is missing or damaged."""
    try:
        lines = read_whole(f"{folder}/{PLAN}")[0].split(b"\n")
    except (FileNotFoundError, NotADirectoryError, *UNREADABLE):
        return None
    for line in lines:
        checksum, _, text = line.partition(b" ")
        if checksum == b"%08x" % zlib.crc32(text):
            plan: Plan = jsontext.decode(text)
            return plan
    return None


def is_committed(folder: str) -> bool:
    """Say whether a settlement is committed and not finished."""
    return os.path.lexists(f"{folder}/{INPUT}")


class FolderName(NamedTuple):
    """The parts of a folder's name. `queue` is empty if the name does not say it."""

    id: str
    queue: str


class OutputName(NamedTuple):
    """A follow-up message: its name in the folder, its queue, and its name there."""

    file: str
    queue: str
    final: str


def queues_by_hash(root: Root) -> dict[str, str]:
    """Return the names of the queues by the hashes that stand in the names of folders and follow-ups."""
    return {digest(name): name for name in root.layout.queues(Path(root.path))}


def parse_folder(folder: str, queues: dict[str, str]) -> FolderName:
    """Return the parts of a folder's name."""
    id, _, rest = os.path.basename(folder).partition("~")
    return FolderName(id, queues.get(rest.rpartition("~")[2], ""))


def unexplained(folder: str) -> list[str]:
    """Return the names in a folder that no settlement gives, and those of folders."""
    return [
        name
        for name in os.listdir(folder)
        if name not in (PLAN, WHY, INPUT) and not _OUTPUT(name) or _is_folder(f"{folder}/{name}")
    ]


def remains(folder: str) -> list[str]:
    """Return the names in a finished folder of what must not be removed: all but the plan and the reason."""
    return [name for name in os.listdir(folder) if name not in (PLAN, WHY) or _is_folder(f"{folder}/{name}")]


def _is_folder(path: str) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


def outputs_in(folder: str, queues: dict[str, str]) -> Iterator[OutputName]:
    """Yield the follow-up messages that a folder still has, by their names alone."""
    for file in sorted(os.listdir(folder)):
        found = _OUTPUT(file)
        if found and found[1] in queues:
            yield OutputName(file, queues[found[1]], found[2])
