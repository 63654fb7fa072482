"""The folders of a mailbox: who may do what in them, and every step that a request file takes through them.

A file is claimed by a rename into a folder that only the manager can write to, and is opened only there. Request and
answer files are not flushed: what an answer promises was made durable by the store before it was written.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from pabal import jsontext
from pabal.durable import make_dirs, translated, write_new
from pabal.errors import NotARegularFile, StoreRefused
from pabal.ids import new_token
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.spares import keep, put
from pabal.names import check_id, check_name

SUFFIX = ".json"


class Folders:
    def __init__(self, root: Path, settings: MailboxSettings) -> None:
        self.root = root
        self.settings = settings
        self.requests = f"{root}/{settings.requests}"
        self.processing = f"{root}/{settings.processing}"
        self.responses = f"{root}/{settings.responses}"
        self.dead = f"{root}/{settings.dead}"
        self.bells = f"{root}/{settings.bells}"
        self.archive = f"{root}/{settings.archive}"
        self._shared = settings.clients is not None  # between users, each client one of its own

    def prepare(self) -> None:
        """Make every folder with its owner and mode; raise StoreRefused where they would protect nothing."""
        with translated(f"making the mailbox {self.root}"):
            make_dirs(self.root)
            _refuse_open_parents(self.root)
            for path in (self.processing, self.dead, self.archive):
                self._make(path, 0o700)
            group = _group(self.settings) if self._shared else None
            # Clients may put files in and take their own out again; they can neither list nor touch those of others.
            self._make(self.requests, 0o3730 if self._shared else 0o700, group)
            self._make(self.responses, 0o710 if self._shared else 0o700, group)
            self._make(self.bells, 0o2750 if self._shared else 0o700, group)
            if group is not None:
                _refuse_closed_parents(self.root, group)
                _own(str(self.root), 0o710, group)
            for client, uid in (self.settings.clients or {}).items():
                self._make(f"{self.responses}/{check_name(client, 'client')}", 0o2750, _group_of(uid))

    def _make(self, path: str, mode: int, group: int | None = None) -> None:
        make_dirs(Path(path))
        _own(path, mode, group)

    # The way of a request

    def claim(self, name: str, claimed: str) -> bool:
        """Take a file out of its writer's reach; False if it is gone.

        Raise NotARegularFile for what stays where it is, a folder of somebody else. What else cannot be moved, as on a
        full disk, is left for the next look.
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
        """Put a file back of which nothing was done, unless its name is taken: then the next start finds it."""
        with suppress(OSError):
            if not os.path.lexists(f"{self.requests}/{name}"):
                os.rename(f"{self.processing}/{claimed}", f"{self.requests}/{name}")

    def answer(self, client: str, name: str, data: bytes) -> None:
        """Put an answer where its client looks for it."""
        folder = f"{self.responses}/{client}"
        try:
            self._put(folder, name, data)
        except FileNotFoundError:
            make_dirs(Path(folder))
            self._put(folder, name, data)

    def _put(self, folder: str, name: str, data: bytes) -> None:
        if not self._shared:
            put(f"{folder}/{name}", data, folder=folder, kind="answer")
            return
        draft = f"{folder}/.{new_token()}.tmp"
        fd = write_new(draft, data, mode=0o640)
        try:
            os.fchmod(fd, 0o640)  # whatever the umask says: the client's group must be able to read it
        finally:
            os.close(fd)
        os.rename(draft, f"{folder}/{name}")

    def finish(self, claimed: str, client: str) -> None:
        """Let go of a request that was answered; where they are of one user, its client may use the file again."""
        path = f"{self.processing}/{claimed}"
        if not self._shared:
            keep(path, folder=f"{self.responses}/{client}", kind="request")
        else:
            with suppress(FileNotFoundError):
                os.unlink(path)

    def set_aside(self, claimed: str, name: str, reason: str, at: float) -> None:
        """Move a request to the dead ones, with its reason beside it."""
        target = name if not os.path.lexists(f"{self.dead}/{name}") else f"{name}~{new_token()}"
        told = jsontext.pretty({"reason": reason, "movedAt": round(at * 1000)})
        with suppress(OSError):  # no room, for instance: a reason is no reason to stop
            os.close(write_new(f"{self.dead}/{target}.reason", told))
        with suppress(OSError):
            os.rename(f"{self.processing}/{claimed}", f"{self.dead}/{target}")


def is_request(name: str) -> bool:
    """Say whether a name can be that of a request, and of its answer; others are left or set aside unread."""
    if not name.endswith(SUFFIX):
        return False
    try:
        check_id(name[: -len(SUFFIX)])
    except ValueError:
        return False
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
    """Raise StoreRefused if somebody else could put another folder in the mailbox's place."""
    for place in (root := Path(os.path.realpath(root)), *root.parents):
        mode = os.stat(place).st_mode
        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
            raise StoreRefused(f"{place} can be written to by everybody: chmod o-w it, or choose another place")


def _refuse_closed_parents(root: Path, group: int) -> None:
    """Raise StoreRefused if clients of other users could not come as far as the mailbox."""
    for place in Path(os.path.realpath(root)).parents:
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
