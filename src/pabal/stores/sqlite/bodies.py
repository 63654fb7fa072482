"""Where documents live: in the row itself, or each in a file that the row names.

A file is on the disk, with its name, before the commit that names it; it is removed only after a synced commit that
no longer does. So a row never names a file that was not written whole, and what a crash leaves over is only files.
"""

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from pabal.durable import make_dirs, sync_all, sync_dir, translated, write_new
from pabal.errors import DecodeError, StoreFailed
from pabal.ids import new_token
from pabal.names import check_id

_CHUNK = 200  # files written and flushed together, each with an open descriptor
_UNFIT = frozenset({errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENODEV})  # forbidden; a socket or a device

Place: TypeAlias = bytes | str  # what a row keeps: the document, or the name of its file


class Document(NamedTuple):
    queue: str
    id: str
    data: bytes


class Bodies(Protocol):
    apart: bool  # documents are files

    def put(self, documents: Sequence[Document]) -> Sequence[Place]:
        """Make the documents durable; return what the rows shall keep."""
        ...

    def confirm(self, places: Iterable[Place]) -> None:
        """Raise StoreFailed if a document put earlier is no longer there. Called inside the commit that names them."""
        ...

    def get(self, place: Place | None) -> bytes | None:
        """Return a document, or None if it is gone.

        Raise DecodeError if what is there is none that could be read, StoreFailed if it cannot be read for now.
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


class BodyFolder:
    """`<root>/<queue>/<id>.json` holds the document, readable with cat."""

    apart = True

    def __init__(self, root: Path) -> None:
        self._root = os.fspath(root)  # paths are joined for every message: as text, at a tenth of the price

    def put(self, documents: Sequence[Document]) -> Sequence[Place]:
        places: list[Place] = []
        try:
            with translated(f"writing to {self._root}"):
                for start in range(0, len(documents), _CHUNK):
                    self._put_some(documents[start : start + _CHUNK], places)
                for queue in {document.queue for document in documents}:
                    sync_dir(f"{self._root}/{queue}")
        except BaseException:
            self.drop(places)
            raise
        return places

    def _put_some(self, documents: Sequence[Document], places: list[Place]) -> None:
        """Write documents and flush them together; add to the places."""
        fds: list[int] = []
        try:
            for document in documents:
                place, fd = self._write(document)
                places.append(place)
                fds.append(fd)
            sync_all(fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _write(self, document: Document) -> tuple[str, int]:
        name = f"{document.queue}/{check_id(document.id)}.json"
        try:
            return name, write_new(f"{self._root}/{name}", document.data)
        except FileNotFoundError:
            make_dirs(Path(self._root, document.queue))
        except FileExistsError:
            # The id is there already, or was purged and its file not yet swept: that file is not ours to touch.
            name = f"{document.queue}/{document.id}~{new_token()}.json"
        return name, write_new(f"{self._root}/{name}", document.data)

    def confirm(self, places: Iterable[Place]) -> None:
        for place in places:
            if not os.path.exists(f"{self._root}/{place!s}"):
                # `check` takes a file that no row names for a leftover after a while; this publish slept that long.
                raise StoreFailed(f"{place!r} was removed before it was committed: repeat with the same id")

    def get(self, place: Place | None) -> bytes | None:
        if not isinstance(place, str):
            return place
        try:
            fd = os.open(f"{self._root}/{place}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb", buffering=0) as file:
                return file.readall()
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return None
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                return None
            if exc.errno in _UNFIT:
                raise DecodeError(f"its file cannot be read: {exc.strerror}", b"") from exc
            raise StoreFailed(f"{exc.strerror} while reading {self._root}/{place}: repeat") from exc

    def drop(self, places: Iterable[Place]) -> None:
        for place in places:
            if isinstance(place, str):
                with suppress(OSError):
                    os.unlink(f"{self._root}/{place}")

    def files(self) -> Iterator[tuple[str, os.stat_result]]:
        """Yield the name and stat of every file there."""
        with suppress(FileNotFoundError):
            for folder in os.scandir(self._root):
                if folder.is_dir(follow_symlinks=False):
                    for file in os.scandir(folder.path):
                        with suppress(FileNotFoundError):
                            yield f"{folder.name}/{file.name}", file.stat(follow_symlinks=False)
