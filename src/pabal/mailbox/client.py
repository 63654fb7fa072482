"""A client's side of a mailbox: writes a request and waits for its answer.

A request that the manager did not take before the deadline is withdrawn, so that it is not run later unnoticed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pabal import jsontext
from pabal.clock import SLOW_POLL, Clock, SystemClock
from pabal.durable import translated, write_new
from pabal.errors import NoAnswer, Refused, StoreMissing
from pabal.ids import IdMaker
from pabal.mailbox.folders import SUFFIX, keep_for_reuse, write_reusing
from pabal.mailbox.protocol import Code
from pabal.mailbox.settings import MailboxSettings, read_layout
from pabal.names import check_name
from pabal.watch import MOVED_TO, PathWatch


class _Error(msgspec.Struct):
    code: str = Code.INTERNAL_ERROR
    message: str = ""
    type: str = ""
    ids: list[str] = []


class _Answer(msgspec.Struct):
    ok: bool
    data: msgspec.Raw = msgspec.Raw(b"{}")
    error: _Error = msgspec.field(default_factory=_Error)


_decode = jsontext.decoder(_Answer)
_BROKEN = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)

T = TypeVar("T")


def read_answer(data: bytes) -> msgspec.Raw:
    """Return the data of an answer; raise Refused if it is a refusal, NoAnswer if it cannot be read."""
    try:
        answer = _decode(data)
    except _BROKEN as exc:
        raise _broken(exc) from exc
    if not answer.ok:
        raise _refusal(answer.error)
    return answer.data


def _refusal(error: _Error) -> Refused:
    return Refused(error.code, error.message, kind=error.type, ids=tuple(error.ids))


def read_data(data: msgspec.Raw, kind: type[T]) -> T:
    """Return the data of an answer as a value of this type; raise NoAnswer if it is none."""
    try:
        return jsontext.decode_as(data, kind)
    except _BROKEN as exc:
        raise _broken(exc) from exc


def _broken(exc: Exception) -> NoAnswer:
    return NoAnswer(f"the answer of the manager cannot be read ({exc}): repeating with the same id is safe")


class Mailbox:
    """Sends requests to the manager of a mailbox. Threads and forked children may share it."""

    def __init__(
        self,
        root: Path,
        client: str,
        *,
        clock: Clock | None = None,
        timeout: float = 30.0,
    ) -> None:
        layout = read_layout(root)
        self.root = root
        self.client = check_name(client, "client")
        self.timeout = timeout
        self._clock = clock or SystemClock()
        self._ids = IdMaker(self._clock)
        self._requests = f"{root}/{layout.requests_dir}"
        self._answers = f"{root}/{layout.responses_dir}/{client}"
        self.wakeups = f"{root}/{MailboxSettings().wakeups}"
        self._watches: list[PathWatch] = []
        self._folder = -1  # descriptor of our answers' folder: its link count shows when the folder was removed
        self._pid = os.getpid()
        if not os.path.isdir(self._requests):
            raise StoreMissing(f"no mailbox at {root}: start its manager with `pabal up`")
        self._foreign = os.stat(self._requests).st_uid != os.geteuid()
        with translated(f"opening the mailbox {root} as client {client}"):
            self._watches.append(self._begin())

    @staticmethod
    def exists(root: Path) -> bool:
        """Return whether a manager has made its mailbox there."""
        return os.path.isdir(root / read_layout(root).requests_dir)

    def ask(
        self,
        command: str,
        payload: Mapping[str, Any] | None = None,
        *,
        timeout: float | None = None,
        request_id: str = "",
    ) -> Any:
        """Return the data of the answer; raise Refused if the manager refuses, NoAnswer if no answer came in time.

        Asking again with the same `request_id` is safe: its effect happens once.
        """
        return read_data(self.ask_raw(command, payload or {}, timeout=timeout, request_id=request_id), object)

    def ask_raw(
        self, command: str, payload: object, *, timeout: float | None = None, request_id: str = ""
    ) -> msgspec.Raw:
        """Return the data of the answer as JSON text; else like `ask`."""
        patience = self.timeout if timeout is None else timeout
        document = self._document(command, payload, patience, request_id)
        return read_answer(self.exchange(f"{document['requestId']}{SUFFIX}", jsontext.encode(document), patience))

    def ask_many(
        self, command: str, payloads: Sequence[Mapping[str, Any]], *, timeout: float | None = None
    ) -> list[Any | Refused]:
        """Send up to 1,000 requests of one kind in one file; return the data or the refusal of each."""
        patience = self.timeout if timeout is None else timeout
        documents = [self._document(command, payload, patience) for payload in payloads]
        data = self.exchange(f"{documents[0]['requestId']}{SUFFIX}", jsontext.encode(documents), patience)
        try:
            answers = jsontext.decode_as(data, list[_Answer])
        except _BROKEN as exc:
            raise _broken(exc) from exc
        return [read_data(each.data, object) if each.ok else _refusal(each.error) for each in answers]

    def _document(self, command: str, payload: object, patience: float, request_id: str = "") -> dict[str, Any]:
        return {
            "requestId": request_id or self._ids(),
            "clientId": self.client,
            "command": command,
            "deadlineMs": round((self._clock.now() + patience) * 1000),
            "payload": payload,
        }

    def exchange(self, name: str, data: bytes, timeout: float) -> bytes:
        """Write a request file and return the bytes of its answer; raise NoAnswer if no answer came in time."""
        deadline = time.monotonic() + timeout
        with translated(f"writing a request to {self._requests}"):
            watch = self._take_watch()
        try:
            with translated(f"writing a request to {self._requests}"):
                self._submit(name, data)
            while True:  # the watch began before the request was written, so it misses no answer
                remaining = deadline - time.monotonic()
                watch.wait(min(max(remaining, 0.0), SLOW_POLL))
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
        """Make our folder of answers if it is missing, and watch it."""
        with suppress(FileExistsError):
            os.mkdir(self._answers, 0o700)
        self._folder = os.open(self._answers, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return PathWatch({self._answers: MOVED_TO})

    def _submit(self, name: str, data: bytes) -> None:
        path = f"{self._requests}/{name}"
        if not self._foreign:
            write_reusing(path, data, folder=self._answers, kind="request")
            return
        fd = write_new(f"{path}.tmp", data)
        try:
            # Readable by the manager, which is in this user's own group, and not by the group of all clients.
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
        keep_for_reuse(path, folder=self._answers, kind="answer")
        return data

    def _given_up(self, name: str, timeout: float) -> NoAnswer:
        problem = f"no answer from the manager of {self.root} in {timeout:g} s"
        try:
            os.unlink(f"{self._requests}/{name}")
        except OSError:
            return NoAnswer(f"{problem}; it took the request, and repeating it with the same id is safe")
        return NoAnswer(f"{problem}, so the request was withdrawn: see whether `pabal up` runs", withdrawn=True)

    def _take_watch(self) -> PathWatch:
        if self._pid != os.getpid():
            self._watches = []  # the parent's: an event that one process reads is lost for the other
            self._pid = os.getpid()
        if self._folder < 0 or os.fstat(self._folder).st_nlink == 0:
            self.close()  # our folder was removed while we were idle: these watches report nothing any more
            return self._begin()
        try:
            return self._watches.pop()
        except IndexError:
            return PathWatch({self._answers: MOVED_TO})
