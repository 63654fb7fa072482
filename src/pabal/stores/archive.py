"""Backups: a store as one tar file, with a checksum for each file in it.

The first member says what the backup holds, the last one has the checksums: a file without it is not whole. A backup is
written under another name, synced and renamed, so that a crash leaves the one that was there before. A restored store
appears in the same way. Drafts lie in a folder beside the result, which the next process empties if this one is killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from pabal import jsontext
from pabal.durable import make_dirs, replace_whole, sync, sync_dir, translated
from pabal.errors import InvalidInput, StoreBusy, StoreFailed, StoreFull, StoreRefused
from pabal.filesystem import close_all, open_into, private, remove, rename_new

FORMAT = 1
_ABOUT, _SUMS = "pabal-backup.json", "pabal-backup.sums"
_CHUNK = 1 << 20
_PLACED = "placed.json"  # the inode numbers of what a restore has put in place, until the last part is there too


class Kept(NamedTuple):
    """What a backup holds: the kind of the store, when it was made, the number of its files and their bytes."""

    kind: str
    made: str
    files: int
    bytes: int


Progress = Callable[[int], None]  # called with the number of files done


class ArchiveWriter:
    """A backup that is being written. Made by `writing`."""

    def __init__(self, tar: tarfile.TarFile, scratch: Path, progress: Progress) -> None:
        self.scratch = scratch  # a folder for temporary files, on the disk of the backup
        self._tar = tar
        self._progress = progress
        self._sums: dict[str, str] = {}
        self.bytes = 0

    def add_data(self, name: str, data: bytes, mtime: float) -> None:
        self._add(name, io.BytesIO(data), len(data), mtime)

    def add_file(self, name: str, path: str | Path, mtime: float | None = None) -> None:
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            self._add(name, file, about.st_size, about.st_mtime if mtime is None else mtime)

    def add_folder(self, name: str) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, 0o700
        self._tar.addfile(info)

    def _add(self, name: str, file: BinaryIO, size: int, mtime: float) -> None:
        if name in self._sums:
            return  # two rows name one file: one of them is damaged
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, mtime, 0o600
        hashed = _Hashed(file)
        self._tar.addfile(info, hashed)
        self._sums[name] = hashed.sum.hexdigest()
        self.bytes += size
        self._progress(len(self._sums))

    def finish(self, kind: str, made: str) -> Kept:
        """Add the checksums, and what the backup holds."""
        kept = Kept(kind, made, len(self._sums), self.bytes)
        # A name may have newlines, but no zero byte.
        lines = "".join(sum + "  " + name.replace("\n", "\0") + "\n" for name, sum in self._sums.items())
        data = jsontext.encode({"kept": kept._asdict()}) + b"\n" + lines.encode("utf-8", "surrogateescape")
        _add_data(self._tar, _SUMS, data)
        return kept


def _add_data(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o600
    tar.addfile(info, io.BytesIO(data))


class _Hashed:
    """A file whose content is hashed as it is read."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.sum = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._file.read(size)
        self.sum.update(data)
        return data


@contextmanager
def writing(path: Path, progress: Progress) -> Iterator[ArchiveWriter]:
    """Write a backup; it replaces an older one of this name when the block has ended without an error."""
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder: name the file of the backup")
    if path.exists():
        check_backup(path)  # nothing but a backup is overwritten
    with translated(f"writing {path}"):
        make_dirs(path.parent)
        with draft_folder(path.with_name(f".{path.name[:200]}.tmp")) as scratch:
            clear(scratch)
            draft = scratch / "backup"
            with open(draft, "wb", opener=private) as file:
                with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                    head = {"format": FORMAT, "what": "a backup made by `pabal backup`"}
                    _add_data(tar, _ABOUT, jsontext.encode(head))
                    try:
                        yield ArchiveWriter(tar, scratch, progress)
                    except StoreFull as exc:
                        # The store, which is only read, would name itself and not the disk that is full.
                        raise StoreFull(f"no room left while writing {path}: free some space there and repeat") from exc
                file.flush()
                sync(file.fileno())
            os.rename(draft, path)
            sync_dir(path.parent)


@contextmanager
def draft_folder(path: Path) -> Iterator[Path]:
    """Hold a folder for drafts, which is removed in the end. Raise StoreBusy while another process holds it.

    After a kill it still holds what was in it: `clear` it, or use it.
    """
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        while True:
            path.mkdir(mode=0o700, exist_ok=True)
            fd = open_into(fds, path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                raise StoreBusy(f"another process writes to {path}: wait until it has ended, then repeat") from exc
            with suppress(FileNotFoundError):
                if os.stat(path).st_ino == os.fstat(fd).st_ino:
                    break
            # The process that held it has removed it in between.
        try:
            yield path
        finally:
            if not (path / _PLACED).exists():
                _remove_tree(path)
    finally:
        close_all(closing)


def clear(folder: Path) -> None:
    """Remove what a killed process has left in its folder for drafts."""
    for each in folder.iterdir():
        _remove_tree(each)


def check_backup(path: Path) -> None:
    """Raise InvalidInput or StoreRefused if this file is not a backup that this version reads."""
    try:
        with tarfile.open(path) as tar:
            first = tar.next()
            data = tar.extractfile(first) if first is not None and first.name == _ABOUT else None
            if data is not None:
                found = jsontext.read(data.read(_CHUNK))
                number = found.get("format") if isinstance(found, dict) else None
                if number == FORMAT:
                    return
                raise StoreRefused(f"{path} is a backup of format {number}; this version reads {FORMAT}")
    except (tarfile.TarError, InvalidInput):
        pass
    except OSError as exc:
        raise StoreFailed(f"{exc.strerror or exc} while reading {path}") from exc
    raise InvalidInput(f"{path} is not a backup that `pabal backup` made: give another path")


def extract(
    path: Path, kind: str, targets: Mapping[str, Path], progress: Progress, *, free: Sequence[Path] = ()
) -> Kept:
    """Write the files of a backup to their places, all or none; checks every checksum first.

    `targets` gives, for each first part of the names in the backup, the file or folder that it becomes. None of these
    may exist, nor may those in `free`. They appear in the given order, so the one that makes a store of the others
    comes last. If this is killed before, repeat it: it removes what has appeared and begins again.
    """
    check_backup(path)
    made = [place.parent for place in targets.values() if not place.parent.exists()]
    try:
        with translated(f"restoring {path}"), ExitStack() as stack:
            for place in targets.values():
                make_dirs(place.parent)
            folders = {part: stack.enter_context(draft_folder(_drafts_of(place))) for part, place in targets.items()}
            record = list(folders.values())[-1] / _PLACED
            _take_back(record, {place: folders[part] for part, place in targets.items()})
            require_free(*targets.values(), *free)
            for folder in folders.values():
                clear(folder)
            drafts = {part: folders[part] / place.name for part, place in targets.items()}
            kept = _unpack(path, kind, drafts, progress)
            os.sync()
            _put_in_place({drafts[part]: place for part, place in targets.items() if drafts[part].exists()}, record)
    finally:
        for parent in made:
            with suppress(OSError):
                parent.rmdir()  # if nothing was restored
    return kept


def _drafts_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.restore")


def _put_in_place(drafts: Mapping[Path, Path], record: Path) -> None:
    """Give the drafts their names. With several of them, a record tells the next process what a kill has left."""
    if len(drafts) > 1:
        numbers = {os.fspath(place): draft.stat().st_ino for draft, place in drafts.items()}
        replace_whole(record, jsontext.encode(numbers))
    for draft, place in drafts.items():
        with suppress(OSError):
            place.rmdir()  # an empty folder
        rename_new(os.fspath(draft), os.fspath(place))
        sync_dir(place.parent)
    remove(os.fspath(record))


def _take_back(record: Path, places: Mapping[Path, Path]) -> None:
    """Move what an unfinished restore has put in place back to the folders of the drafts; the last part is missing."""
    numbers = _read_record(record)
    if numbers and not os.path.lexists(list(places)[-1]):
        for place, folder in places.items():
            with suppress(FileNotFoundError):
                if os.lstat(place).st_ino == numbers.get(os.fspath(place)):
                    clear(folder)
                    os.rename(place, folder / place.name)
                    sync_dir(place.parent)
    remove(os.fspath(record))


def _read_record(record: Path) -> dict[str, int]:
    try:
        found = jsontext.read(record.read_bytes())
    except (FileNotFoundError, InvalidInput):
        return {}
    return {name: number for name, number in found.items() if type(number) is int} if isinstance(found, dict) else {}


def require_restored(place: Path) -> None:
    """Raise StoreRefused if a restore of several parts has begun here and the last one, `place`, is missing."""
    if (_drafts_of(place) / _PLACED).exists() and not place.exists():
        raise StoreRefused(
            f"a restore to {place} has not ended: wait for it, or if it was killed, repeat `pabal restore`"
        )


def _unpack(path: Path, kind: str, drafts: Mapping[str, Path], progress: Progress) -> Kept:
    sums: dict[str, str] = {}
    told: tuple[Kept, dict[str, str]] | None = None
    try:
        with tarfile.open(path) as tar:
            for member in tar:
                if member.name == _SUMS:
                    told = _read_sums(tar.extractfile(member))
                elif member.name != _ABOUT:
                    target = _target(member.name, drafts)
                    if member.isdir():
                        make_dirs(target)
                    elif not member.isreg():
                        raise StoreFailed(f"{member.name!r:.80} in {path} is no file: restore another backup")
                    else:
                        sums[member.name] = _write(tar.extractfile(member), target, float(member.mtime))
                        progress(len(sums))
    except (tarfile.TarError, EOFError) as exc:
        raise StoreFailed(f"{path} is damaged ({exc}): restore another backup") from exc
    if told is None:
        raise StoreFailed(f"{path} is not whole: its end is missing; restore another backup")
    kept, expected = told
    if kept.kind != kind:
        raise InvalidInput(f"{path} holds a {kept.kind} store: give a URL that begins with {kept.kind}:, not {kind}:")
    for name, sum in expected.items():
        if sums.get(name) != sum:
            state = "damaged" if name in sums else "missing"
            raise StoreFailed(f"{name} in {path} is {state}: restore another backup")
    if sums.keys() - expected.keys():
        raise StoreFailed(f"{path} holds files that it does not list: restore another backup")
    return kept


def _read_sums(file: Any) -> tuple[Kept, dict[str, str]]:
    try:
        head, _, rest = file.read().partition(b"\n")
        lines = rest.decode("utf-8", "surrogateescape").split("\n")[:-1]
        pairs = (line.split("  ", 1) for line in lines)
        return Kept(**jsontext.decode(head)["kept"]), {name.replace("\0", "\n"): sum for sum, name in pairs}
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise tarfile.ReadError(f"its list of checksums cannot be read: {exc}") from exc


def _target(name: str, drafts: Mapping[str, Path]) -> Path:
    part, *rest = name.split("/")
    if part not in drafts or any(step in ("", ".", "..") for step in rest):
        raise StoreFailed(f"the backup holds {name!r:.80}, which belongs to no store of this kind")
    return drafts[part].joinpath(*rest)


def _write(source: Any, target: Path, mtime: float) -> str:
    make_dirs(target.parent)
    hashed = _Hashed(source)
    with open(target, "xb", opener=private) as file:
        shutil.copyfileobj(hashed, file, _CHUNK)
    os.utime(target, (mtime, mtime))
    return hashed.sum.hexdigest()


def _remove_tree(path: Path) -> None:
    """Remove our own temporary file or folder."""
    if path.is_dir() and not path.is_symlink():
        for each in path.iterdir():
            _remove_tree(each)
        path.rmdir()
    else:
        remove(os.fspath(path))


def require_free(*places: Path) -> None:
    """Raise StoreRefused if there is something at one of these places, where a store shall be restored."""
    for place in places:
        if place.is_dir() and not any(place.iterdir()):
            continue
        if os.path.lexists(place):
            raise StoreRefused(f"{place} is there already: move it away, with the files beside it, and restore again")
