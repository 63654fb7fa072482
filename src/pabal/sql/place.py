"""Where a SQLite file lies: its real path, names that are refused, and whether it holds tables or only their remains.

SQLite keeps the WAL beside the file, by name. Two processes that know one file by two names have two WALs and destroy
each other's commits. A symlink is harmless: all files lie beside its target. A hard link and a file that is mounted by
itself are refused.
"""

import errno
import logging
import os
import shutil
from pathlib import Path

import apsw

from pabal.durable import sync, sync_dir, translated, write_new
from pabal.errors import StoreDamaged, StoreFailed, StoreMissing, StoreRefused
from pabal.filesystem import mounts
from pabal.ids import new_token
from pabal.sql.connection import error_of, open_reader

log = logging.getLogger("pabal")

_PATIENCE = 1.0  # seconds
_REMEDY = "run `pabal doctor --repair`, which keeps a copy of it and takes what is whole in it, or restore a backup"
_MAGIC = b"SQLite format 3\0"
_PAGE = 4096
_WAL_HEADER, _FRAME = 32, _PAGE + 24  # bytes 4 to 7 of a frame are zero unless it ends a commit


def real_path(path: Path) -> Path:
    """Return the path without symlinks: lock, bells and ballast lie beside the real file, as its WAL does."""
    return Path(os.path.realpath(path))


def require_one_name(path: Path) -> None:
    """Raise StoreRefused if other processes may know this file by another name, with another WAL beside it."""
    try:
        names = os.stat(path).st_nlink
    except OSError:
        return
    if names > 1:
        raise StoreRefused(
            f"{path} has {names} names (hard links), and each would get its own WAL, which destroys messages: "
            f"keep one name; for another use a symlink, or a copy made with `cp`"
        )
    if any(mount.place == os.fspath(path) for mount in mounts()):
        raise StoreRefused(
            f"{path} is mounted as a single file, without the WAL and the lock beside it, which destroys messages: "
            f"mount the folder that holds it, as in `docker run -v $PWD/data:/data`"
        )


def require_file(path: Path) -> None:
    """Raise StoreFailed if there is something that can be no database."""
    if path.is_dir():
        raise StoreFailed(f"{path} is a folder, not a SQLite database: give the path of the file")
    if path.exists() and not path.is_file():
        raise StoreFailed(f"{path} is neither a file nor a folder: give the path of a SQLite database")


def table_names(path: Path) -> set[str]:
    """Return the names of the tables; an empty set if there is no database. Changes nothing.

    Raise StoreFailed if there is something that cannot be read: a new store in its place would bury it.
    """
    path = real_path(path)
    with translated(f"looking at {path}"):
        require_file(path)
        if not path.exists():
            return set()
        # SQLite does not say why it cannot open a file. It is not opened here: closing it would drop locks of others.
        if not os.access(path, os.R_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(path))
    if found := _lost_commits(path):
        raise StoreFailed(found)
    try:
        connection, _ = open_reader(path, _PATIENCE, mode="ro")
        try:
            names = {row[0] for row in connection.execute("select name from sqlite_schema where type = 'table'")}
        finally:
            connection.close()
    except apsw.NotADBError as exc:
        kind = StoreDamaged if is_damaged_store(path, exc) else StoreFailed
        raise kind(no_database(path)) from exc
    except apsw.CorruptError as exc:
        raise StoreDamaged(f"{path} is damaged ({exc}), its tables cannot be read: {_REMEDY}") from exc
    except apsw.Error as exc:
        raise error_of(exc, path, _PATIENCE, "looking at") from exc
    if not names and (found := _lost_commits(path, empty=True)):
        raise StoreFailed(found)
    return names


def no_database(path: Path) -> str:
    """Return what a file is that SQLite does not take for a database."""
    head, size = _head(path)
    if head == _MAGIC:
        found = "is a SQLite database whose header is damaged or which is encrypted"
    elif _was_store(path, size):
        found = f"has no header of a SQLite database, but {head!r}; a store was here, so it is damaged"
    else:
        return f"{path} is not a SQLite database: it begins with {head!r}. Keep it, and give another path"
    return f"{path} {found}: {_REMEDY}"


def is_damaged_store(path: Path, exc: apsw.Error) -> bool:
    """Return whether a file with this error is a database with a damaged header, and no file of another kind."""
    if not isinstance(exc, apsw.NotADBError):
        return False
    head, size = _head(path)
    return head == _MAGIC or _was_store(path, size)


def _head(path: Path) -> tuple[bytes, int]:
    with translated(f"reading {path}"), open(path, "rb") as file:
        return file.read(16), os.fstat(file.fileno()).st_size


def _was_store(path: Path, size: int) -> bool:
    return size % 512 == 0 and os.path.exists(f"{path}.lock")


def keep_lost_commits(path: Path) -> None:
    """Copy the files if the WAL holds commits that SQLite cannot read, before it starts a new WAL in its place."""
    try:
        if os.path.getsize(f"{path}-wal") > _WAL_HEADER:
            table_names(path)
    except OSError:
        return
    except StoreFailed as exc:
        kept = keep_copy(path)
        log.warning("lost commits: %(error)s; copied to %(copy)s", {"error": str(exc), "copy": str(kept)})


def copy_database(path: Path, copy: Path) -> None:
    """Copy a database that may be in use, as it is at one moment, to a new file. Waits for no writer."""
    path = real_path(path)
    if not table_names(path):
        raise StoreMissing(f"no database at {path}")
    with translated(f"copying {path}"):
        os.close(write_new(copy, b""))
    try:
        connection, _ = open_reader(path, _PATIENCE)
        try:
            connection.execute("pragma query_only = off").fetchall()  # else SQLite writes no other file either
            connection.execute("vacuum into ?", (os.fspath(copy),)).fetchall()
        finally:
            connection.close()
    except apsw.Error as exc:
        raise error_of(exc, path, _PATIENCE, "copying") from exc


def keep_copy(path: Path) -> Path:
    """Copy a damaged database with its WAL to a new name beside it; return that name."""
    kept = path.with_name(f"{path.name}.damaged-{new_token()}")
    copy_files(path, kept)
    return kept


def copy_files(path: Path, kept: Path) -> None:
    """Copy a database file and its WAL as they are to new files, for a file that SQLite cannot read any more."""
    with translated(f"copying {path} to {kept}"):
        for end in ("-wal", ""):
            if os.path.exists(f"{path}{end}"):
                with open(f"{path}{end}", "rb") as source, os.fdopen(write_new(f"{kept}{end}", b""), "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                    target.flush()
                    sync(target.fileno())
        sync_dir(kept.parent)


def _lost_commits(path: Path, *, empty: bool = False) -> str:
    """Return what is wrong if the file holds nothing while its WAL has the end of a commit, else ''.

    A process that was killed in its first commit leaves a WAL without the last frame of the commit.
    """
    try:
        if not empty and path.stat().st_size > 0:
            return ""
        data = Path(f"{path}-wal").read_bytes()
    except OSError:
        return ""
    ends = sum(data[at : at + 4] != bytes(4) for at in range(_WAL_HEADER + 4, len(data) - _PAGE, _FRAME))
    if not ends:
        return ""
    return (
        f"{path} holds no tables, but its WAL of {len(data)} bytes has {ends} commits that cannot be read: keep a "
        f"copy of both files; a new store may be made after they were moved away"
    )
