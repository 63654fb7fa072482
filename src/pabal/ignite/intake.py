"""Mail that came another way: put straight into `processed/`, in the old YAML form, for nobody, or unreadable.

Nothing is passed over in silence: it is delivered, or set aside with its reason and the leader told, once.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Container
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pabal.codecs.mime import yaml_read
from pabal.errors import (
    DecodeError,
    InvalidInput,
    LeaseLost,
    MissingHeader,
    PabalError,
    QueueFull,
    QueueUnknown,
    StoreError,
)
from pabal.ignite import mail
from pabal.ignite.dropped import Dropped, files_in
from pabal.ignite.layout import DEAD_LETTERS, LEGACY, QUEUES
from pabal.ignite.team import MONITOR
from pabal.ignite.workspace import Workspace
from pabal.jsontext import Json
from pabal.message import replace
from pabal.store import FailureCode, State, Terms
from pabal.stores.files.calls import rename_new
from pabal.stores.files.dedup import new_tag
from pabal.stores.files.names import fitting
from pabal.stores.files.reading import UNREADABLE, read_whole

log = logging.getLogger("pabal.ignite")

PATIENCE = 2.0  # seconds that a writer may take
_TOLD_FOR = 30 * 86400.0
_SLICE = 1000


class Intake:
    """Looks after what the store alone would leave lying, or set aside without a word."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._clock = workspace.clock
        self._dropped = Dropped(workspace, self._set_aside_as)
        self._again: dict[str, float] = {}  # agents with files that may not be whole yet, and when to look again

    def arrived(self, agent: str, name: str) -> None:
        """Take note of a name that came or went in an agent's `processed/`."""
        slot = self._workspace.names.parse(name)
        if slot is None or not slot.leased:
            self.take_processed(agent)

    def look_again(self, now: float) -> None:
        for agent in [agent for agent, at in self._again.items() if at <= now]:
            del self._again[agent]
            self.take_processed(agent)
            self.take_legacy(agent)
            self.take_dropped(agent)

    def next_due(self, now: float) -> float | None:
        return max(0.0, min(self._again.values()) - now) if self._again else None

    # Into queue/, where the mail itself lies in a database

    def take_dropped(self, agent: str) -> None:
        """Send on what programs put among the files that wait. The store of files does this by itself."""
        if self._workspace.papered is not None and not self._dropped.take(agent, self._is_whole):
            self._wait(agent)

    # Straight into processed/

    def take_processed(self, agent: str) -> None:
        """Move what nobody leased from `processed/` to where mail waits, once it is whole."""
        folder = self._workspace.processed(agent)
        for name in files_in(folder):
            slot = self._workspace.names.parse(name)
            if (slot is None or not slot.leased) and self._workspace.layout.admits(name):
                self._move(agent, f"{folder}/{name}", name)

    def _move(self, agent: str, path: str, name: str) -> None:
        with suppress(FileNotFoundError):
            if not self._is_whole(path):
                self._wait(agent)
                return
            target = f"{self._workspace.root}/{QUEUES}/{agent}/{name}"
            try:
                rename_new(path, target)
            except FileExistsError:
                ends = self._workspace.names.extension if name.endswith(self._workspace.names.extension) else ""
                another = f"{fitting(name.removesuffix(ends))}-{new_tag()}{ends}"
                rename_new(path, f"{os.path.dirname(target)}/{another}")

    def _is_whole(self, path: str) -> bool:
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) or self._clock.now() - about.st_mtime >= PATIENCE:
            return True
        try:
            self._workspace.layout.codec.decode(read_whole(path)[0])
        except UNREADABLE:
            return False
        return True

    def _wait(self, agent: str) -> None:
        self._again.setdefault(agent, self._clock.boot() + PATIENCE)

    def set_aside_unreadable(self, agent: str) -> None:
        """Set aside what is in hand and can no longer be read: nobody could ever settle it."""
        for name, slot in list(self._workspace.held_names(agent)):
            path = f"{self._workspace.processed(agent)}/{name}"
            try:
                self._workspace.layout.codec.decode(read_whole(path)[0], id=slot.id)
            except FileNotFoundError:
                continue
            except UNREADABLE as exc:
                self._set_aside(agent, path, exc)

    # The old form

    def is_legacy(self, name: str) -> bool:
        return name.endswith(LEGACY) and not name.startswith(".")

    def take_legacy(self, agent: str) -> None:
        """Turn files of the old YAML form into messages."""
        folder = f"{self._workspace.root}/{QUEUES}/{agent}"
        for name in filter(self.is_legacy, files_in(folder)):
            path = f"{folder}/{name}"
            try:
                data, written_at = read_whole(path)
                self._convert(agent, name, data)
            except FileNotFoundError:
                continue
            except QueueFull:
                self._wait(agent)
                continue
            except UNREADABLE as exc:
                self._set_aside(agent, path, exc)
                continue
            except (InvalidInput, QueueUnknown) as exc:
                if self._clock.now() - written_at >= PATIENCE:
                    self._set_aside(agent, path, exc)
                else:
                    self._wait(agent)
                continue
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _convert(self, agent: str, name: str, data: bytes) -> None:
        found = yaml_read.read(data)
        if not isinstance(found, dict):
            raise InvalidInput("the old form is an object with type, from, to, priority and payload")
        missing = [field for field in ("type", "from", "payload") if field not in found]
        if missing:
            raise MissingHeader(f"{', '.join(missing)}: missing from a file of the old form")
        mark = sha256(agent.encode() + b"/" + os.fsencode(name) + b"/" + data).hexdigest()[:32]
        mail.send(
            self._workspace,
            sender=str(found["from"]),
            to=agent,
            type=str(found["type"]),
            body=found["payload"],
            priority=str(found.get("priority") or "normal"),
            id=f"yaml-{mark}",  # so that it is sent once, however often it is begun
        )

    def _set_aside(self, agent: str, path: str, exc: PabalError) -> None:
        self._set_aside_as(agent, path, os.path.basename(path), exc)

    def _set_aside_as(self, agent: str, path: str, name: str, exc: PabalError) -> None:
        folder = f"{self._workspace.root}/{self._workspace.layout.directory(agent, State.CORRUPT)}"
        target = f"{folder}/{fitting(name)}"
        if os.path.lexists(target):
            target += f"~{new_tag()}"  # another bad file of that name keeps its place
        reason = exc.reason if isinstance(exc, DecodeError) else f"{exc.code}: {exc}"
        Path(f"{target}.why").write_text(f"{reason}\n")
        with suppress(FileNotFoundError):
            os.rename(path, target)

    # Telling

    def tell_corrupt(self, agent: str) -> None:
        """Tell the leader of what was set aside as unreadable, once for each file."""
        folder = f"{self._workspace.root}/{self._workspace.layout.directory(agent, State.CORRUPT)}"
        for name in files_in(folder):
            if not name.endswith(".why") and not name.startswith("."):
                try:
                    reason = Path(f"{folder}/{name}.why").read_text().strip()
                except OSError:
                    reason = "no reason was left"
                known = fitting(name)
                self.tell(f"corrupt/{agent}/{known}", f"unreadable message {known}", agent, reason)
        if self._workspace.papered is not None:
            for entry in self._workspace.store.browse(agent, State.CORRUPT):
                reason = entry.failure.reason if entry.failure is not None else "no reason was left"
                self.tell(f"corrupt/{agent}/{entry.id}", f"unreadable message {entry.id}", agent, reason)

    def tell(self, key: str, title: str, assignee: str, reason: str) -> None:
        """Tell the leader of something that a person should look at; the same thing only once."""
        if self._was_told(key):
            return
        body: dict[str, Json] = {
            "task_id": key,
            "title": title,
            "original_assignee": assignee,
            "failure_reason": reason,
            "retry_count": 0,
            "max_retries": 0,
            "recommended_action": "manual_review",
            "notes": "`pabal ignite status` and `pabal ignite dlq` show more",
        }
        drafts = mail.compose(
            self._workspace,
            sender=MONITOR,
            to=self._workspace.team.leader,
            type="escalation",
            body=body,
            priority="critical",
            id=f"told-{sha256(key.encode()).hexdigest()[:32]}",  # so that telling it again after a crash tells nothing
        )
        # However full the leader's queue is: this must not be lost.
        self._workspace.store.publish([replace(draft, terms=Terms()) for draft in drafts])
        with suppress(StoreError):
            self._workspace.memory.first(f"told/{key}", self._clock.now(), _TOLD_FOR)
        log.warning("%s: %s", title, reason, extra={"pabal": {"agent": assignee}})

    def _was_told(self, key: str) -> bool:
        try:
            return self._workspace.memory.seen(f"told/{key}", self._clock.now(), _TOLD_FOR)
        except StoreError:
            return False  # without memory the id still holds it back for a while

    def bury_unknown(self, served: Container[str]) -> None:
        """Bury mail for those who are no agents: nobody would ever fetch it."""
        for name in self._workspace.layout.queues(self._workspace.root):
            if name in served or name in self._workspace.team.agents or name == DEAD_LETTERS:
                continue
            self.take_processed(name)
            self.take_dropped(name)
            found = [self._workspace.delivery(held) for held in self._workspace.held(name)]
            if self._workspace.papered is not None or files_in(f"{self._workspace.root}/{QUEUES}/{name}"):
                found += self._workspace.queue(name).lease(_SLICE)
            for delivery in found:
                with suppress(LeaseLost):
                    delivery.fail(FailureCode.VALIDATION_ERROR, f"there is no agent {name} in the team")
