"""Intake: mail that came another way than through the store, and mail that nobody would fetch.

That is mail put straight into `processed/`, files of the old YAML form, files in the drop folder of a database team,
mail for unknown agents, and unreadable files. Each is delivered, or set aside with its reason and escalated once.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Container
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from pabal.apps.ignite import mail
from pabal.apps.ignite.layout import DEAD_LETTERS, LEGACY, files_in
from pabal.apps.ignite.team import MONITOR
from pabal.apps.ignite.workspace import Workspace
from pabal.codecs import yaml
from pabal.codecs.mime.addresses import fixed_id
from pabal.errors import InvalidInput, LeaseLost, MissingHeader, QueueFull, QueueUnknown, StoreError
from pabal.filesystem import UNREADABLE, read_whole, rename_new
from pabal.ids import new_tag
from pabal.jsontext import Json
from pabal.message import replace
from pabal.store import FailureCode, State, Terms
from pabal.stores.files import safe_name

log = logging.getLogger("pabal.ignite")

PATIENCE = 2.0  # seconds that a program may take to write a file
_REMEMBERED = 30 * 86400.0  # seconds for which the same thing is escalated only once
_ESCALATED = "escalated"  # the prefix of keys in the memory
_SLICE = 1000


class Intake:
    """Handles files that the store alone would leave, or set aside without a word."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._folders = workspace.folders
        self._clock = workspace.clock
        self._again: dict[str, float] = {}  # agents with files that may be incomplete, and when to check them again

    def arrived(self, agent: str, name: str) -> None:
        """Handle a name that appeared or disappeared in an agent's `processed/`."""
        slot = self._folders.names.parse(name)
        if slot is None or not slot.leased:
            self.take_processed(agent)

    def check_again(self, now: float) -> None:
        for agent in [agent for agent, at in self._again.items() if at <= now]:
            del self._again[agent]
            self.take_processed(agent)
            self.take_legacy(agent)
            self.take_dropped(agent)

    def next_due(self, now: float) -> float | None:
        return max(0.0, min(self._again.values()) - now) if self._again else None

    def take_dropped(self, agent: str) -> None:
        """Publish the files that programs dropped into an agent's queue, where the mail lies in a database."""
        if not self._workspace.mail.take_dropped(agent, self._workspace.team.policy, self._is_complete):
            self._wait(agent)

    # Straight into processed/

    def take_processed(self, agent: str) -> None:
        """Move files that nobody leased from `processed/` to the waiting mail, once they are complete."""
        folder = self._folders.processed(agent)
        for name in files_in(folder):
            slot = self._folders.names.parse(name)
            if (slot is None or not slot.leased) and self._folders.layout.admits(name):
                self._move(agent, f"{folder}/{name}", name)

    def _move(self, agent: str, path: str, name: str) -> None:
        with suppress(FileNotFoundError):
            if not self._is_complete(path):
                self._wait(agent)
                return
            target = f"{self._folders.queue(agent)}/{name}"
            try:
                rename_new(path, target)
            except FileExistsError:
                extension = self._folders.names.extension
                ends = extension if name.endswith(extension) else ""
                another = f"{safe_name(name.removesuffix(ends))}-{new_tag()}{ends}"
                rename_new(path, f"{os.path.dirname(target)}/{another}")

    def _is_complete(self, path: str) -> bool:
        """Return whether a file is a message, or has not changed for so long that no program writes it any more."""
        about = os.lstat(path)
        if not stat.S_ISREG(about.st_mode) or self._clock.now() - about.st_mtime >= PATIENCE:
            return True
        try:
            self._folders.layout.codec.decode(read_whole(path)[0])
        except UNREADABLE:
            return False
        return True

    def _wait(self, agent: str) -> None:
        self._again.setdefault(agent, self._clock.boot() + PATIENCE)

    # The old YAML form

    def is_legacy(self, name: str) -> bool:
        return name.endswith(LEGACY) and not name.startswith(".")

    def take_legacy(self, agent: str) -> None:
        """Convert files of the old YAML form to messages."""
        folder = self._folders.queue(agent)
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
                self._folders.set_aside(agent, path, exc)
                continue
            except (InvalidInput, QueueUnknown) as exc:
                if self._clock.now() - written_at >= PATIENCE:
                    self._folders.set_aside(agent, path, exc)
                else:
                    self._wait(agent)
                continue
            with suppress(FileNotFoundError):
                os.unlink(path)

    def _convert(self, agent: str, name: str, data: bytes) -> None:
        found = yaml.read(data)
        if not isinstance(found, dict):
            raise InvalidInput("the old form is an object with type, from, to, priority and payload")
        missing = [field for field in ("type", "from", "payload") if field not in found]
        if missing:
            raise MissingHeader(f"{', '.join(missing)}: missing from a file of the old form")
        digest = sha256(agent.encode() + b"/" + os.fsencode(name) + b"/" + data).hexdigest()
        mail.send(
            self._workspace,
            sender=str(found["from"]),
            to=self._recipients(agent, name, found.get("to")),
            type=str(found["type"]),
            body=found["payload"],
            priority=str(found.get("priority") or "normal"),
            id=fixed_id(f"yaml/{digest}"),  # so that the file is published once, also after a crash
        )

    def _recipients(self, agent: str, name: str, listed: Json) -> list[str]:
        """Return the agents of a file of the old form: that of its queue first. One that does not exist is reported."""
        texts = listed.split(",") if isinstance(listed, str) else listed if isinstance(listed, list) else []
        found = [agent]
        for text in (str(each).strip() for each in texts):
            try:
                found += [self._workspace.team.recipient_of(text)] if text else []
            except QueueUnknown as exc:
                key, title = f"recipient/{agent}/{safe_name(name)}/{text}", f"{safe_name(name)} not delivered to all"
                self.escalate(key, title, text, f"there is no agent {text} in the team: {exc}")
        return found

    # Escalations

    def escalate_corrupt(self, agent: str) -> None:
        """Send the leader one escalation for each file or message that was set aside as corrupt."""
        folder = self._folders.directory(agent, State.CORRUPT)
        for name in files_in(folder):
            if not name.endswith(".why") and not name.startswith("."):
                try:
                    reason = Path(f"{folder}/{name}.why").read_text().strip()
                except OSError:
                    reason = "no reason was left"
                self._escalate_unreadable(agent, safe_name(name), reason)
        for entry in self._workspace.mail.set_aside(agent, State.CORRUPT):
            reason = entry.failure.reason if entry.failure is not None else "no reason was left"
            self._escalate_unreadable(agent, entry.id, reason)

    def _escalate_unreadable(self, agent: str, name: str, reason: str) -> None:
        self.escalate(f"corrupt/{agent}/{name}", f"unreadable message {name}", agent, reason)

    def escalate(self, key: str, title: str, assignee: str, reason: str) -> None:
        """Send the leader an escalation for a person to handle; only once for the same key."""
        if self._was_escalated(key):
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
            id=fixed_id(f"escalation/{key}"),  # a repetition after a crash is a duplicate
        )
        # However full the leader's queue is: this must not be lost.
        self._workspace.store.publish([replace(draft, terms=Terms()) for draft in drafts])
        with suppress(StoreError):
            self._workspace.memory.first(f"{_ESCALATED}/{key}", self._clock.now(), _REMEMBERED)
        log.warning("escalated: %(title)s: %(reason)s", {"title": title, "reason": reason, "agent": assignee})

    def _was_escalated(self, key: str) -> bool:
        try:
            return self._workspace.memory.seen(f"{_ESCALATED}/{key}", self._clock.now(), _REMEMBERED)
        except StoreError:
            return False  # without memory the message id still prevents a repetition for a while

    def forget_escalation(self, key: str) -> None:
        """Let the next escalation of this key be sent again."""
        try:
            self._workspace.memory.forget_seen(f"{_ESCALATED}/{key}")
        except StoreError as exc:
            log.warning("memory not written: %(error)s", {"error": str(exc)})

    def bury_unknown(self, served: Container[str]) -> None:
        """Bury mail for names that are no agents: nobody would ever fetch it."""
        for name in self._folders.layout.queues(self._workspace.root):
            if name in served or name in self._workspace.team.recipients or name == DEAD_LETTERS:
                continue
            self.take_processed(name)
            self.take_dropped(name)
            found = [self._workspace.delivery(held) for held in self._workspace.held(name)]
            if self._workspace.mail.may_have_mail(name):
                found += self._workspace.queue(name).lease(_SLICE)
            for delivery in found:
                with suppress(LeaseLost):
                    delivery.fail(FailureCode.VALIDATION_ERROR, f"there is no agent {name} in the team")
