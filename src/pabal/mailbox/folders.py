"""The folders of a mailbox: their permissions, and every step that a request or answer file takes through them.

The manager claims a file by renaming it into a folder that only the manager can write to, and opens it only there.
Request and answer files are not flushed: what an answer promises was made durable by the store before it was written.

Files are reused. A file system searches long for a free inode where many were freed recently, so making a file can cost
more than a commit. A client and the manager therefore keep read files as spares, in a folder of their own that nobody
watches. A spare only ever holds requests of one client or answers to one client: a process that still has an old file
open can read and change nothing but its own.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from pabal import jsontext
from pabal.clock import Clock
from pabal.durable import make_dirs, replace_whole, translated, write_new
from pabal.errors import NotARegularFile, StoreRefused
from pabal.filesystem import require_own
from pabal.ids import new_token
from pabal.mailbox.settings import LAYOUT, MailboxSettings, layout_of
from pabal.names import check_id, check_name

SUFFIX = ".json"
CLEAN_EVERY = 10.0  # seconds between two rounds of the cleaner
SPARE = ".spare"  # the folder of reusable files and drafts, within the folder of a client's answers
_DRAFTS_KEPT = 3600.0  # seconds
_WRITE = os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Folders:
    """One mailbox on disk, as its manager uses it."""

    def __init__(self, root: Path, settings: MailboxSettings) -> None:
        self.root = root
        self.settings = settings
        self.requests = f"{root}/{settings.requests}"
        self.processing = f"{root}/{settings.processing}"
        self.responses = f"{root}/{settings.responses}"
        self.dead = f"{root}/{settings.dead}"
        self.wakeups = f"{root}/{settings.wakeups}"
        self.archive = f"{root}/{settings.archive}"
        self._shared = settings.clients is not None  # each client is a user of its own

    def check(self) -> None:
        """Raise StoreRefused if `prepare` would; make and change nothing."""
        require_own(self.root, links=True)
        _refuse_open_parents(self.root)
        if self._shared:
            _refuse_closed_parents(self.root, _group(self.settings))

    def prepare(self) -> None:
        """Make every folder with its owner and mode; raise StoreRefused where they would not protect it."""
        with translated(f"making the mailbox {self.root}"):
            require_own(self.root, links=True)
            make_dirs(self.root)
            _refuse_open_parents(self.root)
            for path in (self.processing, self.dead, self.archive):
                self._make(path, 0o700)
            group = _group(self.settings) if self._shared else None
            # Clients may add files and remove their own; they cannot list the folder or touch files of others.
            self._make(self.requests, 0o3730 if self._shared else 0o700, group)
            self._make(self.responses, 0o710 if self._shared else 0o700, group)
            self._make(self.wakeups, 0o2750 if self._shared else 0o700, group)
            if group is not None:
                _refuse_closed_parents(self.root, group)
                _own(str(self.root), 0o710, group)
            for client, uid in (self.settings.clients or {}).items():
                self._make(f"{self.responses}/{check_name(client, 'client')}", 0o2750, _group_of(uid))
            self._describe(group)

    def _describe(self, group: int | None) -> None:
        """Tell the clients, in a file, where they find what."""
        path, mode = self.root / LAYOUT, 0o640 if self._shared else 0o600
        replace_whole(path, jsontext.pretty(msgspec.to_builtins(layout_of(self.settings))), mode=mode)
        _own(str(path), mode, group)

    def _make(self, path: str, mode: int, group: int | None = None) -> None:
        require_own(path)
        make_dirs(Path(path))
        _own(path, mode, group)

    # The steps of a request file

    def claim(self, name: str, claimed: str) -> bool:
        """Move a file where its writer cannot reach it; return False if it is gone or cannot be moved now.

        Raise NotARegularFile for a folder that cannot be removed. A file that cannot be moved, as on a full disk, is
        found again at the next scan.
        """
        try:
            os.rename(f"{self.requests}/{name}", f"{self.processing}/{claimed}")
        except FileNotFoundError:
            return False
        except OSError as exc:
            with suppress(OSError):
                os.rmdir(f"{self.requests}/{name}")
                return False
            if not os.path.isdir(f"{self.requests}/{name}"):
                return False
            raise NotARegularFile(f"{name!r:.80} cannot be moved: {exc.strerror}") from exc
        return True

    def give_back(self, claimed: str, name: str) -> None:
        """Return a file that was not run. If its name is taken, it stays in processing/ and the next start runs it."""
        with suppress(OSError):
            if not os.path.lexists(f"{self.requests}/{name}"):
                os.rename(f"{self.processing}/{claimed}", f"{self.requests}/{name}")

    def answer(self, client: str, name: str, data: bytes) -> None:
        """Write an answer into the folder of its client."""
        folder = f"{self.responses}/{client}"
        try:
            self._put(folder, name, data)
        except FileNotFoundError:
            make_dirs(Path(folder))
            self._put(folder, name, data)

    def _put(self, folder: str, name: str, data: bytes) -> None:
        if not self._shared:
            write_reusing(f"{folder}/{name}", data, folder=folder, kind="answer")
            return
        draft = f"{folder}/.{new_token()}.tmp"
        fd = write_new(draft, data, mode=0o640)
        try:
            os.fchmod(fd, 0o640)  # despite the umask: the client's group must be able to read it
        finally:
            os.close(fd)
        os.rename(draft, f"{folder}/{name}")

    def finish(self, claimed: str, client: str) -> None:
        """Release a request that was answered. Where all are one user, its client may reuse the file."""
        path = f"{self.processing}/{claimed}"
        if not self._shared:
            keep_for_reuse(path, folder=f"{self.responses}/{client}", kind="request")
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def set_aside(self, claimed: str, name: str, reason: str, at: float) -> None:
        """Move a request to dead/ and write the reason beside it."""
        target = name if not os.path.lexists(f"{self.dead}/{name}") else f"{name}~{new_token()}"
        reason_file = jsontext.pretty({"reason": reason, "movedAt": round(at * 1000)})
        with suppress(OSError):  # a full disk, for instance: the request is moved without its reason
            os.close(write_new(f"{self.dead}/{target}.reason", reason_file))
        with suppress(OSError):
            os.rename(f"{self.processing}/{claimed}", f"{self.dead}/{target}")


class Cleaner:
    """Removes files that nobody will read: old answers and their folders, old dead requests, unfinished drafts.

    It goes by the times of the files, so it waits when the wall clock was stepped: then all files may look old.
    """

    def __init__(self, folders: Folders, clock: Clock, wall: Callable[[], float] = time.time) -> None:
        self._folders = folders
        self._clock = clock
        self._wall = wall
        self._due = clock.boot() + CLEAN_EVERY
        self._offset = clock.now() - clock.boot()

    def next_due(self) -> float:
        return max(0.0, self._due - self._clock.boot())

    def clean(self) -> bool:
        """Clean if it is time; return whether it was."""
        if self._clock.boot() < self._due:
            return False
        self._due = self._clock.boot() + CLEAN_EVERY
        settings = self._folders.settings
        if self._clock_was_stepped():
            self._due += settings.answers_kept
            return True
        self._remove_old(self._folders.dead, settings.dead_kept)
        self._remove_old(self._folders.requests, _DRAFTS_KEPT, drafts_only=True)
        with os.scandir(self._folders.responses) as clients:
            for client in clients:
                with suppress(FileNotFoundError):  # removed meanwhile, perhaps by its client
                    if client.is_dir(follow_symlinks=False):
                        self._clean_client(client)
        return True

    def _clean_client(self, client: os.DirEntry[str]) -> None:
        kept, spare = self._folders.settings.answers_kept, f"{client.path}/{SPARE}"
        used = _changed_at(client.path)
        with suppress(FileNotFoundError):
            used = max(used, _changed_at(spare))
        self._remove_old(client.path, kept)
        with suppress(FileNotFoundError):
            self._remove_old(spare, kept)
        if used < self._wall() - kept and client.name not in (self._folders.settings.clients or ()):
            # Many clients send one request only. A client that comes back makes its folder again.
            for path in (spare, client.path):
                with suppress(OSError):  # not there, or a file arrived
                    os.rmdir(path)

    def _clock_was_stepped(self) -> bool:
        before, self._offset = self._offset, self._clock.now() - self._clock.boot()
        return abs(self._offset - before) > CLEAN_EVERY

    def _remove_old(self, folder: str, age: float, *, drafts_only: bool = False) -> None:
        before = self._wall() - age
        with os.scandir(folder) as entries:
            for entry in entries:
                with suppress(OSError):  # removed meanwhile, or another user's
                    if entry.name == SPARE or (drafts_only and not is_draft(entry.name)):
                        continue
                    if _changed_at(entry.path) < before:
                        _remove(entry)


def _changed_at(path: str) -> float:
    """Return when a file came here: its writer can set mtime, not ctime."""
    about = os.lstat(path)
    return max(about.st_ctime, about.st_mtime)


def _remove(entry: os.DirEntry[str]) -> None:
    if entry.is_dir(follow_symlinks=False):
        shutil.rmtree(entry.path)
    else:
        os.unlink(entry.path)


def is_request(name: str) -> bool:
    """Return whether this can be the name of a request file and of its answer; other files are not opened."""
    if not name.endswith(SUFFIX):
        return False
    try:
        check_id(name[: -len(SUFFIX)])
    except ValueError:
        return False
    return True


def is_draft(name: str) -> bool:
    """Return whether a file is still being written, by its name."""
    return name.startswith(".") or name.endswith(".tmp")


def write_reusing(path: str, data: bytes, *, folder: str, kind: str) -> None:
    """Write a whole file under its name, into a spare file of its kind if there is one."""
    draft = f"{folder}/{SPARE}/{new_token()}.tmp"
    try:
        if not any(_overwrite(spare, draft, data) for spare in _spares(folder, kind)):
            _write_first(draft, data, f"{folder}/{SPARE}")
        os.rename(draft, path)
    except OSError:
        with suppress(OSError):  # a draft that stays would use room on a full disk
            os.unlink(draft)
        raise


def keep_for_reuse(path: str, *, folder: str, kind: str) -> None:
    """Keep a file as a spare, or remove it if there are enough."""
    with suppress(OSError):  # it is gone, or another user's
        for spare in _spares(folder, kind):
            if not os.path.lexists(spare):
                os.rename(path, spare)
                return
        os.unlink(path)


def _spares(folder: str, kind: str) -> tuple[str, str]:
    # Two: a client that asks again at once does so before the manager has returned the last file.
    return f"{folder}/{SPARE}/{kind}-1", f"{folder}/{SPARE}/{kind}-2"


def _write_first(draft: str, data: bytes, spares: str) -> None:
    try:
        os.close(write_new(draft, data))
    except FileNotFoundError:
        with suppress(FileExistsError):  # another thread made it first
            os.mkdir(spares, 0o700)
        os.close(write_new(draft, data))


def _overwrite(spare: str, draft: str, data: bytes) -> bool:
    try:
        os.rename(spare, draft)  # first, so that no other thread takes it too
        fd = os.open(draft, _WRITE)
    except FileNotFoundError:
        return False
    except OSError:
        os.unlink(draft)
        return False
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or stat.S_IMODE(about.st_mode) != 0o600:
            os.unlink(draft)
            return False
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.ftruncate(fd, len(data))  # last: a file truncated to nothing first would be flushed when it is closed
    finally:
        os.close(fd)
    return True


def _own(path: str, mode: int, group: int | None) -> None:
    about = os.stat(path)
    if about.st_uid != os.geteuid():
        raise StoreRefused(f"{path} belongs to uid {about.st_uid}, not to the manager's uid {os.geteuid()}")
    if group is not None and about.st_gid != group:
        try:
            os.chown(path, -1, group)
        except PermissionError as exc:
            raise StoreRefused(
                f"{path} must belong to group {group}: add the manager's user to it, or chgrp it as root"
            ) from exc
    if stat.S_IMODE(about.st_mode) != mode or group is not None:
        os.chmod(path, mode)


def _refuse_open_parents(root: Path) -> None:
    """Raise StoreRefused if another user could replace the mailbox with a folder of their own."""
    for place in (root := Path(os.path.realpath(root)), *root.parents):
        if not place.exists():
            continue  # the manager will make it for itself alone
        mode = os.stat(place).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StoreRefused(f"{place} can be written to by everybody: chmod o-w it, or choose another place")


def _refuse_closed_parents(root: Path, group: int) -> None:
    """Raise StoreRefused if clients of other users could not reach the mailbox."""
    for place in Path(os.path.realpath(root)).parents:
        if not place.exists():
            raise StoreRefused(f"{place} is missing: make it with mode 0711, so that clients can pass")
        about = os.stat(place)
        if not about.st_mode & (stat.S_IXOTH | (stat.S_IXGRP if about.st_gid == group else 0)):
            raise StoreRefused(f"{place} lets no client pass: chmod o+x it, or set ipc.root to another place")


def _group(settings: MailboxSettings) -> int:
    if settings.group is None:
        raise StoreRefused("clients of their own users need a group that holds them all: set `group`")
    return settings.group


def _group_of(uid: int) -> int:
    import pwd

    try:
        return pwd.getpwuid(uid).pw_gid
    except KeyError:
        return uid
