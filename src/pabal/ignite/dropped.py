"""Files that programs put into `queue/<agent>/` where the mail lies in a database: each is taken and sent on, once.

A file is moved to `taken/` first, where nobody writes, then published under an id of its own or of its document, then
removed: whoever is killed in between is followed by one who publishes it again, which the store knows by the id.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256

from pabal.errors import PabalError, StoreError, TooLarge
from pabal.ignite.layout import QUEUES
from pabal.ignite.workspace import Workspace
from pabal.store import Draft, Terms
from pabal.stores.files.calls import rename_new
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.names import fitting
from pabal.stores.files.reading import UNREADABLE, read_whole


class Dropped:
    """Takes files in. `set_aside` (agent, path, name, why) keeps what is no message."""

    def __init__(self, workspace: Workspace, set_aside: Callable[[str, str, str, PabalError], None]) -> None:
        self._workspace = workspace
        self._set_aside = set_aside

    def take(self, agent: str, whole: Callable[[str], bool]) -> bool:
        """Send on what was dropped for an agent and is whole; False if something is still being written."""
        assert self._workspace.papered is not None
        papers, all_whole = self._workspace.papered.papers, True
        papers.make(agent)
        taken = papers.private(agent, "taken")
        folder = f"{self._workspace.root}/{QUEUES}/{agent}"
        for name in filter(self._workspace.layout.admits, files_in(folder)):
            try:
                if whole(f"{folder}/{name}"):
                    rename_new(f"{folder}/{name}", f"{taken}/{new_tag()}~{fitting(name)}")
                else:
                    all_whole = False
            except FileNotFoundError:
                continue
        for name in files_in(taken):
            self._send(agent, f"{taken}/{name}", name.partition("~")[2])
        return all_whole

    def _send(self, agent: str, path: str, name: str) -> None:
        workspace = self._workspace
        try:
            data, at = read_whole(path)
            # A file that names no id has one made of itself and of the moment at which it was taken.
            id = f"file-{sha256(os.fsencode(os.path.basename(path)) + data).hexdigest()[:32]}"
            message = workspace.layout.codec.decode(data, id=id, at=at)
            policy = workspace.team.policy
            if len(data) > policy.max_bytes:
                raise TooLarge(f"{policy.max_bytes} bytes at most; found {len(data)}")
            # However many wait: who dropped it cannot be told to try again.
            workspace.store.publish([Draft(agent, message, terms=Terms(policy.dedup_window, policy.max_bytes))])
        except (StoreError, FileNotFoundError):
            raise
        except (*UNREADABLE, PabalError) as exc:
            self._set_aside(agent, path, name, exc)
            return
        os.unlink(path)


def files_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
