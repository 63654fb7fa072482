"""Bodies: documents are kept in their rows, or each in a file that the row names.

A file is synced, with its directory, before the commit that names it, and removed only after a synced commit that no
longer names it. So a row never names an incomplete file, and a crash can leave only files without rows.

A file without a row may also be that of another index: this one may be a wrong or an older one. So it is never removed,
but set aside in `<root>.orphaned/<queue>/`, with a file `.reason` beside it. A row whose file is there reads it there.
"""

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from pabal.durable import make_dirs, replace_whole, sync_all, sync_dir, translated
from pabal.errors import DecodeError, StoreFailed, StoreRefused
from pabal.filesystem import close_all, open_into, remove, rename_new, require_own
from pabal.ids import new_token
from pabal.names import check_id
from pabal.policy.policy import LARGEST_MAX_BYTES

T = TypeVar("T")

_TRIES = 3  # to create a file: its folder may be missing, and then another writer may be faster
_CHUNK = 200  # files written and flushed together, each with an open descriptor
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_UNFIT = frozenset({errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV})  # forbidden; a socket or a device

Place: TypeAlias = bytes | str  # the value in the row: the document, or the name of its file


class Document(NamedTuple):
    queue: str
    id: str
    data: bytes


class Bodies(Protocol):
    apart: bool  # documents are files

    def put(self, documents: Sequence[Document]) -> Sequence[Place]:
        """Make the documents durable; return the values for the rows."""
        ...

    def confirm(self, places: Iterable[Place]) -> None:
        """Raise StoreFailed if a document is no longer there. Called inside the commit that names it."""
        ...

    def get(self, place: Place | None) -> bytes | None:
        """Return a document, or None if it is gone.

        Raise DecodeError if its file can never be read, StoreFailed if it cannot be read for now.
        """
        ...

    def drop(self, places: Iterable[Place]) -> None:
        """Remove documents that no row names."""
        ...


class InRow:
    """The row keeps the document."""

    apart = False

    def put(self, documents: Sequence[Document]) -> Sequence[Place]:
        return [document.data for document in documents]

    def confirm(self, places: Iterable[Place]) -> None:
        pass

    def get(self, place: Place | None) -> bytes | None:
        return place if isinstance(place, bytes) else None

    def drop(self, places: Iterable[Place]) -> None:
        pass


def _is_place(place: str) -> bool:
    """Return whether a row may name this file: a damaged name must not lead out of the folder."""
    queue, _, file = place.partition("/")
    return bool(file) and "/" not in file and queue not in ("", ".", "..") and "\0" not in place


class BodyFolder:
    """`<root>/<queue>/<id>.json` holds the document, readable with cat."""

    apart = True

    def __init__(self, root: Path, owner: int | None = None) -> None:
        for place in (root, f"{root}.orphaned"):
            require_own(place, owner)
        if root.exists() and not root.is_dir():
            raise StoreRefused(f"{root} is not a folder: bodies are files in folders of their own; give another path")
        self._root = os.fspath(root)  # paths are joined for every message: text costs a tenth of a Path
        self.orphaned = f"{self._root}.orphaned"
        self._owner = owner
        self._known: set[str] = set()  # queues whose folder was judged
        self.make_room: Callable[[], bool] = lambda: False  # closes files of the store that it can do without

    def refuse_original(self) -> None:
        """Raise StoreRefused if this folder has the payloads of a hybrid store of the original system."""
        with suppress(FileNotFoundError), os.scandir(self._root) as found:
            for entry in found:
                if os.path.isdir(f"{entry.path}/active"):
                    raise StoreRefused(
                        f"{self._root} holds the payloads of a hybrid store of the original system "
                        f"({entry.name}/active): move it away with its database, and take both over with "
                        f"`pabal takeover DATABASE --payloads FOLDER`. Nothing was changed"
                    )

    def put(self, documents: Sequence[Document]) -> Sequence[Place]:
        with translated(f"writing to {self._root}"):
            return self._with_room(partial(self._put_all, documents))

    def _with_room(self, work: Callable[[], T]) -> T:
        """Do some work; if this process has no descriptors left, make room and try once more."""
        try:
            return work()
        except OSError as exc:
            if exc.errno not in (errno.EMFILE, errno.ENFILE) or not self.make_room():
                raise
        return work()

    def _put_all(self, documents: Sequence[Document]) -> Sequence[Place]:
        places: list[Place] = []
        try:
            for start in range(0, len(documents), _CHUNK):
                self._put_some(documents[start : start + _CHUNK], places)
            for queue in {document.queue for document in documents}:
                sync_dir(f"{self._root}/{queue}")
        except BaseException:
            self.drop(places)
            raise
        return places

    def _put_some(self, documents: Sequence[Document], places: list[Place]) -> None:
        """Write documents and flush them together; add the names to `places`."""
        fds: list[int] = []
        closing = map(os.close, fds)
        try:
            for document in documents:
                places.append(self._create(document, fds))
                view = memoryview(document.data)
                while view:
                    view = view[os.write(fds[-1], view) :]
            sync_all(fds)
        finally:
            close_all(closing)

    def _create(self, document: Document, fds: list[int]) -> str:
        """Create the file of a document, add its descriptor to `fds`, and return its name."""
        name = f"{document.queue}/{check_id(document.id)}.json"
        if document.queue not in self._known:
            require_own(f"{self._root}/{document.queue}", self._owner)
            self._known.add(document.queue)
        for _ in range(_TRIES):
            try:
                open_into(fds, f"{self._root}/{name}", _NEW)
                return name
            except FileNotFoundError:
                make_dirs(Path(self._root, document.queue))
            except FileExistsError:
                # The id is in use, or it was purged and its file not yet removed: leave that file alone.
                name = f"{document.queue}/{document.id}~{new_token()}.json"
        open_into(fds, f"{self._root}/{name}", _NEW)
        return name

    def confirm(self, places: Iterable[Place]) -> None:
        for place in places:
            if not os.path.exists(f"{self._root}/{place!s}"):
                # `check` sets old files aside that no row names; this publish slept that long.
                raise StoreFailed(f"{place!r} was set aside before it was committed: repeat with the same id")

    def get(self, place: Place | None) -> bytes | None:
        if not isinstance(place, str):
            return place
        if not _is_place(place):
            return None
        try:
            return self._with_room(partial(_content, f"{self._root}/{place}"))
        except FileNotFoundError:
            return self._get_orphaned(place)
        except (NotADirectoryError, IsADirectoryError):
            return None
        except OSError as exc:
            return self._unreadable(place, exc)

    def _get_orphaned(self, place: str) -> bytes | None:
        """Return a document that was set aside although a row names it: by a process with another index."""
        try:
            return _content(f"{self.orphaned}/{place}")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as exc:
            return self._unreadable(place, exc)

    def _unreadable(self, place: str, exc: OSError) -> bytes | None:
        if exc.errno in (errno.ELOOP, errno.ENAMETOOLONG):
            return None
        if exc.errno in _UNFIT:
            raise DecodeError(f"its file cannot be read: {exc.strerror}", b"") from exc
        raise StoreFailed(f"{exc.strerror} while reading {self._root}/{place}: repeat") from exc

    def drop(self, places: Iterable[Place]) -> None:
        for place in places:
            if isinstance(place, str) and _is_place(place):
                with suppress(OSError):
                    self._unlink(place)

    def _unlink(self, place: str) -> None:
        try:
            os.unlink(f"{self._root}/{place}")
        except FileNotFoundError:
            remove(f"{self.orphaned}/{place}", f"{self.orphaned}/{place}.reason")

    # Orphaned files

    def set_aside(self, name: str, reason: str) -> None:
        """Move a file that no row names to the orphaned files, with the reason beside it."""
        queue, _, file = name.partition("/")
        folder = Path(self.orphaned, queue)
        with translated(f"moving {name} to {folder}"):
            make_dirs(folder)
            if os.path.lexists(folder / file):
                file = f"{file.removesuffix('.json')}~{new_token()}.json"
            replace_whole(folder / f"{file}.reason", f"{reason}\n".encode())
            rename_new(f"{self._root}/{name}", f"{folder}/{file}")
            sync_dir(folder)

    def put_back(self, name: str) -> None:
        """Move an orphaned file that a row names to its place."""
        queue = name.partition("/")[0]
        with translated(f"moving {name} to {self._root}"):
            make_dirs(Path(self._root, queue))
            rename_new(f"{self.orphaned}/{name}", f"{self._root}/{name}")
            sync_dir(f"{self._root}/{queue}")
            remove(f"{self.orphaned}/{name}.reason")

    def orphans(self) -> list[str]:
        """Return the names of the orphaned files, sorted."""
        return sorted(name for name, _ in body_files(self.orphaned) if not name.endswith(".reason"))

    def get_orphan(self, name: str) -> bytes:
        with translated(f"reading {self.orphaned}/{name}"):
            return _content(f"{self.orphaned}/{name}")

    def remove_orphan(self, name: str) -> None:
        """Remove an orphaned file whose document has another place now."""
        with translated(f"removing {self.orphaned}/{name}"):
            remove(f"{self.orphaned}/{name}", f"{self.orphaned}/{name}.reason")

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and stat of every file there."""
        return body_files(self._root)


def body_files(root: str | Path) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and stat of every file in the folders of a folder."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for folder in os.scandir(root):
            if folder.is_dir(follow_symlinks=False):
                for file in os.scandir(folder.path):
                    with suppress(FileNotFoundError):
                        yield f"{folder.name}/{file.name}", file.stat(follow_symlinks=False)


def _content(path: str) -> bytes:
    fds: list[int] = []
    closing = map(os.close, fds)
    try:
        open_into(fds, path, _READ)
        size = os.fstat(fds[0]).st_size
        if size > LARGEST_MAX_BYTES:
            raise DecodeError(f"TooLarge: {LARGEST_MAX_BYTES} bytes at most; found {size}", b"")
        data = os.read(fds[0], size + 1)
        while len(data) < size and (more := os.read(fds[0], size)):
            data += more
        return data
    finally:
        close_all(closing)
