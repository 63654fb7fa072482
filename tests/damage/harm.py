"""Damage to one file: what disks, copies and other programs do to it."""

import os
import random
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pabal.stores.layout import admits

PAGE = 4096


def flip(data: bytes, chance: random.Random) -> bytes:
    """Flip one bit."""
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def noise(data: bytes, chance: random.Random) -> bytes:
    """Overwrite up to 64 bytes with random ones."""
    at = chance.randrange(len(data))
    length = min(chance.randint(1, 64), len(data) - at)
    return data[:at] + chance.randbytes(length) + data[at + length :]


def zero(data: bytes, chance: random.Random) -> bytes:
    """Overwrite a page, or all of a smaller file, with zeros."""
    at = chance.randrange(-(-len(data) // PAGE)) * PAGE
    length = min(PAGE, len(data) - at)
    return data[:at] + bytes(length) + data[at + length :]


def truncate(data: bytes, chance: random.Random) -> bytes:
    return data[: chance.randrange(len(data))]


def swap(data: bytes, chance: random.Random) -> bytes:
    """Exchange two pages, or two halves of a smaller file."""
    size = PAGE if len(data) >= 2 * PAGE else max(1, len(data) // 2)
    first, second = sorted(chance.sample(range(max(2, len(data) // size)), 2))
    a, b = data[first * size : (first + 1) * size], data[second * size : (second + 1) * size]
    return data[: first * size] + b + data[(first + 1) * size : second * size] + a + data[(second + 1) * size :]


CONTENT: dict[str, Callable[[bytes, random.Random], bytes]] = {
    function.__name__: function for function in (flip, noise, zero, truncate, swap)
}


def harm_index(path: Path, chance: random.Random) -> None:
    """Flip a bit at the end of an entry of an index, or of a table that is one: in its key or the number of its row."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        pages = connection.execute(
            "select pageno, ncell from dbstat join sqlite_master using (name) where pagetype = 'leaf' and ncell > 0"
            " and (type = 'index' or sql like '%without rowid%')"
        ).fetchall()
    number, entries = chance.choice(pages)
    page = (number - 1) * PAGE
    data = bytearray(path.read_bytes())
    at = page + 8 + 2 * chance.randrange(entries)
    entry = page + int.from_bytes(data[at : at + 2], "big")
    assert data[entry] < 128  # bytes of the entry behind this one
    data[entry + data[entry] - chance.randrange(3)] ^= 1 << chance.randrange(4)
    path.write_bytes(data)


def harm_content(path: Path, how: str, chance: random.Random) -> None:
    """Damage the content of a file, in place; of a link, what it names."""
    data = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
    damaged = CONTENT[how](data, chance) if data else data
    if not path.is_symlink():
        path.write_bytes(damaged)
    elif damaged.rstrip(b"\0"):
        path.unlink()
        os.symlink(damaged.replace(b"\0", b"?"), path)


def harm_name(path: Path, how: str, chance: random.Random) -> None:
    """Give a file another name in its folder: changed in one character, without one, without its beginning, or new."""
    name = path.name
    at = chance.randrange(len(name))
    renamed = {
        "change": name[:at] + chance.choice("0123456789abcxyz-~_.") + name[at + 1 :],
        "remove": name[:at] + name[at + 1 :],
        "tail": name[at:],
        "new": "again.json",
    }[how]
    target = path.with_name(renamed or "x")
    if admits(target.name) and not target.exists():  # a file with another name is not one for the store
        os.rename(path, target)


NAMES = ("change", "remove", "tail", "new")
