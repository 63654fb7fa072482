"""A client's end of the mailbox: writes a request, waits for its answer, and says what became of it.

A request that nobody took by its deadline is withdrawn, so that it is not run behind its client's back.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pabal import jsontext
from pabal.clock import Clock, SystemClock
from pabal.durable import translated, write_new
from pabal.errors import NoAnswer, Refused, StoreMissing
from pabal.ids import IdMaker
from pabal.mailbox.folders import SUFFIX
from pabal.mailbox.protocol import Code
from pabal.mailbox.settings import MailboxSettings
from pabal.mailbox.spares import keep, put
from pabal.names import check_name
from pabal.watch import MOVED_TO, PathWatch

SLOW_POLL = 1.0  # seconds between looks when nothing rings
T = TypeVar("T")


class _Error(msgspec.Struct):
    code: str = Code.INTERNAL_ERROR
    message: str = ""
    type: str = ""
    ids: list[str] = []


class _Answer(msgspec.Struct):
    ok: bool
    data: msgspec.Raw = msgspec.Raw(b"{}")
    error: _Error = msgspec.field(default_factory=_Error)


_decode = msgspec.json.Decoder(_Answer).decode


class Mailbox:
    """Asks the manager of a mailbox. Threads and forked children may share it."""

    def __init__(
        self,
        root: Path,
        client: str,
        *,
        clock: Clock | None = None,
        timeout: float = 30.0,
        settings: MailboxSettings | None = None,
    ) -> None:
        settings = settings or MailboxSettings()
        self.root = root
        self.client = check_name(client, "client")
        self.timeout = timeout
        self._clock = clock or SystemClock()
        self._ids = IdMaker(self._clock)
        self._requests = f"{root}/{settings.requests}"
        self._answers = f"{root}/{settings.responses}/{client}"
        self.bells = f"{root}/{settings.bells}"
        self._watches: list[PathWatch] = []
        self._folder = -1  # of our answers, open: it tells when it was removed
        self._pid = os.getpid()
        if not self.exists(root, settings):
            raise StoreMissing(f"no mailbox at {root}: start its manager with `pabal up`")
        self._foreign = os.stat(self._requests).st_uid != os.geteuid()
        with translated(f"opening the mailbox {root} as client {client}"):
            self._watches.append(self._begin())

    @staticmethod
    def exists(root: Path, settings: MailboxSettings | None = None) -> bool:
        """Say whether a manager has made its mailbox there."""
        return os.path.isdir(root / (settings or MailboxSettings()).requests)

    def ask(
        self,
        command: str,
        payload: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        request_id: str = "",
    ) -> Any:
        """Return the data of the answer; raise Refused if it was no, NoAnswer if none came in time.

        Asking again under the same `request_id` is safe: what was done is not done twice.
        """
        return jsontext.decode(bytes(self.ask_raw(command, payload or {}, timeout=timeout, request_id=request_id)))

    def ask_for(self, expected: type[T], command: str, payload: object) -> T:
        """Return the data of the answer as a value of this type."""
        return msgspec.json.decode(self.ask_raw(command, payload), type=expected)

    def ask_raw(
        self, command: str, payload: object, *, timeout: float | None = None, request_id: str = ""
    ) -> msgspec.Raw:
        patience = self.timeout if timeout is None else timeout
        request_id = request_id or self._ids()
        now = self._clock.now()
        document = {
            "requestId": request_id,
            "clientId": self.client,
            "command": command,
            "timestampMs": round(now * 1000),
            "deadlineMs": round((now + patience) * 1000),
            "payload": payload,
        }
        answer = _decode(self.exchange(f"{request_id}{SUFFIX}", jsontext.encode(document), patience))
        if not answer.ok:
            error = answer.error
            raise Refused(error.code, error.message, kind=error.type, ids=tuple(error.ids))
        return answer.data

    def exchange(self, name: str, data: bytes, timeout: float) -> bytes:
        """Put a request file in place and return the bytes of its answer; raise NoAnswer if none came in time."""
        deadline = time.monotonic() + timeout
        with translated(f"writing a request to {self._requests}"):
            watch = self._take_watch()
        try:
            with translated(f"writing a request to {self._requests}"):
                self._submit(name, data)
            while True:
                remaining = deadline - time.monotonic()
                watch.wait(min(max(remaining, 0.0), SLOW_POLL))  # armed before the request: nothing is missed
                if (answer := self._read(name)) is not None:
                    return answer
                if remaining <= 0:
                    raise self._given_up(name, timeout)
        finally:
            self._watches.append(watch)

    def close(self) -> None:
        while self._watches:
            self._watches.pop().close()
        if self._folder >= 0:
            folder, self._folder = self._folder, -1
            os.close(folder)

    def _begin(self) -> PathWatch:
        """Make sure of our folder and listen to it."""
        with suppress(FileExistsError):
            os.mkdir(self._answers, 0o700)
        self._folder = os.open(self._answers, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return PathWatch({self._answers: MOVED_TO})

    def _submit(self, name: str, data: bytes) -> None:
        path = f"{self._requests}/{name}"
        if not self._foreign:
            put(path, data, folder=self._answers, kind="request")
            return
        fd = write_new(f"{path}.tmp", data)
        try:
            # For the manager, who is in this user's own group, and for nobody else in the group of all clients.
            os.fchown(fd, -1, os.getegid())
            os.fchmod(fd, 0o640)
        finally:
            os.close(fd)
        os.rename(f"{path}.tmp", path)

    def _read(self, name: str) -> bytes | None:
        path = f"{self._answers}/{name}"
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        keep(path, folder=self._answers, kind="answer")
        return data

    def _given_up(self, name: str, timeout: float) -> NoAnswer:
        told = f"no answer from the manager of {self.root} in {timeout:g} s"
        try:
            os.unlink(f"{self._requests}/{name}")
        except OSError:
            return NoAnswer(f"{told}; it took the request, and repeating it with the same id is safe")
        return NoAnswer(f"{told}, so the request was withdrawn: see whether `pabal up` runs", withdrawn=True)

    def _take_watch(self) -> PathWatch:
        if self._pid != os.getpid():
            self._watches = []  # the parent's: what one of us hears the other would miss
            self._pid = os.getpid()
        if self._folder < 0 or os.fstat(self._folder).st_nlink == 0:
            self.close()  # our folder was cleaned away while nothing was asked: these hear nothing any more
            return self._begin()
        try:
            return self._watches.pop()
        except IndexError:
            return PathWatch({self._answers: MOVED_TO})
